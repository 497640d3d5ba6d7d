"""What looks on while a run goes: a recorder of metrics, a progress bar, and the key that stops it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.plan import Plan
from tacit.report.facts import Facts
from tacit.report.metrics import ALL, CHARGES, Metrics, Row, label, score_rows
from tacit.report.spending import Spent
from tacit.report.wording import number
from tacit.rounds.evaluate import Scores
from tacit.rounds.round import Report

_SHARE = 0.02  # of the time of a run, for telling on its bar what it has spent


class Recorder:
    """Writes down every evaluation; on disk before the round's checkpoint is."""

    def __init__(self, metrics: Metrics, facts: Facts, ledger: Ledger, devices: bool = False) -> None:
        self.metrics, self._facts, self._ledger, self._devices = metrics, facts, ledger, devices

    def after_round(self, report: Report) -> None:
        if self._devices:
            figures = {"asked": report.asked, "dropped": report.asked - report.cohort, "work": report.work}
            self.metrics.append(Row(report.round, ALL, name, v) for name, v in figures.items() if v is not None)
        if report.scores is not None:
            self.record(report.round, report.scores, report.bound)
        if report.heterogeneity is not None:
            spread = zip(("loss_distance_mean", "loss_distance_std"), report.heterogeneity, strict=True)
            self.metrics.append(Row(report.round, ALL, name, value) for name, value in spread)
        if report.weights is not None:
            names = zip(self._facts.levels, report.weights, strict=True)
            self.metrics.append(Row(report.round, label(level), "weight", weight) for level, weight in names)

    def record(self, round: int, scores: Scores, bound: float | None) -> None:
        if self.metrics.has(round):
            return
        rows = [*score_rows(round, scores, self._facts.levels)]
        rows.append(Row(round, ALL, CHARGES, self._ledger.charges(round)))
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
    """A line on the terminal or in a notebook: round, metric, clip bound, epsilon by level; nothing elsewhere.

    `spent` asks the ledger, under the plan of the last round. That takes time, of which a small share of the run's is
    given to it: the figure says after which round it was asked for.
    """

    def __init__(
        self, spent: Callable[[Plan], Mapping[str, Spent]], name: str, rounds: int, console: Console | None = None
    ) -> None:
        self._spent = spent
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}", style="dim"),
            console=console or Console(stderr=True),
            transient=True,
        )
        shown = self._progress.console
        self._progress.disable = not (shown.is_terminal or (shown.is_jupyter and find_spec("ipywidgets")))
        self._task = self._progress.add_task(name, total=rounds, status="")
        self._measured, self._privacy = "", ""
        self._began, self._asking = time.perf_counter(), 0.0

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def after_round(self, report: Report) -> None:
        if report.scores is not None:
            personal = report.scores.summary("personal").mean
            self._measured = f"personal {report.scores.metric.name} {personal:.3f}"
        if not self._progress.disable:
            self._ask(report)
        self._progress.update(self._task, completed=report.round, status=self._status(report))

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
