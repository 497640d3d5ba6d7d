"""What a page of PrivateFL shows: every accuracy in the ways that `privatefl_cell` names, beside the paper's one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from papers.bench import Cell, Runner
from papers.page import Results, plus_minus
from papers.privatefl.cell import VALIDATION_SEEDS, measure, validate
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
    options: Sequence["Line"] = ()  # instead of itself: the one that is best on validation rows
    own_method: bool = False  # only world and settings are those of the best option
    shared: bool = False  # (a) is that of the shared model, without what a client tunes on top of it
    home: World | None = None  # whose training alone it stands beside, if not its own world's

    @property
    def beside(self) -> World:
        return self.home or self.world

    @property
    def layered(self) -> bool:
        return self.arm.transform is not None and not self.shared


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
    return [_row(bench, choose(bench, line)) for line in lines]


def _row(bench: Runner, line: Line) -> Row:
    cells = [measure(bench, line.world, line.arm, line.tuned, seed) for seed in range(bench.seeds)]
    return Row(line, [_of_shared(cell) for cell in cells] if line.shared else cells)


def _of_shared(cell: Cell) -> Cell:
    return cell | {"own": cell["shared_on_own"], "worst": cell["shared_worst"]}


def choose(bench: Runner, line: Line) -> Line:
    """The line with the settings of its best option: by (a) of the shared model on validation rows."""
    if not line.options:
        return line

    def score(option: Line) -> float:
        cells = [validate(bench, option.world, option.arm, option.tuned, seed) for seed in VALIDATION_SEEDS]
        return float(np.mean([cell["shared_on_own"] for cell in cells]))

    best = max(line.options, key=score)
    arm = line.arm if line.own_method else line.arm.changed(method=best.arm.method)
    return replace(line, world=best.world, arm=arm, tuned=replace(best.tuned, rounds=line.tuned.rounds), options=())


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
        lines.append([name, _method_of(row.line), *map(str, numbers), f"{seconds:.1f}"])
    heads = ["", "method", "rounds", "lr", "clip", "batch", "epochs", "server lr", "rate", "pace", "processor seconds"]
    return Results("Settings", heads, lines, f"{note} {_seeds(rows)}")


def _method_of(line: Line) -> str:
    """What is not in the other columns: the projection, the model, the method's own options."""
    how = line.world.data.get("normalise", {})
    model = {**line.world.model, **line.arm.model}
    inputs = f"{how['project']} components" if "project" in how else ""
    inputs += f", whitened {how['whiten']:g}" if "whiten" in how else ""
    network = "-".join(map(str, model.get("hidden", ()))) if model["name"] == "mlp" else ""
    base = line.arm.method.get("base", line.arm.method["name"])
    own = [f"{key} {line.arm.method[key]:g}" for key in ("offset", "sharpness", "passes") if key in line.arm.method]
    return ", ".join(each for each in (str(base), inputs, network, *own) if each)


def _seeds(rows: Sequence[Row]) -> str:
    most = max(len(row.cells) for row in rows)
    if most == 1:
        return "One seed: no spread is known."
    fewest = min(len(row.cells) for row in rows)
    said = f"{most} seeds" if fewest == most else f"{most} seeds where a figure has ±, else {fewest}"
    return f"{said}; ± is the standard deviation over seeds."
