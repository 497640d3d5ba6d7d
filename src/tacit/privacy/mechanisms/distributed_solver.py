"""Bit-width, scale and noise of the distributed plan: how an upload becomes integers modulo 2^b, and what can go wrong.

Symbols as in PrivateFL, Algorithm 3: C the clip bound, s the scale, j the padded dimension, K clients in a round,
s^2 mu the variance of all noise, b the bits of a coordinate, m how many standard deviations fit into half the range:

    2^b = 2 m s sqrt(C^2 K^2 / j + K / (4 s^2) + mu)
"""

import math
from dataclasses import dataclass
from typing import Final

from tacit.errors import TacitError
from tacit.privacy.mechanisms.rotation import padded

WRAP: Final = 1e-6  # target for the chance that any coordinate of a round's sum wraps around
_REJECTED: Final = 1e-6  # v: the chance that a rounding is drawn again
_MOST_BITS: Final = 40


@dataclass(frozen=True)
class Coding:
    """How uploads of norm at most `bound` become integers. `least` and `most`: clients in a round that is released."""

    size: int
    bits: int
    bound: float
    scale: float
    share: float  # variance of one client's noise, in squared integers
    least: int  # noise shares that a guarantee counts on; with fewer clients a round is discarded
    most: int  # the server tops the noise up to this many shares

    @property
    def padded(self) -> int:
        return padded(self.size)

    @property
    def limit(self) -> float:
        """The largest squared norm of a rounded upload: rounding is repeated until it holds."""
        sc, root = self.scale * self.bound, math.sqrt(self.padded)
        likely = sc**2 + root**2 / 4 + math.sqrt(2 * math.log(1 / _REJECTED)) * (sc + root / 2)
        return min((sc + root) ** 2, likely)

    @property
    def l2(self) -> float:
        return math.sqrt(self.limit)

    @property
    def l1(self) -> float:
        """Integers are at most their squares, so the sum of them is at most the squared norm."""
        return min(math.sqrt(self.padded) * self.l2, self.limit)

    @property
    def half(self) -> int:
        """Sums of at least -half and below half come back as they are."""
        return 1 << (self.bits - 1)

    @property
    def std(self) -> float:
        """Of the released sum's noise in the units of an upload, rounding included."""
        return math.sqrt(self.share * self.most + self.most / 4) / self.scale

    def wraps(self, clients: int | None = None) -> float:
        """An upper bound on the chance that any coordinate wraps around in a round of so many clients, by Chernoff.

        Signs and rounding are sub-Gaussian, Skellam noise has log E[e^(tX)] = v (cosh t - 1). Rounding is conditioned
        on its norm, which makes nothing more likely by more than (1 - v)^-K.
        """
        k = self.most if clients is None else clients
        smooth = (self.scale * self.bound * k) ** 2 / self.padded + k / 4
        noise = self.share * max(k, self.most)
        t = self.half / (smooth + noise)
        log_chance = min(
            smooth * t**2 / 2 + noise * (math.cosh(t) - 1) - t * self.half
            for t in (t, 0.95 * t, 0.9 * t, 0.8 * t, min(t, 1.0))
        )
        conditioned = -k * math.log1p(-_REJECTED)
        return min(1.0, 2 * self.padded * math.exp(min(log_chance + conditioned, 0.0)))


def solve(variance: float, size: int, bound: float, bits: int, least: int, most: int) -> Coding:
    """The finest scale that `bits` allow for uploads of `size` numbers.

    `variance`: that of `most` noise shares together, in the units of an upload (the paper's mu).
    """
    size = max(size, 1)
    if not 1 <= bits <= _MOST_BITS:
        raise TacitError(f"bits must lie between 1 and {_MOST_BITS}, not {bits}: 16 to 20 are usual")
    j = padded(size)
    deviations = math.sqrt(2 * math.log(2 * j / WRAP))
    room = (2.0**bits / (2 * deviations)) ** 2 - most / 4
    if room <= 0:
        raise TacitError(
            f"{bits} bits cannot hold a sum of {most} rounded uploads: use at least {_bits(deviations, most)}"
        )
    scale = math.sqrt(room / ((bound * most) ** 2 / j + variance))
    return Coding(size, bits, bound, scale, scale**2 * variance / most, least, most)


def _bits(deviations: float, clients: int) -> int:
    return math.floor(math.log2(deviations * math.sqrt(clients))) + 1
