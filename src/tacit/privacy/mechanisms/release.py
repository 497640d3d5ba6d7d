"""How an upload leaves a client, and what the server makes of the sum: what every mechanism's release must say.

`encode` runs on the client, `decode` on the server; between them lies one sum per level. A release never sees a
method, and states its noise as a multiple of its sensitivity: the plan turns that into an event of the ledger.

Uploads enter the privacy room here, in simulation on any engine (`encoded_sum`). A release that only clips sums without
making the messages (`clipped_upload_sum`); all others encode every client's message, then sum. A client of a
federation, which is alone, encodes its own, and its server sums what it admits.

Where noise is `exact`, bodies are integers on the lattice of their level (`lattice`), sums are sums of integers, and
the noise is discrete Gaussian: the same multiplier, by the proof of `discrete_gaussian`. Floats are made of what is
noisy alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms.clipped_upload_sum import Uploads, clipped_upload_sum, sum_by_level
from tacit.privacy.mechanisms.clipping import Clip
from tacit.privacy.mechanisms.lattice import limits, step
from tacit.privacy.mechanisms.noise import Noise

BIT: Final = 0.5
"""A bit of a moving clip bound is sent as plus or minus this."""
INTEGER: Final = torch.int32
ROUNDING: Final = 1e-3  # of norms of received messages
_UNBOUNDED: Final = 1e6  # norm of an upload without a bound: far above any that training gives


class Message(NamedTuple):
    """What leaves a client: its clipped upload, for a moving clip bound one bit as +-1/2, and its squared norm.

    The squared norm is sent by clients that opted out; for all others it is zero.
    """

    body: Tree
    bit: Tensor
    power: Tensor


class Totals(NamedTuple):
    """The sum of messages by level, [levels, ...], and how many there were (only `Open` may look at that)."""

    body: Tree
    bit: Tensor
    power: Tensor
    members: Tensor


class OnlyClips(NamedTuple):
    """A bound for the whole upload, and what goes with a clipped body: its bit and squared norm, given whether it was
    inside the bound, its squared norm once clipped, and its level."""

    bound: float | Tensor
    beside: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class MaskedSum(NamedTuple):
    """Messages that are one leaf of `size` integers modulo 2^bits, so that they can be summed under masks.

    `least`: clients in a sum that may be shown. `threshold`: the share of a cohort that must stay to the end for its
    sum to be unmasked; more than half of it, if 0.5.
    """

    leaf: str
    size: int
    bits: int
    least: int
    threshold: float


class Inadmissible(TacitError):
    """A received message that no honest client can have sent. `reason` is a word, to be counted."""

    def __init__(self, reason: Literal["huge", "shape"], message: str) -> None:
        super().__init__(message)
        self.reason: Literal["huge", "shape"] = reason


class Release(ABC):
    """What a mechanism does with uploads. What is not overridden is for bodies that are uploads as they are."""

    def start(self) -> Tree:
        """Public state, for example the clip bound: broadcast and checkpointed."""
        return {}

    def blank(self, template: Tree) -> Tree:
        """A message's body for an upload of these shapes, all zero."""
        return tree.zeros(template)

    @abstractmethod
    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: Noise) -> Message:
        """One client's message, of whatever its program gave: the clip is here, and nothing before it is trusted."""
        ...

    def only_clips(self, state: Tree) -> OnlyClips | None:
        """How `encode` clips, where it does no more to a body than that: a sum then needs no messages. Else None."""
        return None

    @abstractmethod
    def decode(self, state: Tree, totals: Totals, noise: Noise) -> tuple[Shared | None, Tree]:
        """The mean and the next public state; no mean where the round must be discarded."""
        ...

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        """Bodies in the units of an upload; leading dimensions of leaves are those of `level`."""
        return body

    def exactly(self, dtype: torch.dtype) -> "Release":
        """The same with noise that floating point cannot betray, and means of this type: what a federation asks for."""
        raise TacitError(
            f"the noise of {type(self).__name__} is on floating-point numbers: use it in simulations alone"
        )

    def largest_norm(self, state: Tree, size: int) -> float:
        """What no honest client's body of so many numbers exceeds, read in the units of an upload.

        Save with a chance below 1e-30, where it carries noise.
        """
        return _UNBOUNDED

    def admit(self, state: Tree, message: Message, template: Tree, level: int) -> Message:
        """A received message as it enters the sum, or `Inadmissible`. Its body has `template`'s leaves, all finite."""
        known = self.read(state, message.body, torch.tensor(level))
        largest = self.largest_norm(state, max(tree.size(message.body), 1))
        if not float(tree.norm(tree.each(lambda leaf: leaf.double(), known))) <= largest:
            raise Inadmissible("huge", f"a norm above {largest:g}")
        return message

    def wire(self, body: Tree) -> Tree:
        """A body as it is sent."""
        return body

    @property
    def masked_sum(self) -> MaskedSum | None:
        """How messages are summed under masks; None if they are not integers."""
        return None

    def std_of_mean(self, levels: np.ndarray) -> float:
        """Noise in each coordinate of a mean over clients of these levels, for a release that protects figures."""
        raise TacitError(f"{type(self).__name__} does not say what noise its mean has: let `for_figures` name another")


NoiseOf = Callable[[Tensor], Noise]
"""The noise of a client's key."""


def encoded_sum(release: Release, state: Tree, uploads: Uploads, levels: int, noise: NoiseOf) -> Totals:
    """The sum of a chunk's messages by level: clip, encode and sum, whoever computed the uploads and however."""
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


@dataclass(frozen=True)
class ClippedRelease(Release):
    """Gaussian noise, by level, on uploads of one clip bound, which may move; exact where it is asked for."""

    clip: Clip
    multipliers: tuple[float, ...]  # z of each level, 0 for a level without a guarantee
    exact: torch.dtype | None = field(default=None, kw_only=True)  # noise is exact, and the mean of this type

    @property
    @abstractmethod
    def ratios(self) -> list[float]:
        """Noise of each level, in clip bounds."""
        ...

    def start(self) -> Tree:
        return {"bound": torch.tensor(self.clip.bound, dtype=torch.float64)}

    def blank(self, template: Tree) -> Tree:
        """As an upload, or where noise is exact as integers of its shapes."""
        if self.exact is None:
            return tree.zeros(template)
        return tree.each(lambda leaf: torch.zeros_like(leaf, dtype=INTEGER), template)

    def exactly(self, dtype: torch.dtype) -> Self:
        return replace(self, exact=dtype)

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        dtype = self.exact
        if dtype is None:
            return body
        size = step(state["bound"], torch.tensor(self.ratios, dtype=torch.float64))[level]

        def scaled(leaf: Tensor) -> Tensor:
            inner = leaf.dim() - level.dim()
            return (leaf.double() * size.reshape((*level.shape, *(1,) * inner))).to(dtype)

        return tree.each(scaled, body)

    def bit(self, inside: Tensor) -> Tensor:
        """Zero where the rule moves by no bits, and so pays for none."""
        bit = inside.to(torch.float32) - BIT
        return bit if self.clip.bit_std(1.0) else torch.zeros_like(bit)

    def move_bound(self, state: Tree, bits: Tensor, clients: float) -> Tree:
        """The next bound, from the noisy sum of bits of so many clients in expectation."""
        return {"bound": self.clip.move(state["bound"], 0.5 + bits / clients)} if clients else state


def add_noise_to_bit(total: Tensor, ratio: Tensor, noise: Noise) -> Tensor:
    """A sum of bits of +-1/2 in steps of their own lattice, with its noise: a whole number, exact as a float64."""
    return ((2 * total).round().long() * limits(ratio) + noise.discrete(1, ratio)[0]).double()
