"""One bound for the whole upload, fixed or moved by a private quantile."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Tree
from tacit.errors import TacitError

_SLACK = 1 - 1e-5  # norms are good to 2e-6, their products with a factor to 2e-7: the true norm stays below the bound


def clip(values: Mapping[str, Tensor], bound: float | Tensor, lead: int = 0) -> tuple[Tree, Tensor]:
    """`values` scaled to a norm of at most `bound` over all leaves together, and whether it already was.

    Holds for every input: 0-d leaves count, a zero tree stays zero, and a tree whose norm is not finite (NaN, inf,
    or beyond the float's range) becomes zero and counts as clipped. So does every tree if the bound is so small that
    squares vanish beside it: a norm of 0 then says nothing (a server may send any bound). With `lead` 1 leaves are
    [clients, ...], and every client's are clipped alone.
    """
    factor, finite = shrinking(measure(values, lead).sqrt(), bound)

    def clipped(leaf: Tensor) -> Tensor:
        shape = (*leaf.shape[:lead], *[1] * (leaf.dim() - lead))
        return torch.where(finite.reshape(shape), leaf * factor.to(leaf.dtype).reshape(shape), 0.0)

    return tree.each(clipped, values), finite & (factor == 1)


def measure(values: Mapping[str, Tensor], lead: int = 0) -> Tensor:
    """The squared norm of all leaves together, accumulated in double precision, in the leaves' own type: 0 for none."""

    def squares(leaf: Tensor) -> Tensor:
        flat = leaf.reshape(*leaf.shape[:lead], math.prod(leaf.shape[lead:]))
        return flat.square().sum(-1, dtype=torch.float64)

    dtypes = (leaf.dtype for leaf in values.values())
    widest = max(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
    return torch.stack(list(map(squares, values.values()))).sum(0).to(widest) if values else torch.zeros(())


class Limit(NamedTuple):
    """The norm that is kept to, and the smallest one that squares in this type can measure."""

    limit: Tensor
    least: float


def limit_of(bound: float | Tensor, dtype: torch.dtype) -> Limit:
    return Limit(torch.as_tensor(bound, dtype=dtype) * _SLACK, torch.finfo(dtype).tiny ** 0.25)


def shrinking(norm: Tensor, bound: float | Tensor) -> tuple[Tensor, Tensor]:
    """What a vector of this norm is multiplied with to keep to `bound`, and whether it may be kept at all."""
    limit, least = limit_of(bound, norm.dtype)
    factor = torch.where(norm > limit, limit / norm.clamp(min=torch.finfo(norm.dtype).tiny), 1.0)
    return factor, norm.isfinite() & (limit >= least)


@runtime_checkable
class Clip(Protocol):
    """How the clip bound starts, what its bits cost, and how they move it."""

    @property
    def bound(self) -> float: ...

    def multiplier(self, z: float) -> float:
        """Noise multiplier of the update itself, when update and bit together cost as much as `z`."""
        ...

    def bit_std(self, z: float) -> float:
        """Noise on a sum of bits of +-1/2, for add/remove neighbours."""
        ...

    def move(self, bound: Tensor, fraction: Tensor) -> Tensor:
        """The next bound, given the noisy fraction of updates that were not clipped."""
        ...


@checked
@dataclass(frozen=True)
class Fixed:
    """The same clip bound in every round. No bit is sent, so nothing is paid for.

    Args:
        bound: on the norm of a whole upload. Larger uploads are scaled down to it.

    Raises:
        TacitError: a bound that is not positive.

    >>> import tacit
    >>> tacit.Grouped(clip=tacit.Fixed(0.2)) == tacit.Grouped(clip=0.2)
    True
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        _positive("clip bound", self.bound)

    def multiplier(self, z: float) -> float:
        return z

    def bit_std(self, z: float) -> float:
        return 0.0

    def move(self, bound: Tensor, fraction: Tensor) -> Tensor:
        return bound


@checked
@dataclass(frozen=True)
class Quantile:
    """A clip bound that settles where a share `target` of the updates is not clipped (Andrew et al. 2021).

    The bit [norm <= bound] is one more coordinate of the private release. Its multiplier is `thrift` times the total z,
    so the update's own is z / sqrt(1 - thrift^-2): with 5, 2% more noise.

    Args:
        bound: where it starts.
        target: the share of updates that shall not be clipped.
        speed: by how much a round may move it, in logarithms.
        thrift: how much more noise a bit has than the update; what the bits cost is part of the stated epsilon.

    Raises:
        TacitError: a bound or speed that is not positive, a target outside of 0 to 1, or a thrift of 1 or less.

    >>> import tacit
    >>> round(tacit.Quantile(thrift=5).multiplier(1.0), 3)
    1.021
    """

    bound: float = 0.1
    target: float = 0.5
    speed: float = 0.2
    thrift: float = 5.0

    def __post_init__(self) -> None:
        _positive("clip bound", self.bound)
        _positive("clip speed", self.speed)
        if not 0 < self.target < 1:
            raise TacitError(f"clip target must lie between 0 and 1, not {self.target}: try 0.5, the median")
        if not self.thrift > 1:
            raise TacitError(
                f"clip thrift must be above 1, not {self.thrift}: the bits would cost the whole budget; try 5"
            )

    def multiplier(self, z: float) -> float:
        return z / math.sqrt(1 - self.thrift**-2)

    def bit_std(self, z: float) -> float:
        return self.thrift * z / 2

    def move(self, bound: Tensor, fraction: Tensor) -> Tensor:
        return bound * torch.exp(-self.speed * (fraction - self.target))


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise TacitError(f"{name} must be a positive number, not {value}")
