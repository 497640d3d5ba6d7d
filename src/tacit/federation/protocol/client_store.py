# pyright: reportMissingImports=false
"""What a client keeps on its own disk: its ledger, its personal states, the terms it agreed to, what it answered.

    ledger.sqlite              what was spent and which turns were answered, for the life of the client
    custody.sqlite             terms by run, turns that were paid for, states of masked sums that were used, and the
                               head of the ledger
    runs/RUN/ROUNDS.safetensors   the personal state after so many rounds: the last one, and the one before it
    runs/RUN/view.safetensors     the last broadcast: with the state, the client's personal model
    runs/RUN/terms.json           the terms, once the run has ended

Every write is atomic: after a crash there is the old or the new, never half of either. Two states are kept because a
server that died may ask for its last round again.

That a turn was answered is written with what it cost, in one transaction of the ledger: who has the ledger knows it.
Ledger and custody.sqlite know of each other. A ledger that is older than the other says, or that knows a run which the
other does not, belongs to a folder of which a part was lost or restored, and such a client takes part in nothing.

A client's own account of a run: which turns it owes for, and whether its own budget still has this one in it.

Turns for evaluations are paid for like the others, by the evaluation's own plan; they are booked apart, so that a turn
paid for as one is not taken for the other.
"""

import os
import re
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load, save

from tacit.core.contract import Tree
from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError
from tacit.federation.protocol.messages import Ask, Rejected, separate
from tacit.federation.protocol.terms import Terms
from tacit.privacy.accounting.accountant import Accountant, largest_count
from tacit.privacy.ledger import earlier_events
from tacit.privacy.ledger.chain import Head
from tacit.privacy.ledger.ledger import Batch, Charge, Ledger
from tacit.privacy.plan import Account, Plan

_TABLES = """
CREATE TABLE IF NOT EXISTS terms (run TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS paid (run TEXT, scope TEXT, turn INTEGER, PRIMARY KEY (run, scope, turn)) STRICT;
CREATE TABLE IF NOT EXISTS used (state TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS head (only_one INTEGER PRIMARY KEY, serial INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
"""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
KEPT = 2


class ClientStore:
    """See the module. One process at a time: the database is locked while one writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._file, self._ledger = folder / "custody.sqlite", folder / "ledger.sqlite"
        with closing(self._connect()) as db, db:
            db.executescript(_TABLES)
        self._take_over()

    def ledger(self) -> Ledger:
        return Ledger.open(self._ledger)

    def has_ledger(self) -> bool:
        """A file without a byte is one that another process is making: it has no row yet."""
        return self._ledger.exists() and self._ledger.stat().st_size > 0

    def head(self) -> Head | None:
        """The head of the ledger when it was last kept here."""
        return next((Head(*row) for row in self._query("SELECT serial, hash FROM head")), None)

    def keep_head(self, head: Head) -> None:
        """Only after the ledger has it. Of two processes at once the later head stays."""
        self._write(
            "INSERT INTO head VALUES (0, ?, ?) ON CONFLICT DO UPDATE SET serial = excluded.serial, "
            "hash = excluded.hash WHERE excluded.serial > serial",
            [tuple(head)],
        )

    def secret(self, run: str) -> int:
        """128 bits that nobody else knows: which rows a step sees is drawn from them.

        Each run has its own. Two runs whose steps saw the same rows would cost more than both are charged for.
        """
        path = self.folder / "secret"
        if not path.exists():
            write_atomically(path, secrets.token_hex(16).encode())
            os.chmod(path, 0o600)
        with storage(path):
            return int.from_bytes(blake2b(run.encode(), key=path.read_bytes(), digest_size=16).digest())

    def pin(self, terms: Terms) -> None:
        """A run has one set of terms, those it was first met with."""
        known = self._query("SELECT digest FROM terms WHERE run = ?", terms.run)
        if known and known[0][0] != terms.digest:
            raise Rejected("run", f"the terms of run {terms.run!r} are not those it began with")
        if not known:
            if self.has_ledger():
                with Ledger.read(self._ledger) as ledger:
                    if ledger.knows(terms.run):
                        raise Rejected("run", f"the ledger knows run {terms.run!r}, and {self._file.name} was lost")
            self._write("INSERT INTO terms VALUES (?, ?)", [(terms.run, terms.digest)])

    def answered(self, run: str, turn: int) -> bool:
        return (run, turn) in self._answers(run)

    def last_answered(self, run: str) -> int:
        return max((turn for _, turn in self._answers(run)), default=-1)

    def answers(self) -> int:
        """How often the client has taken part, in all runs."""
        return len(self._answers())

    def paid(self, run: str, scope: str) -> set[int]:
        return {turn for (turn,) in self._query("SELECT turn FROM paid WHERE run = ? AND scope = ?", run, scope)}

    def note_paid(self, run: str, scope: str, turns: Iterable[int]) -> None:
        """Only after the ledger has it."""
        self._write("INSERT OR IGNORE INTO paid VALUES (?, ?, ?)", [(run, scope, turn) for turn in turns])

    def state(self, run: str, round: int, first: Tree) -> Tree:
        """The personal state before `round`; `first` if the client has not taken part by then."""
        before = [done for done in self._rounds(run) if done <= round]
        if not before:
            return first
        path = self._place(run) / f"{max(before)}.safetensors"
        with storage(path):
            state = load(path.read_bytes())
        if state.keys() != first.keys():
            raise StorageError(f"{path} holds another model's state: restore it from a backup, or remove it")
        return {name: state[name] for name in first}

    def keep(self, run: str, done: int, state: Tree, view: Tree) -> None:
        """The state after `done` rounds, durable; states before the last one but this are removed."""
        folder = self._place(run)
        if state:
            write_atomically(folder / f"{done}.safetensors", save(separate(state)))
        self.keep_view(run, view)
        for old in sorted(self._rounds(run), reverse=True)[KEPT:]:
            (folder / f"{old}.safetensors").unlink(missing_ok=True)

    def keep_view(self, run: str, view: Tree) -> None:
        write_atomically(self._place(run) / "view.safetensors", save(separate(view)))

    def view(self, run: str) -> Tree:
        """The last broadcast that was kept."""
        path = self._place(run) / "view.safetensors"
        with storage(path):
            return load(path.read_bytes())

    def end(self, terms: Terms, view: Tree) -> None:
        """The last broadcast, and the terms, by which the client finds what it has trained."""
        self.keep_view(terms.run, view)
        write_atomically(self._place(terms.run) / "terms.json", terms.text().encode())

    def ended(self) -> list[Path]:
        """The terms of the runs that have ended, a file each."""
        return sorted((self.folder / "runs").glob("*/terms.json"))

    def mask_state(self, run: str) -> bytes | None:
        path = self._place(run) / "mask"
        return path.read_bytes() if path.exists() else None

    def using(self, state: bytes) -> bool:
        """Durable. Whether this state of a masked sum is new: of two processes that hold it, one is told so."""
        return self._write("INSERT OR IGNORE INTO used VALUES (?)", [(blake2b(state).hexdigest(),)]) == 1

    def keep_mask_state(self, run: str, state: bytes) -> None:
        """Durable before the answer that goes with it is sent: a state must not be used twice."""
        write_atomically(self._place(run) / "mask", state)

    def newest(self, run: str) -> int:
        """After how many rounds the last state was kept; 0 if there is none."""
        return max(self._rounds(run), default=0)

    def _answers(self, run: str | None = None) -> list[tuple[str, int]]:
        if not self.has_ledger():
            return []
        with Ledger.read(self._ledger) as ledger:
            return ledger.answered(run)

    def _take_over(self) -> None:
        """Answers that an earlier version kept beside the ledger go into it; then, and only then, they are dropped."""
        if self._query("SELECT 1 FROM sqlite_master WHERE name = 'answered'"):
            with self.ledger() as ledger:
                ledger.answer(self._query("SELECT run, turn FROM answered"))
            with closing(self._connect()) as db, db:
                db.execute("DROP TABLE IF EXISTS answered")

    def _rounds(self, run: str) -> list[int]:
        return [int(path.stem) for path in self._place(run).glob("*.safetensors") if path.stem.isdecimal()]

    def _place(self, run: str) -> Path:
        if not _RUN.fullmatch(run):
            raise Rejected("run", f"{run[:40]!r} is no name of a run")
        folder = self.folder / "runs" / run
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self._file, timeout=20)
            db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise StorageError(f"cannot use {self._file}: {error}") from error
        return db

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(self._connect()) as db:
            return db.execute(sql, values).fetchall()

    def _write(self, sql: str, rows: list[tuple[Any, ...]]) -> int:
        """How many rows were added."""
        try:
            with closing(self._connect()) as db, db:
                return db.executemany(sql, rows).rowcount
        except sqlite3.Error as error:
            raise StorageError(f"cannot write {self._file}: {error}") from error


Answering = tuple[str, int]
"""Run and turn."""


class PendingCharge(NamedTuple):
    """One account: turns that have happened and are not paid for, and this one if it is new."""

    account: Account
    book: str  # the run, or the run's evaluations
    past: tuple[int, ...]
    now: int | None


def accounts_of(plan: Plan, place: int) -> list[tuple[Account, bool]]:
    """The accounts that concern a client, and whether each is charged every turn or when the client is asked."""
    name, level = plan.setting.ids[place], plan.setting.choices.of(place).name
    every, by_turn = {f"level:{level}", f"released:{level}"}, {f"client:{name}", f"server:{name}"}
    accounts = plan.accounts(np.array([place]))
    return [(account, account.scope in every) for account in accounts if account.scope in every | by_turn]


def owed(plan: Plan, place: int, ask: Ask, store: ClientStore, now: bool) -> list[PendingCharge]:
    """A level is charged for every turn, drawn or not; a client for those that it was asked in, says the server."""
    due = _owed(plan, place, ask, store, ask.run, now and not ask.evaluation)
    if plan.evaluation is not None:
        book = f"{ask.run} evaluations"  # no name of a run: it has a blank
        due += _owed(plan.evaluation.plan, place, ask, store, book, now and ask.evaluation)
    return due


def _owed(plan: Plan, place: int, ask: Ask, store: ClientStore, book: str, now: bool) -> list[PendingCharge]:
    due: list[PendingCharge] = []
    training = book == ask.run
    for account, always in accounts_of(plan, place):
        charged = set(range(ask.turn + 1)) if always else {turn for turn in ask.charged if turn <= ask.turn}
        turns = charged - set(ask.evaluated) if training else charged & set(ask.evaluated)
        new = {ask.turn} if now else set[int]()
        missing = (turns | new) - store.paid(book, account.scope)
        past = tuple(sorted(missing - new))
        due.append(PendingCharge(account, book, past, ask.turn if missing & new else None))
    return due


class Paid(NamedTuple):
    """Whether the turn could be paid for, and whether it was answered for the first time."""

    affordable: bool
    new: bool = False


def pay(
    ledger: Ledger, store: ClientStore, accountant: Accountant, due: Sequence[PendingCharge], answer: Answering | None
) -> Paid:
    """Charges the past in any case, and this turn if every budget allows it: with it, in one transaction, that the
    turn is answered. Durable when it returns; of two processes at once one is told that the answer is new."""
    for account, *_ in due:
        ledger.budget(account.scope, account.unit, account.relation, account.epsilon, account.delta, accountant)
    _charge(ledger, store, [(each, turn) for each in due for turn in each.past])
    if not all(each.now is None or _affords(ledger, each.account, accountant) for each in due):
        return Paid(False)
    return Paid(True, _charge(ledger, store, [(each, each.now) for each in due if each.now is not None], answer))


def _affords(ledger: Ledger, account: Account, accountant: Accountant) -> bool:
    if account.epsilon is None:
        return True
    spent: Counter[Any] = earlier_events.spent(ledger, account.scope)  # of all runs, whoever charged them
    terms = account.epsilon, account.delta, account.relation, accountant
    return largest_count(account.event, spent, *terms, ceiling=account.count) >= account.count


def _charge(
    ledger: Ledger, store: ClientStore, owing: Sequence[tuple[PendingCharge, int]], answer: Answering | None = None
) -> bool:
    """In the ledger first. A crash in between repeats the same charges, which count once."""
    if not owing and answer is None:
        return False
    batches = [
        Batch(turn, [Charge(due.account.scope, due.account.unit, due.account.relation, due.account.event,
                            due.account.count)], nonce=due.book)
        for due, turn in sorted(owing, key=lambda item: item[1])
    ]  # fmt: skip
    new = ledger.charge_together(batches, answer)
    for due, turn in owing:
        store.note_paid(due.book, due.account.scope, [turn])
    return new
