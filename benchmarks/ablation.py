"""What each pass and kernel of the compiler brings: rounds of `make bench` without it against rounds with all of them.

    python -m benchmarks.ablation --workloads a,d1 --rounds 30

One run of a workload exchanges its recorded programs round by round, so that whatever else the machine
does weighs on all of them alike. The first is compared with a second run of its own kind: that ratio is the noise. A
variant whose programs are those of the first is not measured: it changes nothing. Results are kept in
`benchmarks/results/ablation.json`, from which `ablation.md` is written; a workload that is measured again replaces its
column, and what was measured of passes that have since been deleted stays.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console

from benchmarks.machine import CORES, machine
from tacit.compile import pipeline, replay
from tacit.compile.kernels import convolution
from tacit.compile.passes import client_loop
from tacit.simulation import cohort_program, rehearsal

sys.path.insert(0, str(Path(__file__).parent / "peers"))  # where the rounds' own imports come from
import tacit_rounds

RESULTS = Path(__file__).resolve().parent / "results"
WORLDS = {
    "a": "mlp",
    "b": "cnn",
    "c": "writers",
    "d1": "ditto-mlp",
    "d2": "ditto-cnn",
    "f": "evaluation",
    "g": "unequal",
}
ROUNDS = {"a": 30, "b": 10, "c": 5, "d1": 24, "d2": 6, "f": 6, "g": 24}
BAR = 1.05
Variant = Callable[[], Any]
"""Makes a context in which one part of the compiler is missing."""


@contextmanager
def without_pass(name: str) -> Iterator[None]:
    passes = tuple(each for each in pipeline.PASSES if each[0] != name)
    with mock.patch.object(pipeline, "PASSES", passes):
        yield


@contextmanager
def unchanged() -> Iterator[None]:
    yield


def without_convolution(name: str) -> Any:
    """The kernel of this name serves nothing; what the direct one can do instead, it does."""
    choose = convolution.kernel

    def other(x: torch.Size, weight: torch.Size, pool: bool) -> str | None:
        chosen = choose(x, weight, pool)
        if chosen != name:
            return chosen
        return "direct" if name == "first" and weight[1:].numel() <= 512 else None

    return mock.patch.object(convolution, "kernel", other)


KERNELS: dict[str, Variant] = {
    "direct.c": partial(without_convolution, "direct"),
    "winograd.c": partial(without_convolution, "winograd"),
    "first.c": partial(without_convolution, "first"),
    "skipped padding": lambda: mock.patch.object(client_loop, "skippable", return_value={}),
}
VARIANTS: dict[str, Variant] = (
    {"(nothing)": unchanged}
    | {name: partial(without_pass, name) for name in dict(pipeline.PASSES) if name != "eliminate_dead_code"}
    | KERNELS
)


def record_unseen(engine: Any, shape: Any, given: Any, sure: bool = False) -> Any:
    """Without a comparison with the plain program: tests do that, without each pass, too."""
    return rehearsal.recorded(engine, shape, given, sure=True)


@dataclass
class Contestant:
    """Programs without one part, and the seconds and processor seconds of rounds with them."""

    context: Variant
    programs: dict[Any, Any]
    texts: list[str]
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def round(self, bench: "Bench") -> None:
        bench.use(self.programs)
        with self.context():
            wall, busy = time.perf_counter(), time.process_time()
            work = bench.one_round() or 1.0
            self.seconds.append((time.perf_counter() - wall) / work)
            self.processor.append((time.process_time() - busy) / work)


class Bench:
    """One run of a workload, whose recorded programs are exchanged between rounds."""

    def __init__(self, key: str) -> None:
        self._runs: list[Any] = []
        prepare = tacit_rounds.prepare

        def keep(world: Any) -> Any:
            self._runs.append(prepare(world))
            return self._runs[-1]

        with mock.patch.object(tacit_rounds, "prepare", keep), self._recording([]):
            self.one_round = tacit_rounds.build(WORLDS[key])
            self.one_round()
        self.engine = self._runs[-1].engine

    @contextmanager
    def _recording(self, texts: list[str]) -> Iterator[None]:
        """What the passes make of a program is also written to `texts`."""

        def simplify(graph: Any) -> Any:
            simplified = pipeline.simplify(graph)
            texts.append(f"{simplified.graph}")
            return simplified

        with (
            mock.patch.object(replay, "simplify", simplify),
            mock.patch.object(cohort_program, "recorded", record_unseen),
        ):
            yield

    def use(self, programs: dict[Any, Any]) -> None:
        self.engine.programs.clear()
        self.engine.programs.update(programs)

    def contestant(self, context: Variant) -> Contestant:
        """Records the run's programs anew, without the part that is missing in this context."""
        texts: list[str] = []
        self.use({})
        with context(), self._recording(texts):
            self.one_round()
        return Contestant(context, dict(self.engine.programs), texts)


def measure(key: str, variants: Sequence[str], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """For each variant how many times as long a round takes without it, or None where it makes no difference."""
    bench = Bench(key)
    whole, others = bench.contestant(unchanged), dict[str, Contestant]()
    for name in ["(nothing)", *variants]:
        other = bench.contestant(VARIANTS[name])
        always = name == "(nothing)"
        changed = other.texts != whole.texts or always
        say(f"{key}: {name} {'is measured' if changed else 'changes nothing'}")
        if changed:
            others[name] = other
    turns = [whole, *others.values()]
    for turn in range(rounds):
        for each in turns if turn % 2 else reversed(turns):
            each.round(bench)
    ratios = {name: compared(whole, other) for name, other in others.items()}
    return {name: ratios.get(name) for name in ["(nothing)", *variants]}


def compared(whole: Contestant, less: Contestant) -> list[float]:
    """Of medians: seconds, and processor time."""
    pairs = (whole.seconds, less.seconds), (whole.processor, less.processor)
    return [round(statistics.median(b) / statistics.median(a), 3) for a, b in pairs]


def table(results: dict[str, Any]) -> str:
    """In Markdown: rows are parts of the compiler, columns workloads."""
    keys = [key for key in WORLDS if key in results["workloads"]]
    names = dict.fromkeys(name for key in keys for name in results["workloads"][key])
    lines = [f"| without | {' | '.join(keys)} |", f"|---|{'---:|' * len(keys)}"]
    for name in names:
        cells = [cell(results["workloads"][key].get(name, "")) for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(ratios: Any) -> str:
    if ratios is None:
        return "same"
    return f"{ratios[1]:.2f} ({ratios[0]:.2f})" if ratios else ""


PAGE = """# What each pass and kernel brings

Written by `python -m benchmarks.ablation`; do not edit.

How many times as long a round takes without it: processor time (seconds). "same": its programs do not change.
"(nothing)" is a second run with everything, so how far it is from 1 is the noise. Workloads are those of
[speed](speed.md); no program is recorded in e, and f only evaluates. What brought less than 5% where it was measured
has been deleted; its row stays. An empty cell was not measured.

{table}

{machine}; commits {commits}. Rounds of each variant: {rounds}. Load average: {load}.
"""


def save(results: dict[str, Any]) -> None:
    (RESULTS / "ablation.json").write_text(json.dumps(results, indent=1) + "\n")
    rounds = ", ".join(f"{key} {count}" for key, count in results["rounds"].items())
    commits = ", ".join(results["commits"])
    load = ", ".join(f"{key} {average:.0f}" for key, average in results["load"].items())
    page = PAGE.format(table=table(results), machine=results["machine"], commits=commits, rounds=rounds, load=load)
    (RESULTS / "ablation.md").write_text(page)


def load() -> dict[str, Any]:
    file = RESULTS / "ablation.json"
    return json.loads(file.read_text()) if file.exists() else {"workloads": {}, "commits": [], "rounds": {}, "load": {}}


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure rounds without each pass and kernel of the compiler.")
    parser.add_argument("--workloads", default=",".join(WORLDS))
    parser.add_argument("--without", default=",".join(list(VARIANTS)[1:]), help="one at a time")
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args(arguments)
    workloads, variants = options.workloads.split(","), [name for name in options.without.split(",") if name]
    if unknown := [*(set(variants) - set(VARIANTS)), *(set(workloads) - set(WORLDS))]:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    torch.set_num_threads(CORES)
    for key in workloads:
        rounds = options.rounds or ROUNDS[key]
        ratios = measure(key, variants, rounds, Console().print)
        results = load()
        results["rounds"][key] = rounds
        results["load"][key] = os.getloadavg()[0]
        results["workloads"].setdefault(key, {}).update(ratios)
        results["machine"] = machine()
        results["commits"] = list(dict.fromkeys([*results["commits"], commit()]))
        save(results)
        Console().print(f"{key}: {ratios}", highlight=False)


if __name__ == "__main__":
    main()
