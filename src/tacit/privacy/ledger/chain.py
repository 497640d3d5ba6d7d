"""The chain of a ledger: each row's hash covers the row and the hash before it.

    hash(0) = SHA-256 of the ledger's identity, a random number made with it
    hash(n) = SHA-256(hash(n - 1), row n), rows in the order in which they were written, each as canonical JSON

A row cannot be changed, taken out, put in or moved without changing every hash from there on. The head, how many rows
there are and the last hash, stands for the whole history: whoever kept a head can tell whether a ledger still holds
it. Whoever may write the file may also compute a new chain, so that a chain alone shows carelessness, and a head that
somebody else kept shows the rest: a ledger that was shortened, restored from a copy, or written anew.

On disk is the hash after each part of a transaction, with how far it reaches in its table: enough to walk the chain.
"""

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from tacit.errors import TacitError

FORMAT: Final = 1  # of the chain: what a hash covers
TABLES: Final = ("scopes", "budgets", "run", "charges", "stays", "answers", "heads")
"""What the chain covers, in the order of one transaction."""
_NONE: Final = -1  # before the first row of a table


class Head(NamedTuple):
    """How many rows a ledger has, and the hash of the last."""

    serial: int
    hash: str

    def __str__(self) -> str:
        return f"{self.serial}:{self.hash}"


def read_head(text: str) -> Head:
    """What `str` made of a head."""
    serial, _, digest = text.partition(":")
    if not (serial.isascii() and serial.isdecimal() and len(serial) < 16 and len(digest) == 64):
        raise TacitError(
            f"{text[:90]!r} is no head of a ledger: give NUMBER:HASH, as `tacit ledger --verify` prints it"
        )
    return Head(int(serial), digest)


class Walk(NamedTuple):
    """What walking a chain shows. `head` None: the ledger has no chain yet. `older`: rows from before the chain.

    `ends`: the last row of each table that was walked, from where another walk may go on.
    """

    head: Head | None
    older: int
    faults: tuple[str, ...]
    ends: Mapping[str, int] = {}


def begin(db: sqlite3.Connection) -> None:
    """The first link, and links over the rows that are there already; part of the caller's transaction.

    Those are covered as they are found: what happened to them before, no hash can tell.
    """
    older = sum(_count(db, table) for table in _present(db))
    identity = secrets.token_hex(16)
    db.execute("INSERT INTO identity VALUES (0, ?, ?, ?)", (identity, FORMAT, older))
    db.execute("INSERT INTO chain VALUES (0, 'identity', ?, ?)", (_NONE, _genesis(identity, FORMAT, older)))
    extend(db)


def extend(db: sqlite3.Connection) -> None:
    """Chains all rows that were written since the last link; part of the caller's transaction."""
    serial, digest = head(db)
    for table in TABLES:
        last = _chained(db, table)
        if _last(db, table) > last:
            for row, *values in _rows(db, table, last):
                serial, digest, last = serial + 1, _next(digest, table, values), row
            db.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (serial, table, last, digest))


def check_ends(db: sqlite3.Connection) -> None:
    """Refuses a ledger whose tables end elsewhere than their chain: rows were taken off, or put in beside it."""
    for table in TABLES:
        last, chained = _last(db, table), cast(object, _chained(db, table))
        if last != chained:
            more = isinstance(chained, int) and last > chained  # whoever writes to the file may write anything
            surplus = "rows that its chain does not know" if more else "fewer rows than its chain"
            raise TacitError(
                f"the ledger holds {surplus} in '{table}': it was changed from outside, and nothing more is charged to "
                "it; see `tacit ledger RUN --verify`"
            )


def chained(db: sqlite3.Connection) -> bool:
    """Whether the ledger has a chain: those of earlier versions get one when they are next written to."""
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'chain'").fetchone())


def head(db: sqlite3.Connection) -> Head:
    sql = "SELECT serial, hash FROM chain ORDER BY serial DESC LIMIT 1"
    row = db.execute(sql).fetchone() if chained(db) else None
    if row is None:
        raise TacitError("the ledger has no chain: open it to write, or, if it was changed, restore the newest copy")
    return Head(*row)


def holds(db: sqlite3.Connection, head: Head) -> bool:
    """Whether the ledger once had this head: it does as long as it was only ever added to."""
    sql = "SELECT hash FROM chain WHERE serial = ?"
    return chained(db) and db.execute(sql, (head.serial,)).fetchone() == (head.hash,)


def since(db: sqlite3.Connection, serial: int) -> list[Head]:
    """All heads from this one on, the present one last."""
    return [Head(*row) for row in db.execute("SELECT serial, hash FROM chain WHERE serial >= ? ORDER BY 1", (serial,))]


def seal(db: sqlite3.Connection, text: str) -> str:
    """A code over the text that only who has this ledger, or a copy of it, can make: its identity is the key."""
    (identity,) = db.execute("SELECT id FROM identity").fetchone()
    return hmac.new(identity.encode(), text.encode(), hashlib.sha256).hexdigest()


def older_charges(db: sqlite3.Connection) -> int:
    """How many of the charges, the first ones, are from before the chain: written by an earlier version."""
    if not chained(db):
        return _count(db, "charges")
    (older,) = db.execute("SELECT older FROM identity").fetchone()
    sql = "SELECT COUNT(*) FROM charges WHERE rowid <= (SELECT MAX(last) FROM chain WHERE source = ? AND serial <= ?)"
    return db.execute(sql, ("charges", older)).fetchone()[0]


def walk(db: sqlite3.Connection, before: Walk | None = None) -> Walk:
    """Computes every hash again, or those since a walk that found no fault.

    A fault names the rows; those after it are compared by what was stored.
    """
    if not chained(db):
        return Walk(None, sum(_count(db, table) for table in _present(db)), ())
    identity = db.execute("SELECT id, format, older FROM identity").fetchone()
    start = Head(0, "") if before is None or before.head is None else before.head
    sql = "SELECT serial, source, last, hash FROM chain WHERE serial >= ? ORDER BY serial"
    links = db.execute(sql, (start.serial,)).fetchall()
    if identity is None or not links:
        return Walk(None, 0, ("the first link is missing",))
    if identity[1] != FORMAT:
        raise TacitError(f"the chain has format {identity[1]}, this Tacit reads {FORMAT}: use the Tacit that made it")
    first = start.hash or _genesis(*identity)
    faults = [] if links[0][3] == first else ["the identity of the ledger is not that of its chain"]
    ends = dict.fromkeys(TABLES, _NONE) | dict(before.ends if before else {})
    faults += [*_broken(db, links, ends), *_loose(db)]
    return Walk(Head(links[-1][0], links[-1][3]), identity[2], tuple(faults), ends)


def _broken(db: sqlite3.Connection, links: list[tuple[int, str, int, str]], checked: dict[str, int]) -> Iterator[str]:
    """Goes on from the rows that are `done`, and notes there how far it came."""
    (serial, _, _, digest), *rest = links
    for to, table, last, stored in rest:
        first, n, end = serial + 1, 0, _NONE
        if table in checked:
            for row, *values in _rows(db, table, checked[table], last):
                n, end, digest = n + 1, row, _next(digest, table, values)
            checked[table] = last
        if n != to - serial:
            yield f"rows {first} to {to} ({table}): {n} are there where {to - serial} were written"
        elif digest != stored or end != last:
            yield f"rows {first} to {to} ({table}{_where(db, table, last)}): not as they were written"
        serial, digest = to, stored


def _loose(db: sqlite3.Connection) -> Iterator[str]:
    for table in TABLES:
        extra = sum(1 for _ in _rows(db, table, _chained(db, table)))
        if extra:
            yield f"{extra} rows of '{table}' are not in the chain"


def _where(db: sqlite3.Connection, table: str, last: int) -> str:
    row = db.execute("SELECT round FROM charges WHERE rowid = ?", (last,)).fetchone() if table == "charges" else None
    return f", round {row[0]}" if row else ""


def _genesis(identity: str, format: int, older: int) -> str:
    start = json.dumps(["tacit ledger", identity, format, older], default=bytes.hex)
    return hashlib.sha256(start.encode()).hexdigest()


def _next(digest: str, table: str, values: Iterable[object]) -> str:
    row = json.dumps([table, *values], separators=(",", ":"), default=bytes.hex)
    return hashlib.sha256(f"{digest}{row}".encode()).hexdigest()


def _rows(db: sqlite3.Connection, table: str, after: int, to: int | None = None) -> Iterable[tuple[Any, ...]]:
    """With their place in front, in the order in which they were written."""
    sql = f"SELECT rowid, * FROM {table} WHERE rowid > ? {'' if to is None else 'AND rowid <= ?'} ORDER BY rowid"
    return db.execute(sql, (after,) if to is None else (after, to))


def _last(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT COALESCE(MAX(rowid), {_NONE}) FROM {table}").fetchone()[0]


def _chained(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT COALESCE(MAX(last), {_NONE}) FROM chain WHERE source = ?", (table,)).fetchone()[0]


def _count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


def _present(db: sqlite3.Connection) -> list[str]:
    """Tables that are there: a ledger of an earlier version has fewer."""
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in TABLES if table in known]
