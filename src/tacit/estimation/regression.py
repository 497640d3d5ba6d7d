"""A linear regression for each of many clients, shrunk toward what they have in common."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from tacit.estimation.base import Array, check_positive
from tacit.estimation.messages import Message
from tacit.estimation.regression_error import (
    coordinate_variance,
    global_mse,
    local_mse,
    mean_coordinate_error,
    mean_covariance,
    mean_error,
    posterior_mse,
)
from tacit.estimation.regression_learn import Given, Learned, evidence_of, learn, learn_em, learn_gradient, starting
from tacit.estimation.regression_model import Directions, Prior, decompose, estimates, local, unpack
from tacit.estimation.regression_settings import OnePrior


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

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None, offsets: ArrayLike | None = None) -> Self:
        """From a list of matrices and one of targets, or flat arrays with each row's client, or with offsets."""
        data = decompose(self._read(X, y, groups, offsets))
        given = Given(prior=self._known("prior_variance"), noise=self._known("noise_variance"))
        given = self._begin(given, numbers=7)
        self.local_ = local(data)
        if given.complete:
            return self._finish(data, given.over(Prior(np.ones(1), np.empty((1, 0)), np.ones(1), 1.0)), learned=False)
        return self._from_messages(data, given, self.message) if self.message else self._from_data(data, given)

    def _from_data(self, data: Directions, given: Given) -> Self:
        start = starting(data, given)
        floor = self._floor(start)
        self.variance_floor_ = tuple(floor)
        if self.solver == "gradient":
            prior, theta = learn_gradient(data, given, start, floor, self.step, self.steps, self.scaled)
            self.n_iter_ = self.steps
            return self._finish(data, prior, theta)
        found = learn_em(data, given, start, floor, self.tolerance, self.steps)
        self._climbed(found)
        return self._finish(data, given.over(unpack(found.point, 1, floor)), learned=given.mean is None)

    def _from_messages(self, data: Directions, given: Given, message: Message) -> Self:
        prior, noise = (check_positive("guess", value) for value in self.guess)
        start = Learned(self._first_mean(given), np.array([given.prior or prior, given.noise or noise]))
        found = learn(evidence_of(data, given), start, self._letters(message), given.mean is not None)
        self.n_iter_, self.mean_variance_ = self.rounds, found.mean_variance
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
