"""What the regressions can be told, each setting once; and what linear and logistic ones share in fitting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import TacitError
from tacit.estimation.base import check_choice, check_count, check_positive, check_several, check_vector
from tacit.estimation.messages import Domain, Message
from tacit.estimation.regression_climb import Climb
from tacit.estimation.regression_data import Rows, read_rows
from tacit.estimation.regression_learn import Given, floor_under
from tacit.estimation.regression_model import Floor, Prior
from tacit.estimation.regression_predict import Regressions
from tacit.estimation.regression_private import Letters

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
