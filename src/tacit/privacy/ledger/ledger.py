"""A durable record of what was spent, and by whom. Charged before anything is released.

The ledger keeps events, not epsilons: any accountant can replay it. Beside the events of levels it keeps the stays of
the clients that changed their level, so that each one's own account can be replayed (`membership.py`). Rows are only
ever added; the file itself refuses to change or delete one, and a chain of hashes shows whether somebody did so all
the same (`chain.py`). One process writes at a time, any number may read.
"""

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import StorageError, TacitError
from tacit.privacy.accounting.events import from_json, to_json
from tacit.privacy.ledger.sqlite import Chained, connect, connect_to_read
from tacit.privacy.ledger.statement import Budget, Line, statement
from tacit.privacy.membership import LevelPeriod, LevelPeriods, latest_periods

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = ["Batch", "Budget", "Charge", "Entry", "Ledger", "Line", "statement"]

_NEVER = 1 << 62
_Terms = tuple[str, str, str]  # scope, unit, relation


@dataclass(frozen=True)
class Charge:
    """What one round costs one scope: an event, as often as it happens in the round."""

    scope: str  # "level:private" or "client:writer-17"
    unit: str  # "client" or "record"
    relation: str
    event: "DpEvent"
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise TacitError(f"a charge of {self.scope} for {self.count} events: leave out what did not happen")


@dataclass(frozen=True)
class Batch:
    """Charges of one round that count once, however often they are made; `nonce`: see `Ledger.charge`."""

    round: int
    charges: Sequence[Charge]
    nonce: str = ""


@dataclass(frozen=True)
class Entry:
    """A row of the ledger."""

    round: int
    scope: str
    unit: str
    relation: str
    event: "DpEvent"
    count: int
    time: float


class Ledger(Chained):
    """See the module. Open it with `Ledger.open`, or with `Ledger.read` to look only."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        super().__init__(db, path)
        self._budgets = {line.scope: line for line in self._stored_budgets()}
        self._pending: list[Budget] = []

    @classmethod
    def open(cls, path: str | Path) -> "Ledger":
        """The ledger at `path`, made if there is none. ":memory:" makes one that lasts as long as the object."""
        return cls(connect(str(path)), str(path))

    @classmethod
    def read(cls, path: str | Path) -> "Ledger":
        """The ledger at `path`, to look only: a missing file is an error and is not made."""
        return cls(connect_to_read(Path(path)), str(path))

    def budget(
        self,
        scope: str,
        unit: str,
        relation: str,
        epsilon: float | None,
        delta: float,
        accountant: str = "pld",
        note: str = "",
    ) -> None:
        """States what a scope was promised, once and for all; the same again is fine, anything else an error.

        On disk no later than the scope's next charge.
        """
        if not 0 <= delta < 1 or (epsilon is not None and not epsilon >= 0):
            raise TacitError(f"{scope} cannot be promised epsilon {epsilon} and delta {delta}: give at least 0 each")
        line = Budget(scope, unit, relation, epsilon, delta, accountant, note)
        with self._lock:
            known = self._budgets.get(scope)
            if known is None:
                self._open_scope(line)
            elif replace(known, note=line.note) != line:
                raise TacitError(
                    f"{scope} was opened with {_promise(known)}, not {_promise(line)}: a promise does not change; "
                    "start a new ledger for new terms"
                )

    def budgets(self) -> dict[str, Budget]:
        return dict(self._budgets)

    def promised(self, scope: str) -> bool:
        return scope in self._budgets

    def charge(self, round: int, charges: Sequence[Charge], nonce: str = "") -> None:
        """Adds what a round costs, in one transaction. Durable when it returns; on an error nothing was charged.

        The same charges for the same round again are not counted twice: a resumed run repeats its noise and so
        releases the same thing. Where a repeated round draws new noise, give each attempt its own `nonce`.
        """
        self.charge_together([Batch(round, charges, nonce)])

    def charge_together(self, batches: Sequence[Batch], answer: tuple[str, int] | None = None) -> bool:
        """Several batches in one transaction, and with them that a turn of a run is answered: all of it or nothing.

        Whether the answer is new: of two processes at once, one is told so.
        """
        rows = [row for batch in batches for row in _rows_of(batch)]
        with self._transaction({row[2:5] for row in rows}) as db:
            db.executemany(
                "INSERT INTO charges (round, batch, scope, unit, relation, event, count, time) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return answer is not None and self._answer(db, *answer)

    def belong(self, mark: str) -> None:
        """Says whose rounds these are, once: a run that repeats its noise. Another's rounds have the same numbers, and
        would seem to be repetitions that cost nothing."""
        with self._transaction() as db:
            db.execute("INSERT INTO run VALUES (0, ?)", (mark,))
            ((known,),) = db.execute("SELECT mark FROM run WHERE only = 0").fetchall()
        if known != mark:
            raise TacitError(f"{self._path} is the ledger of another run ({known}): give each run a ledger of its own")

    def bind(self, files: Mapping[str, str]) -> None:
        """Says which files tell what was promised, by name and SHA-256. Durable when it returns; the last one holds."""
        if self.bindings() == files:
            return
        with self._transaction() as db:
            db.execute("INSERT INTO run SELECT COALESCE(MAX(only), 0) + 1, ? FROM run", (json.dumps(dict(files)),))

    def bindings(self) -> dict[str, str]:
        """What `bind` was told last; nothing in a ledger that was never told."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'run'"):
            return {}
        rows = self._query("SELECT mark FROM run WHERE only > 0 ORDER BY only DESC LIMIT 1")
        try:
            return {name: str(digest) for name, digest in json.loads(rows[0][0]).items()} if rows else {}
        except (ValueError, TypeError, AttributeError) as error:
            problem = f"{self._path} does not say which files promise what ({error}): restore the newest copy"
            raise TacitError(problem) from error

    def move(self, periods: Mapping[str, Sequence[LevelPeriod]]) -> None:
        """Adds where clients are from which round on, in one transaction. Durable when it returns.

        What is said later of the same client and round holds.
        """
        rows = [(stay, client) for client, own_periods in periods.items() for stay in own_periods]
        now = time.time()
        with self._transaction() as db:
            (last,) = db.execute("SELECT COALESCE(MAX(serial), 0) FROM stays").fetchone()
            db.executemany(
                "INSERT INTO stays (serial, round, client, level, asked, epsilon, delta, time) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (last + n, stay.round, client, stay.level, stay.asked, stay.epsilon, stay.delta, now)
                    for n, (stay, client) in enumerate(rows, 1)
                ],
            )

    def level_periods(self) -> dict[str, LevelPeriods]:
        """Of every client that ever changed its level: at which level it was from which round on, by round."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'stays'"):
            return {}
        rows = self._query("SELECT client, round, level, asked, epsilon, delta FROM stays ORDER BY serial")
        return latest_periods(
            (client, LevelPeriod(round, level, bool(eligible), *rest)) for client, round, level, eligible, *rest in rows
        )

    def spent(self, scope: str, since: int = 0, until: int | None = None) -> "Counter[DpEvent]":
        """The events charged to the scope, and how often: all of them, or those of rounds since <= round < until."""
        end = _NEVER if until is None else until
        where = "WHERE scope = ? AND round >= ? AND round < ?"
        return self._histories(where, scope, since, end).get(scope, Counter())

    def histories(self) -> "dict[str, Counter[DpEvent]]":
        """As `spent`, of all scopes in one pass."""
        return self._histories("")

    def scopes(self) -> list[str]:
        """All scopes that were ever charged or given a budget, sorted."""
        return sorted({scope for (scope,) in self._query("SELECT scope FROM scopes")} | self._budgets.keys())

    def terms(self) -> dict[str, tuple[str, str]]:
        """Unit and neighbour relation of every scope."""
        stored = {scope: (unit, relation) for scope, unit, relation in self._query("SELECT * FROM scopes")}
        return {scope: (line.unit, line.relation) for scope, line in self._budgets.items()} | stored

    def rounds(self, scope: str | None = None) -> int:
        """The last charged round, of one scope or of all; -1 if there is none."""
        where, values = ("WHERE scope = ?", (scope,)) if scope else ("", ())
        ((last,),) = self._query(f"SELECT MAX(round) FROM charges {where}", *values)
        return -1 if last is None else last

    def charges(self, until: int) -> int:
        """How many rows there are for rounds before `until`."""
        ((count,),) = self._query("SELECT COUNT(*) FROM charges WHERE round < ?", int(until))
        return count

    def charged_rounds(self) -> dict[str, int]:
        """In how many rounds each scope was charged."""
        return dict(self._query("SELECT scope, COUNT(DISTINCT round) FROM charges GROUP BY scope"))

    def entries(self, scope: str | None = None) -> Iterator[Entry]:
        """All rows, or those of one scope, by round."""
        where, values = ("WHERE scope = ?", (scope,)) if scope else ("", ())
        sql = (
            f"SELECT round, scope, unit, relation, event, count, time FROM charges {where} ORDER BY round, time, scope"
        )
        for round, owner, unit, relation, event, count, moment in self._query(sql, *values):
            yield Entry(round, owner, unit, relation, from_json(event), count, moment)

    def close(self) -> None:
        with self._lock:
            if self._pending:
                with self._transaction():
                    pass
            self._db.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, terms: Iterable[_Terms] = ()) -> Generator[sqlite3.Connection]:
        """All or nothing: the terms of the scopes, the budget lines that are not yet on disk, and the caller's rows."""
        with self._lock:
            terms = {*terms, *(astuple(line)[:3] for line in self._pending)}
            try:
                with self._chaining() as db:
                    db.executemany("INSERT INTO scopes VALUES (?, ?, ?)", terms)
                    db.executemany(
                        "INSERT INTO budgets VALUES (?, ?, ?, ?, ?, ?, ?)", [astuple(line) for line in self._pending]
                    )
                    yield db
            except StorageError as error:
                if isinstance(error.__cause__, sqlite3.IntegrityError):
                    raise TacitError(self._mixture(terms)) from error
                raise
            self._pending.clear()

    def _open_scope(self, line: Budget) -> None:
        terms = (line.unit, line.relation)
        if any(row != terms for row in self._query("SELECT unit, relation FROM scopes WHERE scope = ?", line.scope)):
            raise TacitError(self._mixture([(line.scope, *terms)]))
        self._budgets[line.scope] = line
        self._pending.append(line)

    def _mixture(self, terms: Iterable[_Terms]) -> str:
        known = self.terms()
        for scope, unit, relation in terms:
            if known.get(scope, (unit, relation)) != (unit, relation):
                recorded = " ".join(known[scope])
                return f"{scope} is kept as {recorded}, not {unit} {relation}: one scope has one unit and relation"
        return "the ledger refused a row: a scope has one unit, one relation, and counts above 0"

    def _histories(self, where: str, *values: object) -> "dict[str, Counter[DpEvent]]":
        sql = f"SELECT scope, event, SUM(count) FROM charges {where} GROUP BY scope, event"
        histories: dict[str, Counter[DpEvent]] = {}
        for scope, event, count in self._query(sql, *values):
            histories.setdefault(scope, Counter())[from_json(event)] += count
        return histories

    def _stored_budgets(self) -> Iterator[Budget]:
        return (Budget(*row) for row in self._query("SELECT * FROM budgets"))


def _rows_of(batch: Batch) -> list[tuple[int, str, str, str, str, str, int, float]]:
    rows, now = _rows(batch.charges), time.time()
    fingerprint = hashlib.sha256(json.dumps([rows, batch.nonce]).encode()).hexdigest()[:32]
    return [(int(batch.round), fingerprint, *row, now) for row in rows]


def _rows(charges: Sequence[Charge]) -> list[tuple[str, str, str, str, int]]:
    """One row for each scope and event, in an order of their own: equal charges give equal rows."""
    merged: Counter[tuple[str, str, str, str]] = Counter()
    for charge in charges:
        merged[charge.scope, charge.unit, charge.relation, to_json(charge.event)] += int(charge.count)
    kinds = Counter(scope for scope, _, _ in {key[:3] for key in merged})
    if mixed := [scope for scope, n in kinds.items() if n > 1]:
        raise TacitError(f"{mixed[0]} is charged by two units or relations in one round: one scope has one of each")
    return sorted((*key, count) for key, count in merged.items())


def _promise(line: Budget) -> str:
    limit = "no limit" if line.epsilon is None else f"epsilon {line.epsilon:g}"
    return f"{limit}, delta {line.delta:g}, {line.unit}-level, {line.relation}, {line.accountant}" + (
        f" ({line.note})" if line.note else ""
    )
