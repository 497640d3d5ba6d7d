"""How long a round of DP-FedAvg takes: Tacit beside pfl-research and a plain PyTorch loop.

Every system runs in a process of its own that stays warm. They take turns round by round, so that whatever else the
machine does weighs on all of them alike, and only one computes at a time.
"""

import argparse
import hashlib
import json
import os
import platform
import queue
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.peers import protocol

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
PFL_HOME = HERE / ".peers" / "pfl"
RESULTS = HERE.parent / "docs" / "results"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TRIAL_ROUNDS = 5
SETTLE_SECONDS = 0.02
BUSY = 0.5
HEADINGS = ("System", "Setting", "Median", "Quartiles", "Ratio")
NUMBERS = HEADINGS[2:]
MODEL_TITLES = {"mlp": "MLP 784-100-10", "cnn": "CNN 6-16-120-84-10"}


class PeerError(RuntimeError):
    """A system could not be set up, or its process ended before its work was done."""


@dataclass(frozen=True, order=True)
class Setting:
    """How many processes share a round, and how many threads each of them may use."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"{_count(self.workers, 'process')} x {_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class System:
    """Something that runs rounds: which script, in which Python, in which settings it may be tried."""

    name: str
    title: str
    script: str
    python: Callable[[], Path]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Timing:
    """The rounds of one system on one model, in its fastest setting."""

    seconds: list[float]
    setting: Setting
    tried: dict[str, float]
    versions: dict[str, str]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, upper


@dataclass(frozen=True)
class Run:
    """What was asked for, and how busy the machine was before."""

    command: str
    repeats: int
    load_before: float


Timings = dict[str, dict[str, Timing]]


class Worker:
    """One process of a system in serve mode."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def last_errors(self, lines: int = 15) -> str:
        self.errors.seek(0)
        return "\n".join(self.errors.read().decode(errors="replace").splitlines()[-lines:])


class Peer:
    """A system that is running, warm, and does one round when asked."""

    def __init__(self, system: System, model: str, setting: Setting) -> None:
        self.name = system.name
        command = [system.python(), PEERS / system.script, "--serve", "--model", model]
        command += ["--threads", str(setting.threads)]
        self.workers = [Worker(command, environment) for environment in _environments(setting.workers)]

    def __enter__(self) -> Self:
        """Wait until it is warm, so that the next one to start has the machine for itself."""
        try:
            self.about: dict[str, Any] = self._answers()[0]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def round(self) -> float:
        """Do one round; the seconds until its last process was done."""
        try:
            for worker in self.workers:
                worker.send("go")
        except OSError as error:
            raise self._failure() from error
        return max(self._answers())

    def _answers(self) -> list[Any]:
        return [json.loads(self._answer(worker)) for worker in self.workers]

    def _answer(self, worker: Worker) -> str:
        while True:
            try:
                answer = worker.answers.get(timeout=1.0)
            except queue.Empty:
                if any(each.process.poll() is not None for each in self.workers):
                    raise self._failure() from None
                continue
            if answer is None:
                raise self._failure()
            return answer

    def _failure(self) -> PeerError:
        time.sleep(0.5)  # the processes that share a round with the one that ended end a moment later
        ended = [worker for worker in self.workers if worker.process.poll() is not None]
        tails = [f"exit code {worker.process.returncode}:\n{worker.last_errors()}" for worker in ended]
        return PeerError(f"{self.name} ended before its work was done, " + "\n\n".join(tails))


def _environments(workers: int) -> list[dict[str, str]]:
    """What tells the processes of pfl of one another; nothing for a process on its own."""
    if workers == 1:
        return [{}]
    addresses = ",".join(f"127.0.0.1:{port}" for port in _free_ports(workers))
    return [{"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} for rank in range(workers)]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def this_python() -> Path:
    return Path(sys.executable)


def pfl_python() -> Path:
    """The Python that has pfl, in an environment of its own that is made on first use."""
    python = PFL_HOME / "bin" / "python"
    requirements = PEERS / "requirements-pfl.txt"
    stamp = PFL_HOME / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _call([_python_for_pfl(), "-m", "venv", "--clear", PFL_HOME])
        _call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
        stamp.write_text(wanted)
    return python


def _python_for_pfl() -> str:
    if sys.version_info < (3, 13):
        return sys.executable
    for name in ("python3.12", "python3.11", "python3.10"):
        if found := shutil.which(name):
            return found
    raise PeerError("pfl 0.6.0 needs Python 3.10, 3.11 or 3.12, and none was found")


def _call(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise PeerError(f"{' '.join(map(str, command))} failed:\n{tail}")


def _settings(shares_rounds: bool) -> tuple[Setting, ...]:
    """One thread and all of them; and one process for each core where a system can share a round out."""
    found = {Setting(1, 1), Setting(1, CORES)}
    if shares_rounds:
        found.add(Setting(CORES, 1))
    return tuple(sorted(found))


SYSTEMS = {
    system.name: system
    for system in (
        System("tacit", "Tacit", "tacit_rounds.py", this_python, _settings(shares_rounds=False)),
        System("pfl", "pfl-research", "pfl_rounds.py", pfl_python, _settings(shares_rounds=True)),
        System("loop", "PyTorch loop", "torch_loop.py", this_python, _settings(shares_rounds=False)),
    )
}


def measure(systems: Sequence[System], models: Sequence[str], repeats: int, console: Console) -> Timings:
    """Time every system on every model."""
    trials = sum(len(system.settings) for system in systems) * TRIAL_ROUNDS
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(models) * (trials + repeats * len(systems)))

        def step(what: str, advance: int = 1) -> None:
            progress.update(task, description=what, advance=advance)

        return {model: _measure_model(systems, model, repeats, step) for model in models}


Step = Callable[..., None]
Key = TypeVar("Key")


def _measure_model(systems: Sequence[System], model: str, repeats: int, step: Step) -> dict[str, Timing]:
    tried = {system.name: _try_settings(system, model, step) for system in systems}
    best = {name: min(medians, key=medians.__getitem__) for name, medians in tried.items()}
    with ExitStack() as stack:
        peers = {each.name: stack.enter_context(Peer(each, model, best[each.name])) for each in systems}
        seconds = _take_turns(peers, repeats, lambda name: step(f"{model}: {name}"))
    return {
        name: Timing(
            seconds=seconds[name],
            setting=best[name],
            tried={str(setting): median for setting, median in tried[name].items()},
            versions=peer.about["versions"],
        )
        for name, peer in peers.items()
    }


def _try_settings(system: System, model: str, step: Step) -> dict[Setting, float]:
    """The median of a few rounds in each setting; the settings take turns as well."""
    what = f"{model}: trying {system.name}"
    step(what, advance=0)
    with ExitStack() as stack:
        peers = {setting: stack.enter_context(Peer(system, model, setting)) for setting in system.settings}
        seconds = _take_turns(peers, TRIAL_ROUNDS, lambda _: step(what))
    return {setting: statistics.median(rounds) for setting, rounds in seconds.items()}


def _take_turns(peers: dict[Key, Peer], repeats: int, step: Callable[[Key], None]) -> dict[Key, list[float]]:
    seconds: dict[Key, list[float]] = {key: [] for key in peers}
    for _ in range(repeats):
        for key, peer in peers.items():
            seconds[key].append(peer.round())
            step(key)
            time.sleep(SETTLE_SECONDS)  # threads of the last one may still be going to sleep
    return seconds


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def _rows(timings: dict[str, Timing]) -> list[tuple[str, ...]]:
    """A row for each system, as text; the last column is its median over that of the first system."""
    first = next(iter(timings.values())).median
    return [
        (
            SYSTEMS[name].title,
            str(timing.setting),
            f"{timing.median:.3f} s",
            "{:.3f} - {:.3f} s".format(*timing.quartiles),
            f"{timing.median / first:.2f}x",
        )
        for name, timing in timings.items()
    ]


def print_tables(timings: Timings, console: Console) -> None:
    for model, of_model in timings.items():
        table = Table(title=MODEL_TITLES[model])
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading in NUMBERS else "left")
        for row in _rows(of_model):
            table.add_row(*row)
        console.print(table)


def machine() -> str:
    """The processor, its cores in use and the memory, in a line."""
    processor = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = _field("/proc/meminfo", "MemTotal")
    size = f", {int(memory.split()[0]) / 2**20:.0f} GiB of memory" if memory else ""
    return f"{processor}, {_count(CORES, 'core')}{size}, {platform.system()}"


def _field(path: str, name: str) -> str | None:
    file = Path(path)
    if not file.exists():
        return None
    found = (line.split(":", 1)[1].strip() for line in file.read_text().splitlines() if line.startswith(name))
    return next(found, None)


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    align = ["---:" if heading in NUMBERS else "---" for heading in headings]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, align, *rows))


def _tried_rows(timings: Timings) -> list[tuple[str, ...]]:
    return [
        (MODEL_TITLES[model], SYSTEMS[name].title, setting, f"{median:.3f} s")
        for model, of_model in timings.items()
        for name, timing in of_model.items()
        for setting, median in timing.tried.items()
    ]


def _version_lines(timings: Timings) -> str:
    of_model = next(iter(timings.values()))
    return "\n".join(
        f"- {SYSTEMS[name].title}: " + ", ".join(f"{package} {number}" for package, number in timing.versions.items())
        for name, timing in of_model.items()
    )


def markdown(timings: Timings, run: Run) -> str:
    tables = "\n\n".join(
        f"## {MODEL_TITLES[model]}\n\n{_markdown_table(HEADINGS, _rows(of_model))}"
        for model, of_model in timings.items()
    )
    first = next(iter(next(iter(timings.values()))))
    tried = _markdown_table(("Model", "System", "Setting", "Median"), _tried_rows(timings))
    return f"""# Seconds a round

Written by `{run.command}`; do not edit.

![Seconds a round by system and model](speed.png)

{tables}

Ratio: a system's median over that of {SYSTEMS[first].title}.

## What was counted

A round of DP-FedAvg: draw {protocol.COHORT} of {protocol.CLIENTS:,} clients, train each for
{protocol.LOCAL_EPOCHS} epochs over its {protocol.IMAGES_PER_CLIENT} images in batches of {protocol.BATCH} (SGD,
rate {protocol.LOCAL_RATE}), clip each update to an L2 norm of {protocol.CLIP_NORM}, sum, add Gaussian noise once, and
step the shared model. The images are random, {protocol.IMAGE_SIDE} x {protocol.IMAGE_SIDE}, the same for every system
and in memory before the clock starts. Nothing is evaluated. Start-up and {protocol.WARM_UP_ROUNDS} warm-up rounds are
not counted.

The systems stay warm in processes of their own and take turns round by round, {run.repeats} rounds each, so that only
one computes at a time. Every system's process times its own round; where several processes share one, the last to
finish counts.

pfl-research is set up as in its own image classification benchmark: `FederatedAveraging`, `PyTorchModel`, users from
`FederatedDataset.from_slices` over tensors, and `WeightByUser` and
`CentrallyAppliedPrivacyMechanism(GaussianMechanism)` as postprocessors. The PyTorch loop trains one client after
another with `nn.Module` and `torch.optim.SGD`. Both go through a client's images in the same order every epoch.

Each system ran in the fastest of these settings, by the median of {TRIAL_ROUNDS} rounds beforehand. Sharing a round
between processes is the advice of pfl-research's guide for small models.

{tried}

## Machine and versions

{machine()}; load average {run.load_before:.2f} before the start.

{_version_lines(timings)}

## To repeat it

```
{run.command}
```
"""


def as_json(timings: Timings, run: Run) -> dict[str, Any]:
    def one(timing: Timing) -> dict[str, Any]:
        lower, upper = timing.quartiles
        return {"median": timing.median, "lower_quartile": lower, "upper_quartile": upper} | asdict(timing)

    models = {model: {name: one(timing) for name, timing in each.items()} for model, each in timings.items()}
    return asdict(run) | {"machine": machine(), "models": models}


def draw(timings: Timings, path: Path) -> None:
    """A panel for each model, a bar for each system, whiskers over the middle half of its rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    height = 1.1 + 0.5 * max(map(len, timings.values()))
    figure, panels = plt.subplots(1, len(timings), figsize=(5.2 * len(timings), height), squeeze=False)
    for panel, (model, of_model) in zip(panels[0], timings.items(), strict=True):
        _draw_panel(panel, MODEL_TITLES[model], of_model)
    figure.tight_layout(w_pad=3)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _draw_panel(panel: Any, title: str, timings: dict[str, Timing]) -> None:
    medians = [timing.median for timing in timings.values()]
    quartiles = [timing.quartiles for timing in timings.values()]
    below = [median - lower for median, (lower, _) in zip(medians, quartiles, strict=True)]
    above = [upper - median for median, (_, upper) in zip(medians, quartiles, strict=True)]
    titles = [SYSTEMS[name].title for name in timings]
    colors = ["#1f6f8b" if name == "tacit" else "#b8c4cc" for name in timings]
    panel.barh(titles, medians, xerr=[below, above], color=colors, ecolor="#444444", height=0.62, capsize=3)
    ends = [upper for _, upper in quartiles]
    for place, (end, median) in enumerate(zip(ends, medians, strict=True)):
        label = f"{median:.2f} s ({median / medians[0]:.1f}x)" if place else f"{median:.2f} s"
        panel.text(end + 0.02 * max(ends), place, label, va="center", fontsize=9)
    panel.set_xlim(0, 1.35 * max(ends))
    panel.invert_yaxis()
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel("seconds a round (less is better)", fontsize=9)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def write(timings: Timings, run: Run, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    (to / "speed.md").write_text(markdown(timings, run))
    (to / "speed.json").write_text(json.dumps(as_json(timings, run), indent=1) + "\n")
    draw(timings, to / "speed.png")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=protocol.MODELS, default=list(protocol.MODELS))
    parser.add_argument("--repeats", type=int, default=15, help="rounds of each system on each model")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for speed.md, speed.json and speed.png")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats must be 2 or more")
    return options


def _command(options: argparse.Namespace) -> str:
    models, systems = " ".join(options.models), " ".join(options.systems)
    return f"python -m benchmarks.speed --models {models} --repeats {options.repeats} --systems {systems}"


def main() -> None:
    options = _arguments()
    console = Console()
    run = Run(_command(options), options.repeats, os.getloadavg()[0])
    if run.load_before > BUSY:
        console.print(
            f"the machine is busy (load average {run.load_before:.1f}): rounds will take longer", style="yellow"
        )
    systems = [SYSTEMS[name] for name in dict.fromkeys(options.systems)]
    try:
        with console.status("preparing the environments of the systems"):
            for system in systems:
                system.python()
        timings = measure(systems, list(dict.fromkeys(options.models)), run.repeats, console)
    except PeerError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise SystemExit(1) from error
    print_tables(timings, console)
    write(timings, run, options.out)
    console.print(f"written: {options.out}/speed.md, speed.json, speed.png")


if __name__ == "__main__":
    main()
