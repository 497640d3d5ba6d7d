"""Tables of clients on disk, CSV or Parquet, read and written piece by piece in bounded memory.

From a table of clients to a table of personal estimates, in two passes: the prior first, then each client.

What a table of clients has been asked so far: a ledger beside it. Asking twice costs twice.

Every question draws new messages, and whoever sees both answers knows more than from one. So each is charged before
its estimates are written, with fresh charges for fresh messages, and what the clients have spent in all is told.
Questions of one delta are composed by the accountant; those of different deltas add up, epsilon and delta alike.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import StorageError, TacitError
from tacit.estimation.base import check_sizes, normal_intervals
from tacit.estimation.collect import BLOCK, Answers
from tacit.estimation.comparison import Comparison, Moves, of_means
from tacit.estimation.messages import Message
from tacit.estimation.shrinkage import (
    BernoulliRates,
    GaussianMeans,
    LinearShrinkage,
    beta_intervals,
    check_counts,
    pool,
)
from tacit.privacy.ledger.ledger import Charge, Ledger, Line
from tacit.privacy.ledger.statement import shown, statement
from tacit.report.integrity import open_ledger

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 4 * BLOCK
_PARQUET = (".parquet", ".pq")


def chunks(path: Path, name: str, columns: Sequence[str]) -> Iterator["pd.DataFrame"]:
    """The client's name as text and the given columns, `CHUNK` rows at a time; only the last piece is shorter."""
    import pandas as pd

    if not path.is_file():
        raise TacitError(f"there is no file {path}: give a CSV or Parquet table")
    wanted = list(dict.fromkeys([name, *columns]))
    kept: list[pd.DataFrame] = []
    for piece in _pieces(path, wanted, name):
        kept.append(piece)
        while sum(map(len, kept)) >= CHUNK:
            whole = pd.concat(kept, ignore_index=True) if len(kept) > 1 else kept[0]
            yield whole.iloc[:CHUNK].reset_index(drop=True)
            kept = [whole.iloc[CHUNK:]]
    rest = pd.concat(kept, ignore_index=True) if kept else None
    if rest is not None and len(rest):
        yield rest


def _pieces(path: Path, wanted: list[str], name: str) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    if path.suffix.lower() in _PARQUET:
        yield from _parquet(path, wanted, name)
        return
    try:
        _check_columns(path, list(pd.read_csv(path, nrows=0).columns), wanted)
        with pd.read_csv(path, usecols=lambda c: c in wanted, dtype={name: str}, chunksize=CHUNK) as pieces:
            yield from pieces
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not a CSV table ({error}): mend it or give Parquet") from None


def _parquet(path: Path, wanted: list[str], name: str) -> Iterator["pd.DataFrame"]:
    parquet, arrow = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, wanted)
        for batch in file.iter_batches(batch_size=CHUNK, columns=wanted):
            piece = batch.to_pandas()
            piece[name] = piece[name].astype(str)
            yield piece
    except arrow.ArrowException as error:
        raise TacitError(f"{path} is not a Parquet table ({error}): mend it or give CSV") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TacitError("Parquet needs pyarrow: pip install pyarrow, or use CSV") from None
    return pyarrow.parquet, pyarrow


def _check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [column for column in wanted if column not in list(columns)]
    if missing:
        raise TacitError(f"{path} has no column {missing[0]!r}: it has {', '.join(map(str, columns))}")


def numbers(frame: "pd.DataFrame", column: str, first: int) -> NDArray[np.float64]:
    """A column as numbers; the first row that is not one is named by its line in the table."""
    import pandas as pd

    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise TacitError(f"row {first + at + 1} has '{frame[column].iloc[at]}' as {column}: mend it or leave it out")
    return values


def check_places(table: Path, ledger: Path, out: Path, written: Sequence[Path], force: bool) -> None:
    """Refuses to write over the table that is read or its ledger, ever, and over any other file unless `force`."""
    if out.suffix.lower() not in (".csv", *_PARQUET):
        raise TacitError(f"{out} is no name for a table: end it with .csv or .parquet")
    if same_file(ledger, table):
        raise TacitError(f"{ledger} is the table that is read: keep the ledger in another file")
    for path in written:
        for kept, name in ((table, "the table that is read"), (ledger, "the ledger of what was asked")):
            if same_file(path, kept):
                raise TacitError(f"{path} is {name}: write the estimates to another file")
        if not path.exists():
            continue
        if path.is_dir():
            raise TacitError(f"{path} is a folder: give a file")
        if not force:
            raise TacitError(f"{path} is there already: choose another name, or add --force to write over it")


def same_file(one: Path, other: Path) -> bool:
    """Whether both names lead to one file, that is there or will be: by links of either kind, too."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


class Names:
    """Remembers names by hash, so that a client that comes twice is noticed; 8 bytes a client."""

    def __init__(self) -> None:
        self._seen: list[NDArray[np.uint64]] = []

    def add(self, names: Any) -> None:
        from pandas.core.util.hashing import hash_array

        self._seen.append(hash_array(np.asarray(names, dtype=object)))

    def check(self) -> None:
        whole = np.sort(np.concatenate(self._seen)) if self._seen else np.empty(0, np.uint64)
        twice = int((whole[1:] == whole[:-1]).sum())
        if twice:
            raise TacitError(f"{twice:,} rows name a client that was there before: add up each client's rows first")


class Writer:
    """Writes a table piece by piece to a temporary file and puts it in place at the end: whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # nobody's file
        self._parquet: Any = None
        self._first = True

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        return self

    def write(self, frame: "pd.DataFrame") -> None:
        try:
            if self._path.suffix.lower() in _PARQUET:
                self._write_parquet(frame)
            else:
                frame.to_csv(self._part, mode="w" if self._first else "a", header=self._first, index=False)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        self._first = False

    def _write_parquet(self, frame: "pd.DataFrame") -> None:
        parquet, arrow = _pyarrow()
        table = arrow.Table.from_pandas(frame, preserve_index=False)
        if self._parquet is None:
            self._parquet = parquet.ParquetWriter(self._part, table.schema)
        self._parquet.write_table(table)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parquet is not None:
            self._parquet.close()
        if kind is None and self._part.exists():
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)


Array = NDArray[np.float64]
Piece = tuple[Any, Array, Array]
"""Names, values [clients, dimension], sizes."""
_SAMPLED = 512  # clients kept from each piece, to draw


@dataclass(frozen=True)
class TableEstimates:
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
    pay: Callable[[], None] | None = None,
) -> TableEstimates:
    """Reads counts, writes a row a client: its own rate, the personal one, interval and expected error."""

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, [successes, trials]):
            won, counts = numbers(frame, successes, first), numbers(frame, trials, first)
            yield frame[name].to_numpy(), *check_counts(won, counts)
            first += len(frame)

    def ends(values: Array, sizes: Array, answers: Answers) -> tuple[Array, Array]:
        low, high = beta_intervals(answers.estimates[:, 0], answers.mse, values[:, 0], sizes, 0.95)
        return low[:, None], high[:, None]

    return _two_passes(estimator, pieces, ends, name, ["rate"], out, pay)


def means(
    estimator: GaussianMeans,
    path: Path,
    name: str,
    columns: Sequence[str],
    size: str | None,
    out: Path,
    pay: Callable[[], None] | None = None,
) -> TableEstimates:
    """Rows are clients' means of `size` samples; without `size`, samples, which are pooled by client in memory."""

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, [*columns, size] if size else columns):
            values = np.column_stack([numbers(frame, column, first) for column in columns])
            counts = numbers(frame, size, first) if size else np.ones(len(frame))
            yield frame[name].to_numpy(), values, check_sizes(counts, len(values))
            first += len(frame)

    source = pieces
    if size is None:
        pooled = _pooled(estimator, pieces)
        source = lambda: iter([pooled])  # noqa: E731
    else:
        estimator.noise_variance_ = estimator.known_noise()

    def ends(values: Array, sizes: Array, found: Answers) -> tuple[Array, Array]:
        return normal_intervals(found.estimates, found.mse, 0.95)

    return _two_passes(estimator, source, ends, name, list(columns), out, pay)


def _pooled(estimator: GaussianMeans, pieces: Callable[[], Iterator[Piece]]) -> Piece:
    parts = list(pieces())
    if not parts:
        raise TacitError("the table has no rows: give at least 2 clients")
    names, values = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    labels, means_, counts, within = pool(values, names.astype(str))
    estimator.noise_variance_ = estimator.known_noise(within)
    return labels, means_, counts


def _two_passes(
    estimator: LinearShrinkage,
    pieces: Callable[[], Iterator[Piece]],
    ends: Callable[[Array, Array, Answers], tuple[Array, Array]],
    name: str,
    columns: list[str],
    out: Path,
    pay: Callable[[], None] | None,
) -> TableEstimates:
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
    if estimator.sends and pay is not None:
        pay()
    totals, kept, done = np.zeros(3), [], 0
    with Writer(out) as writer:
        for names, values, sizes in pieces():
            answers = estimator.answer(values, sizes, first=done)
            low, high = ends(values, sizes, answers)
            writer.write(_frame(name, columns, names, values, sizes, answers, low, high))
            totals += [answers.local_mse.sum(), answers.global_mse.sum(), answers.mse.sum()]
            kept.append(_sample(names, values, answers, low, high))
            done += len(names)
    return TableEstimates(estimator, of_means(*(totals / done)), _moves(kept, estimator, columns[0], done), done)


def _frame(
    name: str, columns: list[str], names: Any, values: Array, sizes: Array, answers: Answers, low: Array, high: Array
) -> "pd.DataFrame":
    import pandas as pd

    parts: dict[str, Any] = {name: names, "n": sizes.astype(np.int64)}
    for at, column in enumerate(columns):
        parts |= {f"{column}_alone": values[:, at], f"{column}_personal": answers.estimates[:, at]}
        parts |= {f"{column}_low": low[:, at], f"{column}_high": high[:, at]}
    return pd.DataFrame(parts | {"pull": answers.pull, "expected_mse": answers.mse})


def _sample(names: Any, values: Array, answers: Answers, low: Array, high: Array) -> tuple[Any, ...]:
    at = np.unique(np.linspace(0, len(names) - 1, min(_SAMPLED, len(names))).astype(int))
    return names[at], values[at, 0], answers.estimates[at, 0], low[at, 0], high[at, 0]


def _moves(kept: list[tuple[Any, ...]], estimator: LinearShrinkage, value: str, clients: int) -> Moves:
    names, local, personal, low, high = (np.concatenate([part[at] for part in kept]) for at in range(5))
    title = f"{clients:,} clients, each moved toward the centre"
    return Moves(list(map(str, names)), local, personal, low, high, float(estimator.centre_[0]), title, value)


UNIT, RELATION = "client", "replace"
SCOPE = "each client"


def beside(table: Path) -> Path:
    """Where the ledger of a table lies unless another place is given."""
    real = table.resolve()  # a link to a table asks the same clients
    return real.with_name(f"{real.name}.ledger.sqlite")


@dataclass(frozen=True)
class Questions:
    """All that was asked of the clients of one table. `budget`: what they may spend in all; None: no limit."""

    path: Path
    budget: float | None = None

    def check(self, message: Message) -> None:
        """Refuses a question that would take the clients past the budget, and a ledger that is not of questions;
        nothing is charged."""
        if self.path.exists():
            with open_ledger(self.path) as kept:
                _require_questions(self.path, kept)
        if self.budget is None:
            return
        with Ledger.open(":memory:") as trial:
            if self.path.exists():
                with open_ledger(self.path) as kept:
                    for line, history in ((kept.budgets()[scope], h) for scope, h in kept.histories().items()):
                        trial.budget(line.scope, UNIT, RELATION, None, line.delta)
                        trial.charge(0, [Charge(line.scope, UNIT, RELATION, e, n) for e, n in history.items()])
            charge(trial, message)
            epsilon, _ = total(statement(trial))
        if epsilon > self.budget * (1 + 1e-9):
            raise TacitError(
                f"this question would take the clients to epsilon {shown(epsilon)}, past the budget of {self.budget:g} "
                f"({self.path} has what was asked before): nothing was asked"
            )

    def pay(self, message: Message) -> None:
        """Durable when it returns: only then may anything made of the messages be written."""
        self.check(message)
        with Ledger.open(self.path) as ledger:
            ledger.check()
            charge(ledger, message)

    def spent(self) -> tuple[float, float]:
        """Epsilon and delta of all questions so far, replayed from the ledger."""
        with open_ledger(self.path) as ledger:
            return total(statement(ledger))

    def summary(self) -> str:
        """What the clients have spent in all, in words."""
        with open_ledger(self.path) as ledger:
            times = ledger.rounds() + 1
        epsilon, delta = self.spent()
        terms = f"client-level, {RELATION}, {f'delta {delta:g}' if delta else 'pure'}"
        limit = "" if self.budget is None else f", of a budget of {self.budget:g}"
        return f"Asked {times:,} time{'s' * (times > 1)} so far: epsilon {shown(epsilon)} in all{limit} ({terms})"


def _require_questions(path: Path, ledger: Ledger) -> None:
    strange = next((scope for scope in ledger.budgets() if not scope.startswith(SCOPE)), None)
    if strange is not None:
        raise TacitError(f"{path} is the ledger of a run (it has '{strange}'), not of questions: give another --ledger")


def charge(ledger: Ledger, message: Message) -> None:
    """One message of every client."""
    scope = f"{SCOPE}, delta {message.delta:g}" if message.delta else f"{SCOPE}, pure"
    ledger.budget(scope, UNIT, RELATION, None, message.delta)
    asked = Charge(scope, UNIT, RELATION, message.event())
    ledger.charge(ledger.rounds() + 1, [asked], nonce=secrets.token_hex(8))  # new messages, whatever the seed


def total(lines: Sequence[Line]) -> tuple[float, float]:
    """Epsilon and delta of all scopes together, by basic composition."""
    return math.fsum(line.epsilon for line in lines), math.fsum(line.delta or 0.0 for line in lines)
