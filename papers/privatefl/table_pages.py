"""A page for each of the paper's other tables: its rows, training alone beside them, and what that says of the gain."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from papers.bench import Reproduction, Runner
from papers.page import Part
from papers.privatefl.cell import ALONE
from papers.privatefl.tables import LAYERED, TABLES, Table
from papers.privatefl.tuned import OWN
from papers.privatefl.views import CHOSEN_ONCE, PART, WAYS, Line, Row, run, settings, table

NOTE: Final = CHOSEN_ONCE.format("row")
BY_ROW: Final = """Settings of rows on few components were chosen at each epsilon, by (a) of the shared model on
validation rows of a seed that is not reported, among those that `papers/privatefl/few_numbers.py` lists; the
others:"""


def make(tables: Sequence[Table], bench: Runner) -> list[Part]:
    parts: list[Part] = [WAYS]
    every: list[Row] = []
    for each in tables:
        lines = [line for line in each.lines if bench.full or each.few(line)]
        seeded = replace(bench, seeds=max(bench.seeds, each.seeds))
        rows = run(seeded, lines)
        alone = run(replace(bench, seeds=max(bench.seeds, each.alone)), baselines(lines))
        part = PART if len(lines) < len(each.lines) else ""
        said = [text for text in (gained(rows), verdict(rows, alone), part) if text]
        parts += [table(each.title, [*rows, *alone], each.note), " ".join(said)]
        every += [*rows, *alone]
    chosen = any(line.options for each in tables for line in each.lines)
    return [*parts, settings(every, f"{BY_ROW} {NOTE}" if chosen else NOTE)]


def baselines(lines: Sequence[Line]) -> list[Line]:
    """Training alone, once for every world among the lines."""
    first: list[Line] = []
    for line in lines:
        if all(line.beside != other.beside for other in first):
            first.append(line)
    several = len(first) > 1
    return [
        Line(
            "(c) training alone" + f": {line.name.partition(',')[0]}" * several,
            line.beside,
            ALONE,
            OWN.get(line.beside.name, line.tuned),
        )
        for line in first
    ]


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows that differ in the transform alone: without and with it."""
    plain = {_but_transform(row): row for row in rows if not row.line.layered}
    layered = [(_but_transform(row), row) for row in rows if row.line.layered]
    return [(plain[key], row) for key, row in layered if key in plain]


def _but_transform(row: Row) -> tuple[str, str, str]:
    if row.line.home is not None:  # each was chosen by itself: they have their name in common
        return row.line.home.name, "", row.line.name.removesuffix(LAYERED)
    arm = row.line.arm.changed(transform=None)
    return row.line.world.name, repr(row.line.world.data), f"{row.line.world.clients} {arm}"


def gained(rows: Sequence[Row]) -> str:
    """In plain words: what the transform adds to rows without it; nothing where no two rows can be compared."""
    both = pairs(rows)
    if not both:
        return ""
    gains = {name: [b.mean(name) - a.mean(name) for a, b in both] for name in ("own", "whole")}
    a, b = (
        f"in {sum(gain > 0 for gain in each)} of {len(both)} rows ({sum(each) / len(both):+.3f} in the mean)"
        for each in gains.values()
    )
    return f"The transform raises (a) {a} and (b) {b}."


def verdict(rows: Sequence[Row], alone: Sequence[Row]) -> str:
    """In plain words: how much of what a transform gains a client has without any federation."""
    reached = {id(row): next(a.mean("own") for a in alone if a.line.world == row.line.beside) for row in rows}
    layered = [row for row in rows if row.line.layered]
    above = [row for row in layered if row.mean("own") > reached[id(row)]]
    told = "what the transform gains in (a) is personalization, which a client has without any federation."
    if not above:
        return f"No row with a transform is above training alone: {told}"
    if len(above) == len(layered):
        return "Every row with a transform is above training alone: the federation adds to personalization."
    return f"Rows with a transform that are above training alone: {len(above)} of {len(layered)}. In the others {told}"


PAGES: Final = {
    f"privatefl/{name}": Reproduction(
        f"privatefl/{name}",
        tables[0].title.partition(":")[0] + " of PrivateFL",
        "PrivateFL (USENIX Security 2023). Client-level and record-level figures stand in tables of their own.",
        partial(make, tables),
        seeds=1,
        fewest=1,
        cells="privatefl",
    )
    for name, tables in TABLES.items()
}
