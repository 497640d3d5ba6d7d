"""What looks on while a run goes: a recorder of metrics, a progress bar, and the key that stops it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.engine.evaluate import Scores
from tacit.engine.loop import Report
from tacit.experiments.facts import Facts
from tacit.experiments.metrics import ALL, Metrics, Row, epsilon_rows, label, score_rows
from tacit.experiments.spending import Spending, Spent
from tacit.experiments.words import number
from tacit.privacy.plan import Plan


class Recorder:
    """Writes down every evaluation, with what had been spent by then; on disk before the round's checkpoint is."""

    def __init__(self, metrics: Metrics, facts: Facts, spending: Spending, devices: bool = False) -> None:
        self.metrics, self._facts, self.spending, self._devices = metrics, facts, spending, devices
        self.spent: Mapping[str, Spent] = {}

    def after_round(self, report: Report) -> None:
        if self._devices:
            figures = {"asked": report.asked, "dropped": report.asked - report.cohort, "work": report.work}
            self.metrics.append(Row(report.round, ALL, name, v) for name, v in figures.items() if v is not None)
        if report.scores is not None:
            self.record(report.round, report.scores, report.bound, report.plan)
        if report.heterogeneity is not None:
            spread = zip(("loss_distance_mean", "loss_distance_std"), report.heterogeneity, strict=True)
            self.metrics.append(Row(report.round, ALL, name, value) for name, value in spread)
        if report.weights is not None:
            names = zip(self._facts.levels, report.weights, strict=True)
            self.metrics.append(Row(report.round, label(level), "weight", weight) for level, weight in names)

    def record(self, round: int, scores: Scores, bound: float | None, plan: Plan) -> None:
        if self.metrics.has(round):
            return
        self.spent = self.spending.at(round, plan)
        rows = [*score_rows(round, scores, self._facts.levels), *epsilon_rows(round, self._facts.unit, self.spent)]
        if bound is not None:
            rows.append(Row(round, ALL, "bound", bound))
        self.metrics.append(rows)


class Promises:
    """Calls `keep` with the plan whenever clients have changed their levels: what was promised to whom is other now."""

    def __init__(self, plan: Plan, keep: Callable[[Plan], object]) -> None:
        self._plan, self._keep = plan, keep

    def after_round(self, report: Report) -> None:
        if report.plan.setting.choices is not self._plan.setting.choices:
            self._plan = report.plan
            self._keep(report.plan)


class Bar:
    """A line on the terminal: the round, accuracy, clip bound, and epsilon by level. Nothing if it is no terminal."""

    def __init__(self, recorder: Recorder, name: str, rounds: int, console: Console | None = None) -> None:
        self._recorder = recorder
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}", style="dim"),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._progress.disable = not self._progress.console.is_terminal
        self._task = self._progress.add_task(name, total=rounds, status="")
        self._accuracy = ""

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def after_round(self, report: Report) -> None:
        if report.scores is not None:
            personal = report.scores.summary("personal").mean
            self._accuracy = f"personal accuracy {personal:.3f}"
        self._progress.update(self._task, completed=report.round, status=self._status(report))

    def _status(self, report: Report) -> str:
        bound = "" if report.bound is None else f"clip {report.bound:.3g}"
        spent = [f"{level} eps {number(next(iter(by.values())))}" for level, by in self._recorder.spent.items() if by]
        return "  ".join(part for part in (self._accuracy, bound, *spent) if part)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields `stop()`: whether Ctrl-C was pressed. Pressed once, the round is finished; twice, all stops at once.

    Outside the main thread signals are not ours to handle, and `stop()` is never true.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handle(number: int, _: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        # not print: a signal may come in the middle of another print, which must not be entered twice
        os.write(2, b"\nstopping after this round; press Ctrl-C again to stop at once\n")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
