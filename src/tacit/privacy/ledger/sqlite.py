"""The file of a ledger: an SQLite database whose tables can only grow, flushed to disk at every commit.

Its rows are chained by hash (`chain.py`). A ledger of an earlier version is read as it is; the first time it is opened
to be written to it gets the tables it lacks and a chain, in one transaction, and loses nothing.

`Chained` is the open file: transactions that extend its chain, and what the chain is for: heads, and answered turns.
Two parties that deal with each other tell each other the heads of their ledgers and keep what they are told. A ledger
that was restored from a copy, shortened or written anew does not hold the head that the other one kept.
"""

import sqlite3
import threading
import time
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tacit.errors import StorageError, TacitError
from tacit.privacy.ledger import chain
from tacit.privacy.ledger.chain import Head, Walk

MARK: Final = 0x54414349  # "TACI", in the header of the file
VERSION: Final = 3
_EARLIER: Final = (1, 2)  # without a chain; 2: somebody changed its level
_PATIENCE: Final = 30.0  # seconds to wait for another process

_SCOPE: Final = "scope TEXT NOT NULL, unit TEXT NOT NULL, relation TEXT NOT NULL"
_SAME_TERMS: Final = "FOREIGN KEY (scope, unit, relation) REFERENCES scopes (scope, unit, relation)"
_TABLES: Final = {
    "scopes": f"{_SCOPE}, PRIMARY KEY (scope), UNIQUE (scope, unit, relation)",
    "budgets": f"{_SCOPE}, epsilon REAL, delta REAL NOT NULL, accountant TEXT NOT NULL, note TEXT NOT NULL, "
    f"PRIMARY KEY (scope), {_SAME_TERMS}",
    # A batch is the fingerprint of all that one call charged: the same call again finds its rows here already,
    # a different one adds its own.
    "charges": f"round INTEGER NOT NULL, batch TEXT NOT NULL, {_SCOPE}, event TEXT NOT NULL, "
    f"count INTEGER NOT NULL CHECK (count > 0), time REAL NOT NULL, "
    f"PRIMARY KEY (round, batch, scope, event), {_SAME_TERMS}",
    # Who was at which level when: of those who ever changed.
    "stays": "serial INTEGER PRIMARY KEY, round INTEGER NOT NULL, client TEXT NOT NULL, level TEXT NOT NULL, "
    "asked INTEGER NOT NULL, epsilon REAL, delta REAL, time REAL NOT NULL",
    # Whose rounds these are: row 0; after it, what was promised (`Ledger.bind`).
    "run": "only INTEGER PRIMARY KEY, mark TEXT NOT NULL",
    # A member's: the turns of each run that it answered, written with what they cost.
    "answers": "run TEXT NOT NULL, turn INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (run, turn)",
    # Heads of others' ledgers, as they told them; `seen`: what they had seen of this one; `proof`: their seal on it.
    "heads": "serial INTEGER PRIMARY KEY, owner TEXT NOT NULL, run TEXT NOT NULL, turn INTEGER NOT NULL, "
    "head TEXT NOT NULL, seen TEXT NOT NULL, proof TEXT NOT NULL, time REAL NOT NULL",
    "identity": "only INTEGER PRIMARY KEY, id TEXT NOT NULL, format INTEGER NOT NULL, older INTEGER NOT NULL",
    "chain": "serial INTEGER PRIMARY KEY, source TEXT NOT NULL, last INTEGER NOT NULL, hash TEXT NOT NULL",
}
_KEYS: Final = {
    "scopes": ("scope",),
    "budgets": ("scope",),
    "charges": ("round", "batch", "scope", "event"),
    "stays": ("serial",),
    "run": ("only",),
    "answers": ("run", "turn"),
    "heads": ("serial",),
    "identity": ("only",),
    "chain": ("serial",),
}
_INDEXES: Final = {
    "charges_by_scope": "charges (scope, event, count)",
    "chain_by_source": "chain (source, last)",
    "heads_by_owner": "heads (owner, run)",
}


def connect(path: str) -> sqlite3.Connection:
    """Opens or makes a ledger file; anything else that lies there is refused and left as it is."""
    with trouble(path):
        db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        return _or_close(db, path, create=True)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Opens an existing ledger file to look only, also in a folder that cannot be written."""
    if not path.is_file():
        raise StorageError(f"no ledger at {path}: give the ledger file of a run")
    uri, log = path.absolute().as_uri(), path.with_name(path.name + "-wal")

    def look(how: str) -> sqlite3.Connection:
        return _or_close(
            sqlite3.connect(f"{uri}?{how}", uri=True, timeout=_PATIENCE, check_same_thread=False), str(path)
        )

    with trouble(str(path)):
        try:
            return look("mode=rw")  # SQLite shares a log with the writer, and tidies it up where it may write
        except sqlite3.OperationalError:
            if log.exists():
                raise
        return look("immutable=1")  # nobody is writing: there is no log


@contextmanager
def trouble(path: str) -> Generator[None]:
    """Turns what SQLite says into what to do about it."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _remedy(path, error) from error


def _remedy(path: str, error: Exception) -> TacitError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_NOTADB":
        return TacitError(f"{path} is not a ledger: give another path, or move the file away")
    for start, remedy in (
        ("SQLITE_FULL", "the disk is full: free some space and resume; nothing of this round was charged or released"),
        ("SQLITE_READONLY", "it cannot be written: make the file and its folder writable"),
        ("SQLITE_CANTOPEN", "it cannot be opened: check that the folder exists and may be written"),
        ("SQLITE_CORRUPT", "the file is damaged: restore a copy; a run must not go on without its record"),
        ("SQLITE_BUSY", "another process holds it: stop that one first"),
    ):
        if name.startswith(start):
            return StorageError(f"ledger {path}: {remedy}")
    return StorageError(f"ledger {path}: {error}; check the disk, then resume")


def _or_close(db: sqlite3.Connection, path: str, create: bool = False) -> sqlite3.Connection:
    try:
        for pragma in ("foreign_keys = ON", "synchronous = FULL", "fullfsync = ON"):
            db.execute(f"PRAGMA {pragma}")
        if create and _empty(db):
            _create(db)
        _verify(db, path)
        if create:
            _create(db)
            _check_guards(db, path)
        db.execute("PRAGMA journal_mode = WAL" if create else "PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _create(db: sqlite3.Connection) -> None:
    """Makes the tables in an empty file, or those that an earlier version did not have, and begins the chain.

    In one transaction: a ledger is there whole or not at all, and one of an earlier version is left as it was.
    """
    if not _unfinished(db):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if _unfinished(db):  # nobody else was faster
            _complete(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _complete(db: sqlite3.Connection) -> None:
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for table, columns in _TABLES.items():
        if table not in known:
            _make(db, table, columns)
    for name, columns in _INDEXES.items():
        if name not in known:
            db.execute(f"CREATE INDEX {name} ON {columns}")
    chain.begin(db)
    db.execute(f"PRAGMA application_id = {MARK}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def guards_missing(db: sqlite3.Connection) -> list[str]:
    """Triggers that keep rows from being changed, and are not there as they were made."""
    known = {name for (name,) in db.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")}
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if name in _TABLES]
    return [sql.split()[2] for table in tables for sql in _triggers(table) if sql not in known]


def _check_guards(db: sqlite3.Connection, path: str) -> None:
    """Without them rows can be changed, and a repeated one is an error instead of nothing."""
    if missing := guards_missing(db):
        raise TacitError(
            f"ledger {path} lost its guards against changes ({missing[0]}, {len(missing)} in all): another "
            "program wrote to the file, and nothing more is charged to it. Restore the newest copy, or start a new "
            "run; `tacit ledger RUN --verify` tells what else is not as it was"
        )


def _make(db: sqlite3.Connection, table: str, columns: str) -> None:
    db.execute(f"CREATE TABLE {table} ({columns})")
    for trigger in _triggers(table):
        db.execute(trigger)


def _triggers(table: str) -> Generator[str]:
    for action in ("UPDATE", "DELETE"):
        yield (
            f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END"
        )
    # A second insert of a row is ignored here and not left to INSERT OR REPLACE, which deletes without asking triggers.
    equal_keys = " AND ".join(f"{key} = NEW.{key}" for key in _KEYS[table])
    yield (
        f"CREATE TRIGGER {table}_once BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {equal_keys}) "
        f"BEGIN SELECT RAISE(IGNORE); END"
    )


def _unfinished(db: sqlite3.Connection) -> bool:
    """Whether it is empty, or a ledger of an earlier version."""
    ours = _value(db, "PRAGMA application_id") == MARK
    return _empty(db) or (ours and _value(db, "PRAGMA user_version") in _EARLIER)


def _empty(db: sqlite3.Connection) -> bool:
    return _value(db, "PRAGMA application_id") == 0 and _value(db, "SELECT COUNT(*) FROM sqlite_master") == 0


def _verify(db: sqlite3.Connection, path: str) -> None:
    if _value(db, "PRAGMA application_id") != MARK:
        raise TacitError(f"{path} is a database, but not a ledger: give another path, or move the file away")
    version = _value(db, "PRAGMA user_version")
    if version not in (VERSION, *_EARLIER):
        raise TacitError(f"ledger {path} has format {version}, this Tacit reads {VERSION}: use the Tacit that made it")
    if (state := _value(db, "PRAGMA quick_check(1)")) != "ok":
        raise StorageError(
            f"ledger {path} is damaged ({state}): restore a copy; a run must not go on without its record"
        )


def _value(db: sqlite3.Connection, sql: str) -> object:
    return db.execute(sql).fetchone()[0]


class KeptHead(NamedTuple):
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

    def keep(self, heads: Iterable[KeptHead]) -> None:
        """Adds heads that others told."""
        now = time.time()
        rows = [(k.owner, k.run, k.turn, str(k.head), k.seen, k.proof, now) for k in heads]
        if not rows:
            return
        with self._chaining() as db:
            sql = "INSERT INTO heads (owner, run, turn, head, seen, proof, time) VALUES (?, ?, ?, ?, ?, ?, ?)"
            db.executemany(sql, rows)

    def kept_heads(self, owner: str | None = None, run: str | None = None) -> list[KeptHead]:
        """The heads that were told, of all or of some, in the order in which they came."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'heads'"):
            return []
        sql = "SELECT owner, run, turn, head, seen, proof FROM heads WHERE owner = ifnull(?, owner) "
        rows = self._query(f"{sql} AND run = ifnull(?, run) ORDER BY serial", owner, run)
        return [_kept_head(*row) for row in rows]

    def last_kept(self, owner: str, run: str) -> KeptHead | None:
        sql = "SELECT owner, run, turn, head, seen, proof FROM heads WHERE owner = ? AND run = ? "
        rows = self._query(f"{sql} ORDER BY serial DESC LIMIT 1", owner, run)
        return next((_kept_head(*row) for row in rows), None)

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
        return bool(self.answered(run) or self.kept_heads(run=run))

    @staticmethod
    def _answer(db: sqlite3.Connection, run: str, turn: int) -> bool:
        return db.execute("INSERT INTO answers VALUES (?, ?, ?)", (run, turn, time.time())).rowcount == 1

    @contextmanager
    def _chaining(self) -> Generator[sqlite3.Connection]:
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
            walk, missing = chain.walk(db, before), guards_missing(db)
        walk = walk._replace(faults=(*walk.faults, *(f"the guard {name} was taken away" for name in missing)))
        self._walked = None if walk.faults else (version, walk)
        return walk

    @contextmanager
    def _of_one_moment(self) -> Generator[sqlite3.Connection]:
        """What is read inside is of one state of the file, also while another process writes."""
        with self._lock, trouble(self._path):
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, trouble(self._path):
            return self._db.execute(sql, values).fetchall()


def _kept_head(owner: str, run: str, turn: int, head: str, seen: str, proof: str) -> KeptHead:
    return KeptHead(owner, run, turn, chain.read_head(head), seen, proof)
