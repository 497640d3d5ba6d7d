"""How the levels' means become one: by fixed weights, or by weights that weigh noise against bias.

Everything here is post-processing of what was released, and of what open clients sent: free of privacy cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tacit import tree
from tacit.core import Tree
from tacit.errors import TacitError


class Released(NamedTuple):
    """One level's mean, as released: its variance is that of its noise, and of who happened to be drawn."""

    mean: Tree
    noise: float  # trace of the noise's covariance
    expected: float  # clients drawn, in expectation


class Merge(Protocol):
    def start(self, levels: int) -> Tree:
        """Public state."""
        ...

    def asks(self, level: int) -> bool:
        """Whether clients of a level are asked at all."""
        ...

    def weigh(self, state: Tree, released: Sequence[Released | None], power: Tensor) -> tuple[Tensor, Tree]:
        """Weights that sum to one, 0 where nothing was released; `power`: mean squared norm of open uploads."""
        ...


@dataclass(frozen=True)
class Weighted:
    """The same weights in every round. A level of weight zero is not asked.

    What `Optimal` learned before everybody became private is kept for when somebody opts out again.
    """

    weights: tuple[float, ...]

    def start(self, levels: int) -> Tree:
        return {}

    def asks(self, level: int) -> bool:
        return self.weights[level] > 0

    def weigh(self, state: Tree, released: Sequence[Released | None], power: Tensor) -> tuple[Tensor, Tree]:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return weights, state | ({"weights": weights} if "weights" in state else {})


@dataclass(frozen=True)
class Optimal:
    """Weights that minimise `horizon` x squared bias + variance, estimated from what was released.

    Plain inverse variance trusts the open clients almost alone, and drifts towards them: a bias adds up over rounds
    while noise averages out. `horizon` says over how many rounds. The bias is that of the merged mean against the
    clients' own shares; squared distances between levels' true means are running averages over about
    1 / (1 - memory) rounds in which both levels were asked, debiased and floored at zero. Without distance: inverse
    variance; far apart: shares.
    """

    shares: tuple[float, ...]
    horizon: float = 100.0
    memory: float = 0.95

    def __post_init__(self) -> None:
        if not self.horizon > 0:
            raise TacitError(f"the horizon of optimal weights must be positive, not {self.horizon}")
        if not 0 <= self.memory < 1:
            raise TacitError(f"the memory of optimal weights must lie in [0, 1), not {self.memory}")

    def start(self, levels: int) -> Tree:
        zeros = torch.zeros(levels, levels, dtype=torch.float64)
        shares = torch.tensor(self.shares).double()
        return {"gaps": zeros, "met": zeros.clone(), "power": zeros[0, 0], "seen": zeros[0, 0], "weights": shares}

    def asks(self, level: int) -> bool:
        return self.shares[level] > 0

    def weigh(self, state: Tree, released: Sequence[Released | None], power: Tensor) -> tuple[Tensor, Tree]:
        seen = self.memory * state["seen"] + 1 - self.memory  # the running average's own weight so far
        power = self.memory * state["power"] + (1 - self.memory) * power.double()
        here = [j for j, level in enumerate(released) if level is not None]
        variance = {j: _variance(released[j], power / seen) for j in here}
        gaps, met = state["gaps"].clone(), state["met"].clone()  # levels that did not meet in this round keep theirs
        for i in here:
            for j in here:
                gap = 0.0 if i == j else _distance(released[i], released[j]) - variance[i] - variance[j]
                gaps[i, j] = self.memory * gaps[i, j] + (1 - self.memory) * gap
                met[i, j] = self.memory * met[i, j] + 1 - self.memory
        shares = torch.tensor([self.shares[j] for j in here], dtype=torch.float64)
        found = best_weights(
            shares / shares.sum(),
            euclidean((gaps / met)[here][:, here]) * self.horizon,
            torch.stack([variance[j] for j in here]),
        )
        weights = torch.zeros(len(released), dtype=torch.float64)
        weights[here] = found
        return weights, {"gaps": gaps, "met": met, "power": power, "seen": seen, "weights": weights}


def euclidean(gaps: Tensor) -> Tensor:
    """The squared distances of real points that come near `gaps`: none negative, and the bias below never is.

    Exact where `gaps` are such distances already (classical scaling).
    """
    levels = len(gaps)
    centre = torch.eye(levels, dtype=gaps.dtype) - 1 / levels
    values, vectors = torch.linalg.eigh(-centre @ gaps @ centre / 2)
    points = vectors * values.clamp(min=0).sqrt()
    return (points.unsqueeze(0) - points.unsqueeze(1)).square().sum(-1)


def best_weights(shares: Tensor, gaps: Tensor, variance: Tensor) -> Tensor:
    """argmin over the simplex of bias^2(w) + sum_j w_j^2 variance_j, with weights of levels that would be negative 0.

    `gaps[i, j]`: squared distance of the true means of levels i and j. With d = w - shares, which sums to zero, the
    squared bias |sum_j d_j mu_j|^2 is -d.gaps.d / 2.
    """
    kept = list(range(len(shares)))
    while True:
        weights = _on_the_plane(shares, gaps, variance, kept)
        if bool((weights >= 0).all()) or len(kept) == 1:
            return weights.clamp(min=0) / weights.clamp(min=0).sum()
        kept.remove(min(kept, key=lambda j: float(weights[j])))


def _on_the_plane(shares: Tensor, gaps: Tensor, variance: Tensor, kept: list[int]) -> Tensor:
    """The stationary point with sum one, where only the kept levels have weight (Lagrange's equations)."""
    quadratic = torch.diag(variance) - gaps / 2
    system = torch.zeros(len(kept) + 1, len(kept) + 1, dtype=shares.dtype)
    system[:-1, :-1] = 2 * quadratic[kept][:, kept]
    system[:-1, -1] = system[-1, :-1] = 1
    right = torch.cat([(-gaps @ shares)[kept], torch.ones(1, dtype=shares.dtype)])
    weights = torch.zeros_like(shares)
    weights[kept] = torch.linalg.lstsq(system, right.unsqueeze(-1)).solution[:-1, 0]
    return weights


def _variance(level: Released | None, power: Tensor) -> Tensor:
    """Of a sum over a Poisson cohort, divided by the expected count: the uploads' power, and the noise."""
    assert level is not None
    return power / level.expected + level.noise


def _distance(a: Released | None, b: Released | None) -> Tensor:
    assert a is not None
    assert b is not None
    return tree.norm(tree.sub(a.mean, b.mean)).double().square()
