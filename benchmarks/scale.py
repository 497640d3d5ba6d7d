"""100,000 clients with a personal model each: memory, and time a round beside the same cohort out of 2,000.

Populations run in processes of their own and take turns, so that only one computes at a time.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import worlds
from benchmarks.machine import machine
from benchmarks.serving import Worker

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
TURN = 5  # rounds one after the other, as in a run: the first of them finds cold memory
SMALL = (2_000, 0)  # clients, states written before the first round
LARGE = {"100,000 clients": (100_000, 0), "100,000 clients, 20,000 states written": (100_000, 20_000)}


@dataclass(frozen=True)
class Measured:
    seconds: list[float]
    evaluation: float
    evaluated: int
    peak: int
    nominal: int
    on_disk: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def ask(worker: Worker, line: str) -> dict[str, Any]:
    worker.send(line)
    return json.loads(worker.answer())


def measure(rounds: int, folder: Path | None) -> dict[str, tuple[Measured, Measured]]:
    """Each large population beside a small one of its own."""
    return {name: _pair(rounds, folder, SMALL, large) for name, large in LARGE.items()}


def _pair(rounds: int, folder: Path | None, *populations: tuple[int, int]) -> tuple[Measured, Measured]:
    with ExitStack() as stack:
        small, large = workers = [stack.enter_context(_population(folder, *one)) for one in populations]
        for worker in workers:
            worker.answer()
        seconds: list[list[float]] = [[], []]
        for _ in track(range(rounds // TURN), "turns"):
            for taken, worker in zip(seconds, workers, strict=True):
                taken += [ask(worker, "go")["seconds"] for _ in range(TURN)]
        return _measured(small, seconds[0]), _measured(large, seconds[1])


def _population(folder: Path | None, clients: int, written: int) -> Worker:
    command = [sys.executable, "-m", "benchmarks.worlds", "--clients", str(clients), "--written", str(written)]
    return Worker(command + (["--folder", str(folder)] if folder else []), {})


def _measured(worker: Worker, seconds: list[float]) -> Measured:
    evaluation, memory = ask(worker, "evaluate"), ask(worker, "memory")
    return Measured(seconds, evaluation["seconds"], evaluation["clients"], **memory)


def rows(found: dict[str, tuple[Measured, Measured]]) -> list[tuple[str, ...]]:
    return [
        row
        for name, (small, large) in found.items()
        for row in (_row("2,000 clients", small, small), _row(name, large, small))
    ]


def _row(name: str, one: Measured, beside: Measured) -> tuple[str, ...]:
    return (
        name,
        f"{one.median:.3f} s",
        f"{one.median / beside.median:.2f}",
        f"{one.peak / 2**30:.2f} GiB",
        f"{one.nominal / 2**30:.1f} GiB",
        f"{one.on_disk / 2**30:.2f} GiB",
        f"{one.evaluation:.1f} s ({one.evaluated:,} clients)",
    )


HEADINGS = ("Population", "Median round", "Ratio", "Peak memory", "States, nominal", "On disk", "Personal evaluation")


def markdown(found: dict[str, tuple[Measured, Measured]], rounds: int) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows(found))]
    return f"""# A large population

Written by `make bench-scale`; do not edit.

{chr(10).join(lines)}

Ditto, MLP 784-100-10 (79,510 parameters), cohorts of exactly {worlds.COHORT}, five epochs of one batch of
{worlds.TRAIN} images, central plan, {rounds} rounds of each population, in turns of {TURN}
with a small one beside it. Peak memory is the largest
resident size of the process over its whole life, data included ({worlds.TRAIN + worlds.TEST} images of 784 bytes a
client). States lie in a sparse file with two slots a client. Personal evaluation is over a
random sample of {worlds.SAMPLE:,} clients, and the shared model over all of them.

{machine()}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=None, help="where states go (needs about 15 GB of free disk)")
    options = parser.parse_args()
    console, found = Console(), measure(options.rounds, options.folder)
    table = Table(*HEADINGS, title="A large population")
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "scale.md").write_text(markdown(found, options.rounds))
    console.print(f"written: {RESULTS.name}/scale.md")


if __name__ == "__main__":
    main()
