"""The prior of linear regressions, learned: by EM, by the paper's gradient descent, or from messages."""

from typing import NamedTuple

import numpy as np

from tacit.estimation.regression_climb import Climb, climb
from tacit.estimation.regression_data import Directions, Floats, segments, spread
from tacit.estimation.regression_gradient import Descent, descend
from tacit.estimation.regression_model import Floor, Prior, em_step, moments, pack, pooled, posterior, unpack
from tacit.estimation.regression_private import Evidence, Expect

TINY = 1e-200


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
    """What clients would put into a message, for any prior."""

    def expect(mean: Floats, prior: float, noise: float) -> Evidence:
        assumed = given.over(Prior(np.ones(1), mean[None], np.array([prior]), noise))
        now, d, s = posterior(data, assumed), len(mean), float(assumed.variances[0])
        shift, total = now.shift[:, 0], now.total[:, 0]
        known = s**2 * data.length**2 / total
        size = d * s + segments(shift**2 - known, data.starts)
        left = (now.surprise[:, 0] * assumed.noise / total) ** 2 + assumed.noise * (1 - assumed.noise / total)
        return Evidence(spread(data, shift), size, (data.rest + segments(left, data.starts)) / data.sizes)

    return expect
