"""Everything a run leaves behind for its readers; the same whether it has just ended or lies on disk."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.engine.checkpoint import storage
from tacit.errors import StorageError, TacitError
from tacit.experiments import words
from tacit.experiments.earlier_runs import epochs_in, recomputed
from tacit.experiments.facts import Facts
from tacit.experiments.metrics import ALL, epsilon_metric, frame, label, read
from tacit.experiments.runs import Folder, existing
from tacit.privacy.ledger import Ledger, statement

if TYPE_CHECKING:
    import pandas as pd

_ACCOUNTANTS = ("pld", "rdp")


@dataclass(frozen=True, eq=False)
class Findings:
    """`clients` has the columns client, level, shared, personal. Accuracies are simulation only."""

    title: str
    facts: Facts
    metrics: "pd.DataFrame"
    clients: "pd.DataFrame"
    statement: Sequence[Any] = ()
    config: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0
    stopped: str | None = None

    @property
    def last(self) -> int:
        """The last round that was evaluated; 0 if none was."""
        return max(self._table["round"].tolist(), default=0)

    @property
    def _table(self) -> Any:  # what pandas' own types say of a selection helps nobody
        return self.metrics

    def value(self, level: str, metric: str, round: int | None = None) -> float | None:
        """A figure of the last evaluation, or of another round; None where there is none.

        There is none of a shared model if nothing is shared: it would be that of the untrained start.
        """
        if not self.facts.shares and metric.startswith(("shared", "common")):
            return None
        table = self._table
        at = self.last if round is None else round
        found = table[(table["round"] == at) & (table["level"] == level) & (table["metric"] == metric)]["value"]
        return float(found.iloc[-1]) if len(found) else None

    def series(self, level: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a figure; empty where there is none."""
        if not self.facts.shares and metric.startswith("shared"):
            return [], []
        found = self._table[(self._table["level"] == level) & (self._table["metric"] == metric)]
        return found["round"].tolist(), found["value"].tolist()

    def accuracies(self, level: str | None = None) -> list[float]:
        """Of the personal models at the end, one for each client, of one level or of all."""
        table: Any = self.clients
        return (table if level is None else table[table["level"] == level])["personal"].astype(float).tolist()

    @property
    def epsilons(self) -> dict[str, dict[str, float]]:
        """By level, then by accountant, at the last evaluation."""
        found: dict[str, dict[str, float]] = {}
        for level in self.facts.levels:
            for accountant in _ACCOUNTANTS:
                value = self.value(label(level), epsilon_metric(self.facts.unit, accountant))
                if value is not None:
                    found.setdefault(level, {})[accountant] = value
        return found

    def guarantees(self) -> list[str]:
        return [*words.guarantees(self.facts, self.epsilons), *recomputed(self.statement)]

    @property
    def standing(self) -> str | None:
        """Why there are fewer rounds than planned; None for a finished run."""
        if self.done >= self.facts.rounds:
            return None
        return f"Ended after {self.done} of {self.facts.rounds} rounds: {self.stopped or 'it was interrupted'}."

    @property
    def devices(self) -> str | None:
        """What became of the devices that were asked; None where all of them always did all their work."""
        asked, dropped = (sum(self.series(ALL, name)[1]) for name in ("asked", "dropped"))
        work = self.series(ALL, "work")[1]
        if not asked:
            return None
        done = f"; the others took {100 * sum(work) / len(work):.1f}% of their local steps" if work else ""
        return (
            f"Devices: {dropped:,.0f} of {asked:,.0f} that were asked dropped out ({100 * dropped / asked:.1f}%){done}."
        )

    def groups(self) -> list[tuple[str, str]]:
        """(label in the metrics, name) of all clients together and of each level that somebody chose."""
        held = [promise.level for promise in self.facts.promises if promise.clients]
        return [*((label(level), level) for level in held), (ALL, ALL)]


def open_findings(path: Path | str) -> Findings:
    """A run from its folder, finished or not."""
    import pandas as pd

    folder = existing(path)
    if not folder.facts.is_file():
        raise TacitError(f"the run {folder.path} ended before its first round: resume it")
    done, stopped = _outcome(folder)
    rows = read(folder.metrics) if folder.metrics.is_file() else []
    clients = pd.DataFrame(columns=["client", "level", "shared", "personal"])
    if folder.clients.is_file():
        kinds = {"client": str, "level": str}
        clients = pd.read_csv(folder.clients, dtype=kinds, keep_default_na=False)  # type: ignore[arg-type]
    return Findings(
        title=folder.path.name,
        facts=Facts.from_json(_text(folder.facts)),
        metrics=frame(rows),
        clients=clients,
        statement=read_statement(folder.ledger),
        config=_text(folder.config),
        environment=_json(folder.environment) if folder.environment.is_file() else {},
        done=max([done, *(row.round for row in rows)]),
        stopped=stopped,
    )


def read_statement(path: Path) -> Sequence[Any]:
    if not path.is_file():
        return ()
    with Ledger.read(path) as ledger:
        return statement(ledger, epochs_in(path.parent))


def _outcome(folder: Folder) -> tuple[int, str | None]:
    if not folder.outcome.is_file():
        return 0, None
    content = _json(folder.outcome)
    return int(content["round"]), content["stopped"]


def _text(path: Path) -> str:
    with storage(path):
        return path.read_text(encoding="utf-8")


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}): restore it from a backup") from error
