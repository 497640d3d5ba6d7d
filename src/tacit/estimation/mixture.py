"""Personal means of clients that fall into a few kinds: Theorem 5 and Algorithm 1.

The kinds of clients: their centres and shares, learned by Algorithm 1 or by expectation-maximisation.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr

from tacit.core import rng
from tacit.core.checked import checked
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
from tacit.estimation.collect import SURE, likely
from tacit.estimation.gaussian import pool
from tacit.estimation.linear import Moments, check_delta, guarantee
from tacit.estimation.messages import Domain, Exact, Message, message_of, source

_STARTS: Final = 4
_STEPS: Final = 300
_STILL: Final = 1e-6
_SINGULAR: Final = 1e-10
_ENDLESS: Final = 1e6
_HALVES: Final = 60


@dataclass(frozen=True)
class Kinds:
    """Centres and shares, as far as they are known: kind l's clients lie at N(centre, doubt_l) as seen from here."""

    centres: Array  # [k, dimension]
    weights: Array  # [k], sum to 1
    doubt: Array | None = None  # [k], variance of a coordinate around each centre as it is known; None: 0
    within: float = 0.0  # the part of every doubt that is clients of a kind differing from one another

    def posterior(self, values: Array, variance: Array) -> Array:
        """Equation (9): how likely each kind is for each client; rows sum to 1, however far a value lies."""
        joint = self._joint(values, variance)
        return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))

    def criterion(self, values: Array, variance: Array) -> float:
        """Schwarz's (BIC): minus twice the log-likelihood, and log(clients) for each number that was learned."""
        learned = self.centres.size + len(self.weights)  # shares: one less, and the variance within
        return learned * math.log(len(values)) - 2 * float(
            np.logaddexp.reduce(self._joint(values, variance), axis=1).sum()
        )

    def _joint(self, values: Array, variance: Array) -> Array:
        """Log of share times density, up to a constant."""
        total = variance[:, None] + self._doubts()
        squares = np.square(values).sum(1)[:, None] - 2 * values @ self.centres.T + np.square(self.centres).sum(1)
        with np.errstate(divide="ignore"):
            return np.log(self.weights) - (squares / total + values.shape[1] * np.log(total)) / 2

    def estimate(self, values: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Posterior, its mean (Theorem 5) and its spread, for each client.

        A client of a doubtful kind keeps to its own value in the measure of the doubt; without doubt, to the centre.
        """
        posterior, doubt = self.posterior(values, variance), self._doubts()
        keep = doubt / (doubt + variance[:, None])
        mean = (posterior * keep).sum(1)[:, None] * values + (posterior * (1 - keep)) @ self.centres
        spread = (posterior * keep * variance[:, None]).sum(1) * values.shape[1]
        for at, centre in enumerate(self.centres):
            own = keep[:, at : at + 1] * values + (1 - keep[:, at : at + 1]) * centre
            spread += posterior[:, at] * np.square(own - mean).sum(1)
        return posterior, mean, spread

    def ends(self, values: Array, variance: Array, tail: float) -> tuple[Array, Array]:
        """Each coordinate's interval with `tail` of the client's posterior, a mixture of normals, on either side."""
        posterior, doubt = self.posterior(values, variance), self._doubts()
        keep = doubt / (doubt + variance[:, None])
        spread = np.sqrt(keep * variance[:, None])
        middles = [
            keep * own[:, None] + (1 - keep) * column for own, column in zip(values.T, self.centres.T, strict=True)
        ]
        low = [_bracket(posterior, middle, spread, tail)[0] for middle in middles]
        high = [_bracket(posterior, middle, spread, 1 - tail)[1] for middle in middles]
        return np.column_stack(low), np.column_stack(high)

    def _doubts(self) -> Array:
        return np.zeros(len(self.weights)) if self.doubt is None else self.doubt


def _bracket(weight: Array, middle: Array, spread: Array, share: float) -> tuple[Array, Array]:
    """Each row's mixture of normals has `share` of its mass below a place between these two, by halving."""
    spread = np.maximum(spread, 1e-12 * (1 + np.abs(middle)))
    low, high = (middle - 9 * spread).min(1), (middle + 9 * spread).max(1)
    for _ in range(_HALVES):
        centre = (low + high) / 2
        below = (weight * ndtr((centre[:, None] - middle) / spread)).sum(1) <= share
        low, high = np.where(below, centre, low), np.where(below, high, centre)
    return low, high


def doubted(kinds: Kinds, sent: Array, variance: Array, learn_within: bool) -> Kinds:
    """The same kinds with the variance of their centres, from the information in the messages (sum of squared scores).

    A kind that nobody supports, or that cannot be told from the others, is doubted without limit: it moves nobody. How
    much clients of a kind differ, where it was learned, is taken for the mean of what it may be, and for no less than
    half of its upper limit (see `collect`): its likeliest value alone would be 0 half of the time.
    """
    total, (k, d) = variance + kinds.within, kinds.centres.shape
    weight = kinds.posterior(sent, variance)
    alive = weight.sum(0) > 1e-9 * len(sent)
    scores = [(weight[:, [at]] / total[:, None]) * (sent - kinds.centres[at]) for at in range(k)]
    ratio = weight / np.maximum(kinds.weights, 1e-12)
    wider = (_squares(kinds, weight, sent) / total - d) / total / 2
    whole = np.column_stack([*scores, ratio[:, :-1] - ratio[:, -1:], *[wider] * learn_within])
    information = whole.T @ whole
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    covariance = np.linalg.pinv(information / np.outer(scale, scale), rcond=_SINGULAR, hermitian=True)
    lost = np.diag(covariance) < 0.5  # a direction without information; scaled, a variance is at least 1
    most = _ENDLESS * (variance.max() + np.square(sent).mean())
    found = np.where(lost, most, np.minimum(np.diag(covariance) / scale**2, most))
    doubt = np.where(alive, found[: k * d].reshape(k, d).max(1), most)
    within = kinds.within
    if learn_within:
        plain, std = within + float(found[-1] * wider.sum()), math.sqrt(found[-1])
        within = max(likely(plain, std), (max(plain, 0.0) + SURE * std) / 2)
    return Kinds(kinds.centres, kinds.weights, doubt + within, within)


def _squares(kinds: Kinds, weight: Array, sent: Array) -> Array:
    """Squared distance of each message from the centres, by how likely each is."""
    return sum((weight[:, at] * np.square(sent - c).sum(1) for at, c in enumerate(kinds.centres)), np.zeros(len(sent)))


def k_means(values: Array, k: int, seed: int | None, starts: int = _STARTS) -> Kinds:
    """Lloyd's algorithm from several starts; where fewer than k values differ, some centres coincide."""
    from sklearn.cluster import KMeans

    k_found = min(k, len(np.unique(values, axis=0)))
    state = int(rng.generator(0 if seed is None else seed, "k-means").integers(1 << 31))
    found: Any = KMeans(k_found, n_init=starts, random_state=state).fit(values)  # type: ignore[arg-type]
    counts = np.bincount(found.labels_, minlength=k_found) / len(values)
    extra = k - k_found
    centres = np.concatenate([found.cluster_centers_, np.repeat(found.cluster_centers_[:1], extra, axis=0)])
    return Kinds(centres, np.concatenate([counts, np.zeros(extra)]))


def alternate(
    values: Array, own: Array, k: int, rounds: int, message: Message, domain: Domain, seed: int | None
) -> tuple[Kinds, str]:
    """Algorithm 1: clients send their current estimates, the server clusters them. One message a round, each clipped,
    all rounds together within the message's budget."""
    each = message.repeated(rounds)
    current, kinds = values, None
    for at in range(rounds):
        sent = each.send(current, domain, source(seed, "mixture", at))
        kinds = k_means(sent, k, seed, starts=1 if at else _STARTS)
        current = kinds.estimate(values, own)[1]
    assert kinds is not None
    return kinds, guarantee(message, domain, rounds, seed)


def expectation_maximisation(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Kinds from messages of known variance, with doubt. Where the variance `within` a kind is to be learned (None) and
    the messages do not show k kinds (BIC), all clients are one kind: the Gaussian estimate."""
    found = likeliest(sent, variance, k, seed, within)
    if within is None and k > 1:
        one = likeliest(sent, variance, 1, seed, within)
        found = min(found, one, key=lambda kinds: kinds.criterion(sent, variance))
    return doubted(found, sent, variance, within is None)


def likeliest(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Centres, shares and, if None is given, variance `within` a kind; starts at k-means."""
    kinds = _wide(k_means(sent, k, seed), within or 0.0)
    for _ in range(_STEPS):
        weight, total = kinds.posterior(sent, variance), variance + kinds.within
        precise = weight / total[:, None]
        mass = precise.sum(0)
        moved = np.divide(precise.T @ sent, mass[:, None], out=kinds.centres.copy(), where=mass[:, None] > 0)
        still = np.abs(moved - kinds.centres).max() <= _STILL * (1 + np.abs(moved).max())
        before, kinds = kinds.within, _wide(Kinds(moved, weight.mean(0)), kinds.within)
        if within is None:
            kinds = _wide(kinds, _excess(_squares(kinds, weight, sent) / sent.shape[1], variance, total))
        if still and abs(kinds.within - before) <= _STILL * (before + variance.min()):
            break
    return kinds


def _wide(kinds: Kinds, within: float) -> Kinds:
    return Kinds(kinds.centres, kinds.weights, np.full(len(kinds.weights), within), within)


def _excess(squares: Array, variance: Array, total: Array) -> float:
    """By how much squared distances exceed the messages' variance, weighted by precision; at least 0."""
    return max(float(((squares - variance) / total**2).sum() / (1 / total**2).sum()), 0.0)


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
        return message_of(self.message)

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


@checked
def lemma_radius(mean_bound: float, noise_variance: float, sizes: float, clients: int, dimension: int) -> float:
    """Lemma 1: holds the norm of every client's mean but with probability 1 / (m n)."""
    noise = noise_variance / sizes
    return 4 * math.sqrt(dimension * noise) + 2 * math.sqrt(math.log(clients**2 * sizes) * noise) + mean_bound
