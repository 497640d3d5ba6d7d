"""A logistic regression for each of many clients, shrunk toward what they have in common."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from tacit.estimation.base import Array, check_fitted, check_matrix, check_positive
from tacit.estimation.logistic_learn import descend_logit, learn_logit_em, logit_evidence, pooled_logit, unit_variance
from tacit.estimation.messages import Message
from tacit.estimation.regression_data import Rows, spread
from tacit.estimation.regression_learn import Given
from tacit.estimation.regression_logit import Logits, beliefs, local_logit_mse, prepare
from tacit.estimation.regression_model import Prior, unpack
from tacit.estimation.regression_private import Learned, learn
from tacit.estimation.regression_settings import OnePrior


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
