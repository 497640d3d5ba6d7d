"""Everything a run leaves behind for its readers; the same whether it has just ended or lies on disk.

Figures come from the metrics, every epsilon from the ledger (`spending.py`). They may be of different rounds, and
then both are said. Where metrics, facts, outcome and ledger contradict each other, there are no findings but an error.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.core.checked import checked
from tacit.core.files import storage
from tacit.errors import StorageError, TacitError
from tacit.privacy.ledger.statement import statement
from tacit.report import wording
from tacit.report.facts import Facts
from tacit.report.integrity import UNBOUND, open_ledger
from tacit.report.metrics import ALL, KEPT, Row, frame, label, read
from tacit.report.run_folder import Folder, epochs_in, existing, recomputed
from tacit.report.spending import Spending, Spent

if TYPE_CHECKING:
    import pandas as pd

ON_REQUEST = "stopped on request"
INTERRUPTED = "it was interrupted"


@dataclass(frozen=True, eq=False)
class RunSummary:
    """`clients` has the columns client, level, shared, personal. Figures are simulation only."""

    title: str
    facts: Facts
    metrics: "pd.DataFrame"
    clients: "pd.DataFrame"
    statement: Sequence[Any] = ()
    config: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    rounds_done: int = 0
    stopped: str | None = None
    spending: Spending | None = None  # None: nothing was charged
    bound: bool = True  # whether the ledger holds a digest of the facts

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
        if not self.facts.shares and metric.rpartition(":")[2].startswith(("shared", "common")):
            return None
        table = self._table
        at = self.last if round is None else round
        values = table[(table["round"] == at) & (table["level"] == level) & (table["metric"] == metric)]["value"]
        return float(values.iloc[-1]) if len(values) else None

    def series(self, level: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a figure; empty where there is none."""
        if not self.facts.shares and metric.startswith("shared"):
            return [], []
        rows = self._table[(self._table["level"] == level) & (self._table["metric"] == metric)]
        return rows["round"].tolist(), rows["value"].tolist()

    def accuracies(self, level: str | None = None) -> list[float]:
        """Of the personal models at the end, one for each client, of one level or of all."""
        table: Any = self.clients
        return (table if level is None else table[table["level"] == level])["personal"].astype(float).tolist()

    @property
    def epsilons(self) -> Mapping[str, Spent]:
        """By level, then by accountant: all that the ledger has, whichever round was evaluated last."""
        return {} if self.spending is None else self.spending.now

    def spent_over_rounds(self, level: str) -> dict[str, tuple[list[int], list[float]]]:
        """By accountant: rounds, and what the level had spent after them, replayed from the ledger."""
        series: dict[str, tuple[list[int], list[float]]] = {}
        for round, by_level in [] if self.spending is None else self.spending.over_rounds:
            for accountant, value in by_level.get(level, {}).items():
                rounds, values = series.setdefault(accountant, ([], []))
                rounds.append(round)
                values.append(value)
        return series

    @property
    def measure(self) -> str:
        """What is measured, as the head of a sentence; its direction, where that goes without saying for nobody."""
        name = self.facts.metric[:1].upper() + self.facts.metric[1:]
        return name if self.facts.larger else f"{name} (smaller is better)"

    @property
    def others(self) -> list[str]:
        """The names of further metrics."""
        prefixes = (name.rpartition(":")[0] for name in self._table["metric"].unique())
        return list(dict.fromkeys(prefix for prefix in prefixes if prefix))

    @property
    def further(self) -> str | None:
        """Further metrics over all clients, in words."""
        sentences = [
            f"{name} {', '.join(f'{model} {value:.3f}' for model, value in values.items())}"
            for name in self.others
            if (
                values := {
                    model: value
                    for model in ("shared", "personal")
                    if (value := self.value(ALL, f"{name}:{model}_mean")) is not None
                }
            )
        ]
        return f"Mean over clients: {'; '.join(sentences)}." if sentences else None

    @property
    def timing(self) -> str | None:
        """Which rounds accuracy and privacy are of, where they are not of the same."""
        charged = 0 if self.spending is None else self.spending.rounds
        if not charged or charged == self.last or not self.epsilons:
            return None
        measured = (
            f"{self.measure} after round {self.last:,}" if self.last else f"No {self.facts.metric} was measured yet"
        )
        return f"{measured}; privacy spent after round {charged:,}."

    def guarantees(self) -> list[str]:
        sentences = [*wording.guarantees(self.facts, self.epsilons), *recomputed(self.statement)]
        return sentences if self.bound else [*sentences, UNBOUND]

    def lines(self) -> list[str]:
        """What stands below the tables of a terminal: guarantees, rounds, and whatever a reader must be warned of."""
        texts = [
            self.further,
            *self.guarantees(),
            self.timing,
            self.devices,
            self.standing,
            wording.warning(self.epsilons),
            self.clipped,
        ]
        return [line for line in texts if line]

    @property
    def standing(self) -> str | None:
        """Why there are fewer rounds than planned; None for a finished run."""
        if self.rounds_done >= self.facts.rounds and self.stopped is None:
            return None
        return f"Ended after {self.rounds_done} of {self.facts.rounds} rounds: {self.stopped or INTERRUPTED}."

    @property
    def clipped(self) -> str | None:
        """A warning, where the clip left less than a tenth of the updates' length when it was last measured."""
        share = self.value(ALL, KEPT)
        return None if share is None else wording.clipped(share)

    @property
    def devices(self) -> str | None:
        """What became of the devices that were asked; None where all of them always did all their work."""
        sampled, dropped = (sum(self.series(ALL, name)[1]) for name in ("asked", "dropped"))
        work = self.series(ALL, "work")[1]
        if not sampled:
            return None
        work_done = f"; the others took {100 * sum(work) / len(work):.1f}% of their local steps" if work else ""
        share = 100 * dropped / sampled
        return f"Devices: {dropped:,.0f} of {sampled:,.0f} that were asked dropped out ({share:.1f}%){work_done}."

    def groups(self) -> list[tuple[str, str]]:
        """(label in the metrics, name) of all clients together and of each level that somebody chose."""
        held = [promise.level for promise in self.facts.promises if promise.clients]
        return [*((label(level), level) for level in held), (ALL, ALL)]


@checked
def open_run(path: Path | str) -> RunSummary:
    """A run from its folder, finished or not. Every epsilon in it is replayed from its ledger.

    Args:
        path: the folder that `train(folder=...)` or `tacit run` wrote.

    Returns:
        Its tables, figures and guarantees, as `Result.findings` has them.

    Raises:
        TacitError: there is no run in the folder, it ended before its first round, or its ledger is not what it was.

    >>> import tacit
    >>> tacit.open_run("nowhere")
    Traceback (most recent call last):
    tacit.errors.TacitError: there is no run at nowhere: give the folder that `tacit run` printed
    """
    import pandas as pd

    folder = existing(path)
    if not folder.facts.is_file():
        with open_ledger(folder.path) if folder.ledger.is_file() else nullcontext():  # one that knows of it says so
            raise TacitError(f"the run {folder.path} ended before its first round: resume it")
    facts = Facts.from_json(_text(folder.facts))
    rows = read(folder.metrics) if folder.metrics.is_file() else []
    spending, lines, bound = _ledger(folder, facts)
    rounds_done, stopped = _progress(folder, facts.rounds, rows, spending)
    clients = pd.DataFrame(columns=["client", "level", "shared", "personal"])
    if folder.clients.is_file():
        clients = _clients(folder.clients)
    return RunSummary(
        title=folder.path.name,
        facts=facts,
        metrics=frame(rows),
        clients=clients,
        statement=lines,
        config=_text(folder.config),
        environment=_json(folder.environment) if folder.environment.is_file() else {},
        rounds_done=rounds_done,
        stopped=stopped,
        spending=spending,
        bound=bound,
    )


def _ledger(folder: Folder, facts: Facts) -> tuple[Spending, Sequence[Any], bool]:
    """What was spent, the statement of every account, and whether the facts are known to be those of the run."""
    if not folder.ledger.is_file():
        raise StorageError(
            f"{folder.path} holds no ledger.sqlite, which every run has, so what was spent cannot be told: "
            "restore it from a backup"
        )
    with open_ledger(folder.path) as ledger:
        try:
            epochs = epochs_in(folder.path)
            return Spending.read(ledger, facts, epochs), statement(ledger, epochs), bool(ledger.bindings())
        except StorageError as error:
            raise StorageError(f"{folder.path}: {error}") from error


def _progress(folder: Folder, rounds: int, rows: Sequence[Row], spending: Spending) -> tuple[int, str | None]:
    """Rounds done, and why no more: None for a run that has ended. Refuses files that contradict each other."""
    measured = max((row.round for row in rows), default=0)
    charged = spending.rounds
    outcome = _json(folder.outcome) if folder.outcome.is_file() else None
    try:
        ended, stopped = (0, INTERRUPTED) if outcome is None else (int(outcome["round"]), outcome["stopped"])
    except (TypeError, LookupError, ValueError) as error:
        raise StorageError(f"{folder.outcome} is damaged ({error!r}): restore it from a backup") from error
    if spending.every_round and charged < (least := max(measured, ended)):
        raise _contradiction(folder, f"{least} rounds were done, and the ledger has charges of {charged}")
    if outcome is not None and stopped != ON_REQUEST:
        if stopped is None and ended != rounds:
            raise _contradiction(folder, f"outcome.json says that it ended with round {ended} of {rounds}")
        if measured != ended:
            raise _contradiction(folder, f"outcome.json says {ended} rounds, and metrics.csv ends at round {measured}")
        if charged > ended:
            raise _contradiction(folder, f"outcome.json says {ended} rounds, and the ledger has {charged}")
    elif max(measured, charged) > ended:
        stopped = INTERRUPTED
    return max(ended, measured, charged), stopped


def _clients(path: Path) -> "pd.DataFrame":
    import pandas as pd

    kinds = {"client": str, "level": str}
    try:
        with storage(path):
            table = pd.read_csv(path, dtype=kinds, keep_default_na=False)  # type: ignore[arg-type]
        return table.astype({"shared": float, "personal": float})
    except (ValueError, KeyError) as error:
        raise StorageError(f"{path} is damaged ({error}): restore it from a backup") from error


def _contradiction(folder: Folder, problem: str) -> StorageError:
    return StorageError(
        f"{folder.path}: {problem}: restore the run's files from a backup; `tacit ledger` tells what its ledger has"
    )


def _text(path: Path) -> str:
    with storage(path):
        return path.read_text(encoding="utf-8")


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}): restore it from a backup") from error
