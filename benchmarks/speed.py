"""How long a round takes: Tacit beside pfl-research, Flower, Opacus, a PyTorch loop, and the machine's own limit.

Every system runs in a process of its own that stays warm. They take turns round by round, so that whatever else the
machine does weighs on all of them alike, and only one computes at a time: the next begins when the machine is idle.
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
from typing import Any, NamedTuple, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import roofline
from benchmarks.machine import CORES, wait_until_idle
from benchmarks.roofline import Rates
from benchmarks.serving import PeerError, Worker
from benchmarks.speed_report import Kept, Run, Timing, Timings, print_table, read, write, write_readme_table
from benchmarks.systems import PEERS, Setting, System
from benchmarks.workloads import WORKLOADS, Entry, Workload

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
README = RESULTS.parents[1] / "README.md"
TRIAL_ROUNDS = 3
BUSY = 0.5


class Spent(NamedTuple):
    """On one round."""

    seconds: float
    processor: float


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

    def round(self) -> Spent:
        """Do one round; the seconds until its last process was done, and what all of them took of processors."""
        try:
            for worker in self.workers:
                worker.send("go")
        except OSError as error:
            raise self._failure() from error
        seconds, processor = zip(*self._answers(), strict=True)
        return Spent(max(seconds), sum(processor))

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


Step = Callable[..., None]


def measure(
    workloads: Sequence[Workload], repeats: int | None, console: Console, save: Callable[[Timings, Rates], None]
) -> tuple[Timings, Rates]:
    """Time every workload's systems; the machine's own rates are taken before each of them and at the end.

    What was found is saved after each workload, so that a failure costs no more than its own.
    """
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: Timings = {}
    torch.set_num_threads(CORES)
    rates = [roofline.measure()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(_rounds(each, repeats) for each in workloads))
        for workload in workloads:
            found[workload.key] = _measure(
                workload,
                repeats or workload.repeats,
                lambda what, advance=1: progress.update(task, description=what, advance=advance),
            )
            rates.append(roofline.measure())
            save(found, roofline.together(rates))
    return found, roofline.together(rates)


def _rounds(workload: Workload, repeats: int | None) -> int:
    trials = sum(TRIAL_ROUNDS * len(_to_try(entry)) for entry in workload.entries)
    return trials + sum(min(repeats or workload.repeats, entry.most) for entry in workload.entries)


def _to_try(entry: Entry) -> tuple[Setting, ...]:
    return entry.system.settings if len(entry.system.settings) > 1 else ()


def _measure(workload: Workload, repeats: int, step: Step) -> list[Timing]:
    tried = [_try_settings(entry, f"{workload.key}: trying {entry.title}", step) for entry in workload.entries]
    best = [
        min(medians, key=medians.__getitem__) if medians else entry.system.settings[0]
        for entry, medians in zip(workload.entries, tried, strict=True)
    ]
    with ExitStack() as stack:
        peers = {
            entry: stack.enter_context(Peer(entry.system, entry.model, setting))
            for entry, setting in zip(workload.entries, best, strict=True)
        }
        spent = take_turns(peers, repeats, lambda entry: step(f"{workload.key}: {entry.title}"))
    return [
        Timing(
            title=entry.title,
            seconds=[each.seconds for each in spent[entry]],
            processor=[each.processor for each in spent[entry]],
            setting=best[at],
            tried={str(setting): median for setting, median in tried[at].items()},
            versions=peer.about["versions"],
        )
        for at, (entry, peer) in enumerate(peers.items())
    ]


def _try_settings(entry: Entry, what: str, step: Step) -> dict[Setting, float]:
    """The median of a few rounds in each setting, where there is a choice; the settings take turns as well."""
    step(what, advance=0)
    wait_until_idle()
    with ExitStack() as stack:
        peers = {each: stack.enter_context(Peer(entry.system, entry.model, each)) for each in _to_try(entry)}
        turns = [{each: _round(peer, lambda: step(what)) for each, peer in peers.items()} for _ in range(TRIAL_ROUNDS)]
    return {each: statistics.median(turn[each].seconds for turn in turns) for each in peers}


def _round(peer: Peer, step: Callable[[], None]) -> Spent:
    spent = peer.round()
    step()
    return spent


def take_turns(peers: dict[Entry, Peer], repeats: int, step: Callable[[Entry], None]) -> dict[Entry, list[Spent]]:
    spent: dict[Entry, list[Spent]] = {entry: [] for entry in peers}
    for turn in range(repeats):
        for entry, peer in peers.items():
            if turn >= entry.most:
                continue
            spent[entry].append(_round(peer, lambda entry=entry: step(entry)))
            wait_until_idle()
    return spent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=None, help="rounds of each system; by default 5 to 15")
    parser.add_argument("--keep", action="store_true", help="keep what the folder has of other workloads")
    parser.add_argument("--readme", action="store_true", help="write the table of README.md, too")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for speed.md, speed.json and speed.png")
    options = parser.parse_args()
    if options.repeats is not None and options.repeats < 2:
        parser.error("--repeats must be 2 or more")
    return options


def _command(options: argparse.Namespace) -> str:
    chosen = "" if options.workloads == list(WORKLOADS) else f" --workloads {' '.join(options.workloads)}"
    more = (f" --repeats {options.repeats}" if options.repeats else "") + (" --keep" if options.keep else "")
    return "python -m benchmarks.speed" + chosen + more


def main() -> None:
    options = _arguments()
    console = Console()
    kept = read(options.out) if options.keep else Kept()
    run = Run(" and ".join([*kept.commands, _command(options)]), os.getloadavg()[0])
    if run.load_before > BUSY:
        console.print(
            f"the machine is busy (load average {run.load_before:.1f}): rounds will take longer", style="yellow"
        )
    workloads = [WORKLOADS[key] for key in dict.fromkeys(options.workloads)]
    try:
        with console.status("preparing the environments of the systems"):
            for system in {entry.system for workload in workloads for entry in workload.entries}:
                system.python()

        def save(timings: Timings, rates: Rates) -> None:
            write(kept.with_new(timings), roofline.together([*kept.rates, rates]), run, options.out)
            if options.readme:
                write_readme_table(kept.with_new(timings), README)

        timings, rates = measure(workloads, options.repeats, console, save)
    except PeerError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise SystemExit(1) from error
    print_table(timings, rates, console)
    console.print(f"written: {options.out}/speed.md, speed.json, speed.png")


if __name__ == "__main__":
    main()
