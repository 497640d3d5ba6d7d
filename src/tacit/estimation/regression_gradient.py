"""The paper's Algorithm 2: joint gradient descent on coefficients, mean and variances, with a floor.

The objective (19) has no minimum: coefficients at the mean and a prior variance of 0 send it to minus infinity. So the
floor is part of the method, not a detail. All clients start from the same coefficients; then theta_i is a common vector
plus a combination of the client's own directions in every step, and a step costs two products with the directions.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.estimation.regression_data import Directions, Floats
from tacit.estimation.regression_model import Floor, Prior


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
