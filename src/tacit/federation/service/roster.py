"""The members that a member knows, by name and public key, for all runs: `roster.sqlite` in its folder.

Where noise comes in shares, and sums are masked, a guarantee rests on who the others are, and the server is the one who
says so. A name keeps the key that it was first seen with. New names are taken at their first sight up to the number of
members that was agreed on at joining; any beyond wait until the owner of the folder has accepted their fingerprints.

Who may join, and who has: one-time invitations and the list of members, in the server's folder.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError, TacitError
from tacit.federation.protocol.client import Refusal
from tacit.federation.service.tls import fingerprint, key_fingerprint

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


@dataclass(frozen=True)
class Member:
    """A registered client. `key` is the public key that its node proves to have."""

    name: str
    level: str
    rows: int
    node: int
    key: str
    left: bool = False


@dataclass(frozen=True)
class Enrolment:
    """Kept by one process at a time, the one that enrols; others read it."""

    folder: Path

    def invite(self, count: int) -> list[str]:
        """New invitations: a secret that works once, and the fingerprint of the server's authority."""
        mark = base64.urlsafe_b64encode(bytes.fromhex(fingerprint((self.folder / "ca.crt").read_bytes())))
        tokens = [secrets.token_urlsafe(18) for _ in range(count)]
        open_ = self._read("invitations", [])
        self._write("invitations", open_ + [_digest(token) for token in tokens])
        return [f"{token}.{mark.decode().rstrip('=')}" for token in tokens]

    def invited(self, token: str) -> bool:
        return any(hmac.compare_digest(_digest(token), known) for known in self._read("invitations", []))

    @property
    def changed_at(self) -> int:
        """A number that is another one once the list of members has changed."""
        path = self.folder / "members.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def members(self) -> list[Member]:
        return [Member(**each) for each in self._read("members", [])]

    def enrol(self, token: str, member: Member) -> None:
        """Uses up the invitation. Refuses a name that is taken."""
        if not self.invited(token):
            raise TacitError("this invitation is not valid, or was used: ask for a new one")
        self.check(member.name)
        self.admit(member)
        rest = [known for known in self._read("invitations", []) if not hmac.compare_digest(_digest(token), known)]
        self._write("invitations", rest)

    def admit(self, member: Member) -> None:
        """Puts a member on the list, by whoever runs the server."""
        self._write("members", [asdict(each) for each in (*self.members(), member)])

    def check(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise TacitError(f"'{name[:60]}' is no name for a client: use letters, digits, dots and dashes, 61 at most")
        if any(member.name == name for member in self.members()):
            raise TacitError(f"the name '{name}' is taken: choose another")

    def leave(self, name: str) -> Member:
        """Marks a member as gone; its name stays taken, and its account stays what it is."""
        leaving = next((member for member in self.members() if member.name == name and not member.left), None)
        if leaving is None:
            raise TacitError(f"'{name}' is not a member")
        rows = [asdict(each) | ({"left": True} if each.name == name else {}) for each in self.members()]
        self._write("members", rows)
        return leaving

    def _read(self, name: str, otherwise: Any) -> Any:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return otherwise
        with storage(path):
            return json.loads(path.read_text())

    def _write(self, name: str, content: Any) -> None:
        write_atomically(self.folder / f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())


def read_invitation(text: str) -> tuple[str, str]:
    """The secret and the fingerprint in an invitation."""
    token, _, mark = text.strip().partition(".")
    try:
        return token, base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4)).hex()
    except ValueError:
        raise TacitError("this is not an invitation: copy the whole of it, as the server printed it") from None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


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
