"""The prior of linear regressions, learned: by EM, by the paper's gradient descent, or from messages.

Expectation-maximisation, sped up without giving up its promise: the likelihood never falls.

Squared extrapolation (Varadhan and Roland 2008, S3) of a map that climbs; a leap that lands lower than where it started
from is not taken.

The paper's Algorithm 2: joint gradient descent on coefficients, mean and variances, with a floor.

The objective (19) has no minimum: coefficients at the mean and a prior variance of 0 send it to minus infinity. So the
floor is part of the method, not a detail. All clients start from the same coefficients; then theta_i is a common vector
plus a combination of the client's own directions in every step, and a step costs two products with the directions.

The paper's Algorithms 4 and 7: clients send their coefficients, the server clusters them, T times.

Both objectives with the minus signs that their probabilities need: -log sum_l p_l N(theta; mu_l, s_l^2 I) in (21) and
(22); all weights of components in logarithms.

A prior learned from messages: in each of T rounds every client sends one clipped, possibly noisy vector.

First rounds: the client's posterior mean minus the prior's mean (EM's step), and what its data say of both variances.
Last rounds: the variances alone, around the mean that was found, so that the prior's variance includes how far that
mean is off: a poor mean makes clients trust it less. Everything is in units of the current prior, which is public. The
server adds momentum, stable for every design because EM's step contracts; EM alone moves little where rows are few.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from tacit.errors import TacitError
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.regression_error import pull
from tacit.estimation.regression_logit import Logits, beliefs, likelihoods, slopes
from tacit.estimation.regression_model import (
    LEAST,
    Directions,
    Floats,
    Floor,
    Ints,
    Prior,
    along,
    em_step,
    local,
    moments,
    pack,
    pooled,
    posterior,
    segments,
    spread,
    unpack,
)

Point = NDArray[np.float64]
Step = Callable[[Point], tuple[Point, float]]
"""A point to a better one, and the height of the point that was given."""


class Climb(NamedTuple):
    point: Point
    heights: list[float]  # never falls
    steps: int  # calls of the map
    converged: bool


def climb(step: Step, start: Point, tolerance: float, most: int) -> Climb:
    """Steps and leaps until one leap gains less than `tolerance`, or `most` steps were made."""
    here, heights, made = start, [], 0
    while made < most:
        first, height = step(here)
        heights.append(height)
        second, better = step(first)
        made += 2
        if _settled(heights, better, tolerance):
            return Climb(second, [*heights, better], made, True)
        leap = _leap(here, first, second)
        landed, level = step(leap)
        made += 1
        here = landed if np.isfinite(level) and level >= better else second
    return Climb(here, [*heights, step(here)[1]], made, False)


def _settled(heights: list[float], better: float, tolerance: float) -> bool:
    gained = better - heights[-2] if len(heights) > 1 else better - heights[-1]
    return gained < tolerance


def _leap(here: Point, first: Point, second: Point) -> Point:
    pace, bend = first - here, second - 2 * first + here
    curved = float(np.linalg.norm(bend))
    if curved == 0:
        return second
    length = min(max(float(np.linalg.norm(pace)) / curved, 1.0), 1e3)
    return here + 2 * length * pace + length**2 * bend


class Descent(NamedTuple):
    """theta_i = common + own combination of the client's directions."""

    prior: Prior
    common: Floats  # [d]
    own: Floats  # [directions]


class Rates(NamedTuple):
    theta: float
    mean: float
    prior: float
    noise: float


def descend(
    data: Directions,
    start: Prior,
    floor: Floor,
    step: float,
    steps: int,
    scaled: bool,
    hold: Callable[[Prior], Prior],
) -> Descent:
    """`steps` rounds of Algorithm 2. Neither variance ever falls below its floor; `hold` puts back what is known."""
    state = Descent(start, start.means[0].copy(), np.zeros(len(data.length)))
    for _ in range(steps):
        rates = _rates(data, state.prior, step) if scaled else Rates(step, step, step, step)
        state = _round(data, state, floor, rates)
        state = state._replace(prior=hold(state.prior))
    return state


def _rates(data: Directions, prior: Prior, step: float) -> Rates:
    """`step` over the curvature of (19) in each argument: with 1, mean and variances jump to their optimum."""
    s, d, n = float(prior.variances[0]), data.basis.shape[1], float(data.sizes.mean())
    steepest = float(data.length.max(initial=0.0)) ** 2 / prior.noise + 1 / s
    return Rates(step / steepest, step * s, step * 2 * s**2 / d, step * 2 * prior.noise**2 / n)


def _round(data: Directions, state: Descent, floor: Floor, rate: Rates) -> Descent:
    (_, means, variances, noise), common, own = state
    mean, s, m, d = means[0], float(variances[0]), len(data.sizes), len(common)
    left = data.answer - data.length * (data.basis @ common + own)
    centre = common + own @ data.basis / m
    distance = ((mean - common) ** 2).sum() + (own**2).sum() / m - 2 * (centre - common) @ (mean - common)
    error, n = float(data.rest.sum() + (left**2).sum()) / m, float(data.sizes.mean())
    new_s = s - rate.prior * (d / (2 * s) - distance / (2 * s**2))
    new_noise = noise - rate.noise * (n / (2 * noise) - error / (2 * noise**2))
    prior = Prior(
        np.ones(1),
        (mean - rate.mean * (mean - centre) / s)[None],
        np.maximum([new_s], floor.prior),
        max(float(new_noise), floor.noise),
    )
    return Descent(
        prior,
        common + rate.theta * (mean - common) / s,
        own + rate.theta * (data.length * left / noise - own / s),
    )


class Task(Protocol):
    """What Algorithms 4 and 7 ask of the data."""

    @property
    def directions(self) -> Directions: ...
    def alone(self) -> Floats: ...
    def begin(self, noise: float) -> Floats: ...
    def fit_at(self, mean: Floats, noise: float) -> Floats: ...
    def slope(self, theta: Floats, noise: float) -> Floats: ...
    def steepness(self, noise: float) -> Floats: ...
    def noise(self, theta: Floats) -> float: ...


class LinearTask(NamedTuple):
    directions: Directions
    local_variance: float = 1.0

    def alone(self) -> Floats:
        return local(self.directions)

    def begin(self, noise: float) -> Floats:
        """Each client's own estimate under N(0, local_variance I): a pseudo-inverse has outliers, k-means' prey."""
        data = self.directions
        return spread(data, data.length * data.answer / (data.length**2 + noise / self.local_variance))

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return -self._errors(np.broadcast_to(mean, (len(self.directions.sizes), len(mean)))) / (2 * noise)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, self.directions.length * self._left(theta)) / noise

    def steepness(self, noise: float) -> Floats:
        return _longest(self.directions) ** 2 / noise

    def noise(self, theta: Floats) -> float:
        return float(self._errors(theta).sum() / self.directions.sizes.sum())

    def _left(self, theta: Floats) -> Floats:
        return self.directions.answer - self.directions.length * along(self.directions, theta)

    def _errors(self, theta: Floats) -> Floats:
        data = self.directions
        return data.rest + np.bincount(data.owner, self._left(theta) ** 2, minlength=len(data.sizes))


def _longest(data: Directions) -> Floats:
    """The largest singular value of each client's rows, [clients, 1]: known to the client alone."""
    out = np.zeros(len(data.sizes))
    np.maximum.at(out, data.owner, data.length)
    return out[:, None]


class LogisticTask(NamedTuple):
    logits: Logits
    local_variance: float = 1.0

    @property
    def directions(self) -> Directions:
        return self.logits.directions

    def alone(self) -> Floats:
        zero = np.zeros(self.directions.basis.shape[1])
        return spread(self.directions, beliefs(self.logits, zero, self.local_variance, nodes=1).shift)

    def begin(self, noise: float) -> Floats:
        return self.alone()

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return likelihoods(self.logits, mean)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, slopes(self.logits, along(self.directions, theta)))

    def steepness(self, noise: float) -> Floats:
        return _longest(self.directions) ** 2 / 4

    def noise(self, theta: Floats) -> float:
        return 1.0


class Post(NamedTuple):
    """How coefficients travel to the server: as they are, or clipped to `radius` and sent as messages."""

    message: Message | None
    radius: float
    rounds: int
    seed: int | None

    def send(self, theta: Floats, at: int) -> tuple[Floats, float]:
        """What the server gets, and the variance that the message adds to each entry."""
        if self.message is None:
            return theta, 0.0
        sender, domain = self.message.repeated(self.rounds), Domain(self.radius, dimension=theta.shape[1])
        if sender.server_std(domain) > 0:
            raise TacitError(
                "clustering reads single messages, which a trusted server's noise does not cover: use LocalGaussian"
            )
        return sender.send(theta, domain, source(self.seed, "regression/theta", at)), sender.variance(domain)


def cluster(points: Floats, k: int, centres: Floats | None, seed: int, added: float, floor: float) -> Prior:
    """k-means of the points, from `centres` if given; variances without what messages `added`, not below the floor.

    Groups that are no more than the messages' own noise cut in pieces are refused.
    """
    labels, means = _k_means(points, k, centres, seed)
    counts, d = np.maximum(np.bincount(labels, minlength=k), 1), points.shape[1]
    inside = np.bincount(labels, ((points - means[labels]) ** 2).sum(axis=1), minlength=k) / counts / d
    if k > 1 and counts @ inside / counts.sum() < (1 - 0.3 / d) * added:
        raise TacitError(
            f"noise of {added**0.5:.3g} an entry drowns {k} groups: use more epsilon, a smaller radius, fewer rounds"
        )
    return Prior(counts / counts.sum(), means, np.maximum(inside - added, floor), 1.0)


def _k_means(points: Floats, k: int, centres: Floats | None, seed: int) -> tuple[Ints, Floats]:
    """Scikit-learn's; fewer distinct points than k are no error: some centres are then the same."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    init, times = ("k-means++", 3) if centres is None else (centres, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, init=init, n_init=times, random_state=seed).fit(points)  # type: ignore[arg-type]
    return np.asarray(found.labels_, dtype=np.int64), np.asarray(found.cluster_centers_, dtype=np.float64)


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
    post: Post
    noise: float
    noise_known: bool
    floor: float | None  # None: a tenth of the least variance inside the first clusters
    step: float
    local_steps: int


class Clustered(NamedTuple):
    prior: Prior
    theta: Floats
    floor: Floor


def rounds(task: Task, plan: Rounds, discrete: bool) -> Clustered:
    """T messages a client, the first from its data alone; a clustering and a step of every client after each.

    Clients' steps: Algorithm 7 if `discrete` (weighted centres), else Algorithm 4 (gradient steps).
    """
    theta, noise, prior, floor = task.begin(plan.noise), plan.noise, None, plan.floor or LEAST
    for at in range(plan.post.rounds):
        sent, added = plan.post.send(theta, at)
        prior = cluster(sent, plan.k, None if prior is None else prior.means, at, added, floor)
        if at == 0 and plan.floor is None:
            floor = max(0.1 * float(prior.variances.min()), 1e-10)
        prior = prior._replace(noise=noise, variances=np.maximum(prior.variances, floor))
        theta = _recentred(task, prior, plan.step) if discrete else _descended(task, prior, theta, plan)
        if not plan.noise_known:
            noise = max(task.noise(theta), 0.1 * plan.noise)
    assert prior is not None  # at least one round
    return Clustered(prior, theta, Floor(floor, 0.1 * plan.noise))


def _recentred(task: Task, prior: Prior, step: float) -> Floats:
    """Centres weighted by how well they explain the client's data, and `step` of a gradient step on its own loss.

    As printed there is no such step: then centres are averages of averages of centres, and run into one another.
    """
    theta = discrete_shares(task, prior) @ prior.means
    steep = task.steepness(prior.noise)
    return theta + step / np.where(steep > 0, steep, 1.0) * task.slope(theta, prior.noise) if step > 0 else theta


def _descended(task: Task, prior: Prior, theta: Floats, plan: Rounds) -> Floats:
    """Gradient steps on f_i(theta) - log sum_l p_l N(theta; mu_l, s_l^2 I), each client at a rate of its own."""
    rate = plan.step / (task.steepness(prior.noise) + 1 / float(prior.variances.min()))
    for _ in range(plan.local_steps):
        theta = theta + rate * (task.slope(theta, prior.noise) + toward_prior(theta, prior))
    return theta


def discrete_shares(task: Task, prior: Prior) -> Floats:
    fits = np.stack([task.fit_at(mean, prior.noise) for mean in prior.means], axis=1)
    return np.exp(log_softmax(np.log(np.maximum(prior.weights, LEAST)) + fits, axis=1))


class Evidence(NamedTuple):
    """What clients know under the current prior. Stays with them; a message is made of it."""

    shift: Floats  # [clients, d], posterior mean minus the prior's mean
    own: Floats  # [clients, 1], the share of its coefficients that a client's data decide, between 0 and 1
    slope: Floats  # [clients, v], by how much the data ask for more of each variance, relative, at most about 1
    weight: Floats  # [clients, v * v], information about the logarithms of the variances, entries at most 1


class Learned(NamedTuple):
    mean: Floats
    variances: Floats  # [v]: the prior's, and the noise's where there is one to learn
    mean_variance: float = 0.0  # of each entry of the mean, from the messages; at most this


class Letters(NamedTuple):
    """How messages are sent; all `rounds` of a client are within the message's epsilon together."""

    message: Message
    radius: float
    rounds: int
    seed: int | None

    @property
    def for_variances(self) -> int:
        return self.rounds // 3


class _Walk(NamedTuple):
    """The mean on its way, with the momentum and the messages' noise of each step so far."""

    mean: Floats
    speed: Floats
    momenta: list[float]
    spent: list[float]


Expect = Callable[[Floats, Floats], Evidence]


def learn(expect: Expect, start: Learned, letters: Letters, mean_known: bool) -> Learned:
    """The prior after `rounds` messages a client. Reads the evidence through `message.repeated(rounds)` only."""
    sender = letters.message.repeated(letters.rounds)
    walking = 0 if mean_known else letters.rounds - letters.for_variances
    walk, variances = _Walk(start.mean, np.zeros_like(start.mean), [], []), start.variances
    for at in range(walking):
        evidence, unit = expect(walk.mean, variances), math.sqrt(len(start.mean) * variances[0])
        body = np.concatenate([evidence.shift / unit, *evidence[1:]], axis=1)
        sent, variance = _mean(sender, letters, body, at)
        walk = _stepped(walk, sent, variance, unit)
        variances = _rescaled(variances, sent[len(start.mean) + 1 :], variance)
    moved, left = _shrunk(walk.mean - start.mean, _noise(walk))
    mean = start.mean + moved
    for at in range(walking, letters.rounds):
        evidence = expect(mean, variances)
        variances = _rescaled(variances, *_mean(sender, letters, np.concatenate(evidence[2:], axis=1), at))
    return Learned(mean, variances, left)


def _mean(sender: Message, letters: Letters, values: Floats, at: int) -> tuple[Floats, float]:
    """Mean of the messages, and the variance that they put on each entry of it."""
    domain, m = Domain(letters.radius, dimension=values.shape[1]), len(values)
    sent = sender.send(values, domain, source(letters.seed, "regression/message", at)).mean(axis=0)
    std = sender.server_std(domain) / m
    if std > 0:
        sent = sent + std * source(letters.seed, "regression/server", at).standard_normal(sent.shape)
    return sent, sender.variance(domain) / m + std**2


def _stepped(walk: _Walk, sent: Floats, variance: float, unit: float) -> _Walk:
    """EM's step with the momentum that suits its pace: (1 - sqrt(share))^2, best where all directions are alike."""
    d = len(walk.mean)
    share = min(max(float(sent[d]), 0.05), 1.0)
    momentum = (1 - math.sqrt(share)) ** 2
    speed = momentum * walk.speed + unit * sent[:d]
    mean = np.clip(walk.mean + speed, -1e100, 1e100)
    return _Walk(mean, speed, [*walk.momenta, momentum], [*walk.spent, variance * unit**2])


def _rescaled(variances: Floats, sent: Floats, variance: float) -> Floats:
    """Newton's step in the logarithms, as far as the information exceeds the messages' noise; a factor of 2 at most."""
    v = len(variances)
    slope, weight = sent[:v], sent[v:].reshape(v, v)
    values, vectors = np.linalg.eigh((weight + weight.T) / 2)
    gains = np.maximum(values, 0.0) / (np.maximum(values, 0.0) ** 2 + 10 * variance + 1e-6)
    step = vectors @ (gains * (vectors.T @ slope))
    return np.clip(variances * np.exp(np.clip(step, -math.log(2), math.log(2))), 1e-100, 1e100)


def _noise(walk: _Walk) -> float:
    """Variance of each entry of the last mean if nothing pulled it back: an upper bound, as EM's steps contract."""
    total = 0.0
    for at, spent in enumerate(walk.spent):
        total += spent * float(1 + np.cumprod(walk.momenta[at + 1 :]).sum()) ** 2
    return total


def _shrunk(moved: Floats, variance: float) -> tuple[Floats, float]:
    """James and Stein: what messages say of the mean, back toward the start as far as it may be noise.

    Nothing is kept that noise alone would reach in more than a few of a thousand cases.
    """
    d, size = len(moved), float((moved**2).sum())
    if variance == 0:
        return moved, variance
    if size <= (d + 3 * math.sqrt(2 * d)) * variance:
        return np.zeros_like(moved), 0.0
    keep = 1 - max(d - 2, 0) * variance / size
    return keep * moved, keep * variance


TINY = 1e-100


class Given(NamedTuple):
    """What is known of the prior; None is to be learned."""

    mean: Floats | None = None
    prior: float | None = None
    noise: float | None = None

    @property
    def complete(self) -> bool:
        return self.mean is not None and self.prior is not None and self.noise is not None

    def over(self, learned: Prior) -> Prior:
        """`learned`, except for what is given."""
        return Prior(
            learned.weights,
            learned.means if self.mean is None else self.mean[None],
            learned.variances if self.prior is None else np.array([self.prior]),
            learned.noise if self.noise is None else self.noise,
        )


def starting(data: Directions, given: Given) -> Prior:
    """Pooled least squares and moments: consistent, so that what follows has little left to do."""
    mean = pooled(data) if given.mean is None else given.mean
    prior, noise = moments(data, mean)
    return given.over(Prior(np.ones(1), mean[None], np.array([max(prior, TINY)]), max(noise, TINY)))


def floor_under(start: Prior, share: float) -> Floor:
    return Floor(max(share * float(start.variances.min()), TINY), max(share * start.noise, TINY))


def learn_em(data: Directions, given: Given, start: Prior, floor: Floor, tolerance: float, most: int) -> Climb:
    """Maximum likelihood of the targets, what is given held fixed; `unpack` reads the point.

    The likelihood never falls. Stops where a leap gains less than `tolerance` a row.
    """
    k = len(start.weights)

    def step(point: Floats) -> tuple[Floats, float]:
        after, height = em_step(data, given.over(unpack(point, k, floor)), floor)
        return pack(given.over(after)), height

    return climb(step, pack(start), tolerance * int(data.sizes.sum()), most)


def learn_gradient(
    data: Directions, given: Given, start: Prior, floor: Floor, step: float, steps: int, scaled: bool
) -> tuple[Prior, Floats]:
    """Algorithm 2, what is given held fixed: the prior, and the coefficients of the last round."""
    end: Descent = descend(data, start, floor, step, steps, scaled, given.over)
    return end.prior, end.common + spread(data, end.own)


def evidence_of(data: Directions, given: Given) -> Expect:
    """What clients would put into a message, for any prior.

    Squared surprises are 1 + p a + (1 - p) b times what the prior expects, if its variance is too small by a and the
    noise by b (in logarithms), p the pull of a direction: slope = weight times (a, b) on average.
    """

    def expect(mean: Floats, variances: Floats) -> Evidence:
        assumed = given.over(Prior(np.ones(1), mean[None], variances[:1], float(variances[1])))
        now = posterior(data, assumed)
        p, ratio = pull(data, assumed), now.surprise[:, 0] ** 2 / now.total[:, 0] - 1
        left, q, n = data.sizes - data.ranks, 1 - p, data.sizes
        more = [segments(p * ratio, data.starts), segments(q * ratio, data.starts) + data.rest / assumed.noise - left]
        both = segments(p * q, data.starts)
        weight = [segments(p**2, data.starts), both, both, segments(q**2, data.starts) + left]
        slope = np.stack(more, axis=1) / n[:, None]
        known = np.array([given.prior is not None, given.noise is not None])
        slope[:, known] = 0.0
        own = segments(p, data.starts) / len(mean)
        weights = np.stack(weight, axis=1) / n[:, None]
        return Evidence(spread(data, now.shift[:, 0]), own[:, None], slope, weights)

    return expect
