"""Two source trees on the rounds of `make bench`, in turns: seconds and processor time a round, and their ratio.

    python -m benchmarks.compare /path/to/the/tree/before          (this tree is the one after)

Each tree has a process of its own for a workload, which stays warm; they take turns round by round, so that whatever
else the machine does weighs on both alike. The peers of `make bench` are not needed.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import CORES
from benchmarks.serving import Worker

HERE = Path(__file__).resolve().parent.parent
WORLDS = {"a": "mlp", "b": "cnn", "c": "writers", "d1": "ditto-mlp", "d2": "ditto-cnn"}


class Tree:
    """One tree's rounds of a workload, in a process of their own."""

    def __init__(self, tree: Path, model: str, threads: int) -> None:
        rounds = tree / "benchmarks" / "peers" / "tacit_rounds.py"  # its own: rooms may have moved between the two
        command = [sys.executable, rounds, "--serve", "--model", model, "--threads", str(threads)]
        self.worker = Worker(command, {"PYTHONPATH": str(tree / "src")})
        self.worker.answer()  # it is warm
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def round(self) -> None:
        before = self._processor_time()
        self.worker.send("go")
        answer = json.loads(self.worker.answer())  # older trees tell the seconds alone
        self.seconds.append(float(answer[0] if isinstance(answer, list) else answer))
        self.processor.append(self._processor_time() - before)

    def _processor_time(self) -> float:
        """Of all its threads so far, where the system tells; else 0."""
        try:
            stat = Path(f"/proc/{self.worker.process.pid}/schedstat").read_text()
            tasks = Path(f"/proc/{self.worker.process.pid}/task").iterdir()
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9 if stat else 0.0
        except OSError:
            return 0.0


def compare(before: Path, after: Path, key: str, rounds: int, threads: int) -> tuple[Tree, Tree]:
    """Both trees' rounds of a workload, in turns."""
    trees = Tree(before, WORLDS[key], threads), Tree(after, WORLDS[key], threads)
    try:
        for turn in range(rounds):
            for tree in trees if turn % 2 else reversed(trees):
                tree.round()
    finally:
        for tree in trees:
            tree.worker.close()
    return trees


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare two source trees on the rounds of make bench.")
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--after", type=Path, default=HERE)
    parser.add_argument("--workloads", default=",".join(WORLDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=CORES)
    given = parser.parse_args(arguments)
    os.environ.pop("OMP_NUM_THREADS", None)
    table = Table(title="medians of a round, in seconds")
    for column in ("workload", "before", "after", "ratio", "ratio of fastest", "ratio of processor time"):
        table.add_column(column, justify="right")
    for key in given.workloads.split(","):
        old, new = compare(given.before, given.after, key, given.rounds, given.threads)
        medians = [statistics.median(tree.seconds) for tree in (old, new)]
        busy = [statistics.median(tree.processor) for tree in (old, new)]
        table.add_row(
            f"{key} ({WORLDS[key]})",
            *(f"{median:.4f}" for median in medians),
            f"{medians[1] / medians[0]:.3f}",
            f"{min(new.seconds) / min(old.seconds):.3f}",
            f"{busy[1] / busy[0]:.3f}" if all(busy) else "not known",
        )
        Console().print(f"{key}: {medians[1] / medians[0]:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
