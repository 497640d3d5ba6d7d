"""Who changed its level, and what that has cost: replayed from the ledger, by distinct history."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacit.privacy.ledger.statement import Moved, moved, shown
from tacit.privacy.membership import LevelPeriod, Stays, once_open
from tacit.report.earlier_runs import epochs_in
from tacit.report.integrity import open_ledger
from tacit.report.run_folder import ledger_in

_MANY = 20
_COLUMNS = ("clients", "levels, by rounds", "epsilon", "by", "limit", "delta", "events")


@dataclass(frozen=True)
class ChangesReport:
    """Clients with the same history share one account and one line."""

    groups: tuple[Moved, ...]
    all: bool = False

    def __rich__(self) -> RenderableType:
        several = sum(len(group.clients) for group in self.groups)
        lines = self.groups if self.all else self.groups[:_MANY]
        left_out = len(self.groups) - len(lines)
        parts: list[RenderableType] = [
            Text(f"\nChanges of level: {several:,} clients, {len(self.groups):,} histories", "bold"),
            Text("The account of a level is that of clients that stayed; these have their own. Nothing is refunded."),
            _table(lines),
        ]
        if left_out:
            parts.append(Text(f"and {left_out:,} other histories: see --all"))
        if any(once_open(group.stays) for group in self.groups):
            parts.append(Text("Rounds at a level that is opted out cost nothing and have no guarantee."))
        return Group(*parts)


def changes_table(path: Path, all: bool = False, client: str | None = None) -> ChangesReport | None:
    """The changes in the ledger at `path`, of one client or of all; None if there are none. As in `ledger_table`."""
    with open_ledger(path) as ledger:
        groups = tuple(moved(ledger, client, epochs_in(ledger_in(path).parent)))
    return ChangesReport(groups, all) if groups else None


def _table(groups: tuple[Moved, ...]) -> Table:
    table = Table(*_COLUMNS)
    for group in groups:
        line = group.line
        limit = "none" if line.budget is None else f"{line.budget:g}"
        delta = "-" if line.delta is None else f"{line.delta:g}"
        events = line.words.partition("): ")[2]
        spent = shown(line.epsilon), line.accountant.upper()
        table.add_row(_names(group), in_words(group.stays), *spent, limit, delta, events)
    return table


def _names(group: Moved) -> Text:
    return Text(group.clients[0] if len(group.clients) == 1 else f"{len(group.clients):,}")


def in_words(stays: Stays) -> Text:
    """'private 0-4, strict 5-8, strict from 9 on (not asked)': rounds are counted from 0, as in the ledger."""
    ends = [*(stay.round for stay in stays[1:]), None]
    return Text(", ".join(_stay_in_words(*pair) for pair in zip(stays, ends, strict=True)))


def _stay_in_words(stay: LevelPeriod, end: int | None) -> str:
    rounds = f"from {stay.round} on" if end is None else f"{stay.round}-{end - 1}"
    standing = "" if stay.private else " (no guarantee)"
    return f"{stay.level} {rounds}{standing if stay.asked else ' (not asked)'}"
