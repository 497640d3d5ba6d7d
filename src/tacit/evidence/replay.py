"""What a ledger's file says, read as rows and text, by code that shares nothing with the ledger that wrote it.

An account is what one scope was charged: a level, or a client in its own name. A client that changed its level has the
account of all its rounds, at whichever level it was (docs/proofs/changing-levels.md).
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tacit.errors import StorageError

_NEVER: Final = 1 << 62
_AT: Final = "level "  # how the note of a client's budget names its level


@dataclass(frozen=True)
class Account:
    """One scope: what it was charged, and at which delta it is told. `history`: events as text, and how often each."""

    scope: str
    unit: str
    relation: str
    level: str | None
    delta: float | None
    budget: float | None
    accountant: str
    history: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0  # in how many it was charged
    last: int = -1  # the last of them

    @property
    def key(self) -> tuple[frozenset[tuple[str, int]], float | None, str, str]:
        """Accounts of one key cost the same."""
        return frozenset(self.history.items()), self.delta, self.relation, self.accountant


def read_accounts(path: Path) -> dict[str, Account]:
    """Every account of the ledger in a file, by scope."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return dict(_accounts(db))
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read as a ledger ({error}): give the ledger.sqlite of a run") from error


def _accounts(db: sqlite3.Connection) -> Iterator[tuple[str, Account]]:
    budgets = {row[0]: row[1:] for row in db.execute("SELECT scope, epsilon, delta, accountant, note FROM budgets")}
    level_periods = _level_periods(db)
    terms = {
        scope: (unit, relation) for scope, unit, relation in db.execute("SELECT scope, unit, relation FROM scopes")
    }
    for scope, (unit, relation) in sorted(terms.items()):
        if scope.removeprefix("client:") in level_periods:
            continue
        epsilon, delta, accountant, note = budgets.get(scope, (None, None, "pld", ""))
        level = scope.removeprefix("level:") if scope.startswith("level:") else _level(note)
        history, rounds = _charged(db, scope, 0, _NEVER)
        yield scope, Account(scope, unit, relation, level, delta, epsilon, accountant, history, *_span(rounds))
    for client, periods in level_periods.items():
        account = _moved(db, client, periods, terms, budgets)
        yield account.scope, account


_Period = tuple[int, str, bool, float | None, float | None]  # round, level, asked, epsilon, delta


def _level_periods(db: sqlite3.Connection) -> dict[str, list[_Period]]:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'stays'").fetchone():
        return {}
    by_client: dict[str, dict[int, _Period]] = {}
    sql = "SELECT client, round, level, asked, epsilon, delta FROM stays ORDER BY serial"
    for client, round, level, takes_part, epsilon, delta in db.execute(sql):  # the last row of a round holds
        by_client.setdefault(client, {})[round] = (round, level, bool(takes_part), epsilon, delta)
    return {client: [by_round[at] for at in sorted(by_round)] for client, by_round in by_client.items()}


def _moved(
    db: sqlite3.Connection,
    client: str,
    periods: list[_Period],
    terms: Mapping[str, tuple[str, str]],
    budgets: Mapping[str, tuple],
) -> Account:
    """All that a client was charged at its levels, and in its own name; told by its last private level."""
    scope, total, rounds = f"client:{client}", Counter[str](), set[int]()
    ends = [*(period[0] for period in periods[1:]), _NEVER]
    parts = [
        _charged(db, f"level:{level}", since, end)
        for (since, level, takes_part, _, delta), end in zip(periods, ends, strict=True)
        if takes_part and delta is not None
    ]
    for history, at in [*parts, _charged(db, scope, 0, _NEVER)]:
        total += Counter(history)
        rounds |= at
    names = [scope, *(f"level:{period[1]}" for period in periods)]
    known = next((name for name in names if name in terms), scope)
    *_, epsilon, delta = next((period for period in reversed(periods) if period[4] is not None), periods[-1])
    unit, relation = terms.get(known, ("client", "add/remove"))
    accountant = budgets[known][2] if known in budgets else "pld"
    return Account(scope, unit, relation, periods[-1][1], delta, epsilon, accountant, dict(total), *_span(rounds))


def _charged(db: sqlite3.Connection, scope: str, since: int, end: int) -> tuple[dict[str, int], set[int]]:
    history: Counter[str] = Counter()
    rounds = set()
    sql = "SELECT round, event, count FROM charges WHERE scope = ? AND round >= ? AND round < ?"
    for round, event, count in db.execute(sql, (scope, since, end)):
        history[event] += count
        rounds.add(round)
    return dict(history), rounds


def _span(rounds: set[int]) -> tuple[int, int]:
    return len(rounds), max(rounds, default=-1)


def _level(note: str) -> str | None:
    return note.removeprefix(_AT) if note.startswith(_AT) else None
