"""The random rotation of the distributed plan: sign flips J, then the Walsh-Hadamard transform H / sqrt(j).

It spreads an upload evenly over its coordinates, so that few bits hold each of them. The signs are public: the
guarantee holds for any signs, and only the chance of a wrap-around rests on their being random.
"""

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng

_BLOCK: Final = 64  # the first six of the transform's passes are one product with this matrix
_ROWS: Final = 1 << 14  # blocks in one product: bounds the memory beside the vector itself


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def transform_(rows: Tensor) -> Tensor:
    """H x along the last dimension, a power of two, in place and without the factor: H H x = j x."""
    size = rows.shape[-1]
    block = min(size, _BLOCK)
    for part in rows.view(-1, block).split(_ROWS):
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
    return torch.from_numpy(np.unpackbits(raw, count=size)).to(dtype).mul_(2).sub_(1)


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


_rotate.register_vmap(_rotate_vmap)
