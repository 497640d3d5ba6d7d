"""A linear regression for each of many clients, shrunk toward what they have in common."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import TacitError
from tacit.estimation.base import Array, check_choice, check_count, check_positive, check_several, check_vector
from tacit.estimation.regression_data import Directions, decompose, read_rows
from tacit.estimation.regression_error import (
    coordinate_variance,
    global_mse,
    local_mse,
    mean_coordinate_error,
    mean_covariance,
    mean_error,
    posterior_mse,
)
from tacit.estimation.regression_learn import Given, evidence_of, floor_under, learn_em, learn_gradient, starting
from tacit.estimation.regression_model import Prior, estimates, local, unpack
from tacit.estimation.regression_predict import Regressions
from tacit.estimation.regression_private import Learned, Letters, learn
from tacit.privacy.messages import Domain, Message

SOLVERS = ("em", "gradient")


class LinearRegressions(Regressions):
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

    def __init__(
        self,
        *,
        mean: ArrayLike | None = None,
        prior_variance: float | None = None,
        noise_variance: float | None = None,
        solver: str = "em",
        steps: int = 1000,
        tolerance: float = 1e-9,
        floor: float | None = None,
        step: float = 0.5,
        scaled: bool = True,
        message: Message | None = None,
        rounds: int = 12,
        radius: float = 1.0,
        guess: tuple[float, float] = (1.0, 1.0),
        seed: int | None = None,
    ) -> None:
        self.mean = mean
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance
        self.solver = solver
        self.steps = steps
        self.tolerance = tolerance
        self.floor = floor
        self.step = step
        self.scaled = scaled
        self.message = message
        self.rounds = rounds
        self.radius = radius
        self.guess = guess
        self.seed = seed

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None, offsets: ArrayLike | None = None) -> Self:
        """From a list of matrices and one of targets, or flat arrays with each row's client, or with offsets."""
        rows = read_rows(X, y, groups, offsets)
        self.clients_, self.n_clients_, self.n_features_in_ = rows.names, len(rows.names), rows.x.shape[1]
        data, given = decompose(rows), self._given()
        self.local_ = local(data)
        self.log_likelihoods_: list[float] = []
        self.n_iter_, self.converged_, self.mean_variance_ = 0, True, 0.0
        letters = letters_of(self, self.message) if self.message else None
        self._sends(self.message, Domain(self.radius, dimension=self.n_features_in_ + 7), self.rounds, given.complete)
        if given.complete:
            return self._finish(data, given.over(Prior(np.ones(1), np.empty((1, 0)), np.ones(1), 1.0)), learned=False)
        check_several(self.n_clients_, "a prior")
        return self._from_messages(data, given, letters) if letters else self._from_data(data, given)

    def _given(self) -> Given:
        """The known part of the prior; refuses settings that no solver can use."""
        check_choice("solver", self.solver, SOLVERS)
        check_count("steps", self.steps)
        check_positive("step", self.step)
        check_positive("tolerance", self.tolerance)
        if self.message is not None and self.solver != "em":
            raise TacitError(f"solver {self.solver!r} sends no messages: use 'em', or leave out the message")
        known = [None if v is None else check_positive(name, v) for name, v in self._variances()]
        mean = None if self.mean is None else check_vector("mean", self.mean, self.n_features_in_)
        return Given(mean, *known)

    def _variances(self) -> list[tuple[str, float | None]]:
        return [("prior_variance", self.prior_variance), ("noise_variance", self.noise_variance)]

    def _from_data(self, data: Directions, given: Given) -> Self:
        start = starting(data, given)
        share = self.floor if self.floor is not None else 1e-10 if self.solver == "em" else 0.1
        floor = floor_under(start, check_positive("floor", share))
        self.variance_floor_ = tuple(floor)
        if self.solver == "gradient":
            prior, theta = learn_gradient(data, given, start, floor, self.step, self.steps, self.scaled)
            self.n_iter_ = self.steps
            return self._finish(data, prior, theta)
        found = learn_em(data, given, start, floor, self.tolerance, self.steps)
        self.log_likelihoods_, self.n_iter_, self.converged_ = found.heights, found.steps, found.converged
        return self._finish(data, given.over(unpack(found.point, 1, floor)), learned=given.mean is None)

    def _from_messages(self, data: Directions, given: Given, letters: Letters) -> Self:
        prior, noise = (check_positive("guess", value) for value in self.guess)
        mean = np.zeros(self.n_features_in_) if given.mean is None else given.mean
        start = Learned(mean, np.array([given.prior or prior, given.noise or noise]))
        found = learn(evidence_of(data, given), start, letters, given.mean is not None)
        self.n_iter_, self.mean_variance_ = letters.rounds, found.mean_variance
        learned = Prior(np.ones(1), found.mean[None], found.variances[:1], float(found.variances[1]))
        return self._finish(data, given.over(learned), learned=False)

    def _finish(self, data: Directions, prior: Prior, theta: Array | None = None, learned: bool = True) -> Self:
        """Estimates and errors; with a `learned` mean they include that it is not known exactly."""
        self.prior_mean_, self.prior_variance_ = prior.means[0], float(prior.variances[0])
        self.noise_variance_, self.global_ = prior.noise, self.prior_mean_[None]
        doubt = mean_covariance(data, prior) if learned else None
        self.estimates_ = estimates(data, prior) if theta is None else theta
        self.expected_mse_ = posterior_mse(data, prior)
        self.coefficient_variance_ = coordinate_variance(data, prior)
        if doubt is not None:
            self.expected_mse_ = self.expected_mse_ + mean_error(data, prior, doubt)
            self.coefficient_variance_ += mean_coordinate_error(data, prior, doubt)
        self.local_mse_, self.global_mse_ = local_mse(data, prior), global_mse(data, prior, doubt)
        return self


def letters_of(estimator: Any, message: Message) -> Letters:
    """An estimator's settings for messages, checked."""
    radius, rounds = check_positive("radius", estimator.radius), check_count("rounds", estimator.rounds)
    return Letters(message, radius, rounds, estimator.seed)
