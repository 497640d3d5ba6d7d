"""How long a round of DP-FedAvg takes: Tacit beside pfl-research and a plain PyTorch loop.

Every system runs in a process of its own that stays warm. They take turns round by round, so that whatever else the
machine does weighs on all of them alike, and only one computes at a time.
"""

import argparse
import json
import os
import queue
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peers import protocol
from benchmarks.serving import PeerError, Worker
from benchmarks.speed_report import TRIAL_ROUNDS, Run, Timing, Timings, print_tables, write
from benchmarks.systems import PEERS, SYSTEMS, Setting, System

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SETTLE_SECONDS = 0.02
BUSY = 0.5


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


def _free_ports(several: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(several)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
        seconds = take_turns(peers, repeats, lambda name: step(f"{model}: {name}"))
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
        seconds = take_turns(peers, TRIAL_ROUNDS, lambda _: step(what))
    return {setting: statistics.median(rounds) for setting, rounds in seconds.items()}


def take_turns(peers: dict[Key, Peer], repeats: int, step: Callable[[Key], None]) -> dict[Key, list[float]]:
    seconds: dict[Key, list[float]] = {key: [] for key in peers}
    for _ in range(repeats):
        for key, peer in peers.items():
            seconds[key].append(peer.round())
            step(key)
            time.sleep(SETTLE_SECONDS)  # threads of the last one may still be going to sleep
    return seconds


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
