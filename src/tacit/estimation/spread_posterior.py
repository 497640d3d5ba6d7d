"""What the prior's variance may be, given what the server saw: intervals must know it where clients are few.

With 60 clients the variance t of their truths is hardly known; it is estimated as 0 one time in eight. An interval that
takes the estimate for the truth then covers too little. Here t keeps all its possible values, each with its chance, and
a client's squared error around its estimate is averaged over them. Before anything was seen the density of t is
t^(-1/4), between flat in t (intervals too long where clients are alike) and flat in the standard deviation (too short
for normal clients); chosen on draws other than those of benchmarks/results/interval-coverage.md, which also shows what
priors of the literature give.

Messages as they are: the likelihood of all values, normal with variance t + v around a common centre that is flat and
integrated out. Noisy messages: the estimate of t and that estimate's deviation, cut at 0 and at the most that t can be.
Both need only what the server has already: nothing more is sent, and nothing more is charged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NODES = 48
_COARSE = 200
_DROP = 14.0  # what is less likely than the likeliest by exp(-14) is left out
_ZOOMS = 6


class Spread(NamedTuple):
    """By number of samples: how many clients, the mean of their values, squares around that mean; and their noise."""

    sizes: Array  # [g]
    counts: Array  # [g]
    means: Array  # [g, dimension]
    squares: Array  # [g], summed over the dimension
    noise: float
    slope: float
    most: float

    def own(self, variances: Array) -> Array:
        """v at each variance of the prior and each size, [k, g]."""
        return np.maximum(self.noise - self.slope * variances, 0.0)[:, None] / self.sizes


@dataclass(frozen=True)
class SpreadPosterior:
    """Possible variances of the prior with their chances, and centre and the centre's variance at each."""

    variances: Array  # [k], ascending
    chances: Array  # [k], sum to 1
    centres: Array  # [k, dimension]
    centre_variances: Array  # [k]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Ends of the prior's variance, equal tails."""
        below = np.cumsum(self.chances) - self.chances / 2
        low, high = np.interp([(1 - level) / 2, (1 + level) / 2], below, self.variances)
        return float(low), float(high)

    def around(self, centre: Array) -> Self:
        """The same where the centre is known."""
        known = np.broadcast_to(centre, self.centres.shape)
        return replace(self, centres=known, centre_variances=np.zeros(len(self.variances)))

    def squared_error(self, noise: float, slope: float, sizes: Array, values: Array, estimates: Array) -> Array:
        """Of each estimate, summed over the dimension: the posterior's variance and distance, averaged over t.

        Given t, a client's truth is normal around x + B (centre - x) with variance (1 - B) v + B^2 S, B = v / (t + v).
        """
        total, dimension = np.zeros(len(sizes)), values.shape[1]
        for t, chance, centre, unsure in zip(
            self.variances, self.chances, self.centres, self.centre_variances, strict=True
        ):
            own = max(noise - slope * t, 0.0) / sizes
            pull = np.divide(own, t + own, out=np.zeros(len(sizes)), where=t + own > 0)
            middle = values + pull[:, None] * (centre - values)
            within = dimension * ((1 - pull) * own + pull**2 * unsure)
            total += chance * (within + np.square(middle - estimates).sum(1))
        return total


def from_values(spread: Spread) -> SpreadPosterior:
    """Given clients' values as they are, by the normal likelihood with the centre integrated out."""

    def log_likelihood(variances: Array) -> Array:
        return _at(spread, variances)[0]

    scale = float(np.square(spread.means - spread.means.mean(0)).sum() + spread.squares.sum()) / spread.means.shape[1]
    top = min(spread.most, 20 * (scale / max(spread.counts.sum() - 1, 1) + float((spread.noise / spread.sizes).max())))
    variances, chances = _nodes(log_likelihood, top)
    _, centres, unsure = _at(spread, variances)
    return SpreadPosterior(variances, chances, centres, unsure)


def from_moment(estimate: float, std: float, most: float) -> tuple[Array, Array]:
    """Variances and chances, given an unbiased estimate, its deviation and the most that t can be."""
    top = min(most, max(estimate, 0.0) + 8 * std)
    return _nodes(lambda t: -0.5 * np.square((t - estimate) / std), top)


def _at(spread: Spread, variances: Array) -> tuple[Array, Array, Array]:
    """Log-likelihood, centre and its variance, at each variance of the prior."""
    total = np.maximum(variances[:, None] + spread.own(variances), 1e-300)
    weight = spread.counts / total
    mass = weight.sum(1)
    centres = weight @ spread.means / mass[:, None]
    away = np.square(spread.means[None] - centres[:, None]).sum(2)
    squares = ((spread.squares + spread.counts * away) / total).sum(1)
    dimension = spread.means.shape[1]
    logs = -0.5 * (dimension * (np.log(total) @ spread.counts + np.log(mass)) + squares)
    return logs, centres, 1 / mass


def _nodes(log_density: Callable[[Array], Array], top: float) -> tuple[Array, Array]:
    """Midpoints, even in the standard deviation, of where the density is not nothing, and their chances."""
    low, high = 0.0, float(np.sqrt(max(top, 1e-300)))
    for _ in range(_ZOOMS):
        edges = np.linspace(low, high, _COARSE + 1)
        logs = log_density(np.square((edges[1:] + edges[:-1]) / 2))
        kept = np.flatnonzero(logs > logs.max() - _DROP)
        low, high = float(edges[max(kept[0] - 1, 0)]), float(edges[min(kept[-1] + 2, _COARSE)])
        if len(kept) > _COARSE // 4:
            break
    edges = np.linspace(low, high, _NODES + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    logs = log_density(np.square(middle))
    chances = np.exp(logs - logs.max()) * prior(middle)
    return np.square(middle), chances / chances.sum()


def prior(deviations: Array) -> Array:
    """Density of the standard deviation before anything was seen: flat in t would be `deviations`, in its root 1."""
    return np.sqrt(deviations)
