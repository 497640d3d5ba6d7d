"""A prior as far as it was learned, and what follows from it for each client: how far to go toward the centre.

A client with n samples varies around its own truth by v = (noise - slope * t) / n in each coordinate, truths vary by
t around the centre (Gaussian: noise is the samples' variance, slope 0; Bernoulli: noise = mu (1 - mu), slope 1).
Theorems 1 and 2 for clients of unequal size: let the centre be the sum of w_k q_k with variance S, own share w. Then
pulling client i by b toward it has the error

    (1 - b (1 - w))^2 v + b^2 ((1 - w)^2 t + S - w^2 (t + v)),   least at  b = (1 - w) v / ((1 - 2 w) (t + v) + S),

where it equals v (1 - b (1 - w)). With equal sizes, w = 1/m and S = (t + v + s_q^2) / m, this is the paper's
a = 1 - b = T / (T + v), T = t + s_q^2 / (m - 1).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Learned:
    """All that the server tells the clients, and nothing else: everything here was learned from messages."""

    centre: Array  # [dimension]
    prior_variance: float  # t
    most_variance: float  # what t hardly exceeds, by its uncertainty; t itself where that is known or counted in
    noise: float
    slope: float
    message_variance: float  # added to each message that enters the centre
    centre_variance: float  # S
    share: float  # of a client in the centre: its weight is share / (t + v + message variance) if `by_size`
    by_size: bool
    trusted: bool  # False: too few clients to know the prior's variance; nobody moves

    @property
    def dimension(self) -> int:
        return len(self.centre)

    def own_variance(self, sizes: Array) -> Array:
        """v of clients with these numbers of samples."""
        return self._own(self.prior_variance, sizes)

    def weight(self, sizes: Array) -> Array:
        """w of clients with these numbers of samples whose message entered the centre."""
        if not self.by_size or self.share == 0:
            return np.full(len(sizes), self.share)
        total = self.prior_variance + self.own_variance(sizes) + self.message_variance
        return self.share / np.where(total > 0, total, 1.0)

    def pull(self, sizes: Array, weight: Array) -> Array:
        """The best b, from 0 (local) to 1 (the centre), but never more than does no harm at `most_variance`.

        The error is a parabola in b that is back at its start, the local error, at twice the best b.
        """
        if not self.trusted:
            return np.zeros(len(sizes))
        harmless = 2 * self._best(self.most_variance, sizes, weight)
        return np.clip(np.minimum(self._best(self.prior_variance, sizes, weight), harmless), 0.0, 1.0)

    def error(self, sizes: Array, weight: Array, pull: Array | float) -> Array:
        """Expected squared error, summed over the dimension, of clients that are pulled by `pull`."""
        own, keep = self.own_variance(sizes), np.square(1 - weight)
        others = keep * self.prior_variance + self.centre_variance - weight**2 * (self.prior_variance + own)
        one = np.square(1 - pull * (1 - weight)) * own + np.square(pull) * np.maximum(others, 0.0)
        return self.dimension * one

    def _own(self, prior_variance: float, sizes: Array) -> Array:
        return max(self.noise - self.slope * prior_variance, 0.0) / sizes

    def _best(self, prior_variance: float, sizes: Array, weight: Array) -> Array:
        """The minimum of the error, if the truths vary by `prior_variance`; 0 where nothing is to be gained."""
        own = self._own(prior_variance, sizes)
        total = (1 - 2 * weight) * (prior_variance + own) + self.centre_variance
        return np.divide((1 - weight) * own, total, out=np.zeros(len(sizes)), where=total > 0)


class Answers(NamedTuple):
    """For each of some clients: what it says, and what is expected of it."""

    estimates: Array  # [clients, dimension]
    pull: Array
    mse: Array
    local_mse: Array
    global_mse: Array


def answers(learned: Learned, values: Array, sizes: Array, inside: Array | None = None) -> Answers:
    """`inside`: which clients' messages entered the centre (1 or 0 each); None: none, they are new."""
    weight = np.zeros(len(sizes)) if inside is None else inside * learned.weight(sizes)
    pull = learned.pull(sizes, weight)
    estimates = values + pull[:, None] * (learned.centre - values)
    local, all_ = (learned.error(sizes, weight, fixed) for fixed in (0.0, 1.0))
    return Answers(estimates, pull, learned.error(sizes, weight, pull), local, all_)
