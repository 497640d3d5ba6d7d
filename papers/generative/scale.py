"""Time and memory of the estimators: a million clients in memory, ten million from a file."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.page import COLORS, Curve, Panel, Part, Picture, Results
from tacit.estimation.shrinkage import GaussianMeans

CLIENTS: Final = (62_500, 125_000, 250_000, 500_000, 1_000_000)
STREAMED: Final = (100_000, 1_000_000)
STREAMED_FULL: Final = (100_000, 1_000_000, 10_000_000)
_CHILD: Final = "from papers.generative.scale import stream; import sys; stream(sys.argv[1], sys.argv[2])"


def make(bench: Runner) -> list[Part]:
    return [*_memory(bench), _file(bench)]


def _memory(bench: Runner) -> list[Part]:
    found = [min(bench.over_seeds({"fit": m}, lambda seed, m=m: fit_time(m))["seconds"]) for m in CLIENTS]
    rows = [[f"{m:,}", f"{s:.2f}", f"{1e6 * s / m:.2f}"] for m, s in zip(CLIENTS, found, strict=True)]
    note = "`GaussianMeans.fit`, prior learned, best of the repetitions, one thread."
    table = Results("Ten dimensions, in memory", ["clients", "seconds", "microseconds a client"], rows, note)
    curves = [Curve("measured", CLIENTS, found, COLORS[0], [0.0] * len(found))]
    curves.append(
        Curve("proportional", CLIENTS, [found[-1] * m / CLIENTS[-1] for m in CLIENTS], "#888888", style="dash")
    )
    return [table, Picture("time", "Cost is linear in clients.", [Panel("", "clients", "seconds", curves, log="xy")])]


def fit_time(clients: int) -> Cell:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(clients, 10)) * 0.2 + 3.0
    start = time.perf_counter()
    GaussianMeans(noise_variance=0.25).fit(x, sizes=15)
    return {"seconds": time.perf_counter() - start}


def _file(bench: Runner) -> Results:
    rows = []
    for m in STREAMED_FULL if bench.full else STREAMED:
        for kind in ("csv", "parquet"):
            bench.console.print(f"  {m:,} clients from {kind}", style="dim")
            found = bench.cell({"stream": m, "kind": kind, "peak": "VmHWM"}, lambda m=m, kind=kind: streamed(m, kind))
            rows.append([f"{m:,} clients, {kind}", f"{found['seconds']:.1f}", f"{found['megabytes']:,.0f}"])
    note = "As `tacit estimate rates` does it, with eps0 = 1, in a process of its own; pictures not counted."
    return Results("From a file to a file", ["", "seconds", "peak memory, MB"], rows, note)


def streamed(clients: int, kind: str) -> Cell:
    """Writes a table, estimates from it in a process of its own, and asks that for time and peak memory."""
    with tempfile.TemporaryDirectory() as place:
        table, out = Path(place) / f"in.{kind}", Path(place) / f"out.{kind}"
        _write(table, clients)
        made = [sys.executable, "-c", _CHILD, str(table), str(out)]
        done = subprocess.run(
            made, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        seconds, megabytes = map(float, done.stdout.split()[-2:])
    return {"seconds": seconds, "megabytes": megabytes}


def stream(table: str, out: str) -> None:
    """Prints seconds and the peak memory of this process in megabytes."""
    from tacit.estimation.bernoulli import BernoulliRates
    from tacit.estimation.messages import RandomisedResponse
    from tacit.estimation.tables import rates

    start = time.perf_counter()
    rates(BernoulliRates(message=RandomisedResponse(1.0)), Path(table), "county", "wins", "n", Path(out))
    print(time.perf_counter() - start, peak_megabytes())


def peak_megabytes() -> float:
    """Of this process since it began; where /proc is missing, of its beginnings in the parent as well."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write(path: Path, clients: int, chunk: int = 500_000) -> None:
    import pandas as pd

    from tacit.estimation.tables import Writer

    draw = np.random.default_rng(0)
    with Writer(path) as writer:
        for start in range(0, clients, chunk):
            m = min(chunk, clients - start)
            n = draw.integers(2, 40, m)
            names = [f"client-{start + at}" for at in range(m)]
            writer.write(pd.DataFrame({"county": names, "wins": draw.binomial(n, draw.beta(4, 4, m)), "n": n}))


REPRODUCTION: Final = Reproduction(
    name="estimation/scale",
    title="Personal estimates: time and memory",
    paper="Not in the paper: what this implementation costs.",
    make=make,
    seeds=3,
)
