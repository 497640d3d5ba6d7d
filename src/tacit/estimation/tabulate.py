"""From a table of clients to a table of personal estimates, in two passes: the prior first, then each client."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.estimation.base import check_sizes, normal_intervals
from tacit.estimation.bernoulli import BernoulliRates, beta_intervals, check_counts
from tacit.estimation.comparison import Comparison, of_means
from tacit.estimation.files import Names, Writer, chunks, numbers
from tacit.estimation.gaussian import GaussianMeans, pool
from tacit.estimation.learned import Answers
from tacit.estimation.linear import LinearShrinkage
from tacit.estimation.picture import Moves

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Piece = tuple[Any, Array, Array]
"""Names, values [clients, dimension], sizes."""
_SAMPLED = 512  # clients kept from each piece, to draw


@dataclass(frozen=True)
class Told:
    """What the run says in the end."""

    estimator: LinearShrinkage
    comparison: Comparison
    moves: Moves
    clients: int


def rates(
    estimator: BernoulliRates,
    path: Path,
    name: str,
    successes: str,
    trials: str,
    out: Path,
    pay: Callable[[], object] = lambda: None,
) -> Told:
    """Reads counts, writes a row a client: its own rate, the personal one, interval and expected error."""

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, [successes, trials]):
            won, counts = numbers(frame, successes, first), numbers(frame, trials, first)
            yield frame[name].to_numpy(), *check_counts(won, counts)
            first += len(frame)

    def ends(values: Array, sizes: Array, found: Answers) -> tuple[Array, Array]:
        low, high = beta_intervals(found.estimates[:, 0], found.mse, values[:, 0], sizes, 0.95)
        return low[:, None], high[:, None]

    return _two_passes(estimator, pieces, ends, name, ["rate"], out, pay)


def means(
    estimator: GaussianMeans,
    path: Path,
    name: str,
    columns: Sequence[str],
    size: str | None,
    out: Path,
    pay: Callable[[], object] = lambda: None,
) -> Told:
    """Rows are clients' means of `size` samples; without `size`, samples, which are pooled by client in memory."""

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, [*columns, size] if size else columns):
            values = np.column_stack([numbers(frame, column, first) for column in columns])
            counts = numbers(frame, size, first) if size else np.ones(len(frame))
            yield frame[name].to_numpy(), values, check_sizes(counts, len(values))
            first += len(frame)

    given = pieces
    if size is None:
        pooled = _pooled(estimator, pieces)
        given = lambda: iter([pooled])  # noqa: E731
    else:
        estimator.noise_variance_ = estimator.known_noise()

    def ends(values: Array, sizes: Array, found: Answers) -> tuple[Array, Array]:
        return normal_intervals(found.estimates, found.mse, 0.95)

    return _two_passes(estimator, given, ends, name, list(columns), out, pay)


def _pooled(estimator: GaussianMeans, pieces: Callable[[], Iterator[Piece]]) -> Piece:
    parts = list(pieces())
    if not parts:
        raise TacitError("the table has no rows: give at least 2 clients")
    names, values = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    labels, own, counts, within = pool(values, names.astype(str))
    estimator.noise_variance_ = estimator.known_noise(within)
    return labels, own, counts


def _two_passes(
    estimator: LinearShrinkage,
    pieces: Callable[[], Iterator[Piece]],
    ends: Callable[[Array, Array, Answers], tuple[Array, Array]],
    name: str,
    columns: list[str],
    out: Path,
    pay: Callable[[], object],
) -> Told:
    """`pay` is called once everything is known to be well, and before anything is written."""
    seen, most = Names(), 0
    for names, values, sizes in pieces():
        seen.add(names)
        estimator.observe(values, sizes)
        most = max(most, int(sizes.max()))
    seen.check()
    if not most:
        raise TacitError("the table has no rows: give at least 2 clients")
    if isinstance(estimator, BernoulliRates) and estimator.prior_variance is None and most < 2:
        raise TacitError("every client has one trial: the prior's variance cannot be learned, give --prior-variance")
    estimator.learn()
    if estimator.sends:
        pay()
    totals, kept, done = np.zeros(3), [], 0
    with Writer(out) as writer:
        for names, values, sizes in pieces():
            found = estimator.answer(values, sizes, first=done)
            low, high = ends(values, sizes, found)
            writer.write(_frame(name, columns, names, values, sizes, found, low, high))
            totals += [found.local_mse.sum(), found.global_mse.sum(), found.mse.sum()]
            kept.append(_sample(names, values, found, low, high))
            done += len(names)
    return Told(estimator, of_means(*(totals / done)), _moves(kept, estimator, columns[0], done), done)


def _frame(
    name: str, columns: list[str], names: Any, values: Array, sizes: Array, found: Answers, low: Array, high: Array
) -> "pd.DataFrame":
    import pandas as pd

    parts: dict[str, Any] = {name: names, "n": sizes.astype(np.int64)}
    for at, column in enumerate(columns):
        parts |= {f"{column}_alone": values[:, at], f"{column}_personal": found.estimates[:, at]}
        parts |= {f"{column}_low": low[:, at], f"{column}_high": high[:, at]}
    return pd.DataFrame(parts | {"pull": found.pull, "expected_mse": found.mse})


def _sample(names: Any, values: Array, found: Answers, low: Array, high: Array) -> tuple[Any, ...]:
    at = np.unique(np.linspace(0, len(names) - 1, min(_SAMPLED, len(names))).astype(int))
    return names[at], values[at, 0], found.estimates[at, 0], low[at, 0], high[at, 0]


def _moves(kept: list[tuple[Any, ...]], estimator: LinearShrinkage, value: str, clients: int) -> Moves:
    names, local, personal, low, high = (np.concatenate([part[at] for part in kept]) for at in range(5))
    title = f"{clients:,} clients, each moved toward the centre"
    return Moves(list(map(str, names)), local, personal, low, high, float(estimator.centre_[0]), title, value)
