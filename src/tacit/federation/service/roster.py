"""The members that a member knows, by name and public key, for all runs: `roster.sqlite` in its folder.

Where noise comes in shares, and sums are masked, a guarantee rests on who the others are, and the server is the one who
says so. A name keeps the key that it was first seen with. New names are taken at their first sight up to the number of
members that was agreed on at joining; any beyond wait until the owner of the folder has accepted their fingerprints.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tacit.errors import StorageError, TacitError
from tacit.federation.protocol.client import Refusal
from tacit.federation.service.tls import key_fingerprint

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS known (name TEXT PRIMARY KEY, key TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS waiting (name TEXT PRIMARY KEY, key TEXT NOT NULL) STRICT;
"""
_WAITING: Final = 1000  # of a roster that is refused, so many are kept to look at


class Roster:
    """See the module. Each change is one durable transaction: of two processes, the second sees what the first took."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "roster.sqlite"

    def known(self) -> dict[str, str]:
        return self._read("known")

    def waiting(self) -> dict[str, str]:
        """Of the last roster that was refused, whoever is not known by this key."""
        return self._read("waiting")

    def meet(self, members: Mapping[str, str], most: int) -> None:
        """Takes a run's members, by name and key, or refuses all of them. `most`: how many names are taken unseen."""
        keys = {name: _plain(key) for name, key in members.items()}
        if "" in keys.values() or len(set(keys.values())) < len(keys):
            raise Refusal("terms", "the roster has members without a key, or two with one key")
        with self._changing() as db:
            known = dict(db.execute("SELECT name, key FROM known"))
            strange = {name: key for name, key in keys.items() if known.get(name) != key}
            changed = strange.keys() & known.keys()
            if not changed and (not strange or len(known) + len(strange) <= most):
                db.executemany("INSERT INTO known VALUES (?, ?)", strange.items())
                db.execute("DELETE FROM waiting")
                return
            db.execute("DELETE FROM waiting")
            db.executemany("INSERT INTO waiting VALUES (?, ?)", sorted(strange.items())[:_WAITING])
        what = f"{min(changed)!r} has another key than before" if changed else f"{len(strange)} are not known here"
        raise Refusal("terms", f"the roster has {len(keys)} members, of whom {what}: see `tacit members`")

    def accept(self, fingerprint: str) -> str:
        """Whoever waits with this fingerprint is known from now on; the name."""
        with self._changing() as db:
            for name, key in db.execute("SELECT name, key FROM waiting").fetchall():
                if key_fingerprint(key) == fingerprint.strip():
                    db.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", (name, key))
                    db.execute("DELETE FROM waiting WHERE name = ?", (name,))
                    return name
        raise TacitError(f"nobody waits with the fingerprint '{fingerprint[:60]}': `tacit members` lists who does")

    def _read(self, table: str) -> dict[str, str]:
        if not self._file.exists():
            return {}
        with self._changing() as db:
            return dict(db.execute(f"SELECT name, key FROM {table} ORDER BY name"))

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file, timeout=20, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = FULL")
                db.executescript(_TABLES)
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageError(f"cannot use {self._file}: {error}") from error


def _plain(key: str) -> str:
    """A public key without its comment."""
    return " ".join(key.split()[:2])
