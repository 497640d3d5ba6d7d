"""Clustering behind a trusted server's noise: noisy sums of Lloyd's algorithm and of expectation-maximisation.

A client answers with a row for every cluster, weighed by how much it belongs there; the server sums the rows of all
clients, adds noise, and releases nothing but that. Clusters move by what was released, and clients weigh anew.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.core import rng
from tacit.errors import TacitError
from tacit.estimation.base import Array
from tacit.estimation.messages import Domain, Message, source

STARTING: Final = 5  # releases until clusters are found for the first time: one of cells, the others of clusters
_PART: Final = math.sqrt(0.5)  # how a count and a square are scaled beside a value
_CELLS: Final = 16  # for each cluster, at the start
_TRIES: Final = 20
_SEEN: Final = 4.0  # standard deviations of noise: a smaller count says nothing


@dataclass(frozen=True)
class Sums:
    """What was released: for each cluster, how many clients, and the sums of their values and squares."""

    counts: Array  # [k]
    values: Array  # [k, d], about the domain's centre
    squares: Array  # [k], of distances from the domain's centre
    std: float  # of the noise on a sum of values; that on counts is `count_std`
    count_std: float

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Clusters whose count is above the noise."""
        return self.counts > _SEEN * self.count_std

    def means(self, domain: Domain, before: Array) -> Array:
        """Where the clusters are now, inside the domain; one that nobody is seen in stays."""
        safe = np.where(self.seen, self.counts, 1.0)[:, None]
        return np.where(self.seen[:, None], domain.ball(domain.centre + self.values / safe), before)

    @property
    def shares(self) -> Array:
        """Of the clients, in clusters that are seen; all in the first where none is."""
        kept = np.where(self.seen, self.counts, 0.0)
        return kept / kept.sum() if kept.sum() > 0 else np.eye(len(kept))[0]

    def inside(self, means: Array, domain: Domain) -> Array:
        """Mean squared distance of a cluster's values from its mean, a coordinate; 0 where nobody is seen."""
        safe, moved = np.where(self.seen, self.counts, 1.0), means - domain.centre
        squares = self.squares - 2 * (moved * self.values).sum(1) + safe * np.square(moved).sum(1)
        return np.where(self.seen, np.maximum(squares / safe / means.shape[1], 0.0), 0.0)

    def doubt(self, around: Array | float) -> Array:
        """Variance of a coordinate of each mean: noise, and that of so many values; endless where nobody is seen."""
        safe = np.where(self.seen, self.counts, 1.0)
        return np.where(self.seen, np.square(self.std / safe) + around / safe, np.inf)


def release_sums(values: Array, belongs: Array, message: Message, domain: Domain, seed: int | None, at: int) -> Sums:
    """Counts, sums of values and of squares for every cluster, with the server's noise: one Gaussian release.

    Guarantee: that of `message` for one release, under "replace", whatever the values are and however clients weigh
    clusters. Proof. In units of the radius a client has u with |u| <= 1 (`Domain.ball`), and weights r >= 0 with sum 1.
    It adds r_l w to the row of cluster l, where w = (u, a, a |u|^2) and a^2 = 1/2, so |w|^2 <= 1 + a^2 + a^2 = 2. Let
    another client, or the same with other data, have r' and w'. The squared distance of what they add is
    |r|^2 |w|^2 + |r'|^2 |w'|^2 - 2 (r r')(w w'), and r r' >= 0, |r| <= 1, |r'| <= 1.
    Where w w' >= 0 it is at most |w|^2 + |w'|^2 <= 4. Where w w' < 0 it is at most
    |w|^2 + |w'|^2 + 2 |w w'| = |w - w'|^2 = |u - u'|^2 + a^2 (|u|^2 - |u'|^2)^2. With s = |u| and t = |u'| that is at
    most (s + t)^2 (1 + (s - t)^2 / 2) <= (s + t)^2 (1 + (s - t)^2) <= 4 (see `Domain.lifted`).
    So the sensitivity is 2 radii, the domain's diameter, for which `message.server_std` is calibrated. Means, shares
    and everything that follows from them are computed from the noisy sums alone, and the clients' next weights from
    what was released: adaptive composition, which `message.repeated` accounts for.

    Args:
        values: [clients, d]; clipped to the domain here.
        belongs: [clients, k], rows of at least 0 with sum 1: how much of a client each cluster has.
        message: with a server's noise (`Central`), of one release.
        domain: public.
        seed: of the noise; None takes it from the operating system.
        at: which release of the run this is: every one has noise of its own.

    Returns:
        The noisy sums, in the units of the values.

    Raises:
        TacitError: weights that are not shares.
    """
    if belongs.min() < 0 or not np.allclose(belongs.sum(1), 1.0):
        raise TacitError("weights of clusters must be shares: at least 0, with sum 1 for every client")
    units = (domain.ball(values) - domain.centre) / domain.radius
    rows = np.column_stack([units, np.full(len(units), _PART), _PART * np.square(units).sum(1)])
    noise = message.server_std(domain) / domain.radius
    drawn = source(seed, "clustering/server", at).standard_normal((belongs.shape[1], rows.shape[1]))
    noisy = belongs.T @ rows + noise * drawn
    return Sums(
        noisy[:, -2] / _PART,
        noisy[:, :-2] * domain.radius,
        noisy[:, -1] / _PART * domain.radius**2,
        noise * domain.radius,
        noise / _PART,
    )


def belong_to_nearest(values: Array, centres: Array) -> Array:
    """Lloyd's weights: each client wholly to its nearest centre."""
    far = np.square(centres).sum(1) - 2 * values @ centres.T
    return np.eye(len(centres))[far.argmin(1)]


def find_starts(values: Array, k: int, message: Message, domain: Domain, seed: int | None, at: int) -> Array:
    """k centres to start from, by one release: sums of many public cells, clustered by their counts.

    The cells are those of points drawn without the data, at all distances from the domain's centre, so that small
    groups of clients in a large domain fall apart, too. What follows the release looks at no client.
    """
    draw = rng.generator(0 if seed is None else seed, "clustering/cells")
    points = draw.normal(size=(_CELLS * k, values.shape[1]))
    length = domain.radius * 2.0 ** -draw.uniform(0, 5, size=(len(points), 1))
    cells = domain.centre + points / np.linalg.norm(points, axis=1, keepdims=True) * length
    sums = release_sums(values, belong_to_nearest(domain.ball(values), cells), message, domain, seed, at)
    return _spread_out(sums.means(domain, cells), np.where(sums.seen, sums.counts, 0.0), k, draw)


def _spread_out(points: Array, weight: Array, k: int, draw: np.random.Generator) -> Array:
    """k-means of weighted points, the best of several starts; where too few have a weight, points as they come."""
    from sklearn.cluster import KMeans

    kept = weight > 0
    if kept.sum() <= k:
        order = np.argsort(-weight, kind="stable")
        return points[order[:k]]
    fit = KMeans(k, n_init=_TRIES, random_state=int(draw.integers(1 << 31)))  # type: ignore[arg-type]
    return np.asarray(fit.fit(points[kept], sample_weight=weight[kept]).cluster_centers_, dtype=np.float64)


def cluster_sums(
    values: Array, k: int, centres: Array | None, message: Message, domain: Domain, seed: int | None, at: int
) -> tuple[Array, Sums]:
    """Noisy Lloyd: from `centres` one step, without any `STARTING` releases; each is `message`, from number `at` on.

    Args:
        values: [clients, d].
        k: clusters.
        centres: where clusters were; None looks for them.
        message: of one release.
        domain: public.
        seed: of noise and cells; None takes noise from the operating system.
        at: the first release's number.

    Returns:
        Centres inside the domain, and the last release.
    """
    steps = 1 if centres is not None else STARTING - 1
    if centres is None:
        centres, at = find_starts(values, k, message, domain, seed, at), at + 1
    inside, sums = domain.ball(values), None
    for step in range(steps):
        sums = release_sums(values, belong_to_nearest(inside, centres), message, domain, seed, at + step)
        centres = sums.means(domain, centres)
    assert sums is not None  # at least one step
    return centres, sums
