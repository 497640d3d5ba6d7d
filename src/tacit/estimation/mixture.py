"""Personal means of clients that fall into a few kinds: Theorem 5 and Algorithm 1."""

import math
from dataclasses import dataclass
from typing import Any, Final, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from tacit.core.checked import checked, checked_names
from tacit.errors import TacitError
from tacit.estimation.base import (
    Array,
    check_choice,
    check_count,
    check_fitted,
    check_matrix,
    check_positive,
    check_share,
    check_sizes,
    check_vector,
)
from tacit.estimation.clustering import (
    EM_RELEASES,
    Kinds,
    alternate,
    expectation_maximisation,
    maximise_privately,
    releases,
)
from tacit.estimation.messages import Domain, source
from tacit.estimation.shrinkage import Moments, SampledMeans, check_delta, guarantee

_NOTHING_SENT: Final = "nothing is sent: the prior is known"


@checked_names
@dataclass(kw_only=True, eq=False, repr=False)
class MixtureMeans(SampledMeans):
    """Each client's mean is at or near one of `n_kinds` centres: its estimate weighs them by how likely each one is.

    Parameters. `centres` and `weights` are learned where not given; `noise_variance` must be known, or learned from
    `groups` without a message constraint. `within_variance`: by how much clients of a kind differ from its centre, the
    same for every kind and coordinate: 0 is the paper's model; None learns it with the centres, and is 0 where they are
    given. `message` as for `GaussianMeans`; private ones need `radius`, see `lemma_radius`. `moments`: "debiased"
    learns from one message a client by expectation-maximisation that accounts for the noise of sample and message;
    "as-published" is Algorithm 1, `rounds` times k-means of the clients' current estimates, no variance within kinds:
    private messages are then calibrated so that all `rounds` of them together cost the stated epsilon. With `Central` a
    trusted server sums what clients say of each kind and releases noisy sums (`private_clustering`), a few times; all
    releases together cost the stated epsilon, and far fewer clients are enough than for `LocalGaussian`.

    `expected_mse_` is each client's posterior variance, whose mean is Theorem 5's error if the prior is right. Learned
    centres are taken as known only as far as the messages tell (`kinds_.doubt`): behind much noise, clients stay local.
    Where `within_variance` is learned and the messages show no kinds, there is one: `GaussianMeans`' estimate.
    Intervals cover if the model holds; with a `within_variance` of 0 and clients that do differ they are too narrow.
    """

    n_kinds: int = 2
    centres: Any = None
    weights: Any = None
    within_variance: float | None = None
    rounds: int = 10

    def fit(self, X: ArrayLike, y: Any = None, *, groups: ArrayLike | None = None, sizes: ArrayLike = 1) -> Self:
        """Rows are samples of the clients that `groups` names; without it, each row is a client's mean of `sizes`."""
        check_choice("moments", self.moments, get_args(Moments))
        values, counts, shape = self._samples(X, groups, sizes)
        variance = check_positive("noise_variance", self.noise_variance_) / counts
        kinds, self.privacy_ = self._learn(values, variance)
        self._store(kinds, values, variance, shape)
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
        variance = self.noise_variance_ / check_sizes(sizes, len(values))
        return self.kinds_.estimate(values, variance)[1].reshape(np.shape(X))

    @property
    def sends(self) -> bool:
        return self.centres is None

    def _learn(self, values: Array, variance: Array) -> tuple[Kinds, str]:
        k, d, within = check_count("n_kinds", self.n_kinds), values.shape[1], self.within_variance
        within = None if within is None else check_positive("within_variance", within, zero=True)
        if self.centres is not None:
            centres = check_matrix("centres", np.reshape(self.centres, (-1, d)))
            weights = np.full(len(centres), 1 / len(centres)) if self.weights is None else self.weights
            doubt = np.full(len(centres), within) if within else None
            return Kinds(centres, shares(weights, len(centres)), doubt, within or 0.0), _NOTHING_SENT
        if len(values) < max(k, 2):
            raise TacitError(f"{len(values)} clients cannot show {k} kinds: give centres and weights, or more clients")
        check_delta(self.message_, len(values))
        if self.message_.bits(Domain(1.0)) == 1:
            raise TacitError("a message of two values cannot show kinds of clients: use LocalGaussian or more bits")
        domain = self._domain(d)
        if self.moments == "as-published":
            rounds = check_count("rounds", self.rounds)
            kinds = alternate(values, variance, k, rounds, self.message_, domain, self.seed)
            return kinds, guarantee(self.message_, domain, releases(rounds, self.message_), self.seed)
        if self.message_.server_std(domain) > 0:
            kinds = maximise_privately(values, variance, k, self.message_, domain, self.seed, within)
            return kinds, guarantee(self.message_, domain, EM_RELEASES, self.seed)
        sent = self.message_.send(values, domain, source(self.seed, "message", 0))
        added = self.message_.variance(domain)
        kinds = expectation_maximisation(sent, variance + added, k, self.seed, within)
        return kinds, guarantee(self.message_, domain, seed=self.seed)

    def _store(self, kinds: Kinds, values: Array, variance: Array, shape: tuple[int, ...]) -> None:
        self.kinds_, self.centres_, self.weights_ = kinds, kinds.centres, kinds.weights
        self.n_clients_, self.n_features_in_, self.within_variance_ = *values.shape, kinds.within
        self.posterior_, means, self.expected_mse_ = kinds.estimate(values, variance)
        self.estimates_, self.local_ = means.reshape(shape), values.reshape(shape)
        squares = np.square(kinds.centres).sum(1)
        self.local_mse_ = variance * values.shape[1]
        centre = kinds.weights @ kinds.centres
        self.global_ = centre if len(shape) == 2 else centre[0]
        apart = float(kinds.weights @ squares - centre @ centre)
        self.global_mse_ = np.full(len(values), apart + values.shape[1] * self.within_variance_)


def shares(weights: ArrayLike, kinds: int) -> Array:
    """Shares that sum to 1, from weights of at least 0."""
    checked_weights = check_vector("weights", weights, kinds)
    if checked_weights.min() < 0 or checked_weights.sum() <= 0:
        raise TacitError(f"weights {checked_weights.tolist()} must be at least 0 and not all 0")
    return checked_weights / checked_weights.sum()


@checked
def lemma_radius(mean_bound: float, noise_variance: float, sizes: float, clients: int, dimension: int) -> float:
    """Lemma 1: holds the norm of every client's mean but with probability 1 / (m n)."""
    noise = noise_variance / sizes
    return 4 * math.sqrt(dimension * noise) + 2 * math.sqrt(math.log(clients**2 * sizes) * noise) + mean_bound
