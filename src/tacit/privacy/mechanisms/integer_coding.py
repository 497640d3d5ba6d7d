"""How an upload becomes integers modulo 2^b under distributed noise: bit-width, scale, rotation, and what can go wrong.

Symbols as in PrivateFL, Algorithm 3: C the clip bound, s the scale, j the padded dimension, K clients in a round,
s^2 mu the variance of all noise, b the bits of a coordinate, m how many standard deviations fit into half the range:

    2^b = 2 m s sqrt(C^2 K^2 / j + K / (4 s^2) + mu)

The rotation, sign flips J and then the Walsh-Hadamard transform H / sqrt(j), spreads an upload evenly over its
coordinates, so that few bits hold each of them. The signs are public: the guarantee holds for any signs, and only the
chance of a wrap-around rests on their being random.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng
from tacit.core.tensors import from_array, register_vmap, split_rows
from tacit.errors import TacitError

WRAP: Final = 1e-6  # target for the chance that any coordinate of a round's sum wraps around
_REJECTED: Final = 1e-6  # v: the chance that a rounding is drawn again
_MOST_BITS: Final = 40
_BLOCK: Final = 64  # the first six of the transform's passes are one product with this matrix
_ROWS: Final = 1 << 14  # blocks in one product: bounds the memory beside the vector itself


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


def solve(variance: float, size: int, bound: float, bits: int, least: int, largest: int) -> Coding:
    """The finest scale that `bits` allow for uploads of `size` numbers.

    `variance`: that of `most` noise shares together, in the units of an upload (the paper's mu).
    """
    size = max(size, 1)
    if not 1 <= bits <= _MOST_BITS:
        raise TacitError(f"bits must lie between 1 and {_MOST_BITS}, not {bits}: 16 to 20 are usual")
    j = padded(size)
    deviations = math.sqrt(2 * math.log(2 * j / WRAP))
    room = (2.0**bits / (2 * deviations)) ** 2 - largest / 4
    if room <= 0:
        raise TacitError(
            f"{bits} bits cannot hold a sum of {largest} rounded uploads: use at least {_bits(deviations, largest)}"
        )
    scale = math.sqrt(room / ((bound * largest) ** 2 / j + variance))
    return Coding(size, bits, bound, scale, scale**2 * variance / largest, least, largest)


def _bits(deviations: float, clients: int) -> int:
    return math.floor(math.log2(deviations * math.sqrt(clients))) + 1


def unwrap(residues: Tensor, bits: int) -> Tensor:
    """The numbers from -2^(b-1) to 2^(b-1) - 1 with these residues."""
    half = 1 << (bits - 1)
    return ((residues + half) & ((1 << bits) - 1)) - half


def wrapped(total: Tensor, bits: int) -> int:
    """How many coordinates of a true sum do not come back as they were. Known in simulation only."""
    return int((unwrap(total, bits) != total).sum())


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def transform_(rows: Tensor) -> Tensor:
    """H x along the last dimension, a power of two, in place and without the factor: H H x = j x."""
    size = rows.shape[-1]
    block = min(size, _BLOCK)
    for part in split_rows(rows.view(-1, block), _ROWS):
        part.copy_(part @ _matrix(block, rows.dtype).to(rows.device))
    while block < size:
        pairs = rows.view(-1, 2, block)
        left, right = pairs[:, 0], pairs[:, 1]
        left += right
        right.mul_(-2).add_(left)  # (a + b) - 2b
        block *= 2
    return rows


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """H J x / sqrt(j) along the last dimension, with the signs of this turn. Lengths and angles stay."""
    return _rotate(x, turn, False)


def rotate_back(y: Tensor, turn: Tensor) -> Tensor:
    """J H y / sqrt(j): the inverse of `rotate` for the same turn."""
    return _rotate(y, turn, True)


def signs(size: int, turn: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """+1 and -1, the same for everybody."""
    raw = np.frombuffer(rng.generator(0, "rotation", turn).bytes(-(-size // 8)), np.uint8)
    return from_array(np.unpackbits(raw, count=size)).to(dtype).mul_(2).sub_(1)


def _matrix(size: int, dtype: torch.dtype) -> Tensor:
    one = torch.ones(1, 1, dtype=dtype)
    pair = torch.tensor([[1, 1], [1, -1]], dtype=dtype)
    while len(one) < size:
        one = torch.kron(pair, one)
    return one


@torch.library.custom_op("tacit::rotate", mutates_args=())
def _rotate(x: Tensor, turn: Tensor, back: bool) -> Tensor:
    """One operation for all rows, so that a recorded program has it as one and turns by the turn it is given."""
    out = x.clone(memory_format=torch.contiguous_format)
    flips = signs(x.shape[-1], int(turn), x.dtype).mul_(x.shape[-1] ** -0.5).to(x.device)
    if back:
        return transform_(out).mul_(flips)
    return transform_(out.mul_(flips))


def _rotate_vmap(
    _info: Any, in_dims: tuple[int | None, ...], x: Tensor, turn: Tensor, back: bool
) -> tuple[Tensor, int]:
    return _rotate(x.movedim(in_dims[0] or 0, 0), turn, back), 0


register_vmap(_rotate, _rotate_vmap)
