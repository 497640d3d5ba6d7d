"""`tacit ledger RUN --verify`: is this ledger the one it was, and is every epsilon what its events say?

Each line with its reason. What every report asks before it tells an epsilon (`integrity.py`): is the chain whole, are
the files beside it what was promised, does the ledger hold every head that they have kept? And beyond that: does every
account, replayed from single rows, give an epsilon within what was promised; what would reports refuse; does the other
side, whose folder, ledger or list of heads one may give, know this ledger?
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.errors import TacitError
from tacit.privacy.ledger.chain import read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import Line, moved, shown, statement
from tacit.report.integrity import Check, compare, examine
from tacit.report.run_folder import Folder, ledger_in
from tacit.report.summary import open_run

_SERVER: Final = "server"
_SQLITE: Final = b"SQLite format 3\0"


@dataclass(frozen=True)
class LedgerOwner:
    """Under which names others keep heads of a ledger: a server's by its run, a member's by its name."""

    owner: str | None
    run: str | None


def verify(folder: Path, others: Sequence[Path] = (), client: str | None = None) -> list[Check]:
    """All checks of the ledger in a folder; `others`: folders, ledgers or lists of heads that were kept elsewhere."""
    with Ledger.read(ledger_in(folder)) as ledger:
        checks = [*examine(folder, ledger), *_accounts(ledger)]
        if all(check.passed is not False for check in checks):
            checks += _reports(folder)
        for other in others:
            checks += _elsewhere(folder, ledger, other, client)
        return checks


def _accounts(ledger: Ledger) -> Iterator[Check]:
    """Every epsilon anew from the rows themselves, one by one, beside what statements say."""
    try:
        rows: dict[str, Counter] = {}
        for entry in ledger.entries():
            rows.setdefault(entry.scope, Counter())[entry.event] += entry.count
        lines, changed_levels, consistent = statement(ledger), ledger.level_periods(), ledger.histories() == rows
        for line in lines:
            changed = line.scope.removeprefix("client:") in changed_levels
            yield _account(line, consistent or ledger.histories().get(line.scope) == rows.get(line.scope), changed)
        for group in moved(ledger):
            name = group.clients[0] if len(group.clients) == 1 else f"{len(group.clients):,} clients"
            yield Check(True, f"changed levels, {name}: epsilon {shown(group.line.epsilon)}")
    except (TacitError, TypeError, ValueError) as error:  # rows that were edited may hold anything
        yield Check(False, f"accounts cannot be replayed: {error}")


def _account(line: Line, consistent: bool, changed: bool) -> Check:
    spent = f"{line.scope}: epsilon {shown(line.epsilon)} in {line.rounds:,} rounds"
    if not consistent:
        return Check(False, f"{spent}, and its single rows say otherwise")
    if line.budget is None or changed:  # who changed to a stricter level may have spent more than that one allows
        return Check(True, spent)
    within = line.epsilon <= line.budget
    return Check(within, f"{spent}, {'of' if within else 'more than'} {line.budget:g} that was promised")


def _reports(folder: Path) -> Iterator[Check]:
    """Whether a run's report would be refused for what its files say of each other."""
    if not Folder(folder).facts.is_file():
        return
    try:
        open_run(folder)
        yield Check(True, "facts.json, metrics.csv and outcome.json agree with the ledger")
    except TacitError as error:
        yield Check(False, str(error))


def _elsewhere(folder: Path, ledger: Ledger, other: Path, client: str | None) -> Iterator[Check]:
    """Both ways: what the other side has kept of this ledger, and what this one has kept of the other."""
    if other.is_file() and other.read_bytes()[:16] != _SQLITE:
        for text in other.read_text().split():
            yield compare(ledger, read_head(text), str(other))
        return
    place = _folder_of(other)
    if _owner_of(folder, client).owner is None:
        yield Check(False, f"{other}: heads are kept by name, and {folder} does not say whose it is; give --client")
        return
    with Ledger.read(ledger_in(place) if place.is_dir() else place) as other_ledger:
        owner, other_owner = _owner_of(folder, client), _owner_of(place, client)
        checks = [
            compare(ledger, record.head, _by(other, record))
            for record in other_ledger.kept_heads(owner.owner, owner.run)
        ]
        back = [
            compare(other_ledger, record.head, _by(folder, record), str(other))
            for record in ledger.kept_heads(other_owner.owner, other_owner.run)
        ]
    if not checks:
        yield Check(False, f"{other}: it has kept no head of this ledger")
    yield from _summed(checks)
    yield from _summed(back)


def _by(place: Path, record: Any) -> str:
    return f"{place}, turn {record.turn} of {record.run}"


def _summed(checks: Sequence[Check]) -> Iterator[Check]:
    """Every failure, and of those that passed the last."""
    yield from (check for check in checks if not check.passed)
    yield from [check for check in checks if check.passed][-1:]


def _folder_of(other: Path) -> Path:
    return other / "run" if (other / "run" / "ledger.sqlite").is_file() else other


def _owner_of(folder: Path, client: str | None) -> LedgerOwner:
    """By the files of its folder; a folder that has neither is taken for that of `client`."""
    folder = folder if folder.is_dir() else folder.parent
    if (folder / "terms.json").is_file():
        return LedgerOwner(_SERVER, str(json.loads((folder / "terms.json").read_text())["run"]))
    if (folder / "client.json").is_file():
        return LedgerOwner(f"client:{json.loads((folder / 'client.json').read_text())['name']}", None)
    return LedgerOwner(None, None) if client is None else LedgerOwner(f"client:{client}", None)
