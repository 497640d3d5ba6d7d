"""Clip, encode and sum a chunk's uploads: what every mechanism does with them, whoever computed them and however.

This is where uploads enter the privacy room, in simulation on any engine. A mechanism that only clips sums without
making the messages (`clipped_upload_sum`); all others encode every client's message, then sum. A client of a
federation, which is alone, encodes its own (`Release.encode`), and its server sums.
"""

from collections.abc import Callable

from torch import Tensor
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.privacy.mechanisms.clipped_upload_sum import Uploads, clipped_upload_sum, sum_by_level
from tacit.privacy.mechanisms.noise import Noise
from tacit.privacy.mechanisms.release import Message, Release, Totals

NoiseOf = Callable[[Tensor], Noise]
"""The noise of a client's key."""


def encoded_sum(release: Release, state: Tree, uploads: Uploads, levels: int, noise: NoiseOf) -> Totals:
    """The sum of a chunk's messages by level."""
    clips = release.only_clips(state)
    if clips is None:
        return sum_messages(encode_all(release, state, uploads, noise), uploads, levels)
    body, inside, power = clipped_upload_sum(uploads, clips.bound, levels)
    bit, sent = clips.beside(inside, power, uploads.level)
    return _totals(body, bit, sent, uploads, levels)


def encode_all(release: Release, state: Tree, uploads: Uploads, noise: NoiseOf) -> Message:
    """Every client's message, one row each."""

    def one(upload: Tree, level: Tensor, key: Tensor) -> Message:
        return release.encode(state, tree.split(upload), level, noise(key))

    return vmap(one)(uploads.stored(), uploads.level, uploads.key)


def sum_messages(messages: Message, uploads: Uploads, levels: int, bodies: bool = True) -> Totals:
    """Messages that were made, summed by level; without `bodies` theirs are left as they are, to be summed securely."""
    body = messages.body
    if bodies:
        body = tree.each(lambda leaf: sum_by_level(leaf, uploads, levels), body)
    return _totals(body, messages.bit, messages.power, uploads, levels)


def _totals(body: Tree, bit: Tensor, power: Tensor, uploads: Uploads, levels: int) -> Totals:
    bits, powers = (sum_by_level(each, uploads, levels) for each in (bit, power))
    return Totals(body, bits, powers, uploads.belongs(levels).sum(1))
