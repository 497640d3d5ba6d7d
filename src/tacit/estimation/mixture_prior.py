"""Linear or logistic regressions of clients that come in a few kinds.

The linear and the logistic model behind one face, for priors of several components.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from tacit.errors import TacitError
from tacit.estimation.base import Array, check_choice, check_count, check_fitted, check_matrix, check_positive
from tacit.estimation.logistic import learn_logit_em, pooled_logit, unit_variance
from tacit.estimation.messages import Domain
from tacit.estimation.regression_error import Mixed, discrete_mix, linear_mix, local_mse, logistic_mix, ordered, overall
from tacit.estimation.regression_learn import (
    Climb,
    Given,
    LinearTask,
    LogisticTask,
    Post,
    Rounds,
    Task,
    cluster,
    discrete_shares,
    floor_under,
    learn_em,
    rounds,
    starting,
)
from tacit.estimation.regression_logit import Logits, local_logit_mse, prepare
from tacit.estimation.regression_model import Directions, Floor, Prior, Rows, decompose, unpack
from tacit.estimation.regression_settings import Settings


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


TASKS = ("linear", "logistic")
SOLVERS = ("em", "cluster", "discrete")


@dataclass(kw_only=True, eq=False, repr=False)
class MixturePriorRegressions(Settings):
    """theta_i ~ sum_l p_l N(mu_l, s_l^2 I), k components; targets as in the linear or the logistic model.

    `solver="em"` climbs the likelihood of the targets (for logistic: a lower bound of it) and never takes a step down;
    `"cluster"` is Algorithm 4, `"discrete"` Algorithm 7 (no variance: a client is one of k centres). The latter two may
    send `message`s, `rounds` a client, together within the message's epsilon; coefficients are clipped to `radius`
    before, and the noise variance of a linear model must be given. Learned: `weights_`, `centres_`, `variances_`,
    `shares_` (how probable each component is for each client); components from the most frequent to the least.

    step: of gradient steps, relative to the curvature. With "discrete", 0 is the algorithm as printed, whose centres
        run into one another where clients' data are weak; above 0 each client adds one step on its own loss.
    variance_floor: no s_l^2 falls below it: by default a tenth of the least one in the first clustering (Algorithm 4
        has no minimum without), for EM a millionth. Stated in `variance_floor_`.
    """

    k: int = 2
    task: str = "linear"
    noise_variance: float | None = None
    restarts: int = 3
    rounds: int = 20
    local_steps: int = 10
    variance_floor: float | None = None
    local_variance: float = 1.0

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None, offsets: ArrayLike | None = None) -> Self:
        """From a list of matrices and one of targets, or flat arrays with each row's client, or with offsets."""
        rows = self._read(X, y, groups, offsets)
        self._check()
        self.n_iter_ = self.rounds
        self._sends(self.message, Domain(self.radius, dimension=self.n_features_in_), self.rounds, False)
        world = world_of(self.task, rows, self.local_variance)
        return self._by_em(world) if self.solver == "em" else self._by_rounds(world)

    def predict_proba(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The chance of class 1 for each row of a logistic model."""
        check_fitted(self)
        if self.task != "logistic":
            raise TacitError("a linear model has no classes: use predict")
        return expit(self._scores(check_matrix("X", X, self.n_features_in_), np.asarray(groups)))

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """One number a row: the target of a linear model, the likelier class of a logistic one."""
        if self.task == "linear":
            return super().predict(X, groups)
        return (self.predict_proba(X, groups) >= 0.5).astype(np.float64)

    def _check(self) -> None:
        check_choice("task", self.task, TASKS)
        check_choice("solver", self.solver, SOLVERS)
        for name in ("k", "steps", "restarts", "rounds", "local_steps"):
            check_count(name, getattr(self, name))
        check_positive("step", self.step, zero=self.solver == "discrete")
        for name in ("tolerance", "radius", "local_variance"):
            check_positive(name, getattr(self, name))
        for name in ("noise_variance", "variance_floor"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.n_clients_ < max(self.k, 2):
            raise TacitError(f"{self.n_clients_} clients for {self.k} components: bring more clients than components")
        if self.message is not None and self.solver == "em":
            raise TacitError("solver 'em' sends no messages here: use 'cluster' or 'discrete'")
        if self.message is not None and self.task == "linear" and self.noise_variance is None:
            raise TacitError("messages say nothing of the noise variance: give noise_variance")

    def _noise(self) -> float | None:
        return 1.0 if self.task == "logistic" else self.noise_variance

    def _by_em(self, world: World) -> Self:
        limits = (self.variance_floor, self.tolerance, self.steps, self.restarts)
        prior, floor, found = best_climb(world, Given(noise=self._noise()), self.k, *limits)
        self._climbed(found)
        self.variance_floor_, prior = floor.prior, ordered(prior)
        return self._finish(world, prior, world.mix(prior))

    def _by_rounds(self, world: World) -> Self:
        noise, discrete = self._noise(), self.solver == "discrete"
        post = Post(self.message, self.radius, self.rounds, self.seed)
        first = world.start(Given()).noise if noise is None else noise
        plan = Rounds(self.k, post, first, noise is not None, self.variance_floor, self.step, self.local_steps)
        end = rounds(world.task, plan, discrete)
        self.variance_floor_, prior = end.floor.prior, ordered(end.prior)
        if discrete:
            prior = prior._replace(variances=np.zeros(self.k))
            return self._finish(world, prior, discrete_mix(discrete_shares(world.task, prior), prior.means))
        return self._finish(world, prior, world.mix(prior)._replace(estimates=end.theta))

    def _finish(self, world: World, prior: Prior, mixed: Mixed) -> Self:
        self.weights_, self.centres_, self.variances_ = prior.weights, prior.means, prior.variances
        self.noise_variance_ = prior.noise
        self.shares_, self.estimates_, self.coefficient_variance_ = mixed
        self.expected_mse_ = mixed.variance.sum(axis=1)
        self.local_, self.local_mse_ = world.task.alone(), world.local_mse(prior)
        mean, far = overall(prior)
        self.global_, self.global_mse_ = mean[None], np.full(self.n_clients_, far)
        return self
