"""Personal means of clients that fall into a few kinds: Theorem 5 and Algorithm 1."""

import math
from dataclasses import dataclass
from typing import Any, Final, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import TacitError
from tacit.estimation.base import (
    Array,
    PersonalEstimator,
    check_choice,
    check_count,
    check_fitted,
    check_matrix,
    check_positive,
    check_share,
    check_sizes,
    check_vector,
)
from tacit.estimation.gaussian import pool
from tacit.estimation.kinds import Kinds, alternate, expectation_maximisation
from tacit.estimation.linear import Moments, check_delta, guarantee
from tacit.estimation.messages import Domain, Exact, Message, source

_NOTHING_SENT: Final = "nothing is sent: the prior is known"


@dataclass(kw_only=True, eq=False, repr=False)
class MixtureMeans(PersonalEstimator):
    """Each client's mean is at or near one of `n_kinds` centres: its estimate weighs them by how likely each one is.

    Parameters. `centres` and `weights` are learned where not given; `noise_variance` must be known, or learned from
    `groups` without a message constraint. `within_variance`: by how much clients of a kind differ from its centre, the
    same for every kind and coordinate: 0 is the paper's model; None learns it with the centres, and is 0 where they are
    given. `message` as for `GaussianMeans`; private ones need `radius`, see `lemma_radius`. `moments`: "debiased"
    learns from one message a client by expectation-maximisation that accounts for the noise of sample and message;
    "as-published" is Algorithm 1, `rounds` times k-means of the clients' current estimates, no variance within kinds:
    private messages are then calibrated so that all `rounds` of them together cost the stated epsilon.

    `expected_mse_` is each client's posterior variance, whose mean is Theorem 5's error if the prior is right. Learned
    centres are taken as known only as far as the messages tell (`kinds_.doubt`): behind much noise, clients stay local.
    Where `within_variance` is learned and the messages show no kinds, there is one: `GaussianMeans`' estimate.
    Intervals cover if the model holds; with a `within_variance` of 0 and clients that do differ they are too narrow.
    """

    n_kinds: int = 2
    centres: Any = None
    weights: Any = None
    noise_variance: float | None = None
    within_variance: float | None = None
    message: Message | None = None
    radius: float | None = None
    moments: Moments = "debiased"
    rounds: int = 10
    seed: int | None = None

    def fit(self, X: ArrayLike, y: Any = None, *, groups: ArrayLike | None = None, sizes: ArrayLike = 1) -> Self:
        """Rows are samples of the clients that `groups` names; without it, each row is a client's mean of `sizes`."""
        check_choice("moments", self.moments, get_args(Moments))
        values, shape = check_matrix("X", X), np.shape(X)
        pooled = math.nan
        if groups is None:
            counts = check_sizes(sizes, len(values))
        else:
            self.clients_, values, counts, pooled = pool(values, groups)
            shape = (len(values), *shape[1:])
        noise = self._noise(pooled)
        kinds, self.privacy_ = self._learn(values, noise / counts)
        self._store(kinds, values, noise / counts, shape)
        return self

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """Coordinate by coordinate, equal tails of the client's posterior: centres, or normals around doubtful ones."""
        check_fitted(self)
        tail = (1 - check_share("level", level)) / 2
        values = self.local_.reshape(self.n_clients_, self.n_features_in_)
        low, high = self.kinds_.ends(values, self.local_mse_ / self.n_features_in_, tail)
        return low.reshape(self.estimates_.shape), high.reshape(self.estimates_.shape)

    def predict(self, X: ArrayLike, sizes: ArrayLike = 1) -> Array:
        """Personal estimates of new clients, from their own means of `sizes` samples each."""
        check_fitted(self)
        values = check_matrix("X", X, self.n_features_in_)
        own = self.noise_variance_ / check_sizes(sizes, len(values))
        return self.kinds_.estimate(values, own)[1].reshape(np.shape(X))

    @property
    def message_(self) -> Message:
        return Exact() if self.message is None else self.message

    def _noise(self, pooled: float) -> float:
        if self.noise_variance is not None:
            self.noise_variance_ = check_positive("noise_variance", self.noise_variance)
        elif not isinstance(self.message_, Exact) or not math.isfinite(pooled) or pooled <= 0:
            raise TacitError("noise_variance is not given and cannot be learned here: give it, a number above 0")
        else:
            self.noise_variance_ = pooled
        return self.noise_variance_

    def _learn(self, values: Array, own: Array) -> tuple[Kinds, str]:
        k, d, within = check_count("n_kinds", self.n_kinds), values.shape[1], self.within_variance
        within = None if within is None else check_positive("within_variance", within, zero=True)
        if self.centres is not None:
            centres = check_matrix("centres", np.reshape(self.centres, (-1, d)))
            given = np.full(len(centres), 1 / len(centres)) if self.weights is None else self.weights
            doubt = np.full(len(centres), within) if within else None
            return Kinds(centres, shares(given, len(centres)), doubt, within or 0.0), _NOTHING_SENT
        if len(values) < max(k, 2):
            raise TacitError(f"{len(values)} clients cannot show {k} kinds: give centres and weights, or more clients")
        check_delta(self.message_, len(values))
        if self.message_.server_std(Domain(1.0)) > 0:
            raise TacitError("Central releases a sum, and clustering needs messages: use LocalGaussian or Quantized")
        if self.message_.bits(Domain(1.0)) == 1:
            raise TacitError("a message of two values cannot show kinds of clients: use LocalGaussian or more bits")
        domain = Domain(self._radius(), 0.0, d)
        if self.moments == "as-published":
            return alternate(values, own, k, check_count("rounds", self.rounds), self.message_, domain, self.seed)
        sent = self.message_.send(values, domain, source(self.seed, "message", 0))
        added = self.message_.variance(domain)
        told = guarantee(self.message_, domain, seed=self.seed)
        return expectation_maximisation(sent, own + added, k, self.seed, within), told

    def _radius(self) -> float:
        if self.radius is None and not isinstance(self.message_, Exact):
            raise TacitError("a constrained message needs radius, a public bound on a client's mean: lemma_radius")
        return 1.0 if self.radius is None else check_positive("radius", self.radius)

    def _store(self, kinds: Kinds, values: Array, own: Array, shape: tuple[int, ...]) -> None:
        self.kinds_, self.centres_, self.weights_ = kinds, kinds.centres, kinds.weights
        self.n_clients_, self.n_features_in_, self.within_variance_ = *values.shape, kinds.within
        self.posterior_, means, self.expected_mse_ = kinds.estimate(values, own)
        self.estimates_, self.local_ = means.reshape(shape), values.reshape(shape)
        squares = np.square(kinds.centres).sum(1)
        self.local_mse_ = own * values.shape[1]
        centre = kinds.weights @ kinds.centres
        self.global_ = centre if len(shape) == 2 else centre[0]
        apart = float(kinds.weights @ squares - centre @ centre)
        self.global_mse_ = np.full(len(values), apart + values.shape[1] * self.within_variance_)


def shares(weights: ArrayLike, kinds: int) -> Array:
    """Shares that sum to 1, from weights of at least 0."""
    found = check_vector("weights", weights, kinds)
    if found.min() < 0 or found.sum() <= 0:
        raise TacitError(f"weights {found.tolist()} must be at least 0 and not all 0")
    return found / found.sum()


def lemma_radius(mean_bound: float, noise_variance: float, sizes: float, clients: int, dimension: int) -> float:
    """Lemma 1: holds the norm of every client's mean but with probability 1 / (m n)."""
    noise = noise_variance / sizes
    return 4 * math.sqrt(dimension * noise) + 2 * math.sqrt(math.log(clients**2 * sizes) * noise) + mean_bound
