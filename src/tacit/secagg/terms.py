"""What a round's members agree on before anything secret exists, and the ways in which a round can fail."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tacit.errors import TacitError
from tacit.secagg.codec import dump

MOST_BITS: Final = 32
_MOST_ID: Final = 2**64


class Refused(TacitError):
    """A message or a request that is not acceptable; whoever refused it is as it was before."""


class Discarded(TacitError):
    """The round has no sum. It is charged all the same: members may have sent what depends on their data."""


class TooFew(Discarded):
    """Fewer members than the terms demand."""


class Spoiled(Discarded):
    """Shares that do not fit together: somebody sent wrong ones."""


@dataclass(frozen=True)
class Terms:
    """One round's public parameters. Its digest enters every key, signature and message of the round.

    `threshold`: members who must stay to the end, more than half of all, so that no two sets of survivors can both be
    unmasked. `least`: survivors whose inputs must be in the sum, or no member helps to unmask it.
    """

    run: str
    round: int
    members: tuple[int, ...]  # the cohort, present or not, in rising order
    size: int  # numbers in an input
    bits: int
    threshold: int
    least: int
    attempt: int = 0  # distinguishes a repeated round

    def __post_init__(self) -> None:
        n = len(self.members)
        if not n or list(self.members) != sorted(set(self.members)):
            raise TacitError(f"members must be distinct and in rising order, not {_short(self.members)}")
        if self.members[0] < 0 or self.members[-1] >= _MOST_ID:
            raise TacitError(f"a member's number lies between 0 and 2^64 - 1, not {_short(self.members)}")
        if not 1 <= self.bits <= MOST_BITS:
            raise TacitError(f"bits must lie between 1 and {MOST_BITS}, not {self.bits}")
        if not n < 2 * self.threshold <= 2 * n:
            raise TacitError(f"threshold must be more than half of {n} members and no more than all: {self.threshold}")
        if not self.threshold <= self.least <= n:
            raise TacitError(f"least must lie between the threshold {self.threshold} and {n} members, not {self.least}")
        for name in ("round", "attempt", "size"):
            if not 0 <= getattr(self, name) < 2**63:
                raise TacitError(f"{name} must not be negative, but is {getattr(self, name)}")

    @classmethod
    def of(
        cls,
        run: str,
        round: int,
        members: tuple[int, ...],
        *,
        size: int,
        bits: int,
        least: int = 1,
        share: float = 0.5,
        attempt: int = 0,
    ) -> "Terms":
        """`share` of the members unmask, and a majority at the least; at least `least` inputs are in the sum."""
        threshold = threshold_of(len(members), share)
        return cls(run, round, tuple(sorted(members)), size, bits, threshold, max(least, threshold), attempt)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"tacit secagg 1 terms" + dump(self)).digest()

    @cached_property
    def points(self) -> dict[int, int]:
        """Where each member's shares lie on the polynomials: 1 to n, in the order of members."""
        return {member: place for place, member in enumerate(self.members, 1)}


def threshold_of(members: int, share: float = 0.5) -> int:
    """How many of so many members must stay to the end: a `share` of them, and always more than half."""
    return max(members // 2 + 1, math.ceil(share * members - 1e-9))  # 0.7 * 10 is a little more than 7


def _short(members: tuple[int, ...]) -> str:
    return str(list(members[:5]))[:-1] + (", ...]" if len(members) > 5 else "]")
