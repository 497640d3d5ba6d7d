"""What every personal estimator has in common, in scikit-learn's manner.

A personal estimator is fitted to all clients at once and ends with an estimate for each of them. Parameters of
`__init__` are keyword-only and stored as given; whatever was learned ends with an underscore. After `fit`:

    estimates_      personal estimates, one row a client
    expected_mse_   expected squared error of each row, summed over its coordinates, by the theorem of the estimator
    local_          what each client would say alone;          local_mse_   its expected squared error
    interval_mse_   the same where it counts in how little is known of the prior's variance: intervals are made of it
    global_         what all clients share, one row or one     global_mse_  its expected squared error, a client each
                    row a client
    n_clients_, n_features_in_
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from tacit.errors import TacitError
from tacit.estimation.comparison import Comparison, compare

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


class PersonalEstimator(BaseEstimator):
    """Intervals and comparison from what `fit` has stored; a subclass writes `__init__` and `fit`."""

    estimates_: Array
    expected_mse_: Array
    interval_mse_: Array
    local_: Array
    local_mse_: Array
    global_: Array
    global_mse_: Array
    n_clients_: int
    n_features_in_: int

    def to_frame(self, level: float = 0.95) -> "pd.DataFrame":
        """A row a client: alone, personal, ends of the interval; under the index of the frame that was fitted, or the
        names of `groups`. Several values have columns `value_personal` and so on."""
        import pandas as pd

        low, high = self.intervals(level)
        index = getattr(self, "_index", getattr(self, "clients_", None))
        parts = {"alone": self.local_, "personal": self.estimates_, "low": low, "high": high}
        if self.estimates_.ndim == 1:
            return pd.DataFrame(parts, index=index)
        names = getattr(self, "feature_names_in_", [f"x{at}" for at in range(self.estimates_.shape[1])])
        columns = {f"{value}_{part}": values[:, at] for at, value in enumerate(names) for part, values in parts.items()}
        return pd.DataFrame(columns, index=index)

    def _remember(self, X: Any, names: Any = None) -> None:
        """Names of columns and rows, where there are any."""
        for name in ("feature_names_in_", "_index"):
            if hasattr(self, name):
                delattr(self, name)
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        elif getattr(X, "name", None) is not None and hasattr(X, "index"):
            self.feature_names_in_ = np.asarray([X.name], dtype=object)
        self._index = getattr(X, "index", None) if names is None else names
        if callable(self._index):  # a list's
            self._index = None

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper ends around each estimate, in its shape; a client's own truth lies inside with
        probability `level` if the model holds (over clients drawn from the prior)."""
        check_fitted(self)
        return normal_intervals(self.estimates_, self.interval_mse_, check_share("level", level))

    def compare(self, truth: ArrayLike | None = None) -> Comparison:
        """Local, global and personal estimates: the expected errors, and the measured ones where the truth is known."""
        check_fitted(self)
        known = None if truth is None else check_matrix("truth", truth).reshape(self.estimates_.shape)
        expected = (self.local_mse_, self.global_mse_, self.expected_mse_)
        return compare((self.local_, self.global_, self.estimates_), expected, known)


def normal_intervals(estimates: Array, mse: Array, level: float) -> tuple[Array, Array]:
    """Normal intervals of each coordinate; `mse` is a row's, spread evenly over its coordinates."""
    from scipy.special import ndtri

    coordinates = estimates.size // max(len(estimates), 1)
    half = ndtri((1 + level) / 2) * np.sqrt(mse / max(coordinates, 1))
    half = half.reshape(-1, *[1] * (estimates.ndim - 1))
    return estimates - half, estimates + half


def check_fitted(estimator: BaseEstimator) -> None:
    if not hasattr(estimator, "estimates_"):
        raise NotFittedError(f"this {type(estimator).__name__} has learned nothing yet: call fit first")


def check_matrix(name: str, values: ArrayLike, columns: int | None = None) -> Array:
    """A finite [rows, columns] matrix of float64; a vector becomes one column. Never empty."""
    array = as_floats(name, values)
    matrix = array[:, None] if array.ndim == 1 else array
    if matrix.ndim != 2 or matrix.size == 0:
        raise TacitError(f"{name} has shape {np.shape(values)}: give one row a client and at least one column")
    if columns is not None and matrix.shape[-1] != columns:
        raise TacitError(f"{name} has {matrix.shape[-1]} columns where {columns} are expected")
    return _finite(name, matrix)


def check_vector(name: str, values: ArrayLike, length: int | None = None) -> Array:
    """A finite vector of float64. A single column is taken as a vector; a scalar is repeated to `length`."""
    vector = as_floats(name, values)
    if vector.ndim == 0 and length is not None:
        vector = np.full(length, float(vector))
    if vector.ndim == 2 and np.shape(vector)[-1] == 1:
        vector = vector[:, 0]
    if vector.ndim != 1 or vector.size == 0:
        raise TacitError(f"{name} has shape {np.shape(values)}: give one number a client")
    if length is not None and len(vector) != length:
        raise TacitError(f"{name} has {len(vector)} entries for {length} clients")
    return _finite(name, vector)


def check_sizes(sizes: ArrayLike, clients: int, least: int = 1, names: Any = None) -> Array:
    """How many samples each client has: whole numbers of at least `least`; a scalar holds for all."""
    counts = check_vector("sizes", sizes, clients)
    bad = np.flatnonzero((counts < least) | (counts != np.floor(counts)))
    if len(bad):
        who = bad[0] if names is None else names[bad[0]]
        raise TacitError(
            f"client {who} has {counts[bad[0]]:g} samples: every client needs a whole number of at least {least}"
        )
    return counts


def check_positive(name: str, value: Any, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on."""
    least = "at least 0" if zero else "above 0"
    if not _is_number(value) or not (np.isfinite(value) and (value >= 0 if zero else value > 0)):
        raise TacitError(f"{name} {value!r} must be a finite number {least}")
    return float(value)


def check_count(name: str, value: Any, least: int = 1) -> int:
    if not _is_number(value) or value != int(value) or value < least:
        raise TacitError(f"{name} {value!r} must be a whole number of at least {least}")
    return int(value)


def check_share(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    if not _is_number(value) or not 0 < value < 1:
        raise TacitError(f"{name} {value!r} must lie between 0 and 1")
    return float(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise TacitError(f"{name} {value!r} is not known: choose one of {', '.join(choices)}")
    return str(value)


def check_several(clients: int, what: str) -> None:
    """A prior cannot be learned from one client."""
    if clients < 2:
        raise TacitError(f"one client alone cannot learn {what}: give it, or bring at least 2 clients")


def codes_of(groups: ArrayLike, rows: int) -> tuple[NDArray[Any], NDArray[np.intp], Array]:
    """Client labels in sorted order, the place of each row's client among them, and how many rows each has."""
    names = np.asarray(groups)
    if names.ndim != 1 or len(names) != rows:
        raise TacitError(f"groups has shape {names.shape} for {rows} rows: give one client a row")
    if names.dtype.kind == "f" and not np.isfinite(names).all():
        raise TacitError(f"groups of row {int(np.argmin(np.isfinite(names)))} is not a number: name a client a row")
    labels, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    return labels, codes, counts.astype(np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def as_floats(name: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TacitError(f"{name} cannot be read as numbers ({error}): give plain numbers") from None


def _finite(name: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        place = tuple(int(at) for at in np.argwhere(~np.isfinite(values))[0])
        raise TacitError(f"{name} of client {place[0]} is {values[place]}: leave the client out or mend the value")
    return values
