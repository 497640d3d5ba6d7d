"""A logistic regression for each of many clients, shrunk toward what they have in common.

The prior of logistic regressions, learned: by EM by Algorithm 3, or from messages.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from tacit.estimation.base import Array, check_fitted, check_matrix, check_positive
from tacit.estimation.messages import Message
from tacit.estimation.regression_learn import Climb, Evidence, Expect, Given, Learned, climb, learn
from tacit.estimation.regression_logit import (
    Belief,
    Logits,
    beliefs,
    local_logit_mse,
    logit_em_step,
    logit_posterior,
    prepare,
    slopes,
)
from tacit.estimation.regression_model import Floats, Floor, Prior, Rows, pack, segments, spread, unpack
from tacit.estimation.regression_settings import OnePrior


def pooled_logit(rows: Rows, variance: float) -> Floats:
    """One regression on all rows, under N(0, variance I), which keeps it finite where classes can be told apart."""
    together = rows._replace(starts=np.array([0, len(rows.y)]), names=rows.names[:1])
    data = prepare(together)
    return spread(data.directions, beliefs(data, np.zeros(rows.x.shape[1]), variance, nodes=1).shift)[0]


def unit_variance(rows: Rows) -> float:
    """The prior variance at which a row's logit has a variance of about 1."""
    power = float((rows.x**2).sum(axis=1).mean())
    return 1 / power if power > 0 else 1.0


def learn_logit_em(data: Logits, given: Given, start: Prior, floor: Floor, tolerance: float, most: int) -> Climb:
    """EM, what is given held fixed; each E-step starts where the last one ended."""
    k = len(start.weights)
    warm: list[list[Belief] | None] = [None]

    def step(point: Floats) -> tuple[Floats, float]:
        prior = given.over(unpack(point, k, floor))
        now = logit_posterior(data, prior, warm[0])
        warm[0] = now.beliefs
        return pack(given.over(logit_em_step(data, prior, now, floor))), float(now.log_likelihood.sum())

    return climb(step, pack(start), tolerance * int(data.directions.sizes.sum()), most)


def descend_logit(
    data: Logits, given: Given, start: Prior, floor: Floor, step: float, steps: int, scaled: bool
) -> tuple[Prior, Floats]:
    """Algorithm 3 with (theta - mu) / s^2 in the gradient, as (20) has it; the variance never falls below the floor.

    `step` is relative to the curvature of (20) in each argument, or, not scaled, the same for all as printed.
    """
    directions, d = data.directions, data.directions.basis.shape[1]
    m, steep = len(directions.sizes), float(directions.length.max(initial=0.0)) ** 2 / 4
    prior, common, own = start, start.means[0].copy(), np.zeros(len(directions.length))
    for _ in range(steps):
        mean, s = prior.means[0], float(prior.variances[0])
        rates = (step / (steep + 1 / s), step * s, step * 2 * s**2 / d) if scaled else (step, step, step)
        centre = common + own @ directions.basis / m
        distance = ((mean - common) ** 2).sum() + (own**2).sum() / m - 2 * (centre - common) @ (mean - common)
        push = slopes(data, directions.basis @ common + own)
        new_s = s - rates[2] * (d / (2 * s) - distance / (2 * s**2))
        common = common - rates[0] * (common - mean) / s
        own = own + rates[0] * (push - own / s)
        moved = (mean - rates[1] * (mean - centre) / s)[None]
        prior = given.over(prior._replace(means=moved, variances=np.maximum([new_s], floor.prior)))
    return prior, common + spread(directions, own)


def logit_evidence(data: Logits, given: Given) -> Expect:
    """What clients would put into a message, for any prior; its fixed point is that of MacKay's evidence update."""
    directions, warm = data.directions, list[Belief | None]([None])

    def expect(mean: Floats, variances: Floats) -> Evidence:
        s = float(variances[0]) if given.prior is None else given.prior
        belief = beliefs(data, mean, s, warm[0])
        warm[0] = belief
        pulls, rank = 1 - belief.variance / s, np.maximum(directions.ranks, 1)
        slope = segments(belief.shift**2 / s - pulls, directions.starts) / rank
        weight = segments(pulls**2, directions.starts) / rank
        held = 0.0 if given.prior is not None else 1.0
        own = segments(pulls, directions.starts) / len(mean)
        return Evidence(spread(directions, belief.shift), own[:, None], held * slope[:, None], weight[:, None])

    return expect


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegressions(OnePrior):
    """theta_i ~ N(mean, prior_variance I); a row is of class 1 with probability sigmoid(x . theta_i).

    A client's estimate is its posterior mean, its error the posterior's, both by the nearest Gaussian. What is not
    given of the prior is learned: by EM (`solver="em"`), by Algorithm 3 with the sign that its objective asks for
    (`"gradient"`), or, with a `message`, from `rounds` messages a client, all together within the message's epsilon.
    Estimates are finite for every design, also where a client's classes can be told apart or it has one class only.

    local_variance: of the prior N(0, local_variance I) that keeps the local estimates finite; their error is to first
        order. Other parameters as for `LinearRegressions`; `guess` is the public prior variance to start from.
    """

    steps: int = 200
    tolerance: float = 1e-7
    guess: float = 1.0
    local_variance: float = 1.0

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None, offsets: ArrayLike | None = None) -> Self:
        """From a list of matrices and one of classes 0 and 1, or flat arrays with each row's client, or offsets."""
        rows = self._read(X, y, groups, offsets)
        data = prepare(rows)
        check_positive("local_variance", self.local_variance)
        given = self._begin(Given(prior=self._known("prior_variance"), noise=1.0), numbers=3)
        if given.complete:
            return self._finish(data, given.over(Prior(np.ones(1), np.empty((1, 0)), np.ones(1), 1.0)))
        return self._from_messages(data, given, self.message) if self.message else self._from_data(rows, data, given)

    def predict_proba(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The chance of class 1 for each row, by its client's coefficients; by the shared ones for a new client."""
        check_fitted(self)
        return expit(self._scores(check_matrix("X", X, self.n_features_in_), np.asarray(groups)))

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The likelier class of each row, 0 or 1."""
        return (self.predict_proba(X, groups) >= 0.5).astype(np.float64)

    def _from_data(self, rows: Rows, data: Logits, given: Given) -> Self:
        unit = unit_variance(rows)
        mean = pooled_logit(rows, 100 * unit) if given.mean is None else given.mean
        start = given.over(Prior(np.ones(1), mean[None], np.array([unit]), 1.0))
        floor = self._floor(start)
        self.variance_floor_ = floor.prior
        if self.solver == "gradient":
            self.n_iter_ = self.steps
            return self._finish(data, *descend_logit(data, given, start, floor, self.step, self.steps, self.scaled))
        found = learn_logit_em(data, given, start, floor, self.tolerance, self.steps)
        self._climbed(found)
        return self._finish(data, given.over(unpack(found.point, 1, floor)))

    def _from_messages(self, data: Logits, given: Given, message: Message) -> Self:
        start = Learned(self._first_mean(given), np.array([given.prior or check_positive("guess", self.guess)]))
        found = learn(logit_evidence(data, given), start, self._letters(message), given.mean is not None)
        self.n_iter_, self.mean_variance_ = self.rounds, found.mean_variance
        return self._finish(data, given.over(Prior(np.ones(1), found.mean[None], found.variances, 1.0)))

    def _finish(self, data: Logits, prior: Prior, theta: Array | None = None) -> Self:
        self.prior_mean_, self.prior_variance_ = prior.means[0], float(prior.variances[0])
        self.global_, directions = self.prior_mean_[None], data.directions
        belief = beliefs(data, self.prior_mean_, self.prior_variance_)
        self.estimates_ = self.prior_mean_ + spread(directions, belief.shift) if theta is None else theta
        self.expected_mse_ = belief.trace
        inside = spread(directions, self.prior_variance_ - belief.variance, squared=True)
        self.coefficient_variance_ = np.maximum(self.prior_variance_ - inside, 0.0)
        self.local_ = spread(
            directions, beliefs(data, np.zeros_like(self.prior_mean_), self.local_variance, nodes=1).shift
        )
        self.local_mse_ = local_logit_mse(data, self.prior_mean_, self.prior_variance_, self.local_variance)
        self.global_mse_ = np.full(self.n_clients_, self.n_features_in_ * self.prior_variance_)
        return self
