"""The linear and the logistic model behind one face, for priors of several components."""

from typing import NamedTuple, Protocol

import numpy as np

from tacit.estimation.base import Array
from tacit.estimation.logistic_learn import learn_logit_em, pooled_logit, unit_variance
from tacit.estimation.regression_climb import Climb
from tacit.estimation.regression_cluster import LinearTask, LogisticTask, Task, cluster
from tacit.estimation.regression_data import Directions, Rows, decompose
from tacit.estimation.regression_error import local_mse
from tacit.estimation.regression_learn import Given, floor_under, learn_em, starting
from tacit.estimation.regression_logit import Logits, local_logit_mse, prepare
from tacit.estimation.regression_mixed import Mixed, linear_mix, logistic_mix
from tacit.estimation.regression_model import Floor, Prior, unpack


class World(Protocol):
    @property
    def task(self) -> Task: ...
    def start(self, given: Given) -> Prior:
        """A prior of one component from which to start."""
        ...

    def climb(self, given: Given, start: Prior, floor: Floor, tolerance: float, most: int) -> Climb: ...
    def mix(self, prior: Prior) -> Mixed: ...
    def local_mse(self, prior: Prior) -> Array: ...


class Linear(NamedTuple):
    data: Directions
    local_variance: float

    @property
    def task(self) -> Task:
        return LinearTask(self.data, self.local_variance)

    def start(self, given: Given) -> Prior:
        return starting(self.data, given)

    def climb(self, given: Given, start: Prior, floor: Floor, tolerance: float, most: int) -> Climb:
        return learn_em(self.data, given, start, floor, tolerance, most)

    def mix(self, prior: Prior) -> Mixed:
        return linear_mix(self.data, prior)

    def local_mse(self, prior: Prior) -> Array:
        return local_mse(self.data, prior)


class Logistic(NamedTuple):
    data: Logits
    rows: Rows
    local_variance: float

    @property
    def task(self) -> Task:
        return LogisticTask(self.data, self.local_variance)

    def start(self, given: Given) -> Prior:
        unit = unit_variance(self.rows)
        mean = pooled_logit(self.rows, 100 * unit)
        return given.over(Prior(np.ones(1), mean[None], np.array([unit]), 1.0))

    def climb(self, given: Given, start: Prior, floor: Floor, tolerance: float, most: int) -> Climb:
        return learn_logit_em(self.data, given, start, floor, tolerance, most)

    def mix(self, prior: Prior) -> Mixed:
        return logistic_mix(self.data, prior)

    def local_mse(self, prior: Prior) -> Array:
        parts = zip(prior.weights, prior.means, prior.variances, strict=True)
        errors = [w * local_logit_mse(self.data, mean, float(s), self.local_variance) for w, mean, s in parts]
        return np.sum(errors, axis=0)


def world_of(task: str, rows: Rows, local_variance: float) -> World:
    return (
        Linear(decompose(rows), local_variance) if task == "linear" else Logistic(prepare(rows), rows, local_variance)
    )


def best_climb(
    world: World, given: Given, k: int, floor: float | None, tolerance: float, most: int, restarts: int
) -> tuple[Prior, Floor, Climb]:
    """EM for k components from several clusterings of one-component estimates; the likeliest end is kept.

    No variance falls below `floor`, by default a millionth of the one-component start.
    """
    one = world.start(given)
    least = floor_under(one, 1e-6)
    least = least if floor is None else least._replace(prior=floor)
    single = given.over(unpack(world.climb(given, one, least, 10 * tolerance, 30).point, 1, least))
    now = world.mix(single)
    found = [cluster(now.estimates, k, None, seed, 0.0, least.prior) for seed in range(restarts)]
    distinct = {tuple(np.round(np.sort(start.means.sum(axis=1)), 6)): start for start in found}
    wide = float(now.variance.mean())
    starts = [start._replace(noise=single.noise, variances=start.variances + wide) for start in distinct.values()]
    best = max((world.climb(given, start, least, tolerance, most) for start in starts), key=lambda end: end.heights[-1])
    return given.over(unpack(best.point, k, least)), least, best
