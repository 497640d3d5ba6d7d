"""Time and memory of a round against cohort, population, parameters, local steps and threads.

Every point is measured in a process of its own, one after the other.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.machine import CORES, machine
from benchmarks.scaling_point import BATCH, Point
from tacit.compile.kernels import compiled
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series, write_png
from tacit.simulation.chunks import COMPILED_MOST, MOST

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


@dataclass(frozen=True)
class Curve:
    """A quantity, the points it is measured at (its value and the rest), and what the page says of it."""

    name: str
    points: tuple[tuple[int, Point], ...]
    expected: str
    about: str


MANY = COMPILED_MOST if compiled() else MOST


def _weights(hidden: int) -> int:
    return 784 * hidden + hidden + hidden * 10 + 10


_USUAL = Point(threads=CORES)
_PERSONAL = replace(_USUAL, inputs=64, rows=2, personal=True)
_FEW = replace(_USUAL, cohort=10, population=200, rounds=5)
CURVES = (
    Curve(
        "Cohort",
        tuple((n, replace(_USUAL, cohort=n)) for n in (10, 30, 100, 300, 1000, 3000, 5000)),
        "time linear, memory flat once chunks are full",
        f"A recorded program has a fixed number of clients (at most {MANY} here), and each core runs one at a time. "
        f"Below {MANY * CORES} clients programs are smaller, so that every core has work; operations cost more for "
        "each client there, so the curve is flatter. Above, a round is that many more chunks. A chunk's clients are "
        "gone from memory when its sum is taken.",
    ),
    Curve(
        "Population",
        tuple((n, replace(_PERSONAL, population=n)) for n in (1000, 10_000, 100_000, 1_000_000)),
        "time flat, memory linear in the data alone",
        "Ditto, 7,510 parameters, cohort 100, states in a sparse file: only clients that took part have blocks on "
        "disk. What grows with the population is its data (three rows of 64 bytes a client here), names, and a few "
        "numbers for each client; drawing a cohort looks at all of them, which is what bends the curve at a million.",
    ),
    Curve(
        "Parameters",
        tuple((_weights(h), replace(_FEW, hidden=h)) for h in (12, 126, 1258, 12_580)),
        "linear once the fixed cost of a round is small",
        "Cohort 10. Small models pay for operations, not for numbers. From about a million parameters a chunk "
        "leaves the cache, each step makes passes through memory over every client's weights, and a chunk has "
        "fewer clients (never fewer than four in a recorded program).",
    ),
    Curve(
        "Local steps",
        tuple((n, replace(_USUAL, steps=n)) for n in (1, 2, 5, 10, 50, 100, 128, 129, 200, 500, 2000)),
        "time linear, memory flat",
        "Every step is one pass over the client's ten rows, so the first layer is kept as shares of them and a step "
        "costs little: time grows slower than steps. Fewer than four steps do not pay for that, and go through all "
        "weights each time: one or two take longer than five. A recorded program holds what its steps need, so its "
        "memory grows with them; programs of more than 128 steps are loops over 24 to 40 of them, which begin and end "
        "those shares anew each time.",
    ),
    Curve(
        "Threads",
        tuple((n, replace(_USUAL, cohort=300, threads=n)) for n in range(1, CORES + 1)),
        "time inversely linear up to the cores",
        "A thread takes whole chunks; they share memory and the last level of cache, not a lock. What does not get "
        "faster is what one thread does for all: drawing rows, handing out chunks, adding up, noise, the server.",
    ),
)


def measure(point: Point) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scaling_point", json.dumps(asdict(point))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{point} failed:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def slopes(values: Sequence[float], of: Sequence[float]) -> list[str]:
    """Between neighbours on logarithmic axes: 1 is linear, 0 is flat."""
    pairs = zip(values, values[1:], of, of[1:], strict=False)
    return ["", *(f"{math.log(d / c) / math.log(b / a):.2f}" for a, b, c, d in pairs)]


Found = list[dict[str, float]]
HEADINGS = ("", "Seconds a round", "Growth", "Peak memory", "Growth", "States on disk")


def rows(curve: Curve, found: Found) -> list[tuple[str, ...]]:
    at = [value for value, _ in curve.points]
    seconds, peaks = ([each[key] for each in found] for key in ("seconds", "peak"))
    columns = zip(at, found, slopes(at, seconds), slopes(at, peaks), strict=True)
    return [
        (
            f"{value:,}",
            f"{each['seconds']:.4f}",
            time_growth,
            f"{each['peak'] / 2**20:,.0f} MiB",
            memory_growth,
            f"{each['disk'] / 2**20:,.1f} MiB" if each["disk"] else "",
        )
        for value, each, time_growth, memory_growth in columns
    ]


def markdown(all_found: dict[str, Found]) -> str:
    usual = Point()
    parts = []
    for curve in CURVES:
        head = (curve.name, *HEADINGS[1:])
        lines = [head, ("---:",) * len(head), *rows(curve, all_found[curve.name])]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"## {curve.name}\n\nExpected: {curve.expected}.\n\n{table}\n\n{curve.about}")
    body = "\n\n".join(parts)
    return f"""# How time and memory grow

Written by `python -m benchmarks.scaling`; do not edit.

![Seconds and memory of a round against five quantities](scaling.png)

DP-FedAvg unless a curve says otherwise: cohorts of {usual.cohort} out of {usual.population:,}, {usual.steps} local
steps on batches of {BATCH}, MLP 784-{usual.hidden}-10, central plan, {CORES} threads; medians of {usual.rounds} rounds.
Growth is the slope between neighbouring points on logarithmic axes: 1 is linear, 0 is flat. Peak memory is the largest
resident size of the process over its whole life, with Python, torch and the data.

{body}

{machine()}.
"""


def draw(all_found: dict[str, Found], path: Path) -> None:
    """Time and memory against each quantity; a grey line shows linear growth from the last point."""
    figures = []
    for curve in CURVES:
        at, found = [float(value) for value, _ in curve.points], all_found[curve.name]
        panels = [
            _panel(at, [each["seconds"] for each in found], curve.name, "seconds a round"),
            _panel(at, [each["peak"] / 2**20 for each in found], curve.name, "peak memory, MiB"),
        ]
        figures.append(Figure(curve.name, "", panels, curve.name))
    write_png(figures, path)


def _panel(at: Sequence[float], values: Sequence[float], name: str, what: str) -> Panel:
    sign = -1 if name == "Threads" else 1
    linear = [values[-1] * (x / at[-1]) ** sign for x in at]
    series = [
        Series("measured", at, values, PALETTE[0], mark="filled"),
        Series("linear" if sign == 1 else "inversely linear", at, linear, NEUTRAL, style="dash", width=1.2),
    ]
    return Panel("", name.lower(), what, series, log="xy", y_range=(0.5 * min(values), 2 * max(values)), height=2.8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for scaling.md, scaling.json and scaling.png")
    options = parser.parse_args()
    found = {curve.name: [measure(point) for _, point in track(curve.points, curve.name.lower())] for curve in CURVES}
    console = Console()
    for curve in CURVES:
        table = Table(curve.name, *HEADINGS[1:])
        for row in rows(curve, found[curve.name]):
            table.add_row(*row)
        console.print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.md").write_text(markdown(found))
    (options.out / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, options.out / "scaling.png")
    console.print(f"written: {options.out}/scaling.md, scaling.json, scaling.png")


if __name__ == "__main__":
    main()
