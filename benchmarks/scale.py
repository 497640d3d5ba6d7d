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

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
POPULATIONS = {
    "2,000 clients": (2_000, 0),
    "100,000 clients": (100_000, 0),
    "100,000 clients, 20,000 states written": (100_000, 20_000),
}


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


def measure(rounds: int, folder: Path | None) -> dict[str, Measured]:
    with ExitStack() as stack:
        workers = {}
        for name, (clients, written) in POPULATIONS.items():
            command = [sys.executable, "-m", "benchmarks.worlds", "--clients", str(clients), "--written", str(written)]
            workers[name] = stack.enter_context(Worker(command + (["--folder", str(folder)] if folder else []), {}))
        for worker in workers.values():
            worker.answer()
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in track(range(rounds), "rounds"):
            for name, worker in workers.items():
                seconds[name].append(ask(worker, "go")["seconds"])
        found = {}
        for name, worker in workers.items():
            evaluation, memory = ask(worker, "evaluate"), ask(worker, "memory")
            found[name] = Measured(seconds[name], evaluation["seconds"], evaluation["clients"], **memory)
        return found


def rows(found: dict[str, Measured]) -> list[tuple[str, ...]]:
    first = next(iter(found.values())).median
    return [
        (
            name,
            f"{one.median:.3f} s",
            f"{one.median / first:.2f}",
            f"{one.peak / 2**30:.2f} GiB",
            f"{one.nominal / 2**30:.1f} GiB",
            f"{one.on_disk / 2**30:.2f} GiB",
            f"{one.evaluation:.1f} s ({one.evaluated:,} clients)",
        )
        for name, one in found.items()
    ]


HEADINGS = ("Population", "Median round", "Ratio", "Peak memory", "States, nominal", "On disk", "Personal evaluation")


def markdown(found: dict[str, Measured], rounds: int) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows(found))]
    return f"""# A large population

Written by `make bench-scale`; do not edit.

{chr(10).join(lines)}

Ditto, MLP 784-100-10 (79,510 parameters), cohorts of exactly {worlds.COHORT}, five epochs of one batch of
{worlds.TRAIN} images, central plan, {rounds} rounds of each population, taking turns. Peak memory is the largest
resident size of the process over its whole life, data included ({worlds.TRAIN + worlds.TEST} images of 784 bytes a
client). States lie in a sparse file with two slots a client; the disk cache is warm. Personal evaluation is over a
random sample of {worlds.SAMPLE:,} clients, and the shared model over all of them.

{machine()}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
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
