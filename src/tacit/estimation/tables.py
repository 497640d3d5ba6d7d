"""From a table of clients to a table of personal estimates, in two passes: the prior first, then each client.

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.estimation.base import check_sizes, normal_intervals
from tacit.estimation.bernoulli import BernoulliRates, beta_intervals, check_counts
from tacit.estimation.collect import Answers
from tacit.estimation.comparison import Comparison, Moves, of_means
from tacit.estimation.messages import Message
from tacit.estimation.shrinkage import GaussianMeans, LinearShrinkage, pool
from tacit.estimation.table_files import Dialect, Names, Writer, chunks, names_of, numbers, whole_dialect
from tacit.privacy.ledger.ledger import Charge, Ledger, Line
from tacit.privacy.ledger.statement import shown, statement
from tacit.report.integrity import open_ledger

if TYPE_CHECKING:
    import pandas as pd

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
    dialect: Dialect  # how the table was read, and the estimates were written


def rates(
    estimator: BernoulliRates,
    path: Path,
    name: str,
    successes: str,
    trials: str,
    out: Path,
    pay: Callable[[], None] | None = None,
    dialect: Dialect = Dialect(),
) -> TableEstimates:
    """Reads counts, writes a row a client: its own rate, the personal one, interval and expected error."""

    read = whole_dialect(path, [name, successes, trials], dialect)

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, [successes, trials], read):
            names = names_of(frame, name, first)
            won, counts = (numbers(frame, column, name, first) for column in (successes, trials))
            yield names, *check_counts(won, counts, names)
            first += len(frame)

    def ends(values: Array, sizes: Array, answers: Answers) -> tuple[Array, Array]:
        low, high = beta_intervals(answers.estimates[:, 0], answers.doubted, values[:, 0], sizes, 0.95)
        return low[:, None], high[:, None]

    return _two_passes(estimator, pieces, ends, name, ["rate"], out, pay, read)


def means(
    estimator: GaussianMeans,
    path: Path,
    name: str,
    columns: Sequence[str],
    size: str | None,
    out: Path,
    pay: Callable[[], None] | None = None,
    dialect: Dialect = Dialect(),
) -> TableEstimates:
    """Rows are clients' means of `size` samples; without `size`, samples, which are pooled by client in memory."""

    wanted = [*columns, size] if size else [*columns]
    read = whole_dialect(path, [name, *wanted], dialect)

    def pieces() -> Iterator[Piece]:
        first = 0
        for frame in chunks(path, name, wanted, read):
            names = names_of(frame, name, first)
            values = np.column_stack([numbers(frame, column, name, first) for column in columns])
            counts = numbers(frame, size, name, first) if size else np.ones(len(frame))
            yield names, values, check_sizes(counts, len(values), names=names)
            first += len(frame)

    source = pieces
    if size is None:
        pooled = _pooled(estimator, pieces)
        source = lambda: iter([pooled])  # noqa: E731
    else:
        estimator.noise_variance_ = estimator.known_noise()

    def ends(values: Array, sizes: Array, found: Answers) -> tuple[Array, Array]:
        return normal_intervals(found.estimates, found.doubted, 0.95)

    return _two_passes(estimator, source, ends, name, list(columns), out, pay, read)


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
    dialect: Dialect,
) -> TableEstimates:
    """`pay` is called once everything is known to be well, and before anything is written."""
    seen, most = Names(), 0
    for names, values, sizes in pieces():
        seen.add(names)
        estimator.observe(values, sizes)
        most = max(most, int(sizes.max()))
    seen.check(names for names, _, _ in pieces())
    if not most:
        raise TacitError("the table has no rows: give at least 2 clients")
    if isinstance(estimator, BernoulliRates) and estimator.prior_variance is None and most < 2:
        raise TacitError("every client has one trial: the prior's variance cannot be learned, give --prior-variance")
    estimator.learn()
    if estimator.sends and pay is not None:
        pay()
    totals, kept, done = np.zeros(3), [], 0
    with Writer(out, dialect) as writer:
        for names, values, sizes in pieces():
            answers = estimator.answer(values, sizes, first=done)
            low, high = ends(values, sizes, answers)
            writer.write(_frame(name, columns, names, values, sizes, answers, low, high))
            totals += [answers.local_mse.sum(), answers.global_mse.sum(), answers.mse.sum()]
            kept.append(_sample(names, values, answers, low, high))
            done += len(names)
    moves = _moves(kept, estimator, columns[0], done)
    return TableEstimates(estimator, of_means(*(totals / done)), moves, done, dialect)


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

    def account(self) -> dict[str, Any]:
        """The same with its terms, for machines."""
        with open_ledger(self.path) as ledger:
            times = ledger.rounds() + 1
        epsilon, delta = self.spent()
        terms = {"unit": UNIT, "relation": RELATION, "budget": self.budget, "ledger": str(self.path)}
        return {"questions": times, "epsilon": epsilon, "delta": delta, **terms}

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
