"""`tacit ledger RUN --verify`: is this ledger the one it was, and is every epsilon what its events say?

Three questions, each line with its reason. Is the chain whole? Does every account, replayed from single rows, give an
epsilon within what was promised? Does the ledger hold every head that was kept of it: by the other files of its folder,
and by the other side, whose folder, ledger or list of heads one may give?
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tacit.errors import TacitError
from tacit.privacy.ledger.chain import Head, read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import Line, moved, shown, statement
from tacit.report.run_folder import ledger_in
from tacit.rounds import checkpoint

_SERVER: Final = "server"
_SQLITE: Final = b"SQLite format 3\0"


class Check(NamedTuple):
    """One line. `passed` None: nothing that could pass or fail, but worth knowing."""

    passed: bool | None
    text: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'FAIL', None: 'note'}[self.passed]:5} {self.text}"


@dataclass(frozen=True)
class Whose:
    """Under which names others keep heads of a ledger: a server's by its run, a member's by its name."""

    owner: str | None
    run: str | None


def verify(folder: Path, others: Sequence[Path] = (), client: str | None = None) -> list[Check]:
    """All checks of the ledger in a folder; `others`: folders, ledgers or lists of heads that were kept elsewhere."""
    with Ledger.read(ledger_in(folder)) as ledger:
        found = [*_chain(ledger), *_accounts(ledger), *_beside(folder, ledger)]
        for other in others:
            found += _elsewhere(folder, ledger, other, client)
        return found


def _chain(ledger: Ledger) -> Iterator[Check]:
    head, older, faults = ledger.walk()
    for fault in faults:
        yield Check(False, f"chain: {fault}")
    if head is None:
        yield Check(None, f"chain: none yet; {older:,} rows of an earlier version are not covered")
        return
    if not faults:
        yield Check(True, f"chain: {head.serial:,} rows, each as it was written")
    if older:
        yield Check(None, f"rows 1 to {older:,} are from before the chain: covered as it found them, and not before")
    yield Check(None, f"head {head}: whoever keeps it can tell later whether rows were taken off")


def _accounts(ledger: Ledger) -> Iterator[Check]:
    """Every epsilon anew from the rows themselves, one by one, beside what statements say."""
    try:
        rows: dict[str, Counter] = {}
        for entry in ledger.entries():
            rows.setdefault(entry.scope, Counter())[entry.event] += entry.count
        lines, stays, same = statement(ledger), ledger.stays(), ledger.histories() == rows
        for line in lines:
            changed = line.scope.removeprefix("client:") in stays
            yield _account(line, same or ledger.histories().get(line.scope) == rows.get(line.scope), changed)
        for group in moved(ledger):
            who = group.clients[0] if len(group.clients) == 1 else f"{len(group.clients):,} clients"
            yield Check(True, f"changed levels, {who}: epsilon {shown(group.line.epsilon)}")
    except TacitError as error:
        yield Check(False, f"accounts cannot be replayed: {error}")


def _account(line: Line, same: bool, changed: bool) -> Check:
    spent = f"{line.scope}: epsilon {shown(line.epsilon)} in {line.rounds:,} rounds"
    if not same:
        return Check(False, f"{spent}, and its single rows say otherwise")
    if line.budget is None or changed:  # who changed to a stricter level may have spent more than that one allows
        return Check(True, spent)
    within = line.epsilon <= line.budget
    return Check(within, f"{spent}, {'of' if within else 'more than'} {line.budget:g} that was promised")


def _beside(folder: Path, ledger: Ledger) -> Iterator[Check]:
    """Heads that the other files of the folder have kept."""
    for name, read in (
        ("checkpoint.bin", _in_checkpoint),
        ("outcome.json", _in_outcome),
        ("turn.json", _in_journal),
        ("custody.sqlite", _in_custody),
    ):
        path = folder / name
        try:
            kept = read(path) if path.exists() else ""
            if kept:
                yield _held(ledger, read_head(kept), name)
        except (TacitError, ValueError, KeyError, sqlite3.Error) as error:
            yield Check(False, f"{name} cannot be read ({error})")


def _in_checkpoint(path: Path) -> str:
    return checkpoint.load(path).get("ledger", "")


def _in_outcome(path: Path) -> str:
    return json.loads(path.read_text()).get("ledger", "")


def _in_journal(path: Path) -> str:
    return (json.loads(path.read_text())[4:] or [""])[0]


def _in_custody(path: Path) -> str:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchone():
            return ""
        found = db.execute("SELECT serial, hash FROM head").fetchone()
    return "" if found is None else str(Head(*found))


def _held(ledger: Ledger, head: Head, by: str, whose: str = "the ledger") -> Check:
    if ledger.holds(head):
        return Check(True, f"{by}: {whose} holds the head that was kept, {head.serial:,} rows")
    now = ledger.walk().head
    have = 0 if now is None else now.serial
    why = "it was shortened or restored from a copy" if have < head.serial else "it was written anew or restored"
    return Check(False, f"{by}: {whose} had {head.serial:,} rows and now has {have:,} others; {why}")


def _elsewhere(folder: Path, ledger: Ledger, other: Path, client: str | None) -> Iterator[Check]:
    """Both ways: what the other side has kept of this ledger, and what this one has kept of the other."""
    if other.is_file() and other.read_bytes()[:16] != _SQLITE:
        for text in other.read_text().split():
            yield _held(ledger, read_head(text), str(other))
        return
    place = _folder_of(other)
    if _whose(folder, client).owner is None:
        yield Check(False, f"{other}: heads are kept by name, and {folder} does not say whose it is; give --client")
        return
    with Ledger.read(ledger_in(place) if place.is_dir() else place) as theirs:
        mine, yours = _whose(folder, client), _whose(place, client)
        found = [_held(ledger, kept.head, _by(other, kept)) for kept in theirs.kept(mine.owner, mine.run)]
        back = [_held(theirs, kept.head, _by(folder, kept), str(other)) for kept in ledger.kept(yours.owner, yours.run)]
    if not found:
        yield Check(False, f"{other}: it has kept no head of this ledger")
    yield from _summed(found)
    yield from _summed(back)


def _by(place: Path, kept: Any) -> str:
    return f"{place}, turn {kept.turn} of {kept.run}"


def _summed(checks: Sequence[Check]) -> Iterator[Check]:
    """Every failure, and of those that passed the last."""
    yield from (check for check in checks if not check.passed)
    yield from [check for check in checks if check.passed][-1:]


def _folder_of(other: Path) -> Path:
    return other / "run" if (other / "run" / "ledger.sqlite").is_file() else other


def _whose(folder: Path, client: str | None) -> Whose:
    """By the files of its folder; a folder that has neither is taken for that of `client`."""
    folder = folder if folder.is_dir() else folder.parent
    if (folder / "terms.json").is_file():
        return Whose(_SERVER, str(json.loads((folder / "terms.json").read_text())["run"]))
    if (folder / "client.json").is_file():
        return Whose(f"client:{json.loads((folder / 'client.json').read_text())['name']}", None)
    return Whose(None, None) if client is None else Whose(f"client:{client}", None)
