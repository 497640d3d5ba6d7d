"""The open file of a ledger: transactions that extend its chain, and what the chain is for: heads, and answered turns.

Two parties that deal with each other tell each other the heads of their ledgers and keep what they are told. A ledger
that was restored from a copy, shortened or written anew does not hold the head that the other one kept.
"""

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tacit.errors import TacitError
from tacit.privacy.ledger import chain
from tacit.privacy.ledger.chain import Head, Walk
from tacit.privacy.ledger.sqlite import guards_missing, trouble


class Kept(NamedTuple):
    """The head of another's ledger, as `owner` told it in a turn of a run.

    `seen`: the head of this ledger that the owner had seen by then, as text; `proof`: the owner's seal on its own.
    """

    owner: str
    run: str
    turn: int
    head: Head
    seen: str = ""
    proof: str = ""


class Chained:
    """What every ledger can do beside accounting. Each write is one transaction, durable when it returns."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db, self._path, self._lock = db, path, threading.RLock()
        self._walked: tuple[int, Walk] | None = None  # without a fault; of which state of the file
        weakref.finalize(self, db.close)

    def head(self) -> Head:
        """How many rows there are, and the last hash: it stands for all that was ever written."""
        with self._lock, trouble(self._path):
            return chain.head(self._db)

    def holds(self, head: Head) -> bool:
        """Whether the ledger once had this head. No: it is not the ledger that had it, or not all of it."""
        with self._lock, trouble(self._path):
            return chain.holds(self._db, head)

    def heads_since(self, serial: int) -> list[Head]:
        with self._lock, trouble(self._path):
            return chain.since(self._db, serial)

    def seal(self, text: str) -> str:
        """A code that only who has this ledger, or a copy of it, can make."""
        with self._lock, trouble(self._path):
            return chain.seal(self._db, text)

    def walk(self) -> Walk:
        """Computes the whole chain again, and looks whether the guards against changes are there."""
        self._walked = None
        return self._walk()

    def older_charges(self) -> int:
        """How many charges, the first ones, were written by a version that had no chain."""
        with self._lock, trouble(self._path):
            return chain.older_charges(self._db)

    def check(self) -> None:
        """Raises unless the whole chain is as it was written: a ledger that was changed is neither told nor added to.

        Rows that this object has walked are not walked again, unless another process has written to the file since.
        """
        if faults := self._walk().faults:
            raise TacitError(
                f"ledger {self._path} was changed ({faults[0]}): restore the newest copy; "
                "see `tacit ledger RUN --verify`"
            )

    def keep(self, heads: Iterable[Kept]) -> None:
        """Adds heads that others told."""
        now = time.time()
        rows = [(k.owner, k.run, k.turn, str(k.head), k.seen, k.proof, now) for k in heads]
        if not rows:
            return
        with self._chaining() as db:
            sql = "INSERT INTO heads (owner, run, turn, head, seen, proof, time) VALUES (?, ?, ?, ?, ?, ?, ?)"
            db.executemany(sql, rows)

    def kept(self, owner: str | None = None, run: str | None = None) -> list[Kept]:
        """The heads that were told, of all or of some, in the order in which they came."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'heads'"):
            return []
        sql = "SELECT owner, run, turn, head, seen, proof FROM heads WHERE owner = ifnull(?, owner) "
        rows = self._query(f"{sql} AND run = ifnull(?, run) ORDER BY serial", owner, run)
        return [_kept(*row) for row in rows]

    def last_kept(self, owner: str, run: str) -> Kept | None:
        sql = "SELECT owner, run, turn, head, seen, proof FROM heads WHERE owner = ? AND run = ? "
        rows = self._query(f"{sql} ORDER BY serial DESC LIMIT 1", owner, run)
        return next((_kept(*row) for row in rows), None)

    def answered(self, run: str | None = None) -> list[tuple[str, int]]:
        """Runs and turns that were answered, of all runs or of one."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'answers'"):
            return []
        return self._query("SELECT run, turn FROM answers WHERE run = ifnull(?, run) ORDER BY rowid", run)

    def answer(self, answers: Iterable[tuple[str, int]]) -> None:
        """Adds answers that an earlier version kept elsewhere."""
        with self._chaining() as db:
            for run, turn in answers:
                self._answer(db, run, turn)

    def knows(self, run: str) -> bool:
        """Whether a turn of the run was answered, or its head kept."""
        return bool(self.answered(run) or self.kept(run=run))

    @staticmethod
    def _answer(db: sqlite3.Connection, run: str, turn: int) -> bool:
        return db.execute("INSERT INTO answers VALUES (?, ?, ?)", (run, turn, time.time())).rowcount == 1

    @contextmanager
    def _chaining(self) -> Iterator[sqlite3.Connection]:
        """One transaction, all or nothing, with the links over the rows that it adds."""
        with self._lock, trouble(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                chain.check_ends(self._db)
                yield self._db
                chain.extend(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _walk(self) -> Walk:
        """On from the last walk, if nobody else has written since: SQLite counts what other connections commit."""
        with self._of_one_moment() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
            before = self._walked[1] if self._walked and self._walked[0] == version else None
            found, missing = chain.walk(db, before), guards_missing(db)
        found = found._replace(faults=(*found.faults, *(f"the guard {name} was taken away" for name in missing)))
        self._walked = None if found.faults else (version, found)
        return found

    @contextmanager
    def _of_one_moment(self) -> Iterator[sqlite3.Connection]:
        """What is read inside is of one state of the file, also while another process writes."""
        with self._lock, trouble(self._path):
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _query(self, sql: str, *values: object) -> list[tuple]:
        with self._lock, trouble(self._path):
            return self._db.execute(sql, values).fetchall()


def _kept(owner: str, run: str, turn: int, head: str, seen: str, proof: str) -> Kept:
    return Kept(owner, run, turn, chain.read_head(head), seen, proof)
