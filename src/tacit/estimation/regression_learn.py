"""The prior of regressions, learned: by EM, by the paper's gradient descent, or from messages.

Expectation-maximisation, sped up without giving up its promise: the likelihood never falls. Squared extrapolation
(Varadhan and Roland 2008, S3) of a map that climbs; a leap that lands lower than where it started from is not taken.

The paper's Algorithms 2 and 3: joint gradient descent on coefficients, mean and variances, with a floor. The objectives
(19) and (20) have no minimum: coefficients at the mean and a prior variance of 0 send them to minus infinity. So the
floor is part of the method, not a detail. All clients start from the same coefficients; then theta_i is a common vector
plus a combination of the client's own directions in every step, and a step costs two products with the directions.

A prior learned from messages: in each of T rounds every client sends one clipped, possibly noisy vector. First rounds:
the client's posterior mean minus the prior's mean (EM's step), and what its data say of the variances. Last rounds: the
variances alone, around the mean that was learned, so that the prior's variance includes how far that mean is off: a
poor mean makes clients trust it less. Everything is in units of the current prior, which is public. The server adds
momentum, stable for every design because EM's step contracts; EM alone moves little where rows are few.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from tacit.estimation import regression_linear as linear
from tacit.estimation import regression_logistic as logistic
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.regression_linear import (
    Directions,
    Floats,
    Floor,
    Mixed,
    Prior,
    Rows,
    pack,
    segments,
    spread,
    unpack,
)
from tacit.estimation.regression_logistic import Belief, Logits

TINY = 1e-100
Step = Callable[[Floats], tuple[Floats, float]]
"""A point to a better one, and the height of the point that it was."""
Advance = Callable[[Prior, Floor], tuple[Prior, float]]
"""EM's next prior, no variance below its floor, and the log-likelihood of the one before."""


class KnownPrior(NamedTuple):
    """What is known of the prior; None is to be learned."""

    mean: Floats | None = None
    prior: float | None = None
    noise: float | None = None

    @property
    def complete(self) -> bool:
        return self.mean is not None and self.prior is not None and self.noise is not None

    def fix(self, learned: Prior) -> Prior:
        """`learned`, except for what is known."""
        return Prior(
            learned.weights,
            learned.means if self.mean is None else self.mean[None],
            learned.variances if self.prior is None else np.array([self.prior]),
            learned.noise if self.noise is None else self.noise,
        )


class Evidence(NamedTuple):
    """What clients know under the current prior. LevelPeriods with them; a message is made of it."""

    shift: Floats  # [clients, d], posterior mean minus the prior's mean
    decided: Floats  # [clients, 1], the share of its coefficients that a client's data decide, between 0 and 1
    slope: Floats  # [clients, v], by how much the data ask for more of each variance, relative, at most about 1
    weight: Floats  # [clients, v * v], information about the logarithms of the variances, entries at most 1


Expect = Callable[[Floats, Floats], Evidence]


class Summary(NamedTuple):
    """Each client's coefficients under a prior of one component, and the expected errors."""

    estimates: Floats
    mse: Floats
    variance: Floats  # of each coefficient
    global_mse: Floats


class RegressionModel(Protocol):
    """What learning asks of the data, whatever the targets are."""

    @property
    def directions(self) -> Directions: ...
    def start(self, known: KnownPrior) -> Prior:
        """A prior of one component from which to start."""
        ...

    def em(self) -> Advance: ...
    def evidence(self, known: KnownPrior) -> Expect:
        """What clients would put into a message, for any prior."""
        ...

    def push(self, position: Floats) -> Floats:
        """Gradient of each client's log-likelihood along its directions, at a position along them, times the noise."""
        ...

    def softness(self, noise: float) -> float:
        """The curvature of a client's loss is at most its largest squared singular value over this."""
        ...

    def noise_slope(self, position: Floats, noise: float) -> float: ...
    def noise(self, theta: Floats) -> float: ...
    def alone(self) -> Floats:
        """Each client's coefficients without the others."""
        ...

    def begin(self, noise: float) -> Floats: ...
    def fit_at(self, mean: Floats, noise: float) -> Floats: ...
    def mix(self, prior: Prior) -> Mixed: ...
    def summary(self, prior: Prior, mean_learned: bool) -> Summary: ...
    def local_mse(self, prior: Prior) -> Floats: ...


class Climb(NamedTuple):
    point: Floats
    heights: list[float]  # never falls
    steps: int  # calls of the map
    converged: bool


def climb(step: Step, start: Floats, tolerance: float, most: int) -> Climb:
    """Steps and leaps until one leap gains less than `tolerance`, or `most` steps were taken."""
    here, heights, steps = start, [], 0
    while steps < most:
        first, height = step(here)
        heights.append(height)
        second, better = step(first)
        steps += 2
        if _settled(heights, better, tolerance):
            return Climb(second, [*heights, better], steps, True)
        leap = _leap(here, first, second)
        landed, level = step(leap)
        steps += 1
        here = landed if np.isfinite(level) and level >= better else second
    return Climb(here, [*heights, step(here)[1]], steps, False)


def _settled(heights: list[float], better: float, tolerance: float) -> bool:
    gained = better - heights[-2] if len(heights) > 1 else better - heights[-1]
    return gained < tolerance


def _leap(here: Floats, first: Floats, second: Floats) -> Floats:
    pace, bend = first - here, second - 2 * first + here
    curved = float(np.linalg.norm(bend))
    if curved == 0:
        return second
    length = min(max(float(np.linalg.norm(pace)) / curved, 1.0), 1e3)
    return here + 2 * length * pace + length**2 * bend


def floor_under(start: Prior, share: float) -> Floor:
    return Floor(max(share * float(start.variances.min()), TINY), max(share * start.noise, TINY))


def learn_em(
    model: RegressionModel, known: KnownPrior, start: Prior, floor: Floor, tolerance: float, most: int
) -> Climb:
    """Maximum likelihood of the targets, what is known held fixed; `unpack` reads the point.

    The likelihood never falls. Stops where a leap gains less than `tolerance` a row.
    """
    k, advance = len(start.weights), model.em()

    def step(point: Floats) -> tuple[Floats, float]:
        after, height = advance(known.fix(unpack(point, k, floor)), floor)
        return pack(known.fix(after)), height

    return climb(step, pack(start), tolerance * int(model.directions.sizes.sum()), most)


class Rates(NamedTuple):
    theta: float
    mean: float
    prior: float
    noise: float


def descend(
    model: RegressionModel, known: KnownPrior, start: Prior, floor: Floor, step: float, steps: int, scaled: bool
) -> tuple[Prior, Floats]:
    """Algorithms 2 and 3, the latter with (theta - mu) / s^2 in the gradient, as (20) has it; what is known stays.

    Neither variance falls below its floor. `step` is relative to the curvature in each argument, or, not scaled, the
    same for all as printed. The prior, and the coefficients of the last round.
    """
    data, prior, common, offset = model.directions, start, start.means[0].copy(), np.zeros(len(model.directions.length))
    m, d = len(data.sizes), len(common)
    for _ in range(steps):
        mean, s, noise = prior.means[0], float(prior.variances[0]), prior.noise
        rate = _rates(model, prior, step) if scaled else Rates(step, step, step, step)
        position = data.basis @ common + offset
        centre = common + offset @ data.basis / m
        distance = ((mean - common) ** 2).sum() + (offset**2).sum() / m - 2 * (centre - common) @ (mean - common)
        new_s = s - rate.prior * (d / (2 * s) - distance / (2 * s**2))
        new_noise = noise - rate.noise * model.noise_slope(position, noise)
        new_mean = (mean - rate.mean * (mean - centre) / s)[None]
        variances = np.maximum([new_s], floor.prior)
        prior = known.fix(Prior(np.ones(1), new_mean, variances, max(float(new_noise), floor.noise)))
        common = common + rate.theta * (mean - common) / s
        offset = offset + rate.theta * (model.push(position) / noise - offset / s)
    return prior, common + spread(data, offset)


def _rates(model: RegressionModel, prior: Prior, step: float) -> Rates:
    """`step` over the curvature in each argument: with 1, mean and variances jump to their optimum."""
    data, s = model.directions, float(prior.variances[0])
    steepest = float(data.length.max(initial=0.0)) ** 2 / model.softness(prior.noise) + 1 / s
    d, n = data.basis.shape[1], float(data.sizes.mean())
    return Rates(step / steepest, step * s, step * 2 * s**2 / d, step * 2 * prior.noise**2 / n)


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


class LinearModel(NamedTuple):
    directions: Directions
    local_variance: float = 1.0

    def start(self, known: KnownPrior) -> Prior:
        """Pooled least squares and moments: consistent, so that what follows has little left to do."""
        mean = linear.pooled(self.directions) if known.mean is None else known.mean
        prior, noise = linear.moments(self.directions, mean)
        return known.fix(Prior(np.ones(1), mean[None], np.array([max(prior, TINY)]), max(noise, TINY)))

    def em(self) -> Advance:
        return lambda prior, floor: linear.em_step(self.directions, prior, floor)

    def evidence(self, known: KnownPrior) -> Expect:
        """Squared surprises are 1 + p a + (1 - p) b times what the prior expects, if its variance is too small by a and
        the noise by b (in logarithms), p the pull of a direction: slope = weight times (a, b) on average."""
        data = self.directions

        def expect(mean: Floats, variances: Floats) -> Evidence:
            assumed = known.fix(Prior(np.ones(1), mean[None], variances[:1], float(variances[1])))
            now = linear.posterior(data, assumed)
            p, ratio = linear.pull(data, assumed), now.surprise[:, 0] ** 2 / now.total[:, 0] - 1
            left, q, n = data.sizes - data.ranks, 1 - p, data.sizes
            more = [
                segments(p * ratio, data.starts),
                segments(q * ratio, data.starts) + data.rest / assumed.noise - left,
            ]
            both = segments(p * q, data.starts)
            weight = [segments(p**2, data.starts), both, both, segments(q**2, data.starts) + left]
            slope = np.stack(more, axis=1) / n[:, None]
            slope[:, np.array([known.prior is not None, known.noise is not None])] = 0.0
            decided = segments(p, data.starts) / len(mean)
            weights = np.stack(weight, axis=1) / n[:, None]
            return Evidence(spread(data, now.shift[:, 0]), decided[:, None], slope, weights)

        return expect

    def push(self, position: Floats) -> Floats:
        return self.directions.length * self._left(position)

    def softness(self, noise: float) -> float:
        return noise

    def noise_slope(self, position: Floats, noise: float) -> float:
        m, n = len(self.directions.sizes), float(self.directions.sizes.mean())
        error = float(self.directions.rest.sum() + (self._left(position) ** 2).sum()) / m
        return n / (2 * noise) - error / (2 * noise**2)

    def noise(self, theta: Floats) -> float:
        return float(self._errors(theta).sum() / self.directions.sizes.sum())

    def alone(self) -> Floats:
        return linear.local(self.directions)

    def begin(self, noise: float) -> Floats:
        """Each client's own estimate under N(0, local_variance I): a pseudo-inverse has outliers, k-means' prey."""
        data = self.directions
        return spread(data, data.length * data.answer / (data.length**2 + noise / self.local_variance))

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return -self._errors(np.broadcast_to(mean, (len(self.directions.sizes), len(mean)))) / (2 * noise)

    def mix(self, prior: Prior) -> Mixed:
        return linear.linear_mix(self.directions, prior)

    def summary(self, prior: Prior, mean_learned: bool) -> Summary:
        """With a learned mean the errors include that it is not known exactly."""
        data, doubt = self.directions, linear.mean_covariance(self.directions, prior) if mean_learned else None
        mse, variance = linear.posterior_mse(data, prior), linear.coordinate_variance(data, prior)
        if doubt is not None:
            mse, variance = (
                mse + linear.mean_error(data, prior, doubt),
                variance + linear.mean_coordinate_error(data, prior, doubt),
            )
        return Summary(linear.estimates(data, prior), mse, variance, linear.global_mse(data, prior, doubt))

    def local_mse(self, prior: Prior) -> Floats:
        return linear.local_mse(self.directions, prior)

    def _left(self, position: Floats) -> Floats:
        return self.directions.answer - self.directions.length * position

    def _errors(self, theta: Floats) -> Floats:
        data = self.directions
        return data.rest + np.bincount(
            data.owner, self._left(linear.along(data, theta)) ** 2, minlength=len(data.sizes)
        )


class LogisticModel(NamedTuple):
    logits: Logits
    rows: Rows
    local_variance: float = 1.0

    @property
    def directions(self) -> Directions:
        return self.logits.directions

    def start(self, known: KnownPrior) -> Prior:
        unit = logistic.unit_variance(self.rows)
        mean = logistic.pooled_logit(self.rows, 100 * unit) if known.mean is None else known.mean
        return known.fix(Prior(np.ones(1), mean[None], np.array([unit]), 1.0))

    def em(self) -> Advance:
        """Each E-step starts where the last one ended."""
        warm: list[list[Belief] | None] = [None]

        def advance(prior: Prior, floor: Floor) -> tuple[Prior, float]:
            now = logistic.logit_posterior(self.logits, prior, warm[0])
            warm[0] = now.beliefs
            return logistic.logit_em_step(self.logits, prior, now, floor), float(now.log_likelihood.sum())

        return advance

    def evidence(self, known: KnownPrior) -> Expect:
        """Its fixed point is that of MacKay's evidence update."""
        data, warm = self.directions, list[Belief | None]([None])

        def expect(mean: Floats, variances: Floats) -> Evidence:
            s = float(variances[0]) if known.prior is None else known.prior
            belief = logistic.beliefs(self.logits, mean, s, warm[0])
            warm[0] = belief
            pulls, rank = 1 - belief.variance / s, np.maximum(data.ranks, 1)
            slope = segments(belief.shift**2 / s - pulls, data.starts) / rank
            weight = segments(pulls**2, data.starts) / rank
            free = 0.0 if known.prior is not None else 1.0
            decided = segments(pulls, data.starts) / len(mean)
            return Evidence(spread(data, belief.shift), decided[:, None], free * slope[:, None], weight[:, None])

        return expect

    def push(self, position: Floats) -> Floats:
        return logistic.slopes(self.logits, position)

    def softness(self, noise: float) -> float:
        return 4.0

    def noise_slope(self, position: Floats, noise: float) -> float:
        return 0.0

    def noise(self, theta: Floats) -> float:
        return 1.0

    def alone(self) -> Floats:
        zero = np.zeros(self.directions.basis.shape[1])
        return spread(self.directions, logistic.beliefs(self.logits, zero, self.local_variance, nodes=1).shift)

    def begin(self, noise: float) -> Floats:
        return self.alone()

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return logistic.likelihoods(self.logits, mean)

    def mix(self, prior: Prior) -> Mixed:
        return logistic.logistic_mix(self.logits, prior)

    def summary(self, prior: Prior, mean_learned: bool) -> Summary:
        mean, s, data = prior.means[0], float(prior.variances[0]), self.directions
        belief = logistic.beliefs(self.logits, mean, s)
        variance = np.maximum(s - spread(data, s - belief.variance, squared=True), 0.0)
        return Summary(
            mean + spread(data, belief.shift), belief.trace, variance, np.full(len(data.sizes), len(mean) * s)
        )

    def local_mse(self, prior: Prior) -> Floats:
        components = zip(prior.weights, prior.means, prior.variances, strict=True)
        errors = [
            w * logistic.local_logit_mse(self.logits, mean, float(s), self.local_variance) for w, mean, s in components
        ]
        return np.sum(errors, axis=0)


def model_of(task: str, rows: Rows, local_variance: float = 1.0) -> RegressionModel:
    if task == "linear":
        return LinearModel(linear.decompose(rows), local_variance)
    return LogisticModel(logistic.prepare(rows), rows, local_variance)
