"""What a page of PrivateFL shows: every accuracy in the ways that `privatefl_cell` names, beside the paper's one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from papers.bench import Cell, Runner
from papers.page import Results, plus_minus
from papers.privatefl.cell import measure
from papers.privatefl.recipe import Arm, Tuned, World

HEADS: Final = (
    "paper",
    "(a) own model, own classes",
    "worst tenth",
    "(b) shared model, whole test set",
    "epsilon spent",
)
CHOSEN: Final = "Chosen on validation rows: `python -m papers run privatefl/selection`."
CHOSEN_ONCE: Final = (
    "Chosen on validation rows for the task (`python -m papers run privatefl/selection`), not anew for each {}."
)
WAYS: Final = """**Three ways to say an accuracy.** (a) Each client's own model, its transform included, on test rows of
its own classes, mean over clients, after the last round: this is what the authors call the global model's accuracy
(they take the round that was best on test rows). (b) The shared model on the whole test set; a transform is no part of
it and is reset to its start, which is the identity unless a row says otherwise. (c) The same as (a) for training alone,
without any federation: what personalization reaches by itself. A personal layer makes (a) easy where a client holds two
classes: compare it with (c)."""

PART: Final = "This is part of what the paper has: `--full` runs the rest, too, which nobody has done yet."


@dataclass(frozen=True)
class Line:
    """A row of a table: what is run, and the paper's figure for it."""

    name: str
    world: World
    arm: Arm
    tuned: Tuned
    paper: float | None = None
    emd: float | None = None  # the paper's heterogeneity, where it prints one


@dataclass(frozen=True)
class Row:
    line: Line
    cells: Sequence[Cell]

    def mean(self, name: str) -> float:
        return float(np.mean([cell[name] for cell in self.cells]))

    def spread(self, name: str) -> float:
        """Standard deviation over seeds; 0 of one."""
        values = [cell[name] for cell in self.cells]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    def text(self, name: str) -> str:
        """With its spread over seeds, where there are several."""
        if len(self.cells) == 1:
            return f"{self.mean(name):.3f}"
        return plus_minus(self.mean(name), self.spread(name), 3)


def run(bench: Runner, lines: Sequence[Line]) -> list[Row]:
    return [
        Row(line, [measure(bench, line.world, line.arm, line.tuned, seed) for seed in range(bench.seeds)])
        for line in lines
    ]


def table(title: str, rows: Sequence[Row], note: str = "") -> Results:
    """With columns for heterogeneity where the paper prints it."""
    if not any(row.line.emd for row in rows):
        return Results(title, ["", *HEADS], [_cells(row) for row in rows], note)
    heads = ["", *HEADS, "heterogeneity (EMD): paper", "ours"]
    return Results(title, heads, [[*_cells(row), *_distances(row)] for row in rows], note)


def _distances(row: Row) -> list[str]:
    return ["-", "-"] if row.line.emd is None else [f"{row.line.emd:.3f}", row.text("emd")]


def _cells(row: Row) -> list[str]:
    alone = row.line.arm.kind == "open"
    paper = "-" if row.line.paper is None else f"{row.line.paper:.3f}"
    return [
        row.line.name,
        paper,
        row.text("own"),
        f"{row.mean('worst'):.3f}",
        "-" if alone else row.text("whole"),
        "nothing leaves" if alone else _spent(row),
    ]


def _spent(row: Row) -> str:
    spent = row.cells[0]["spent"]
    name, value = next(iter(spent.items()))
    return f"{value:.2f} ({name.upper()})"


def targets(lines: Sequence[tuple[str, float, float]]) -> Results:
    """Each target beside our figure, and whether it was met."""
    rows = [
        [name, f"{target:.3f}", f"{value:.3f}", f"{value - target:+.3f}", "yes" if value >= target else "NO"]
        for name, value, target in lines
    ]
    return Results("Targets", ["", "target, at least", "ours", "difference", "met"], rows)


def settings(rows: Sequence[Row], note: str = CHOSEN, names: Sequence[str] | None = None) -> Results:
    """What each row was trained with; `names` where those of their lines do not tell them apart."""
    lines = []
    for row, name in zip(rows, names or [row.line.name for row in rows], strict=True):
        t = row.line.tuned
        numbers = (
            t.rounds,
            f"{t.lr:g}",
            f"{t.clip:g}",
            t.batch,
            t.epochs,
            f"{t.server_lr:g}",
            f"{t.rate:g}",
            f"{t.pace:g}",
        )
        seconds = np.median([cell["seconds"] for cell in row.cells])
        lines.append([name, *map(str, numbers), f"{seconds:.0f}"])
    heads = ["", "rounds", "lr", "clip", "batch", "epochs", "server lr", "rate", "pace", "processor seconds"]
    return Results("Settings", heads, lines, f"{note} {_seeds(rows)}")


def _seeds(rows: Sequence[Row]) -> str:
    most = max(len(row.cells) for row in rows)
    return "One seed: no spread is known." if most == 1 else f"{most} seeds; ± is their standard deviation."
