"""Convex losses of linear models with their conjugates, and the closed-form step of dual coordinate ascent for each.

For a margin u = w.x and target y, `value` is loss(u, y) and `conjugate` is loss*(-alpha). `step` gives the alpha that
minimises loss*(-alpha) + (alpha - old) g + s (alpha - old)^2 / 2: one coordinate of the local dual (7), where g is the
current margin and s > 0 its change for a unit of alpha. All of it is elementwise and works under `vmap`. `lipschitz` is
the largest slope of the loss in its margin, for targets between -1 and 1.

Rows and targets as these losses take them: a constant last feature, and a column for two classes or a real target, else
one a class.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_NEWTON_STEPS = 12


class DualLoss(Protocol):
    @property
    def lipschitz(self) -> float: ...

    def value(self, u: Tensor, y: Tensor) -> Tensor: ...

    def conjugate(self, alpha: Tensor, y: Tensor) -> Tensor:
        """loss*(-alpha) for a feasible alpha; `step` never leaves the feasible ones."""
        ...

    def step(self, old: Tensor, g: Tensor, s: Tensor, y: Tensor) -> Tensor: ...

    def feasible(self, alpha: Tensor, y: Tensor) -> Tensor:
        """The nearest alpha whose conjugate is finite."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """A loss whose conjugate is smooth alpha^2 / 2 - alpha y on an interval: its best step is a clipped linear one."""

    smooth: float

    @property
    def lipschitz(self) -> float:
        return 1.0

    def bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The feasible alphas."""
        raise NotImplementedError

    def conjugate(self, alpha: Tensor, y: Tensor) -> Tensor:
        return self.smooth / 2 * alpha.square() - alpha * y

    def free(self, old: Tensor, g: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """The best alpha if there were no bounds."""
        return old + (y - g - self.smooth * old) / (s + self.smooth)

    def step(self, old: Tensor, g: Tensor, s: Tensor, y: Tensor) -> Tensor:
        return self.free(old, g, s, y).clamp(*self.bounds(y))

    def feasible(self, alpha: Tensor, y: Tensor) -> Tensor:
        return alpha.clamp(*self.bounds(y))


@dataclass(frozen=True)
class SmoothHinge(Quadratic):
    """max(0, 1 - y u), with its corner rounded over a width of `smooth`; y is -1 or 1, alpha y lies in [0, 1]."""

    smooth: float = 0.5

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        short = 1 - y * u
        if self.smooth == 0:
            return short.clamp(min=0)
        return torch.where(
            short < self.smooth, short.clamp(min=0).square() / (2 * self.smooth), short - self.smooth / 2
        )

    def bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.clamp(max=0), y.clamp(min=0)


@dataclass(frozen=True)
class Hinge(SmoothHinge):
    """The loss of a support vector machine, as in the paper: loss*(-alpha) = -alpha y, alpha y in [0, 1]."""

    smooth: float = 0.0


@dataclass(frozen=True)
class Squared(Quadratic):
    """(u - y)^2 / 2, for real targets or for classes as -1 and 1."""

    smooth: float = 1.0

    @property
    def lipschitz(self) -> float:
        return math.inf

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return (u - y).square() / 2

    def bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        anything = torch.full_like(y, torch.inf)
        return -anything, anything


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(-y u)); y is -1 or 1, b = alpha y lies in (0, 1) and costs b log b + (1 - b) log(1 - b)."""

    @property
    def lipschitz(self) -> float:
        return 1.0

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return softplus(-y * u)

    def conjugate(self, alpha: Tensor, y: Tensor) -> Tensor:
        b = (alpha * y).clamp(0, 1)
        return torch.xlogy(b, b) + torch.xlogy(1 - b, 1 - b)

    def step(self, old: Tensor, g: Tensor, s: Tensor, y: Tensor) -> Tensor:
        """Newton in z = logit(b), kept inside a shrinking bracket: z + y g + s (sigmoid(z) - b0) rises with z."""
        b0 = old * y
        low = -y * g - s * (1 - b0)
        high = low + s
        z = ((low + high) / 2).clamp(-30, 30)
        for _ in range(_NEWTON_STEPS):
            b = torch.sigmoid(z)
            f = z + y * g + s * (b - b0)
            low, high = torch.where(f < 0, z, low), torch.where(f < 0, high, z)
            newton = z - f / (1 + s * b * (1 - b))
            z = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        return y * logsigmoid(z).exp()

    def feasible(self, alpha: Tensor, y: Tensor) -> Tensor:
        return alpha.clamp(y.clamp(max=0), y.clamp(min=0))


LOSSES: Mapping[str, DualLoss] = MappingProxyType(
    {"hinge": Hinge(), "smooth-hinge": SmoothHinge(), "squared": Squared(), "logistic": Logistic()}
)


def with_intercept(x: Tensor, scale: float = 1.0) -> Tensor:
    """Rows with a constant last feature, whose weight makes the intercept and is penalised like the others."""
    flat = x.flatten(1)
    return torch.cat([flat, flat.new_full((flat.shape[0], 1), scale)], 1)


def targets(y: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """[rows, columns]: real targets as they are, two classes as -1 and 1, several as one against the rest.

    What has columns already stays; a target of 0 there leaves its row out of its column.
    """
    if y.dim() == 2:
        return y.to(dtype)
    if y.is_floating_point():
        return y.unsqueeze(-1).to(dtype)
    if columns == 1:
        return (2 * y - 1).unsqueeze(-1).to(dtype)
    return 2 * (y.unsqueeze(-1) == torch.arange(columns)).to(dtype) - 1
