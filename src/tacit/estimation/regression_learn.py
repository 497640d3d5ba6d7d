"""The prior of linear regressions, learned: by EM, by the paper's gradient descent, or from messages."""

from typing import NamedTuple

import numpy as np

from tacit.estimation.regression_climb import Climb, climb
from tacit.estimation.regression_data import Directions, Floats, segments, spread
from tacit.estimation.regression_error import pull
from tacit.estimation.regression_gradient import Descent, descend
from tacit.estimation.regression_model import Floor, Prior, em_step, moments, pack, pooled, posterior, unpack
from tacit.estimation.regression_private import Evidence, Expect

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
