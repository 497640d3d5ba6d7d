"""What each pass of the compiler brings: rounds of `make bench` without it against rounds with all, in turns.

    python -m benchmarks.ablation --workloads a,d1 --rounds 15

For each pass that can be left out (`tacit.compile.pipeline.OPTIONAL`) there are two processes, one with all passes and
one without it, which take turns round by round, as in `benchmarks.compare`. A ratio above 1 is what the pass brings.
"""

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from benchmarks.compare import HERE, WORLDS, Tree
from benchmarks.machine import CORES
from tacit.compile.pipeline import OPTIONAL


@contextmanager
def without(name: str) -> Iterator[None]:
    """Processes that are started meanwhile skip this pass; none where there is no name."""
    before = os.environ.get("TACIT_SKIP")
    os.environ["TACIT_SKIP"] = name
    try:
        yield
    finally:
        os.environ.pop("TACIT_SKIP")
        if before is not None:
            os.environ["TACIT_SKIP"] = before


def measure(key: str, name: str, rounds: int, threads: int) -> str:
    """Rounds of a workload with all passes, and without this one, in turns: how many times as long the latter take."""
    trees: list[Tree] = []
    try:
        for skipped in ("", name):
            with without(skipped):
                trees.append(Tree(HERE, WORLDS[key], threads))
        for turn in range(rounds):
            for tree in trees if turn % 2 else reversed(trees):
                tree.round()
        if any("is not recorded" in tree.worker.last_errors() for tree in trees):
            return "refused: the plain program ran"
        whole, less = trees
        return f"{ratio(whole.seconds, less.seconds):.3f} ({ratio(whole.processor, less.processor):.3f})"
    finally:
        for tree in trees:
            tree.worker.close()


def ratio(whole: Sequence[float], less: Sequence[float]) -> float:
    """Of medians: how many times as long a round takes without the pass."""
    short, long = statistics.median(whole), statistics.median(less)
    return long / short if short else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure rounds without each pass of the compiler.")
    parser.add_argument("--workloads", default="a,d1", help=f"of {', '.join(WORLDS)}")
    parser.add_argument("--passes", default=",".join(OPTIONAL), help="those to go without, one at a time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=CORES)
    given = parser.parse_args(arguments)
    workloads, passes = given.workloads.split(","), given.passes.split(",")
    if unknown := [*(set(passes) - set(OPTIONAL)), *(set(workloads) - set(WORLDS))]:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    os.environ.pop("OMP_NUM_THREADS", None)
    table = Table(title="times as long without the pass: seconds (processor time)")
    for column in ("pass", *workloads):
        table.add_column(column)
    for name in passes:
        row = []
        for key in workloads:
            row.append(measure(key, name, given.rounds, given.threads))
            Console().print(f"{name}, {key}: {row[-1]}")
        table.add_row(name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
