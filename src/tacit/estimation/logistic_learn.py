"""The prior of logistic regressions, learned: by EM by Algorithm 3, or from messages."""

import numpy as np

from tacit.estimation.regression_climb import Climb, climb
from tacit.estimation.regression_data import Floats, Rows, segments, spread
from tacit.estimation.regression_learn import Given
from tacit.estimation.regression_logit import (
    Belief,
    Logits,
    beliefs,
    logit_em_step,
    logit_posterior,
    prepare,
    slopes,
)
from tacit.estimation.regression_model import Floor, Prior, pack, unpack
from tacit.estimation.regression_private import Evidence, Expect


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
