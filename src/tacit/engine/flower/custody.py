"""What a client keeps on its own disk: its ledger, its personal states, the terms it agreed to, what it answered.

    ledger.sqlite              what was spent, for the life of the client
    custody.sqlite             terms by run, turns that were answered or paid for, states of masked sums that were used
    runs/RUN/ROUNDS.safetensors   the personal state after so many rounds: the last one, and the one before it
    runs/RUN/view.safetensors     the last broadcast: with the state, the client's personal model

Every write is atomic: after a crash there is the old or the new, never half of either. Two states are kept because a
server that died may ask for its last round again.
"""
# pyright: reportMissingImports=false

import os
import re
import secrets
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

from safetensors.torch import load, save

from tacit.core import Tree
from tacit.engine.checkpoint import storage, write_atomically
from tacit.engine.flower.schema import Rejected, separate
from tacit.engine.flower.terms import Terms
from tacit.errors import StorageError
from tacit.privacy.ledger import Ledger

_TABLES = """
CREATE TABLE IF NOT EXISTS terms (run TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS answered (run TEXT, turn INTEGER, PRIMARY KEY (run, turn)) STRICT;
CREATE TABLE IF NOT EXISTS paid (run TEXT, scope TEXT, turn INTEGER, PRIMARY KEY (run, scope, turn)) STRICT;
CREATE TABLE IF NOT EXISTS used (state TEXT PRIMARY KEY) STRICT;
"""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
KEPT = 2


class Custody:
    """See the module. One process at a time: the database is locked while one writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "custody.sqlite"
        with closing(self._connect()) as db, db:
            db.executescript(_TABLES)

    def ledger(self) -> Ledger:
        return Ledger.open(self.folder / "ledger.sqlite")

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
            self._write("INSERT INTO terms VALUES (?, ?)", [(terms.run, terms.digest)])

    def answered(self, run: str, turn: int) -> bool:
        return bool(self._query("SELECT 1 FROM answered WHERE run = ? AND turn = ?", run, turn))

    def answering(self, run: str, turn: int) -> bool:
        """Durable before anything is computed. Whether the turn is new: of two processes at once, one is told so."""
        return self._write("INSERT OR IGNORE INTO answered VALUES (?, ?)", [(run, turn)]) == 1

    def last_answered(self, run: str) -> int:
        return self._query("SELECT COALESCE(MAX(turn), -1) FROM answered WHERE run = ?", run)[0][0]

    def answers(self) -> int:
        """How often the client has taken part, in all runs."""
        return self._query("SELECT COUNT(*) FROM answered")[0][0]

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
            found = load(path.read_bytes())
        if found.keys() != first.keys():
            raise StorageError(f"{path} holds another model's state: restore it from a backup, or remove it")
        return {name: found[name] for name in first}

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

    def _query(self, sql: str, *values: object) -> list[tuple]:
        with closing(self._connect()) as db:
            return db.execute(sql, values).fetchall()

    def _write(self, sql: str, rows: list[tuple]) -> int:
        """How many rows were added."""
        try:
            with closing(self._connect()) as db, db:
                return db.executemany(sql, rows).rowcount
        except sqlite3.Error as error:
            raise StorageError(f"cannot write {self._file}: {error}") from error
