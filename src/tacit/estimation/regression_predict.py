"""Predictions of fitted regressions: each row by its own client's coefficients."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import TacitError
from tacit.estimation.base import Array, PersonalEstimator, check_fitted, check_matrix, check_share
from tacit.estimation.linear import check_delta, guarantee
from tacit.estimation.messages import Domain, Message


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
