"""How the levels' means become one: by fixed weights, or by weights that weigh noise against bias.

Everything here is post-processing of what was released, and of what open clients sent: free of privacy cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.core.tensors import eigenvectors, least_squares
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

    Plain inverse variance trusts the open clients almost alone, and drifts towards them: over T rounds a bias moves the
    model by T times itself, noise by sqrt(T). `horizon` is that T. The bias is that of the merged mean against the
    clients' own shares, and comes of the distances between levels. They are measured between running means over about
    1 / (1 - memory) rounds, where noise has averaged out before it is squared; then debiased; and they are no less than
    a random choice of clients would make them: the same few are asked again and again, so that what sets them apart
    from the rest does not average out. Without distance: inverse variance; far apart: shares.
    """

    clients: tuple[float, ...]  # of each level, that are asked
    horizon: float = 100.0
    memory: float = 0.98

    def __post_init__(self) -> None:
        if not self.horizon > 0:
            raise TacitError(f"the horizon of optimal weights must be positive, not {self.horizon}")
        if not 0 <= self.memory < 1:
            raise TacitError(f"the memory of optimal weights must lie in [0, 1), not {self.memory}")

    def start(self, levels: int) -> Tree:
        zeros, clients = torch.zeros(levels, dtype=torch.float64), torch.tensor(self.clients, dtype=torch.float64)
        return {"seen": zeros, "spread": zeros.clone(), "power": zeros.clone(), "weights": clients / clients.sum()}

    def asks(self, level: int) -> bool:
        return self.clients[level] > 0

    def weigh(self, state: Tree, released: Sequence[Released | None], power: Tensor) -> tuple[Tensor, Tree]:
        present = [j for j, level in enumerate(released) if level is not None]
        levels = [level for level in released if level is not None]
        state = self._remember(state, present, levels, power)
        clients = torch.tensor(self.clients, dtype=torch.float64)[present]
        known = Known(*(state[name][present] for name in ("means", "seen", "spread", "power")))
        gaps = euclidean(known.gaps().maximum(by_chance(known.between(levels), clients)))
        variance = torch.stack([_variance(level, power) for level, power in zip(levels, known.power, strict=True)])
        weights = torch.zeros(len(released), dtype=torch.float64)
        weights[present] = best_weights(clients / clients.sum(), gaps * self.horizon, variance)
        return weights, state | {"weights": weights}

    def _remember(self, state: Tree, present: list[int], levels: Sequence[Released], power: Tensor) -> Tree:
        """Running sums with this round in them; levels that released nothing keep theirs."""
        now, fresh = {name: leaf.clone() for name, leaf in state.items()}, 1 - self.memory
        now.setdefault("means", torch.zeros(len(self.clients), tree.size(levels[0].mean)))
        for j, level in zip(present, levels, strict=True):
            now["seen"][j] += fresh * (1 - now["seen"][j])
            now["power"][j] += fresh * (power.double() - now["power"][j])
            variance = _variance(level, now["power"][j] / now["seen"][j])
            now["spread"][j] = self.memory**2 * now["spread"][j] + fresh**2 * variance
            now["means"][j].lerp_(tree.flatten(level.mean).to(now["means"].dtype), fresh)
        return now


class Known:
    """What running sums tell of levels: their means, the variance of these, and the power of uploads.

    `seen` is the weight that the rounds so far have in a running sum.
    """

    def __init__(self, means: Tensor, rounds: Tensor, spread: Tensor, power: Tensor) -> None:
        self.means = means.double() / rounds.unsqueeze(1)
        self.spread, self.power = spread / rounds.square(), power / rounds

    def gaps(self) -> Tensor:
        """Squared distances between the true means, without bias: some may come out negative."""
        distances = (self.means.unsqueeze(0) - self.means.unsqueeze(1)).square().sum(-1)
        return (distances - self.spread.unsqueeze(0) - self.spread.unsqueeze(1)).fill_diagonal_(0)

    def between(self, levels: Sequence[Released]) -> Tensor:
        """The variance between clients: the power of open uploads, without that of their mean."""
        opted_out = [j for j, level in enumerate(levels) if level.noise == 0]
        common = self.means.square().sum(1) - self.spread
        excess = (self.power - common)[opted_out] if opted_out else self.power
        return excess.mean().clamp(min=0)


def by_chance(between: Tensor, clients: Tensor) -> Tensor:
    """Expected squared distances of levels' means if clients, with variance `between`, had been dealt at random."""
    return between * (1 / clients.unsqueeze(0) + 1 / clients.unsqueeze(1)).fill_diagonal_(0)


def euclidean(gaps: Tensor) -> Tensor:
    """The squared distances of real points that come near `gaps`: none negative, and the bias below never is.

    Exact where `gaps` are such distances already (classical scaling).
    """
    levels = len(gaps)
    centre = torch.eye(levels, dtype=gaps.dtype) - 1 / levels
    values, vectors = eigenvectors(-centre @ gaps @ centre / 2)
    points = vectors * values.clamp(min=0).sqrt()
    return (points.unsqueeze(0) - points.unsqueeze(1)).square().sum(-1)


def best_weights(shares: Tensor, gaps: Tensor, variance: Tensor) -> Tensor:
    """argmin over the simplex of bias^2(w) + sum_j w_j^2 variance_j, with weights of levels that would be negative 0.

    `gaps[i, j]`: squared distance of the true means of levels i and j. With d = w - shares, which sums to zero, the
    squared bias |sum_j d_j mu_j|^2 is -d.gaps.d / 2.
    """
    active = list(range(len(shares)))
    while True:
        weights = _on_the_plane(shares, gaps, variance, active)
        if bool((weights >= 0).all()) or len(active) == 1:
            return weights.clamp(min=0) / weights.clamp(min=0).sum()
        active.remove(min(active, key=lambda j: float(weights[j])))


def _on_the_plane(shares: Tensor, gaps: Tensor, variance: Tensor, active: list[int]) -> Tensor:
    """The stationary point with sum one, where only the kept levels have weight (Lagrange's equations)."""
    quadratic = torch.diag(variance) - gaps / 2
    system = torch.zeros(len(active) + 1, len(active) + 1, dtype=shares.dtype)
    system[:-1, :-1] = 2 * quadratic[active][:, active]
    system[:-1, -1] = system[-1, :-1] = 1
    right = torch.cat([(-gaps @ shares)[active], torch.ones(1, dtype=shares.dtype)])
    weights = torch.zeros_like(shares)
    weights[active] = least_squares(system, right.unsqueeze(-1))[:-1, 0]
    return weights


def _variance(level: Released, power: Tensor) -> Tensor:
    """Of a sum over a Poisson cohort, divided by the expected count: the uploads' power, and the noise."""
    return power / level.expected + level.noise
