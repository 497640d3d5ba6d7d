"""PrivateFL on one page: of every table, how its rows stand to the paper's and to training alone. From kept cells."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from papers.bench import NotRun, Reproduction, Runner
from papers.page import Part, Results
from papers.privatefl.table_pages import baselines, pairs
from papers.privatefl.tables import TABLES, Table
from papers.privatefl.views import Row, run

HEADS: Final = (
    "",
    "seeds",
    "rows",
    "(a) at least the paper's",
    "(a), mean: paper",
    "ours",
    "with the transform: above training alone",
    "what the transform adds to (a)",
    "to (b)",
)


def make(bench: Runner) -> list[Part]:
    named = [(name, each) for name, tables in TABLES.items() for each in tables]
    units: dict[str, list[list[str]]] = {unit: [] for unit in ("client-level", "record-level")}
    for name, each in named:
        unit = "record-level" if each.lines[0].arm.kind == "record" else "client-level"
        units[unit].append(_line(name, each, kept(bench, each)))
    return [_ABOUT, *(Results(unit.capitalize(), list(HEADS), lines) for unit, lines in units.items()), _FIGURES]


def kept(bench: Runner, table: Table) -> tuple[list[Row], list[Row]] | None:
    """The table's rows and training alone over as many seeds as have been run: whole, or as far as its page goes."""
    sizes = (table.lines, [line for line in table.lines if table.few(line)])
    for lines, seeds in ((lines, seeds) for lines in sizes for seeds in range(max(bench.seeds, table.seeds), 0, -1)):
        with suppress(NotRun):
            some = replace(bench, seeds=seeds, only_kept=True)
            return run(some, lines), run(replace(some, seeds=1), baselines(lines))
    return None


def _line(name: str, table: Table, found: tuple[list[Row], list[Row]] | None) -> list[str]:
    title = f"[{table.title}](privatefl-{name}.md)"
    if found is None:
        return [title, "not run", *[""] * (len(HEADS) - 2)]
    rows, alone = found
    printed = [(row.line.paper, row.mean("own")) for row in rows if row.line.paper is not None]
    layered = [row for row in rows if row.line.layered]
    reached = {id(row): next(each.mean("own") for each in alone if each.line.world == row.line.beside) for row in rows}
    above = sum(row.mean("own") > reached[id(row)] for row in layered)
    return [
        title,
        str(len(rows[0].cells)),
        str(len(rows)),
        f"{sum(own >= paper for paper, own in printed)} of {len(printed)}" if printed else "-",
        *(f"{sum(pair[at] for pair in printed) / len(printed):.3f}" if printed else "-" for at in (0, 1)),
        f"{above} of {len(layered)}",
        *(_gain(rows, which) for which in ("own", "whole")),
    ]


def _gain(rows: Sequence[Row], which: str) -> str:
    """Mean difference between rows that differ in the transform alone."""
    gains = [with_it.mean(which) - without.mean(which) for without, with_it in pairs(rows)]
    return f"{sum(gains) / len(gains):+.3f}" if gains else "-"


_ABOUT: Final = """(a): each client's own model on test rows of its own classes, after the last round, as the authors
measure it (they take the best round on test rows). (b): the shared model on the whole test set, transforms reset. Every
epsilon is composed over all rounds with one clip for the whole upload; the authors clip and noise every tensor and
account one. Table 11 at client level and CH-MNIST send class means of few numbers (`prototypes`).
A target that names a figure stands on the page of its data: [CLIP features](privatefl-cifar10-clip.md),
[MNIST](privatefl-mnist.md), [noise in shares](privatefl-distributed.md)."""
_FIGURES: Final = """Figures: [1](privatefl-figure-1.md), [3](privatefl-figure-3.md), [5](privatefl-figure-5.md),
[6](privatefl-figure-6.md), [7](privatefl-figure-7.md), [8](privatefl-figure-8.md); samples before and after the
transform: [9, of MNIST](privatefl-pictures.md). [CH-MNIST](privatefl-chmnist.md) and all of [Table
6](privatefl-table-6.md) through encoders. [The authors' own epsilon](privatefl-as-published.md), as it holds.
Settings and what was tried beside them: [selection](privatefl-selection.md). One task under every plan: [trust
models](privatefl-trust-models.md)."""

REPRODUCTION: Final = Reproduction(
    "privatefl",
    "PrivateFL, measured again",
    "PrivateFL (USENIX Security 2023). From the cells of its pages; nothing is run here.",
    make,
    seeds=2,
    fewest=1,
    cells="privatefl",
)
