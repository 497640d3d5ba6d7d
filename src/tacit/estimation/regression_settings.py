"""What the regressions can be told, each setting once; and what linear and logistic ones share in fitting.

Predictions of fitted regressions: each row by its own client's coefficients.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import TacitError
from tacit.estimation.base import (
    Array,
    PersonalEstimator,
    check_choice,
    check_count,
    check_fitted,
    check_matrix,
    check_positive,
    check_several,
    check_share,
    check_vector,
)
from tacit.estimation.linear import check_delta, guarantee
from tacit.estimation.messages import Domain, Message, message_of
from tacit.estimation.regression_learn import Climb, Given, Letters, floor_under
from tacit.estimation.regression_model import Floor, Prior, Rows, read_rows


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
        return self._scores(check_matrix("X", X, self.n_features_in_), np.asarray(groups))

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """As for every estimator, but each coefficient with its own width: wide where a client's rows say nothing."""
        from scipy.special import ndtri

        check_fitted(self)
        half = ndtri((1 + check_share("level", level)) / 2) * np.sqrt(self.coefficient_variance_)
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
        known = self.clients_[place] == groups
        own = np.einsum("nd,nd->n", x, self.estimates_[place])
        return np.where(known, own, x @ np.asarray(self.global_).reshape(-1, x.shape[1])[0])


SOLVERS = ("em", "gradient")


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

    def _climbed(self, found: Climb) -> None:
        self.log_likelihoods_, self.n_iter_, self.converged_ = found.heights, found.steps, found.converged


@dataclass(kw_only=True, eq=False, repr=False)
class OnePrior(Settings):
    """Of regressions whose clients come from one normal distribution, known or learned."""

    mean: ArrayLike | None = None
    prior_variance: float | None = None
    floor: float | None = None
    scaled: bool = True

    def _begin(self, given: Given, numbers: int) -> Given:
        """`given`, with the checked mean. States what is sent, `numbers` besides the coefficients; refuses what no
        solver can use."""
        check_choice("solver", self.solver, SOLVERS)
        check_count("steps", self.steps)
        check_positive("step", self.step)
        check_positive("tolerance", self.tolerance)
        if self.message is not None and self.solver != "em":
            raise TacitError(f"solver {self.solver!r} sends no messages: use 'em', or leave out the message")
        mean = None if self.mean is None else check_vector("mean", self.mean, self.n_features_in_)
        given, self.mean_variance_ = given._replace(mean=mean), 0.0
        if self.message is not None:
            check_positive("radius", self.radius)
            check_count("rounds", self.rounds)
        domain = Domain(self.radius, dimension=self.n_features_in_ + numbers)
        self._sends(self.message, domain, self.rounds, given.complete)
        if not given.complete:
            check_several(self.n_clients_, "a prior")
        return given

    def _known(self, name: str) -> float | None:
        value = getattr(self, name)
        return None if value is None else check_positive(name, value)

    def _floor(self, start: Prior) -> Floor:
        share = self.floor if self.floor is not None else 1e-10 if self.solver == "em" else 0.1
        return floor_under(start, check_positive("floor", share))

    def _letters(self, message: Message) -> Letters:
        return Letters(message, self.radius, self.rounds, self.seed)

    def _first_mean(self, given: Given) -> Any:
        """Where learning from messages starts: nothing is known before the first of them."""
        return np.zeros(self.n_features_in_) if given.mean is None else given.mean
