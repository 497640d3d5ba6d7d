"""Many runs of one experiment: every combination of some settings, with several seeds, in parallel processes.

A sweep is a folder of runs, `OUT/name/lr=0.1,epsilon=4-0`. What is done is known from the folders alone: started again,
a sweep goes on with what is missing, and a run that was interrupted is resumed to the result it would have had.
"""

import itertools
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.experiments.config import Config, first_difference, full, load, parse, with_overrides
from tacit.report.run_folder import Folder
from tacit.report.summary import ON_REQUEST, open_run
from tacit.report.sweep import Measured, difference_table, sweep_frame, sweep_page, sweep_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

State = Literal["done", "begun", "new"]
_POLL: Final = 0.5  # seconds
_MOST: Final = 10_000  # runs; more is a slip of the keyboard


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: what was set, its seed, and where it goes."""

    settings: Mapping[str, Any]
    seed: int
    config: Config
    folder: Path

    @property
    def state(self) -> State:
        """What its folder says. One that holds another run is an error."""
        folder = Folder(self.folder)
        if not folder.config.is_file():
            return "new"
        if (other := first_difference(folder.content(), full(self.config))) is not None:
            raise TacitError(
                f"{self.folder} holds another run ({other}): choose another --out, or rename the experiment"
            )
        if not folder.outcome.is_file():
            return "begun"
        return "begun" if json.loads(folder.outcome.read_text())["stopped"] == ON_REQUEST else "done"


@dataclass(frozen=True, eq=False)
class Sweep:
    """The runs of a sweep, as `tacit.sweep` gives them.

    Args:
        folder: where they are.
        trials: all of them, done or not.
        failures: a line for each that could not be run.
        left: those that were not reached.

    >>> import tacit
    >>> tacit.Sweep(Path("runs/none"), ())
    Sweep(runs/none: 0 runs, 0 failed, 0 left)
    """

    folder: Path
    trials: Sequence[Trial]
    failures: Mapping[Path, str] = field(default_factory=dict)
    left: Sequence[Path] = ()

    @property
    def measured(self) -> list[Measured]:
        """The finished runs, each opened from its folder: every epsilon is its ledger's."""
        ended = [trial for trial in self.trials if trial.state == "done"]
        return [Measured(trial.settings, trial.seed, open_run(trial.folder)) for trial in ended]

    def frame(self) -> "pd.DataFrame":
        """One tidy table, a row a run: settings, seed, accuracies, epsilon by level, rounds, folder."""
        return sweep_frame(self.measured)

    def table(self) -> "Table":
        """One row for each setting: mean and standard deviation over its seeds."""
        return sweep_table(self.measured)

    def differences(self) -> "Table":
        """Each setting against the first, paired by seed, with the standard error."""
        return difference_table(self.measured)

    def save_html(self, path: Path | str | None = None) -> Path:
        """One page that compares all settings; by default beside the runs."""
        from tacit.core.files import write_atomically

        target = self.folder / "sweep.html" if path is None else Path(path)
        write_atomically(target, sweep_page(self.folder.name, self.measured).encode())
        return target

    def __repr__(self) -> str:
        return f"Sweep({self.folder}: {len(self.trials)} runs, {len(self.failures)} failed, {len(self.left)} left)"


@checked
def sweep(
    experiment: Path | str | Mapping[str, Any],
    settings: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    jobs: int = 1,
    out: Path | str = Path("runs"),
    ray: str | None = None,
    progress: bool = True,
) -> Sweep:
    """Runs an experiment with every combination of `settings`, each with `seeds` seeds.

    Started again with the same arguments it runs what is missing and nothing twice.

    Args:
        experiment: a TOML file, or its content as a dictionary.
        settings: keys of the file, each with the values to try: `{"method.lr": [.03, .1], "rounds": [50]}`.
        seeds: runs of each combination, with the experiment's seed and those after it.
        jobs: runs at a time, each in a process of its own; they share the cores of the machine, or of the cluster.
        out: where the sweep's folder is made.
        ray: the address of a Ray cluster whose machines share `out` ("auto": the one this machine belongs to; "local":
            one that starts here, for a try).
        progress: whether to show a table of what is running, on a terminal.

    Returns:
        The runs: `frame()` is one tidy table, `save_html()` a page that compares them.

    Raises:
        TacitError: for a setting that the experiment does not have; before any run.

    >>> import tacit, tempfile
    >>> small = {"rounds": 1, "data": {"clients": 6}, "model": {"name": "softmax"}}
    >>> tacit.sweep(small, {}, out=tempfile.mkdtemp(), progress=False).frame()["seed"].tolist()
    [0]
    """
    config = parse(dict(experiment)) if isinstance(experiment, Mapping) else load(Path(experiment))
    assignments = {key: [_written(value) for value in values] for key, values in settings.items()}
    return run_sweep(config, assignments, seeds, jobs, Path(out), ray, progress)


def run_sweep(
    config: Config,
    assignments: Mapping[str, Sequence[str]],
    seeds: int,
    jobs: int,
    out: Path,
    ray: str | None = None,
    progress: bool = True,
) -> Sweep:
    """As `sweep`, with values written as on the command line."""
    trials = list(grid(config, assignments, seeds, out))
    waiting = [trial for trial in trials if trial.state != "done"]
    pool = _ray_pool(ray, jobs) if ray is not None else _processes(jobs)
    failures: dict[Path, str] = {}
    with pool as start, _display(trials, progress) as show:
        stopped = _conduct(start, waiting, failures, show)
    left = [trial.folder for trial in trials if trial.folder not in failures and trial.state != "done"]
    return Sweep(out / config.name, trials, failures, left if stopped or left else ())


def split_values(text: str) -> tuple[str, list[str]]:
    """`method.lr=.03,.1` as its key and values. Commas inside of brackets and quotes belong to a value."""
    key, mark, values = text.partition("=")
    if not mark or not key.strip() or not values.strip():
        raise TacitError(f"'{text}' sets nothing: write key=value,value, for example method.lr=0.1,0.3")
    return key.strip(), [part.strip() for part in _at_commas(values)]


def _at_commas(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def grid(config: Config, assignments: Mapping[str, Sequence[str]], seeds: int, out: Path) -> Iterator[Trial]:
    """Every combination with every seed; all of them are checked before the first is run."""
    names = _short(list(assignments))
    total = seeds
    for key, values in assignments.items():
        total *= len(values)
        if len(set(values)) < len(values) or not values:
            raise TacitError(f"{key} has the values {', '.join(values) or 'none'}: give each value once, at least one")
    if total > _MOST:
        raise TacitError(f"that are {total:,} runs, and at most {_MOST:,} are taken: try fewer values or seeds")
    for values in itertools.product(*assignments.values()):
        settings = dict(zip(assignments, values, strict=True))
        tried = with_overrides(config, [f"{key}={value}" for key, value in settings.items()])
        label = ",".join(f"{names[key]}={_safe(value)}" for key, value in settings.items())
        for seed in range(tried.seed, tried.seed + seeds):
            one = tried.model_copy(update={"seed": seed})
            folder = out / config.name / (f"{label}-{seed}" if label else f"{seed}")
            yield Trial({names[key]: _number(value) for key, value in settings.items()}, seed, one, folder)


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last parts of keys that tell them apart: lr, epsilon."""
    short: dict[str, str] = {}
    for key in keys:
        parts = key.split(".")
        tails = (".".join(parts[-length:]) for length in range(1, len(parts) + 1))
        short[key] = next(tail for tail in tails if sum(f".{other}".endswith(f".{tail}") for other in keys) == 1)
    return short


def _safe(value: str) -> str:
    """For the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in value.strip("\"'"))


def _number(value: str) -> Any:
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return value.strip("\"'")


def _written(value: Any) -> str:
    """A Python value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value)


class Start(Protocol):
    """Starts one run: the experiment's content, and its folder."""

    def __call__(self, content: dict[str, Any], folder: str) -> "Future[str]": ...


def _conduct(start: Start, waiting: Sequence[Trial], failures: dict[Path, str], show: Callable[[], None]) -> bool:
    """Runs what is waiting; True if it was asked to stop. A run that fails is told, and the others go on."""
    begun = {start(full(trial.config), str(trial.folder)): trial for trial in waiting}
    open_, stopped = set(begun), False
    try:
        while open_:
            ended, open_ = wait(open_, timeout=_POLL, return_when=FIRST_COMPLETED)
            for future in ended:
                stopped = _note(future, begun[future], failures) or stopped
            show()
            if stopped:
                break
    except (KeyboardInterrupt, BrokenProcessPool):
        stopped = True
    for future in open_:
        future.cancel()
    return stopped


def _note(future: "Future[str]", trial: Trial, failures: dict[Path, str]) -> bool:
    """Notes what came of a run; True if it was stopped on request. Whatever it failed of, the others go on."""
    try:
        return future.result() == ON_REQUEST
    except BrokenProcessPool:  # no run can go on
        raise
    except Exception as error:
        reason = getattr(error, "cause", error)  # Ray's own error tells a whole traceback
        failures[trial.folder] = str(reason) if isinstance(reason, TacitError) else f"{type(reason).__name__}: {reason}"
        return False


def run_trial(content: dict[str, Any], folder: str) -> str:
    """One run of a sweep, begun or resumed; why it ended early, if it did."""
    from tacit.experiments.train import run_config

    config, path = parse(content), Path(folder)
    resume = Folder(path).config.is_file()
    if not resume:
        _sweep_away(path)
    return run_config(config, path, resume, progress=False).stopped or ""


def _sweep_away(path: Path) -> None:
    """What a run leaves that is killed before it has written its configuration: a key that nothing was keyed by."""
    leftover = list(path.iterdir()) if path.is_dir() else []
    if all(each.name.startswith("digest.key") or each.suffix == ".tmp" for each in leftover):
        for each in leftover:
            each.unlink()


@contextmanager
def _processes(jobs: int) -> Iterator[Start]:
    """Worker processes that share the cores. They end with this one, however it ends."""
    if jobs < 1:
        raise TacitError(f"-j {jobs} would run nothing: give a number of processes from 1 on")
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    pool = ProcessPoolExecutor(jobs, context, _begin, (threads, os.getpid(), stop))
    try:
        yield lambda content, folder: pool.submit(_work, content, folder)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


_STOP: Any = None  # of a worker process: whether to begin nothing more


def _begin(threads: int, parent: int, stop: Any) -> None:
    global _STOP
    import torch

    _STOP = stop
    torch.set_num_threads(threads)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Ends the process when its parent was killed: nobody would know of it, and its folder would stay locked."""
    while os.getppid() == parent:
        time.sleep(_POLL)
    os._exit(1)


def _work(content: dict[str, Any], folder: str) -> str:
    if _STOP.is_set():
        return ON_REQUEST
    reason = run_trial(content, folder)
    if reason == ON_REQUEST:
        _STOP.set()
    return reason


@contextmanager
def _ray_pool(address: str, jobs: int) -> Iterator[Start]:
    """Tasks on a Ray cluster, as many at a time as it has cores for; folders are on storage that all of it shares."""
    from tacit.simulation.ray import connect

    try:
        ray = connect(address, os.cpu_count())
    except TacitError:
        raise
    except Exception as error:  # Ray gives up on a slow machine after 30 seconds, with nothing more special
        told, more = str(error).splitlines()[0], "on a machine that is less busy, try again"
        if address != "local":
            more = "start one with `ray start --head`, or write --ray local for one on this machine"
        raise TacitError(f"no Ray cluster answers at '{address}' ({told}): {more}") from None
    cores = cores_each(jobs, [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]])
    task = ray.remote(num_cpus=cores, max_retries=-1)(_on_cluster)  # a run that is begun again is resumed
    try:
        yield lambda content, folder: task.remote(content, str(Path(folder).resolve()), cores).future()
    finally:
        ray.shutdown()


def cores_each(jobs: int, machines: Sequence[int]) -> int:
    """Cores of a run such that `jobs` fill the cluster; one that wants more than a machine has never starts."""
    return max(1, min(sum(machines) // jobs, max(machines, default=1)))


def _on_cluster(content: dict[str, Any], folder: str, threads: int) -> str:
    import torch

    torch.set_num_threads(threads)
    return run_trial(content, folder)


@contextmanager
def _display(trials: Sequence[Trial], progress: bool) -> Iterator[Callable[[], None]]:
    """A table of what is done and running, on a terminal; `show()` brings it up to date."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not (progress and console.is_terminal):
        yield lambda: None
        return
    with Live(_status(trials), console=console, transient=True, auto_refresh=False) as live:
        yield lambda: live.update(_status(trials), refresh=True)


def _status(trials: Iterable[Trial]) -> "Table":
    from rich.table import Table

    listed = list(trials)
    states = {trial.folder: trial.state for trial in listed}
    done = sum(state == "done" for state in states.values())
    table = Table(title=f"{done} of {len(listed)} runs done", title_justify="left", box=None)
    table.add_column("running")
    table.add_column("rounds", justify="right")
    for trial in listed:
        if states[trial.folder] == "begun":
            table.add_row(trial.folder.name, f"{_evaluated(trial)} of {trial.config.rounds}")
    return table


def _evaluated(trial: Trial) -> int:
    """The last round that was evaluated."""
    metrics = Folder(trial.folder).metrics
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    return int(lines[-1].partition(",")[0]) if len(lines) > 1 and lines[-1][:1].isdigit() else 0
