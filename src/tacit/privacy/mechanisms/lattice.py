"""Where exact noise lives: clipped vectors as integers whose norm is bounded in integers.

A noise multiplier m (noise over clip bound) fixes a lattice: the clip bound is `limit` steps, the noise 2^`log_std`.
`place` takes a vector of floats there. *Claim:* for every input, what it returns is a vector of integers of norm at
most `limit`: the sum of squares is computed and compared in integers, and what does not fit becomes zero. So nothing
that happened before in floating point, to the clip bound or to the vector, can make one contribution larger than
stated, and rounding is part of the stated sensitivity. Two such vectors are at most 2 `limit` apart.

*Claim:* the noise covers m times the limit: with the r and the proof of `discrete_gaussian`, 4^log_std - r^2 is at
least (m * limit)^2. A margin of 2^-20 covers that m may be a float32. The size of a step in the units of an upload,
bound over limit, is needed only to read the noisy integers: that is post-processing.

Each coordinate goes to its nearest integer; where that would make the norm exceed the limit (a clipped vector ends just
below it, so it takes very many coordinates), toward zero, which never makes it longer.
"""

import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tacit.core.tensors import register_vmap, to_list
from tacit.errors import TacitError
from tacit.privacy.mechanisms.discrete_gaussian import LARGEST, ROUNDING

_SMALLEST: Final = 5
_LIMIT: Final = 1 << LARGEST
_LOW: Final = (1 << LARGEST) - 1  # mask of the low half of a square, which has 2 * LARGEST bits
_SLACK: Final = 1 + 2.0**-20
NO_NOISE: Final = -1


class Lattice(NamedTuple):
    """In steps: the most that a vector's norm may be, and the noise, 2^log_std; -1 for none."""

    limit: int
    log_std: int

    @property
    def std(self) -> int:
        return 0 if self.log_std == NO_NOISE else 1 << self.log_std


@lru_cache(maxsize=4096)
def lattice(multiplier: float) -> Lattice:
    """The lattice of a noise that is `multiplier` times the clip bound. 0: no noise, and no guarantee."""
    if multiplier == 0:
        return Lattice(_LIMIT, NO_NOISE)
    if not 0 < multiplier < _LIMIT / 16:
        raise TacitError(f"exact noise of {multiplier:g} clip bounds: give a number between 0 and {_LIMIT / 16:g}")
    log_std = min(LARGEST, max(_SMALLEST, LARGEST + math.floor(math.log2(multiplier))))
    covered = math.sqrt(4**log_std - ROUNDING**2) / (multiplier * _SLACK)
    return Lattice(min(_LIMIT, math.floor(covered)), log_std)


def step(bound: float | Tensor, multiplier: float | Tensor) -> Tensor:
    """The size of a step in the units of an upload: public, and used on noisy integers alone."""
    known = torch.as_tensor(multiplier, dtype=torch.float64)
    return torch.as_tensor(bound, dtype=torch.float64) / limits(known).double()


def place(vector: Tensor, bound: float | Tensor, multiplier: float | Tensor) -> Tensor:
    """Integers (int32) of norm at most `lattice(multiplier).limit`, for every input; near vector / step if it is short.

    `vector` [..., size] in the units of `bound`; what is not finite becomes zero.
    """
    known = (torch.as_tensor(each, dtype=torch.float64, device=vector.device) for each in (bound, multiplier))
    return _place(vector, *known)


@torch.library.custom_op("tacit::place_on_lattice", mutates_args=())
def _place(vector: Tensor, bound: Tensor, multiplier: Tensor) -> Tensor:
    limit = _each(multiplier, "limit").unsqueeze(-1)
    scaled = vector.double() * (limit / bound.unsqueeze(-1))
    scaled = torch.where(scaled.isfinite(), scaled, 0.0)
    nearest, inward = (torch.clamp(whole.long(), -limit, limit) for whole in (_cut(scaled.round()), _cut(scaled)))
    safe = torch.where(_fits(inward, limit), inward, 0)
    return torch.where(_fits(nearest, limit), nearest, safe).int()


def _cut(values: Tensor) -> Tensor:
    """Toward zero, and to a range in which conversion to integers is exact."""
    return values.clamp(-2.0 * _LIMIT, 2.0 * _LIMIT).trunc()


def _fits(integers: Tensor, limit: Tensor) -> Tensor:
    """Whether the sum of squares is at most limit^2, [..., 1]. |integers| <= limit <= 2^26, so a square has 52 bits.

    Squares are summed in two halves of 26 bits: exact in int64 for up to 2^36 coordinates.
    """
    squares, largest = integers.square(), limit.square()
    low = (squares & _LOW).sum(-1, keepdim=True)
    high = (squares >> LARGEST).sum(-1, keepdim=True) + (low >> LARGEST)
    top = largest >> LARGEST
    return (high < top) | ((high == top) & ((low & _LOW) <= (largest & _LOW)))


def fits(integers: Tensor, multiplier: float) -> bool:
    """Whether a vector of integers that somebody sent keeps to the norm that `place` keeps to. In integers."""
    limit = torch.tensor([lattice(multiplier).limit])
    whole = integers.long()
    if bool(((whole > limit) | (whole < -limit)).any()):
        return False
    return bool(_fits(whole, limit))


def limits(multiplier: Tensor) -> Tensor:
    """`Lattice.limit` of each multiplier."""
    return _each(multiplier, "limit")


def log_stds(multiplier: Tensor) -> Tensor:
    """`Lattice.log_std` of each multiplier."""
    return _each(multiplier, "log_std")


@torch.library.custom_op("tacit::lattice_of", mutates_args=())
def _each(multiplier: Tensor, name: str) -> Tensor:
    numbers = [getattr(lattice(each), name) for each in to_list(multiplier.double().flatten())]
    return torch.tensor(numbers, dtype=torch.int64, device=multiplier.device).reshape(multiplier.shape)


def _each_vmap(_info: Any, in_dims: tuple[int | None, ...], multiplier: Tensor, name: str) -> tuple[Tensor, int | None]:
    return _each(multiplier, name), in_dims[0]


def _place_vmap(
    info: Any, in_dims: tuple[int | None, ...], vector: Tensor, bound: Tensor, multiplier: Tensor
) -> tuple[Tensor, int]:
    def rows(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    moved = [rows(value, dim) for value, dim in zip((vector, bound, multiplier), in_dims, strict=True)]
    lead = moved[0].shape[:-1]
    # a bound or a multiplier that an outer `vmap` has no dimension for yet: one for each row all the same
    known = [value.reshape(*value.shape, *(1 for _ in lead[value.dim() :])).expand(lead) for value in moved[1:]]
    return _place(moved[0], *known), 0


register_vmap(_each, _each_vmap)
register_vmap(_place, _place_vmap)
