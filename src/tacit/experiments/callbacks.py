"""What looks on while a run goes: callbacks, early stopping, trackers; the recorder of metrics, the progress bar.

A simulation tells its callbacks everything. A federation tells its trackers only what was paid for: `released_figures`
lists it, and anything that is not listed there, accuracies of single evaluations and the size of a cohort included,
never reaches them.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tacit.core.registry import Registry
from tacit.errors import TacitError
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.plan import Plan
from tacit.report.facts import Facts
from tacit.report.metrics import ALL, CHARGES, KEPT, Metrics, Row, label, score_rows
from tacit.report.spending import Spent
from tacit.rounds.evaluate import Scores
from tacit.rounds.round import Report

if TYPE_CHECKING:
    from tacit.experiments.result import Result

Figures = Mapping[str, float]
"""By name, "level/figure": `all/personal_mean`, `private/epsilon`."""


class Callback:
    """Looks on while a run goes. Override what you need; every method does nothing by itself.

    Guarantee: a callback sees what a simulation measures. It cannot change a round, only end the run after it.

    Example:
        >>> class Print(Callback):
        ...     def on_evaluation(self, round, figures):
        ...         print(round, f"{figures['all/personal_mean']:.2f}")
        >>> Print().on_evaluation(10, {"all/personal_mean": 0.913})
        10 0.91
    """

    def on_start(self, name: str, config: Mapping[str, Any], folder: Path | None) -> None:
        """Before the first round: the run's name, its settings, and its folder if it has one."""

    def on_round(self, report: Report) -> "bool | str | None":
        """After every round. True, or a reason in words, ends the run here."""

    def on_evaluation(self, round: int, figures: Figures) -> "bool | str | None":
        """After every evaluation, with its figures and what the ledger has by then. True or a reason ends the run."""

    def on_stop(self, result: "Result | None") -> None:
        """After the last round, with the result; None for a federation's server and for a run that failed."""


class EarlyStopping(Callback):
    """Ends a run whose figure has not improved for some evaluations.

    A run that ended early has spent what its ledger says, no more. Choosing by accuracies that were not released with
    noise is for simulations: it looks at the clients' data.

    Args:
        patience: evaluations without an improvement before the run ends.
        figure: which one, "level/figure".
        least: an improvement is at least this large.
        larger: whether larger is better.

    Raises:
        TacitError: when the run has no such figure.

    Example:
        >>> stopping = EarlyStopping(patience=2)
        >>> [stopping.on_evaluation(n, {"all/personal_mean": a}) for n, a in enumerate((.5, .6, .6, .6))][-1]
        'early stopping: all/personal_mean was best (0.6) 2 evaluations ago'
    """

    def __init__(
        self, patience: int = 5, figure: str = "all/personal_mean", least: float = 0.0, larger: bool = True
    ) -> None:
        if patience < 1:
            raise TacitError(f"patience must be at least 1, not {patience}")
        self.patience, self.figure, self.least, self._sign = patience, figure, least, 1 if larger else -1
        self._best, self._since = float("-inf"), 0

    def on_evaluation(self, round: int, figures: Figures) -> str | None:
        if self.figure not in figures:
            raise TacitError(f"early stopping: there is no figure '{self.figure}': take one of {', '.join(figures)}")
        value = self._sign * figures[self.figure]
        if value > self._best + (self.least if self._since or self._best > float("-inf") else 0.0):
            self._best, self._since = value, 0
        else:
            self._since += 1
        if self._since < self.patience:
            return None
        return f"early stopping: {self.figure} was best ({self._sign * self._best:.4g}) {self._since} evaluations ago"


class Tracker(Callback):
    """A callback that hands every figure to another tool. Subclasses say how, in `log`."""

    def log(self, round: int, figures: Figures) -> None:
        raise NotImplementedError

    def on_evaluation(self, round: int, figures: Figures) -> None:
        self.log(round, figures)


class TensorBoard(Tracker):
    """Event files for `tensorboard --logdir runs`. Needs `tacit-fl[tensorboard]`.

    Args:
        folder: where they go; by default into the run's folder.

    >>> import tacit
    >>> watching = [tacit.TensorBoard()]  # train(..., callbacks=watching)
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder, self._writer = folder, None

    def on_start(self, name: str, config: Mapping[str, Any], folder: Path | None) -> None:
        writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(self._folder or (folder or Path("runs") / name) / "tensorboard"))

    def log(self, round: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)  # pyright: ignore[reportOptionalMemberAccess]

    def on_stop(self, result: "Result | None") -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Tracker):
    """A run of MLflow, with the settings as its parameters. Needs `tacit-fl[mlflow]`.

    Args:
        uri: where MLflow keeps its runs; by default as its own settings say.
        experiment: the name under which MLflow lists it.

    >>> import tacit
    >>> watching = [tacit.MLflow("sqlite:///mlflow.db")]  # train(..., callbacks=watching)
    """

    def __init__(self, uri: str | None = None, experiment: str = "tacit") -> None:
        self._uri, self._experiment, self._client, self._run = uri, experiment, None, ""

    def on_start(self, name: str, config: Mapping[str, Any], folder: Path | None) -> None:
        module = _imported("mlflow", "mlflow")
        client = self._client = module.MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._experiment)
        number = client.create_experiment(self._experiment) if known is None else known.experiment_id
        self._run = client.create_run(number, run_name=name).info.run_id
        for key, value in _flat(config).items():
            client.log_param(self._run, key, str(value)[:500])

    def log(self, round: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._client.log_metric(self._run, name, value, step=round)  # pyright: ignore[reportOptionalMemberAccess]

    def on_stop(self, result: "Result | None") -> None:
        if self._client is not None:
            self._client.set_terminated(self._run)


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases. Needs `tacit-fl[wandb]`.

    Args:
        project: its project there.
        mode: "offline" keeps it on this machine, until `wandb sync` sends it; "online" sends it at once.

    >>> import tacit
    >>> watching = [tacit.WeightsAndBiases()]  # train(..., callbacks=watching)
    """

    def __init__(self, project: str = "tacit", mode: str = "offline") -> None:
        self._project, self._mode, self._run = project, mode, None

    def on_start(self, name: str, config: Mapping[str, Any], folder: Path | None) -> None:
        place = None if folder is None else str(folder)
        settings: dict[str, Any] = {"project": self._project, "mode": self._mode, "name": name, "dir": place}
        self._run = _imported("wandb", "wandb").init(**settings, config=_flat(config))

    def log(self, round: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=round)  # pyright: ignore[reportOptionalMemberAccess]

    def on_stop(self, result: "Result | None") -> None:
        if self._run is not None:
            self._run.finish()


_LOG: Final = logging.getLogger("tacit.run")


class Logging(Tracker):
    """Python's `logging`, logger "tacit.run", level INFO: the start, every evaluation, the end and its reason.

    Every run has it, a federation's server with what was released alone. Nothing is reckoned, and nothing shown, until
    the logger is switched on:

    >>> import logging
    >>> logging.getLogger("tacit.run").setLevel(logging.INFO)  # and a handler, for instance logging.basicConfig()
    >>> logging.getLogger("tacit.run").setLevel(logging.NOTSET)
    """

    def __init__(self) -> None:
        self._name = "run"

    @staticmethod
    def wanted() -> "list[Logging]":
        """One, if anybody listens."""
        return [Logging()] if _LOG.isEnabledFor(logging.INFO) else []

    def on_start(self, name: str, config: Mapping[str, Any], folder: Path | None) -> None:
        self._name = name
        _LOG.info("%s: started%s", name, "" if folder is None else f" in {folder}")

    def log(self, round: int, figures: Figures) -> None:
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        _LOG.info("%s: round %d: %s", self._name, round, told, extra={"round": round, "figures": dict(figures)})

    def on_stop(self, result: "Result | None") -> None:
        reason = None if result is None else result.stopped
        _LOG.info("%s: ended%s", self._name, f": {reason}" if reason else "")


TRACKERS: Final[Registry[Any]] = Registry(
    "tracker", "tacit.trackers", {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
)


class Callbacks:
    """The watcher of a run that tells its callbacks. `reason` says why one of them wants it to end."""

    def __init__(
        self, callbacks: Sequence[Callback], levels: Sequence[str], spent: Callable[[Plan], Mapping[str, Spent]]
    ) -> None:
        self._callbacks, self._levels, self._spent, self.reason = callbacks, levels, spent, ""

    def after_round(self, report: Report) -> None:
        for callback in self._callbacks:
            self._hear(callback.on_round(report))
        if report.scores is None or not self._callbacks:
            return
        figures = {
            f"{row.level}/{row.metric}": row.value for row in score_rows(report.round, report.scores, self._levels)
        }
        figures |= {f"{level}/epsilon": min(by.values()) for level, by in self._spent(report.plan).items() if by}
        for callback in self._callbacks:
            self._hear(callback.on_evaluation(report.round, figures))

    def _hear(self, answer: bool | str | None) -> None:
        if answer and not self.reason:
            self.reason = answer if isinstance(answer, str) else "a callback ended it"


@contextmanager
def attended(
    callbacks: Sequence[Callback], name: str, config: Mapping[str, Any], folder: Path | None
) -> Iterator[Callable[["Result"], None]]:
    """Tells callbacks of the start, and in any case of the end; what is yielded takes the result."""
    results: list[Result] = []
    for callback in callbacks:
        callback.on_start(name, config, folder)
    try:
        yield results.append
    finally:
        for callback in callbacks:
            callback.on_stop(results[0] if results else None)


class Released:
    """The watcher of a federation's server that tells trackers what was paid for, and nothing else."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def after_round(self, report: Report) -> None:
        if figures := released_figures(report):
            for tracker in self._trackers:
                tracker.log(report.round, figures)


def released_figures(report: Report) -> Figures:
    """What a round of a federation has released: the bound, the weights of levels, and members' noisy accuracies.

    Bound and weights are public state of the release, the accuracies went through a mechanism of their own; the ledger
    has all of it. Who took part, how many, and how long they took was not paid for.
    """
    figures = {} if report.bound is None else {"all/bound": report.bound}
    if report.weights is not None:
        figures |= {f"{at}/weight": weight for at, weight in enumerate(report.weights)}
    if report.figures is not None:
        noisy = {"shared_mean": report.figures.shared, "personal_mean": report.figures.personal}
        figures |= {f"all/{name}": value for name, value in noisy.items() if value is not None}
        figures["all/noise_std"] = report.figures.std
    return figures


def trackers(names: Sequence[str]) -> list[Callback]:
    """Those of a file's `run.track`."""
    return [TRACKERS.find(name)() for name in names]


def _imported(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TacitError(f"this tracker needs {extra}: pip install 'tacit-fl[{extra}]' ({error})") from error


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Tables within tables as keys with points."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


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
        if report.kept is not None:
            self.metrics.append([Row(report.round, ALL, KEPT, report.kept)])
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
