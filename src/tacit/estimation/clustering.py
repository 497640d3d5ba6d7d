"""Clusters of clients: the kinds of a mixture of means, and those of a mixture of regressions.

Means: centres and shares, by Algorithm 1 or by expectation-maximisation, with how far they can be trusted.

Regressions: Algorithms 4 and 7. Clients send their coefficients, the server clusters them, T times. Both objectives
with the minus signs that their probabilities need: -log sum_l p_l N(theta; mu_l, s_l^2 I) in (21) and (22); all weights
of components in logarithms.
"""

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp, ndtr

from tacit.core import rng
from tacit.errors import TacitError
from tacit.estimation.base import Array
from tacit.estimation.collect import SURE, likely
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.private_clustering import STARTING, Sums, cluster_sums, find_starts, release_sums
from tacit.estimation.regression_linear import LEAST, Floats, Floor, Ints, Prior, along, spread

if TYPE_CHECKING:
    from tacit.estimation.regression_learn import Letters, RegressionModel

_STARTS: Final = 4
_STEPS: Final = 300
_STILL: Final = 1e-6
_SINGULAR: Final = 1e-10
_ENDLESS: Final = 1e6
_HALVES: Final = 60
EM_RELEASES: Final = 8  # of a trusted server: the first finds where to start


def k_means(points: Array, k: int, seed: int, starts: int, centres: Array | None = None) -> tuple[Ints, Array]:
    """Scikit-learn's, from `centres` if there are any; fewer distinct points than k are no error."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    init: Any = "k-means++" if centres is None else centres
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = KMeans(k, init=init, n_init=starts, random_state=seed).fit(points)  # type: ignore[arg-type]
    return np.asarray(fit.labels_, dtype=np.int64), np.asarray(fit.cluster_centers_, dtype=np.float64)


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
            kept = keep[:, at : at + 1] * values + (1 - keep[:, at : at + 1]) * centre
            spread += posterior[:, at] * np.square(kept - mean).sum(1)
        return posterior, mean, spread

    def ends(self, values: Array, variance: Array, tail: float) -> tuple[Array, Array]:
        """Each coordinate's interval with `tail` of the client's posterior, a mixture of normals, on either side."""
        posterior, doubt = self.posterior(values, variance), self._doubts()
        keep = doubt / (doubt + variance[:, None])
        spread = np.sqrt(keep * variance[:, None])
        middles = [
            keep * value[:, None] + (1 - keep) * column for value, column in zip(values.T, self.centres.T, strict=True)
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
    variances = np.where(lost, most, np.minimum(np.diag(covariance) / scale**2, most))
    doubt = np.where(alive, variances[: k * d].reshape(k, d).max(1), most)
    within = kinds.within
    if learn_within:
        plain, std = within + float(variances[-1] * wider.sum()), math.sqrt(variances[-1])
        within = max(likely(plain, std), (max(plain, 0.0) + SURE * std) / 2)
    return Kinds(kinds.centres, kinds.weights, doubt + within, within)


def _squares(kinds: Kinds, weight: Array, sent: Array) -> Array:
    """Squared distance of each message from the centres, by how likely each is."""
    return sum((weight[:, at] * np.square(sent - c).sum(1) for at, c in enumerate(kinds.centres)), np.zeros(len(sent)))


def kinds_by_k_means(values: Array, k: int, seed: int | None, starts: int = _STARTS) -> Kinds:
    """Lloyd's algorithm from several starts; where fewer than k values differ, some centres coincide."""
    distinct = min(k, len(np.unique(values, axis=0)))
    state = int(rng.generator(0 if seed is None else seed, "k-means").integers(1 << 31))
    labels, centres = k_means(values, distinct, state, starts)
    counts, missing = np.bincount(labels, minlength=distinct) / len(values), k - distinct
    padding = np.repeat(centres[:1], missing, axis=0)
    return Kinds(np.concatenate([centres, padding]), np.concatenate([counts, np.zeros(missing)]))


def alternate(
    values: Array, variance: Array, k: int, rounds: int, message: Message, domain: Domain, seed: int | None
) -> Kinds:
    """Algorithm 1: clients send their current estimates, the server clusters them. One message a round, each clipped,
    all rounds together within the message's budget."""
    if message.server_std(domain) > 0:
        return _alternate_privately(values, variance, k, rounds, message, domain, seed)
    each = message.repeated(rounds)
    current, kinds = values, None
    for at in range(rounds):
        sent = each.send(current, domain, source(seed, "mixture", at))
        kinds = kinds_by_k_means(sent, k, seed, starts=1 if at else _STARTS)
        current = kinds.estimate(values, variance)[1]
    assert kinds is not None
    return kinds


def _alternate_privately(
    values: Array, variance: Array, k: int, rounds: int, message: Message, domain: Domain, seed: int | None
) -> Kinds:
    """Algorithm 1 with a trusted server: a round is one noisy step of Lloyd's algorithm, the first one `STARTING`."""
    each = message.repeated(releases(rounds, message))
    centres, sums = cluster_sums(values, k, None, each, domain, seed, 0)
    kinds = Kinds(centres, sums.shares)
    for at in range(1, rounds):
        current = kinds.estimate(values, variance)[1]
        centres, sums = cluster_sums(current, k, centres, each, domain, seed, STARTING + at - 1)
        kinds = Kinds(centres, sums.shares)
    return kinds


def releases(rounds: int, message: Message) -> int:
    """How often something is released in so many rounds: with a server's noise, clusters must first be found."""
    return rounds + (STARTING - 1 if message.server_std(Domain(1.0)) > 0 else 0)


def maximise_privately(
    values: Array, variance: Array, k: int, message: Message, domain: Domain, seed: int | None, within: float | None
) -> Kinds:
    """Expectation-maximisation with a trusted server: `EM_RELEASES` noisy sums, all within the message's budget.

    A client's weight for a kind is its posterior, from its own data and from what was released before. Each client
    counts once, however many samples it has. Kinds are known as far as the last release tells; one that nobody is seen
    in moves nobody.
    """
    each = message.repeated(EM_RELEASES)
    centres = find_starts(values, k, each, domain, seed, 0)
    noise, spread = float(variance.mean()), within or 0.0
    kinds, sums = _wide(Kinds(centres, np.full(k, 1 / k)), spread), None
    for at in range(1, EM_RELEASES):
        sums = release_sums(values, kinds.posterior(values, variance), each, domain, seed, at)
        centres = sums.means(domain, kinds.centres)
        if within is None:
            spread = max(float(sums.shares @ sums.inside(centres, domain)) - noise, 0.0)
        kinds = _wide(Kinds(centres, sums.shares), spread)
    assert sums is not None  # several releases
    return _told_by(kinds, sums, noise)


def _told_by(kinds: Kinds, sums: Sums, noise: float) -> Kinds:
    most = _ENDLESS * (noise + kinds.within + np.square(kinds.centres).mean())
    doubt = np.minimum(sums.doubt(kinds.within + noise), most)
    return Kinds(kinds.centres, kinds.weights, doubt + kinds.within, kinds.within)


def expectation_maximisation(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Kinds from messages of known variance, with doubt. Where the variance `within` a kind is to be learned (None) and
    the messages do not show k kinds (BIC), all clients are one kind: the Gaussian estimate."""
    kinds_of_k = likeliest(sent, variance, k, seed, within)
    if within is None and k > 1:
        one = likeliest(sent, variance, 1, seed, within)
        kinds_of_k = min(kinds_of_k, one, key=lambda kinds: kinds.criterion(sent, variance))
    return doubted(kinds_of_k, sent, variance, within is None)


def likeliest(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Centres, shares and, if None is given, variance `within` a kind; starts at k-means."""
    kinds = _wide(kinds_by_k_means(sent, k, seed), within or 0.0)
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


def cluster(points: Floats, k: int, centres: Floats | None, seed: int, added: float, floor: float) -> Prior:
    """k-means of the points, from `centres` if given; variances without what messages `added`, not below the floor.

    Groups that are no more than the messages' own noise cut in pieces are refused.
    """
    labels, means = k_means(points, k, seed, 3 if centres is None else 1, centres)
    counts, d = np.maximum(np.bincount(labels, minlength=k), 1), points.shape[1]
    inside = np.bincount(labels, ((points - means[labels]) ** 2).sum(axis=1), minlength=k) / counts / d
    if k > 1 and counts @ inside / counts.sum() < (1 - 0.3 / d) * added:
        raise TacitError(
            f"noise of {added**0.5:.3g} an entry drowns {k} groups: use more epsilon, a smaller radius, fewer rounds"
        )
    return Prior(counts / counts.sum(), means, np.maximum(inside - added, floor), 1.0)


def shares_at(theta: Floats, prior: Prior) -> Floats:
    """Probability of each component given coefficients, [clients, k]; no distance is too large."""
    d = theta.shape[1]
    far = np.stack([((theta - mean) ** 2).sum(axis=1) for mean in prior.means], axis=1)
    logs = np.log(np.maximum(prior.weights, LEAST)) - d / 2 * np.log(prior.variances) - far / (2 * prior.variances)
    return np.exp(log_softmax(logs, axis=1))


def toward_prior(theta: Floats, prior: Prior) -> Floats:
    """Gradient of log sum_l p_l N(theta; mu_l, s_l^2 I)."""
    share = shares_at(theta, prior) / prior.variances
    return share @ prior.means - share.sum(axis=1, keepdims=True) * theta


class Rounds(NamedTuple):
    k: int
    letters: "Letters"
    noise: float
    noise_known: bool
    floor: float | None  # None: a tenth of the least variance inside the first clusters
    step: float
    local_steps: int


class Clustered(NamedTuple):
    prior: Prior
    theta: Floats
    floor: Floor


def rounds(model: "RegressionModel", plan: Rounds, discrete: bool) -> Clustered:
    """T messages a client, the first from its data alone; a clustering and a step of every client after each.

    Clients' steps: Algorithm 7 if `discrete` (weighted centres), else Algorithm 4 (gradient steps).
    """
    theta, noise, prior, floor = model.begin(plan.noise), plan.noise, None, plan.floor or LEAST
    for at in range(plan.letters.rounds):
        prior = _clustered(plan, theta, None if prior is None else prior.means, at, floor)
        if at == 0 and plan.floor is None:
            floor = max(0.1 * float(prior.variances.min()), 1e-10)
        prior = prior._replace(noise=noise, variances=np.maximum(prior.variances, floor))
        theta = _recentred(model, prior, plan.step) if discrete else _descended(model, prior, theta, plan)
        if not plan.noise_known:
            noise = max(model.noise(theta), 0.1 * plan.noise)
    assert prior is not None  # at least one round
    return Clustered(prior, theta, Floor(floor, 0.1 * plan.noise))


def _recentred(model: "RegressionModel", prior: Prior, step: float) -> Floats:
    """Centres weighted by how well they explain the client's data, and `step` of a gradient step on its own loss.

    As printed there is no such step: then centres are averages of averages of centres, and run into one another.
    """
    theta = discrete_shares(model, prior) @ prior.means
    steep = _steepness(model, prior.noise)
    return theta + step / np.where(steep > 0, steep, 1.0) * _slope(model, theta, prior.noise) if step > 0 else theta


def _descended(model: "RegressionModel", prior: Prior, theta: Floats, plan: Rounds) -> Floats:
    """Gradient steps on f_i(theta) - log sum_l p_l N(theta; mu_l, s_l^2 I), each client at a rate of its own."""
    rate = plan.step / (_steepness(model, prior.noise) + 1 / float(prior.variances.min()))
    for _ in range(plan.local_steps):
        theta = theta + rate * (_slope(model, theta, prior.noise) + toward_prior(theta, prior))
    return theta


def discrete_shares(model: "RegressionModel", prior: Prior) -> Floats:
    fits = np.stack([model.fit_at(mean, prior.noise) for mean in prior.means], axis=1)
    return np.exp(log_softmax(np.log(np.maximum(prior.weights, LEAST)) + fits, axis=1))


def _slope(model: "RegressionModel", theta: Floats, noise: float) -> Floats:
    """Gradient of each client's log-likelihood at its coefficients."""
    return spread(model.directions, model.push(along(model.directions, theta))) / noise


def _steepness(model: "RegressionModel", noise: float) -> Floats:
    """The largest curvature of each client's loss, [clients, 1]: known to the client alone."""
    data, longest = model.directions, np.zeros(len(model.directions.sizes))
    np.maximum.at(longest, data.owner, data.length)
    return longest[:, None] ** 2 / model.softness(noise)


def _clustered(plan: Rounds, theta: Floats, centres: Floats | None, at: int, floor: float) -> Prior:
    """Clusters of what clients have now: of their messages, or with a trusted server from noisy sums."""
    letters, domain = plan.letters, Domain(plan.letters.radius, dimension=theta.shape[1])
    sender = letters.message.repeated(releases(letters.rounds, letters.message))
    if sender.server_std(domain) == 0:
        sent = sender.send(theta, domain, source(letters.seed, "regression/theta", at))
        return cluster(sent, plan.k, centres, at, sender.variance(domain), floor)
    first = at if centres is None else at + STARTING - 1
    means, sums = cluster_sums(theta, plan.k, centres, sender, domain, letters.seed, first)
    if not sums.seen.any():
        raise TacitError(
            f"noise of {sums.count_std:.3g} on counts drowns {len(theta):,} clients: use more epsilon or fewer rounds"
        )
    return Prior(sums.shares, means, np.maximum(sums.inside(means, domain), floor), 1.0)
