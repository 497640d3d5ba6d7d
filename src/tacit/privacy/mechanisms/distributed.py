"""Distributed noise: every client adds a share, the server sees only the sum (PrivateFL, Algorithm 3, corrected).

client: clip to C, times s, rotate, round at random within a norm, add a share of Skellam noise
sum:    modulo 2^b, by secure aggregation; in simulation the plain sum, unless it is asked for
server: unwrap around 0, rotate back, divide by s and the expected number of clients
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.distributed_solver import Coding
from tacit.privacy.mechanisms.release import Message, Totals
from tacit.privacy.mechanisms.rotation import rotate, rotate_back

BODY = "integers"


class Aggregation(Protocol):
    """What shows the server the sum of integer vectors modulo 2^b, and nothing else."""

    def reveal(self, total: Tensor, bits: int) -> Tensor:
        """Numbers of 0 to 2^b - 1."""
        ...


@dataclass(frozen=True)
class PlainSum:
    """Simulation: the sum was made in the open, and is reduced once."""

    def reveal(self, total: Tensor, bits: int) -> Tensor:
        return total & ((1 << bits) - 1)


def unwrap(residues: Tensor, bits: int) -> Tensor:
    """The numbers from -2^(b-1) to 2^(b-1) - 1 with these residues."""
    half = 1 << (bits - 1)
    return ((residues + half) & ((1 << bits) - 1)) - half


def wrapped(total: Tensor, bits: int) -> int:
    """How many coordinates of a true sum do not come back as they were. Known in simulation only."""
    return int((unwrap(total, bits) != total).sum())


@dataclass(frozen=True, eq=False)
class Distributed:
    """One client moves the integer sum by at most `coding.l2`; noise of `coding.least` shares is always in it.

    A round with fewer clients is discarded. In all others the server tops the noise up to `coding.most` shares, so
    that what is released has the same noise whoever took part. The divisor is the expected count.
    """

    coding: Coding
    like: Tree  # shapes and types of an upload
    expected: float
    aggregation: Aggregation = PlainSum()

    def start(self) -> Tree:
        return {"bound": torch.tensor(self.coding.bound, dtype=torch.float64), "turn": torch.tensor(0)}

    def blank(self, like: Tree) -> Tree:
        return {BODY: torch.zeros(self.coding.padded, dtype=torch.int64)} if like else {}

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        zero = torch.zeros(())
        body, _ = clip(tree.join(upload), self.coding.bound)
        if not body:
            return Message({}, zero, zero)
        vector = tree.flatten(body).double() * self.coding.scale
        spread = rotate(pad(vector, (0, self.coding.padded - self.coding.size)), state["turn"])
        integers = noise.round(spread, self.coding.limit)
        return Message({BODY: integers + noise.skellam(self.coding.padded, self.coding.share)}, zero, zero)

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        raise TacitError("a message of plan 'distributed' says nothing by itself: only sums are read")

    def only_clips(self, state: Tree) -> None:
        return None

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        clients, after = int(totals.members.sum()), state | {"turn": state["turn"] + 1}
        if not totals.body:
            return Shared({}), after
        if clients < self.coding.least:
            return None, after
        total = self.aggregation.reveal(totals.body[BODY].sum(0), self.coding.bits)
        missing = max(self.coding.most - clients, 0)
        if missing and self.coding.share:
            total = total + noise.skellam(self.coding.padded, missing * self.coding.share)
        vector = rotate_back(unwrap(total, self.coding.bits).double(), state["turn"])[: self.coding.size]
        mean = tree.unflatten(vector / (self.coding.scale * self.expected), self.like)
        return tree.split(tree.each(lambda leaf, like: leaf.to(like.dtype), mean, self.like)), after
