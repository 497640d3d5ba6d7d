"""How far a run is, on the terminal or in a notebook."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.privacy.plan import Plan
from tacit.report.spending import Spent
from tacit.report.wording import number
from tacit.rounds.round import Report

_APART: Final = 0.3  # seconds between two updates of a notebook's cell
_SHARE: Final = 0.02  # of the time of a run, for telling on its bar what it has spent


class NotebookLine:
    """How a run goes, as one output of a notebook's cell that is brought up to date; it needs no widgets."""

    disable = False

    def __init__(self, name: str, rounds: int) -> None:
        self._name, self._rounds, self._told = name, rounds, 0.0
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._handle = display(self._shown(0, ""), display_id=True)

    def update(self, done: int, status: str) -> None:
        """Several times a second at most: a notebook is slower than a round."""
        now = time.perf_counter()
        if self._handle is not None and (done == self._rounds or now - self._told > _APART):
            self._told = now
            self._handle.update(self._shown(done, status))

    def stop(self) -> None: ...

    def _shown(self, done: int, status: str) -> "_Shown":
        bar = f'<progress value="{done}" max="{self._rounds}" aria-label="rounds"></progress>'
        return _Shown(bar, f"{self._name} {done}/{self._rounds} {status}".rstrip())


@dataclass(frozen=True, repr=False)
class _Shown:
    bar: str
    words: str

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return f"{self.bar} {escape(self.words)}"


class TerminalLine:
    """How a run goes, as one line of a terminal that is gone afterwards; nothing where there is none."""

    def __init__(self, name: str, rounds: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}", style="dim"),
            console=console,
            transient=True,
        )
        self.disable = self._progress.disable = not console.is_terminal
        self._task = self._progress.add_task(name, total=rounds, status="")

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()

    def update(self, done: int, status: str) -> None:
        self._progress.update(self._task, completed=done, status=status)


class Bar:
    """A line on the terminal or in a notebook: round, metric, clip bound, epsilon by level; nothing elsewhere.

    `spent` asks the ledger, under the plan of the last round. That takes time, of which a small share of the run's is
    given to it: the figure says after which round it was asked for.
    """

    def __init__(
        self, spent: Callable[[Plan], Mapping[str, Spent]], name: str, rounds: int, console: Console | None = None
    ) -> None:
        self._spent = spent
        shown = console or Console(stderr=True)
        self._line = NotebookLine(name, rounds) if shown.is_jupyter else TerminalLine(name, rounds, shown)
        self._measured, self._privacy = "", ""
        self._began, self._asking = time.perf_counter(), 0.0

    def __enter__(self) -> "Bar":
        self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.stop()

    def after_round(self, report: Report) -> None:
        if report.scores is not None:
            personal = report.scores.summary("personal").mean
            self._measured = f"personal {report.scores.metric.name} {personal:.3f}"
        if not self._line.disable:
            self._ask(report)
        self._line.update(report.round, self._status(report))

    def _ask(self, report: Report) -> None:
        began = time.perf_counter()
        if self._asking > _SHARE * (began - self._began) and report.round < report.rounds:
            return
        found = [f"{level} eps {number(next(iter(by.values())))}" for level, by in self._spent(report.plan).items()]
        self._privacy = f"{', '.join(found)} after round {report.round}" if found else ""
        self._asking += time.perf_counter() - began

    def _status(self, report: Report) -> str:
        bound = "" if report.bound is None else f"clip {report.bound:.3g}"
        return "  ".join(part for part in (self._measured, bound, self._privacy) if part)
