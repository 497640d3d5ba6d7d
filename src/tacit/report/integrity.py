"""Is a ledger the one it was, and are the files beside it what was promised? Asked before any epsilon is told.

*Chain:* every row is as it was written (`chain.py`). *Files:* a run's ledger holds digests of `config.toml`,
`facts.json` and `digest.key`, so that each of them is as the run wrote it, and the ledger is this run's. *Heads:* the
ledger holds every head that the other files of its folder have kept. *Metrics:* it has as many charges as it had when
a round was evaluated.

Whoever rewrites all of it together, with a new chain, digests and heads, is found by a head that was kept elsewhere,
and by nothing else. So are charges that were taken off before any file had kept a later head, or together with every
file that had (checkpoint, outcome, metrics, clients).
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tacit.core.files import storage
from tacit.errors import StorageError, TacitError
from tacit.privacy.ledger.chain import Head, read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.run_folder import Folder, ledger_in

UNBOUND: Final = (
    "An earlier version of Tacit wrote this run: whether somebody edited what its facts.json and config.toml say, the "
    "plan and so against whom a guarantee holds, cannot be checked."
)


class Check(NamedTuple):
    """One line. `passed` None: nothing that could pass or fail, but worth knowing."""

    passed: bool | None
    text: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'FAIL', None: 'note'}[self.passed]:5} {self.text}"


@contextmanager
def open_ledger(path: Path) -> Iterator[Ledger]:
    """The ledger in a folder, or the file itself, to look only. Refused unless all is as it was written."""
    with Ledger.read(ledger_in(path)) as ledger:
        _refuse(path, examine(path, ledger))
        yield ledger


def check_resumable(folder: Folder) -> None:
    """As `open_ledger`, before a run goes on: what it writes would cover the traces of what was changed.

    `facts.json` may differ from its digest or be missing: the digest is written first, and a run that goes on writes
    the file anew from its configuration.
    """
    if folder.ledger.is_file():
        with Ledger.read(folder.ledger) as ledger:
            checks = examine(folder.path, ledger)
            _refuse(folder.path, (each for each in checks if not each.text.startswith(folder.facts.name)))


def _refuse(path: Path, checks: Iterable[Check]) -> None:
    for check in checks:
        if check.passed is False:
            raise StorageError(
                f"{path}: {check.text}; so its epsilon cannot be told: restore the newest copy of the folder; "
                f"`tacit ledger {path} --verify` tells all that is wrong"
            )


def examine(path: Path, ledger: Ledger) -> Iterator[Check]:
    """All checks of the ledger that lies at `path`; of one that lies apart from its run, those of the file alone."""
    yield from _chain(ledger)
    if path.is_dir() or path == Folder(path.parent).ledger:
        folder = Folder(path if path.is_dir() else path.parent)
        yield from _files(folder, ledger, apart=path.is_file())
        yield from _heads(folder, ledger)
        yield from _charges(folder, ledger)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _chain(ledger: Ledger) -> Iterator[Check]:
    head, older, faults, _ = ledger.walk()
    for fault in faults:
        yield Check(False, f"chain: {fault}")
    if head is None:
        yield Check(None, f"chain: none yet; {older:,} rows of an earlier version are not covered")
        return
    if not faults:
        yield Check(True, f"chain: {head.serial:,} rows, each as it was written")
    if older:
        yield Check(None, f"rows 1 to {older} are from before the chain: covered as it found them, and not before")
    yield Check(None, f"head {head}: whoever keeps it can tell later whether rows were taken off")


def _files(folder: Folder, ledger: Ledger, apart: bool) -> Iterator[Check]:
    """Files that say what was promised. The key is not passed on with a folder; a ledger alone has none of them."""
    try:
        files = ledger.bindings()
    except TacitError as error:
        yield Check(False, str(error))
        return
    if not files and folder.facts.is_file():
        yield Check(None, UNBOUND)
    for name, known in files.items():
        place = folder.path / name
        if place.is_file():
            with storage(place):
                matches = digest(place.read_bytes()) == known
            otherwise = "it was edited, or the ledger is that of another run"
            otherwise += "; resuming the run writes it anew" if place == folder.facts else ""
            yield Check(matches, f"{name}: {'as the run wrote it' if matches else otherwise}")
        elif not apart and place == folder.key:
            yield Check(None, f"{name}: it is not there; without it nobody can tell whether the data are the run's")
        elif not apart:
            yield Check(False, f"{name}: it is not there, and it says what was promised")
    if folder.clients.is_file() and not folder.outcome.is_file() and not apart:
        yield Check(False, f"{folder.outcome.name}: it was taken away: {folder.clients.name} is written after it")


def _heads(folder: Folder, ledger: Ledger) -> Iterator[Check]:
    """Heads that the other files of the folder have kept."""
    for name, read in (
        ("checkpoint.bin", _in_checkpoint),
        ("outcome.json", _in_outcome),
        ("turn.json", _in_journal),
        ("custody.sqlite", _in_custody),
    ):
        path = folder.path / name
        try:
            text = read(path) if path.exists() else None
            if text:
                yield compare(ledger, read_head(text), name)
            elif text is not None and ledger.bindings():  # earlier versions kept none
                yield Check(False, f"{name}: it was edited: it holds no head of the ledger")
        except (TacitError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
            yield Check(False, f"{name} cannot be read ({error})")


def _in_checkpoint(path: Path) -> str:
    from tacit.rounds import checkpoint  # torch, of which a ledger without a run knows nothing

    return checkpoint.load(path).get("ledger", "")


def _in_outcome(path: Path) -> str:
    return json.loads(path.read_text()).get("ledger", "")


def _in_journal(path: Path) -> str:
    return (json.loads(path.read_text())[4:] or [""])[0]


def _in_custody(path: Path) -> str:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchone():
            return ""
        row = db.execute("SELECT serial, hash FROM head").fetchone()
    return "" if row is None else str(Head(*row))


def compare(ledger: Ledger, head: Head, by: str, subject: str = "the ledger") -> Check:
    """Whether the ledger holds a head that was kept of it, by whom."""
    if ledger.holds(head):
        return Check(True, f"{by}: {subject} holds the head that was kept, {head.serial:,} rows")
    now = ledger.walk().head
    have = 0 if now is None else now.serial
    why = "it was shortened or restored from a copy" if have < head.serial else "it was written anew or restored"
    return Check(False, f"{by}: {subject} had {head.serial:,} rows and now has {have:,} others; {why}")


def _charges(folder: Folder, ledger: Ledger) -> Iterator[Check]:
    """How many there were when rounds were evaluated: never fewer, never more."""
    if not folder.metrics.is_file():
        return
    from tacit.report import metrics

    try:
        rows = metrics.read(folder.metrics)
    except TacitError as error:
        yield Check(False, str(error))
        return
    counted = [row for row in rows if row.metric == metrics.CHARGES]
    for row in counted:
        if row.value != (now := ledger.charges(row.round)):
            yield Check(False, f"after round {row.round} the ledger had {row.value:.0f} charges, and now it has {now}")
            return
    measured, charged = max((row.round for row in rows), default=0), ledger.rounds() + 1
    if measured > charged and _by_level(ledger):
        yield Check(False, f"metrics.csv has figures of round {measured}, and the ledger has charges of {charged}")
    elif counted:
        yield Check(True, f"metrics.csv: the ledger has the charges of {counted[-1].round:,} rounds that it had then")


def _by_level(ledger: Ledger) -> bool:
    """Whether every round is charged: to a level. Clients with accounts of their own pay when they take part."""
    return not ledger.level_periods() and any(scope.startswith("level:") for scope in ledger.budgets())
