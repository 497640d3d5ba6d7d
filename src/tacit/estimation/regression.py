"""A regression for each of many clients, shrunk toward what they have in common; or toward one of a few kinds.

What can be set of each, what is stated of the messages before any is sent, and predictions: each row by the
coefficients of its client. How priors are learned is in `regression_learn` and `clustering`.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from tacit.core.checked import checked_names
from tacit.errors import TacitError
from tacit.estimation import base
from tacit.estimation.base import Array, PersonalEstimator, check_choice, check_count, check_fitted, check_positive
from tacit.estimation.clustering import Rounds, cluster, discrete_shares, releases, rounds
from tacit.estimation.messages import Domain, Message, message_of
from tacit.estimation.regression_learn import (
    Climb,
    KnownPrior,
    Learned,
    Letters,
    RegressionModel,
    descend,
    floor_under,
    learn,
    learn_em,
    model_of,
)
from tacit.estimation.regression_linear import (
    Floor,
    Mixed,
    Prior,
    Rows,
    discrete_mix,
    ordered,
    overall,
    read_rows,
    unpack,
)
from tacit.estimation.shrinkage import check_delta, guarantee

SOLVERS = ("em", "gradient")
MIXTURE_SOLVERS = ("em", "cluster", "discrete")
TASKS = ("linear", "logistic")


class Regressions(PersonalEstimator):
    """Predictions and intervals from `clients_`, `estimates_` and `coefficient_variance_`."""

    clients_: NDArray[Any]
    coefficient_variance_: Array
    """Posterior variance of each coefficient, in the shape of `estimates_`."""
    privacy_: str
    """What left each client, in words."""

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """One number a row. A client that was not there in `fit` gets what all clients share."""
        check_fitted(self)
        return self._scores(base.check_matrix("X", X, self.n_features_in_), np.asarray(groups))

    def _chances(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """Of class 1, by a logistic model."""
        check_fitted(self)
        return expit(self._scores(base.check_matrix("X", X, self.n_features_in_), np.asarray(groups)))

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """As for every estimator, but each coefficient with its own width: wide where a client's rows say nothing."""
        from scipy.special import ndtri

        check_fitted(self)
        half = ndtri((1 + base.check_share("level", level)) / 2) * np.sqrt(self.coefficient_variance_)
        return self.estimates_ - half, self.estimates_ + half

    def _sends(self, message: Message | None, domain: Domain, rounds: int, known: bool) -> None:
        """States what leaves each client, before anything does; refuses a delta that promises nothing."""
        if known:
            self.privacy_ = "nothing is sent: the prior is known, every client works alone"
        elif message is None:
            self.privacy_ = "whoever fits reads every client's rows: no guarantee"
        else:
            check_delta(message, self.n_clients_)
            self.privacy_ = guarantee(message, domain, rounds, getattr(self, "seed", None))

    def _scores(self, x: Array, groups: NDArray[Any]) -> Array:
        if groups.shape != (len(x),):
            raise TacitError(f"groups has shape {groups.shape} for {len(x)} rows: give one client a row")
        order = np.argsort(self.clients_)
        place = order[np.minimum(np.searchsorted(self.clients_, groups, sorter=order), len(order) - 1)]
        personal = np.einsum("nd,nd->n", x, self.estimates_[place])
        return np.where(
            self.clients_[place] == groups, personal, x @ np.asarray(self.global_).reshape(-1, x.shape[1])[0]
        )


@dataclass(kw_only=True, eq=False, repr=False)
class Settings(Regressions):
    """Of every regression: when to stop, how far a gradient step goes, and what clients send."""

    solver: str = "em"
    steps: int = 300
    tolerance: float = 1e-6
    step: float = 0.5
    message: Message | None = None
    rounds: int = 12
    radius: float = 1.0
    seed: int | None = None

    def _read(self, X: Any, y: Any, groups: ArrayLike | None, offsets: ArrayLike | None) -> Rows:
        message_of(self.message)
        rows = read_rows(X, y, groups, offsets)
        self.clients_, self.n_clients_, self.n_features_in_ = rows.names, len(rows.names), rows.x.shape[1]
        self.log_likelihoods_: list[float] = []
        self.n_iter_, self.converged_ = 0, True
        return rows

    def _climbed(self, end: Climb) -> None:
        self.log_likelihoods_, self.n_iter_, self.converged_ = end.heights, end.steps, end.converged

    def _letters(self) -> Letters:
        return Letters(message_of(self.message), self.radius, self.rounds, self.seed)


@dataclass(kw_only=True, eq=False, repr=False)
class OnePrior(Settings):
    """Of regressions whose clients come from one normal distribution, known or learned.

    A subclass says which model its targets have, what it knows, and from which variances messages start.
    """

    mean: ArrayLike | None = None
    prior_variance: float | None = None
    floor: float | None = None
    scaled: bool = True

    def _model(self, rows: Rows) -> RegressionModel:
        raise NotImplementedError

    def _known(self) -> KnownPrior:
        raise NotImplementedError

    def _first_variances(self, known: KnownPrior) -> list[float]:
        """Where learning from messages starts: the prior's variance, and that of the noise if it is learned."""
        raise NotImplementedError

    def _state_floor(self, floor: Floor) -> Any:
        raise NotImplementedError

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None, offsets: ArrayLike | None = None) -> Self:
        """From a list of matrices and one of targets, or flat arrays with each row's client, or with offsets."""
        model = self._model(self._read(X, y, groups, offsets))
        known = self._begin(self._known())
        if known.complete:
            whole = known.fix(Prior(np.ones(1), np.empty((1, 0)), np.ones(1), 1.0))
            return self._finish(model, whole, mean_learned=False)
        return self._from_messages(model, known) if self.message else self._from_data(model, known)

    def _from_data(self, model: RegressionModel, known: KnownPrior) -> Self:
        start = model.start(known)
        share = self.floor if self.floor is not None else 1e-10 if self.solver == "em" else 0.1
        floor = floor_under(start, check_positive("floor", share))
        self.variance_floor_ = self._state_floor(floor)
        if self.solver == "gradient":
            self.n_iter_ = self.steps
            return self._finish(model, *descend(model, known, start, floor, self.step, self.steps, self.scaled))
        end = learn_em(model, known, start, floor, self.tolerance, self.steps)
        self._climbed(end)
        return self._finish(model, known.fix(unpack(end.point, 1, floor)), mean_learned=known.mean is None)

    def _from_messages(self, model: RegressionModel, known: KnownPrior) -> Self:
        """Nothing is known before the first of them."""
        mean = np.zeros(self.n_features_in_) if known.mean is None else known.mean
        start = Learned(mean, np.array(self._first_variances(known)))
        end = learn(model.evidence(known), start, self._letters(), known.mean is not None)
        self.n_iter_, self.mean_variance_ = self.rounds, end.mean_variance
        noise = float(end.variances[1]) if len(end.variances) > 1 else 1.0
        prior = Prior(np.ones(1), end.mean[None], end.variances[:1], noise)
        return self._finish(model, known.fix(prior), mean_learned=False)

    def _finish(
        self, model: RegressionModel, prior: Prior, theta: Array | None = None, mean_learned: bool = True
    ) -> Self:
        self.prior_mean_, self.prior_variance_ = prior.means[0], float(prior.variances[0])
        self.global_ = self.prior_mean_[None]
        estimates, self.expected_mse_, self.coefficient_variance_, self.global_mse_ = model.summary(prior, mean_learned)
        self.estimates_ = estimates if theta is None else theta
        self.local_, self.local_mse_ = model.alone(), model.local_mse(prior)
        return self

    def _begin(self, known: KnownPrior) -> KnownPrior:
        """With the checked mean. States what is sent, before it is; refuses what no solver can use."""
        check_choice("solver", self.solver, SOLVERS)
        check_count("steps", self.steps)
        check_positive("step", self.step)
        check_positive("tolerance", self.tolerance)
        if self.message is not None and self.solver != "em":
            raise TacitError(f"solver {self.solver!r} sends no messages: use 'em', or leave out the message")
        mean = None if self.mean is None else base.check_vector("mean", self.mean, self.n_features_in_)
        known, self.mean_variance_ = known._replace(mean=mean), 0.0
        if self.message is not None:
            check_positive("radius", self.radius)
            check_count("rounds", self.rounds)
        self._sends(self.message, self._domain(), self.rounds, known.complete)
        if not known.complete:
            base.check_several(self.n_clients_, "a prior")
        return known

    def _domain(self) -> Domain:
        raise NotImplementedError


def _checked(name: str, value: float | None) -> float | None:
    return None if value is None else check_positive(name, value)


@checked_names
@dataclass(kw_only=True, eq=False, repr=False)
class LinearRegressions(OnePrior):
    """theta_i ~ N(mean, prior_variance I), y_i = X_i theta_i + noise of noise_variance (equation 13).

    A client's estimate is (15), of expected error (16), with what is given of the prior. The rest is learned: by
    maximum likelihood of the targets (`solver="em"`, never a step down), by Algorithm 2 (`"gradient"`), or, if a
    `message` is given, from `rounds` messages a client, all of them together within the message's epsilon. Clients may
    differ in size and have fewer rows than coefficients: the prior decides what their rows leave open.

    floor: no variance falls below this share of its start: 1e-10 by default, 0.1 for the gradient, whose objective has
        no minimum without a floor. In absolute terms: `variance_floor_`, (prior, noise).
    step, scaled: Algorithm 2's rate over each argument's curvature, or, not scaled, one rate for all as printed.
    radius: messages are clipped to this norm, in units of the prior: 1 is how far out a client is on average.
    guess: public prior and noise variance from which learning from messages starts; its mean starts at 0.
    seed: of the messages' noise, for simulations only; None draws from the operating system's generator.
    """

    noise_variance: float | None = None
    steps: int = 1000
    tolerance: float = 1e-9
    guess: tuple[float, float] = (1.0, 1.0)

    def _model(self, rows: Rows) -> RegressionModel:
        return model_of("linear", rows)

    def _finish(
        self, model: RegressionModel, prior: Prior, theta: Array | None = None, mean_learned: bool = True
    ) -> Self:
        self.noise_variance_ = prior.noise
        return super()._finish(model, prior, theta, mean_learned)

    def _known(self) -> KnownPrior:
        prior, noise = (_checked(name, getattr(self, name)) for name in ("prior_variance", "noise_variance"))
        return KnownPrior(prior=prior, noise=noise)

    def _domain(self) -> Domain:
        """Coefficients, the share that data decide, and for two variances slopes and information."""
        return Domain(self.radius, dimension=self.n_features_in_ + 1 + 2 + 4)

    def _first_variances(self, known: KnownPrior) -> list[float]:
        prior, noise = (check_positive("guess", value) for value in self.guess)
        return [known.prior or prior, known.noise or noise]

    def _state_floor(self, floor: Floor) -> tuple[float, ...]:
        return tuple(floor)


@checked_names
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

    def predict_proba(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The chance of class 1 for each row, by its client's coefficients; by the shared ones for a new client."""
        return self._chances(X, groups)

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The likelier class of each row, 0 or 1."""
        return (self._chances(X, groups) >= 0.5).astype(np.float64)

    def _model(self, rows: Rows) -> RegressionModel:
        return model_of("logistic", rows, check_positive("local_variance", self.local_variance))

    def _known(self) -> KnownPrior:
        return KnownPrior(prior=_checked("prior_variance", self.prior_variance), noise=1.0)

    def _domain(self) -> Domain:
        """Coefficients, the share that data decide, and the slope and information of one variance."""
        return Domain(self.radius, dimension=self.n_features_in_ + 1 + 1 + 1)

    def _first_variances(self, known: KnownPrior) -> list[float]:
        return [known.prior or check_positive("guess", self.guess)]

    def _state_floor(self, floor: Floor) -> float:
        return floor.prior


def best_climb(
    model: RegressionModel, known: KnownPrior, k: int, floor: float | None, tolerance: float, most: int, restarts: int
) -> tuple[Prior, Floor, Climb]:
    """EM for k components from several clusterings of one-component estimates; the likeliest end is kept.

    No variance falls below `floor`, by default a millionth of the one-component start.
    """
    one = model.start(known)
    least = floor_under(one, 1e-6)
    least = least if floor is None else least._replace(prior=floor)
    single = known.fix(unpack(learn_em(model, known, one, least, 10 * tolerance, 30).point, 1, least))
    now = model.mix(single)
    clusterings = [cluster(now.estimates, k, None, seed, 0.0, least.prior) for seed in range(restarts)]
    distinct = {tuple(np.round(np.sort(start.means.sum(axis=1)), 6)): start for start in clusterings}
    wide = float(now.variance.mean())
    starts = [start._replace(noise=single.noise, variances=start.variances + wide) for start in distinct.values()]
    best = max(
        (learn_em(model, known, start, least, tolerance, most) for start in starts), key=lambda end: end.heights[-1]
    )
    return known.fix(unpack(best.point, k, least)), least, best


@checked_names
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
        sent = self.rounds if self.message is None else releases(self.rounds, self.message)
        self._sends(self.message, Domain(self.radius, dimension=self.n_features_in_), sent, False)
        model = model_of(self.task, rows, self.local_variance)
        return self._by_em(model) if self.solver == "em" else self._by_rounds(model)

    def predict_proba(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """The chance of class 1 for each row of a logistic model."""
        check_fitted(self)
        if self.task != "logistic":
            raise TacitError("a linear model has no classes: use predict")
        return self._chances(X, groups)

    def predict(self, X: ArrayLike, groups: ArrayLike) -> Array:
        """One number a row: the target of a linear model, the likelier class of a logistic one."""
        if self.task == "linear":
            return super().predict(X, groups)
        return (self.predict_proba(X, groups) >= 0.5).astype(np.float64)

    def _check(self) -> None:
        check_choice("task", self.task, TASKS)
        check_choice("solver", self.solver, MIXTURE_SOLVERS)
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

    def _by_em(self, model: RegressionModel) -> Self:
        limits = (self.variance_floor, self.tolerance, self.steps, self.restarts)
        prior, floor, end = best_climb(model, KnownPrior(noise=self._noise()), self.k, *limits)
        self._climbed(end)
        self.variance_floor_, prior = floor.prior, ordered(prior)
        return self._finish(model, prior, model.mix(prior))

    def _by_rounds(self, model: RegressionModel) -> Self:
        noise, discrete = self._noise(), self.solver == "discrete"
        first = model.start(KnownPrior()).noise if noise is None else noise
        plan = Rounds(
            self.k, self._letters(), first, noise is not None, self.variance_floor, self.step, self.local_steps
        )
        end = rounds(model, plan, discrete)
        self.variance_floor_, prior = end.floor.prior, ordered(end.prior)
        if discrete:
            prior = prior._replace(variances=np.zeros(self.k))
            return self._finish(model, prior, discrete_mix(discrete_shares(model, prior), prior.means))
        return self._finish(model, prior, model.mix(prior)._replace(estimates=end.theta))

    def _finish(self, model: RegressionModel, prior: Prior, mixed: Mixed) -> Self:
        self.weights_, self.centres_, self.variances_ = prior.weights, prior.means, prior.variances
        self.noise_variance_ = prior.noise
        self.shares_, self.estimates_, self.coefficient_variance_ = mixed
        self.expected_mse_ = mixed.variance.sum(axis=1)
        self.local_, self.local_mse_ = model.alone(), model.local_mse(prior)
        mean, far = overall(prior)
        self.global_, self.global_mse_ = mean[None], np.full(self.n_clients_, far)
        return self
