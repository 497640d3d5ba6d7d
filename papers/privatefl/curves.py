"""A figure of the paper as a page: a table and a panel for each view, and in plain words what they say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from papers.bench import Runner
from papers.page import COLORS, Curve, Panel, Part, Picture, Results
from papers.privatefl.views import CHOSEN_ONCE, PART, WAYS, Line, Row, run, settings

PLAIN, LAYERED, OWN = "FedAvg", "with the transform", "(c) training alone"
NAMES: Final = {
    "own": "(a) own model, own classes",
    "whole": "(b) shared model, whole test set",
    "emd": "mean earth mover's distance",
    "loss": "test loss of the shared model",
}
HETEROGENEITY: Final = """**Heterogeneity.** In every round each client's own model has a mean loss on its training
rows; over the rounds these are one distribution for each client. Shown is the earth mover's distance between two
clients' distributions, mean over all pairs. It can be measured in a simulation only."""


@dataclass(frozen=True)
class Series:
    """One curve: a line for each place on the x axis; a single line is a level that does not depend on it."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class View:
    """One panel: the figure `y` of every line over `x`, or over another of its figures. `level`: the guarantee."""

    title: str
    x_title: str
    x: Sequence[float] | str
    y: str
    series: Sequence[Series]
    level: str = ""

    @property
    def named(self) -> str:
        return f"{self.title}, {self.level}" if self.level else self.title

    def shows(self, *figures: str) -> bool:
        return self.y in figures or self.x in figures


@dataclass(frozen=True)
class Figure:
    title: str
    views: Sequence[View]
    few: Sequence[View] = ()  # instead of them, unless at the paper's size
    note: str = ""


def make(figure: Figure, bench: Runner) -> list[Part]:
    views = figure.views if bench.full or not figure.few else figure.few
    done = [(view, [run(bench, series.lines) for series in view.series]) for view in views]
    tables = [_table(view, rows) for view, rows in done]
    picture = Picture("curves", figure.title, [_panel(view, rows) for view, rows in done])
    every = {id(row.line): (name, row) for view, several in done for name, row in _named(view, several)}
    names, rows = zip(*every.values(), strict=True)
    note = CHOSEN_ONCE.format("point")
    part = PART if views is figure.few else ""
    said = [text for text in (*_defined(views), figure.note, part) if text]
    return [*said, *tables, *told(done), picture, settings(rows, note, names)]


def _named(view: View, several: Sequence[Sequence[Row]]) -> Iterator[tuple[str, Row]]:
    """Rows by the view, the curve and the point they are on."""
    for series, rows in zip(view.series, several, strict=True):
        for row in rows:
            yield f"{view.title}, {series.name}: {row.line.name}", row


def _defined(views: Sequence[View]) -> list[str]:
    """What the figures on the page mean."""
    accuracy = any(view.shows("own", "whole") for view in views)
    return [WAYS] * accuracy + [HETEROGENEITY] * any(view.shows("emd") for view in views)


Done = Sequence[tuple[View, Sequence[Sequence[Row]]]]


def told(done: Done) -> list[str]:
    """In plain words: where the transform makes clients more alike, and what its gain has beyond training alone."""
    alike, gains = [], []
    for view, several in done:
        rows = dict(zip((series.name for series in view.series), several, strict=True))
        if view.shows("emd") and PLAIN in rows and LAYERED in rows:
            alike.append(f"{view.title}: {_lower(rows[PLAIN], rows[LAYERED])}.")
        if view.shows("own") and OWN in rows:
            gains.append(f"{view.title}: {_higher(rows[PLAIN], rows[LAYERED], rows[OWN][0])}.")
    first = "Heterogeneity with the transform; the paper finds it lower everywhere."
    second = "(a) with the transform; what training alone has, too, is personalization without a federation."
    return [" ".join([head, *lines]) for head, lines in ((first, alike), (second, gains)) if lines]


def _lower(plain: Sequence[Row], layered: Sequence[Row]) -> str:
    lower = sum(with_it.mean("emd") < without.mean("emd") for without, with_it in zip(plain, layered, strict=True))
    return f"lower in {lower} of {len(plain)} points"


def _higher(plain: Sequence[Row], layered: Sequence[Row], alone: Row) -> str:
    higher = sum(with_it.mean("own") > without.mean("own") for without, with_it in zip(plain, layered, strict=True))
    beyond = sum(with_it.mean("own") > alone.mean("own") for with_it in layered)
    return f"above FedAvg in {higher}, above training alone in {beyond} of {len(plain)} points"


def _table(view: View, several: Sequence[Sequence[Row]]) -> Results:
    """A row for each curve; where x is a figure, too, a row for each point."""
    if isinstance(view.x, str):
        points = [
            [f"{series.name}: {row.line.name}", row.text(view.x), row.text(view.y)]
            for series, rows in zip(view.series, several, strict=True)
            for row in rows
        ]
        return Results(view.named, ["", NAMES[view.x], NAMES[view.y]], points)
    if view.y == "loss":
        ends = [[s.name, *(f"{at:.3f}" for at in _path(rows[0]))] for s, rows in zip(view.series, several, strict=True)]
        return Results(f"{view.named}: {NAMES['loss']}", ["", *(f"{x:g}" for x in view.x)], ends)
    rows = [
        [series.name, *(row.text(view.y) for row in ([*rows] * len(view.x) if len(rows) == 1 else rows))]
        for series, rows in zip(view.series, several, strict=True)
    ]
    return Results(f"{view.named}: {NAMES[view.y]}", [view.x_title, *(f"{x:g}" for x in view.x)], rows)


def _panel(view: View, several: Sequence[Sequence[Row]]) -> Panel:
    curves = [
        _repeated(_curve(view, series.name, rows, COLORS[at % len(COLORS)]), at)
        for at, (series, rows) in enumerate(zip(view.series, several, strict=True))
    ]
    return Panel(view.title, view.x_title, NAMES[view.y], curves)


def _repeated(curve: Curve, at: int) -> Curve:
    """Dotted where its colour is there already."""
    return curve if at < len(COLORS) else replace(curve, style="dot")


def _curve(view: View, name: str, rows: Sequence[Row], color: str) -> Curve:
    if view.y == "loss":
        assert not isinstance(view.x, str)
        return Curve(name, view.x, _path(rows[0]), color)
    if isinstance(view.x, str):
        return Curve(
            name,
            [row.mean(view.x) for row in rows],
            [row.mean(view.y) for row in rows],
            color,
            style="none",
            mark="filled",
        )
    y = [row.mean(view.y) for row in rows]
    if len(rows) == 1:  # a baseline
        return Curve(name, view.x, y * len(view.x), color, style="dash")
    if len(rows[0].cells) == 1:  # of one seed no spread is known
        return Curve(name, view.x, y, color)
    return Curve(name, view.x, y, color, [row.spread(view.y) for row in rows])


def _path(row: Row) -> list[float]:
    """Over rounds, mean of the seeds."""
    return np.mean([cell["losses"] for cell in row.cells], axis=0).tolist()
