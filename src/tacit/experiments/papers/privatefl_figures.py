"""The paper's figures: accuracy or heterogeneity of several arms, over epsilon, classes of a client, or each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from tacit.experiments.papers.privatefl_cell import ALONE
from tacit.experiments.papers.privatefl_recipe import (
    CHMNIST,
    CLIP,
    CLIP_SCALED,
    FASHION,
    LAYER,
    LOCATION,
    MNIST,
    Arm,
    Kind,
    Tuned,
    World,
    holding,
)
from tacit.experiments.papers.privatefl_tuned import CHOSEN, OWN, Chosen
from tacit.experiments.papers.privatefl_views import WAYS, Line, Row, run, settings
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import COLORS, Curve, Panel, Part, Picture, Results

EPSILONS: Final = (2.0, 4.0, 6.0, 8.0)
CLASSES: Final = (2, 4, 6, 8, 10)
PLAIN, LAYERED = "FedAvg", "with the transform"
TEN_DELTA: Final = 1e-5  # with ten clients: one has 6,000 records, and delta is below one in them
FEW: Final = 20  # rounds of a figure on heterogeneity, unless at the paper's size
NO_NOISE: Final = Arm("open", heterogeneity=True)  # at the central plan's rates: the record plan's want clipping
UNITS: Final = {"central": "client-level", "record": "record-level", "distributed": "client-level, noise in shares"}
NAMES: Final = {
    "own": "(a) own model, own classes",
    "whole": "(b) shared model, whole test set",
    "emd": "mean earth mover's distance",
    "loss": "test loss of the shared model",
}


@dataclass(frozen=True)
class Series:
    """One curve: a line for each place on the x axis; a single line is a level that does not depend on it."""

    name: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class View:
    """One panel: the figure `y` of every line over `x`, or over another of its figures."""

    title: str
    x_title: str
    x: Sequence[float] | str
    y: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Figure:
    title: str
    views: Sequence[View]
    few: Sequence[View] = ()  # instead of them, unless at the paper's size


def make(figure: Figure, bench: Bench) -> list[Part]:
    views = figure.views if bench.full or not figure.few else figure.few
    done = [(view, [run(bench, series.lines) for series in view.series]) for view in views]
    tables = [_table(view, rows) for view, rows in done]
    picture = Picture("curves", figure.title, [_panel(view, rows) for view, rows in done])
    every = {id(row.line): row for _, several in done for rows in several for row in rows}
    note = "Chosen on validation rows for the task (`tacit reproduce privatefl/selection`), not anew for each point."
    return [WAYS, *tables, *told(done), picture, settings(list(every.values()), note)]


Done = Sequence[tuple[View, Sequence[Sequence[Row]]]]


def told(done: Done) -> list[str]:
    """In plain words: where the transform makes clients more alike, and where it does not."""
    lines = []
    for view, several in done:
        by_name = dict(zip((series.name for series in view.series), several, strict=True))
        if "emd" in (view.x, view.y) and PLAIN in by_name and LAYERED in by_name:
            pairs = [(a.mean("emd"), b.mean("emd")) for a, b in zip(by_name[PLAIN], by_name[LAYERED], strict=True)]
            fewer = sum(with_it < without for without, with_it in pairs)
            lines.append(f"{view.title}: with the transform heterogeneity is lower in {fewer} of {len(pairs)} points.")
    if not lines:
        return []
    return [" ".join(["The paper finds it lower everywhere.", *lines])]


def _table(view: View, several: Sequence[Sequence[Row]]) -> Results:
    """A row for each curve; where x is a figure, too, a row for each point."""
    if isinstance(view.x, str):
        points = [
            [f"{series.name}: {row.line.name}", row.text(view.x), row.text(view.y)]
            for series, rows in zip(view.series, several, strict=True)
            for row in rows
        ]
        return Results(view.title, ["", NAMES[view.x], NAMES[view.y]], points)
    if view.y == "loss":
        ends = [[s.name, *(f"{at:.3f}" for at in _path(rows[0]))] for s, rows in zip(view.series, several, strict=True)]
        return Results(f"{view.title}: {NAMES['loss']}", ["", *(f"{x:g}" for x in view.x)], ends)
    rows = [
        [series.name, *(row.text(view.y) for row in ([*rows] * len(view.x) if len(rows) == 1 else rows))]
        for series, rows in zip(view.series, several, strict=True)
    ]
    return Results(f"{view.title}: {NAMES[view.y]}", [view.x_title, *(f"{x:g}" for x in view.x)], rows)


def _panel(view: View, several: Sequence[Sequence[Row]]) -> Panel:
    curves = [
        _curve(view, series.name, rows, COLORS[at % len(COLORS)])
        for at, (series, rows) in enumerate(zip(view.series, several, strict=True))
    ]
    return Panel(view.title, view.x_title, NAMES[view.y], curves)


def _curve(view: View, name: str, rows: Sequence[Row], color: str) -> Curve:
    if view.y == "loss":
        assert not isinstance(view.x, str)
        return Curve(name, view.x, _path(rows[0]), color)
    if isinstance(view.x, str):
        return Curve(name, [row.mean(view.x) for row in rows], [row.mean(view.y) for row in rows], color, marks=True)
    y = [row.mean(view.y) for row in rows]
    if len(rows) == 1:  # a baseline
        return Curve(name, view.x, y * len(view.x), color, style="dash")
    return Curve(name, view.x, y, color, [row.spread(view.y) for row in rows])


def _path(row: Row) -> list[float]:
    """Over rounds, mean of the seeds."""
    return np.mean([cell["losses"] for cell in row.cells], axis=0).tolist()


def _short(world: World, kind: Kind) -> Chosen:
    chosen = CHOSEN[world.name, kind]
    return Chosen(*(replace(each, rounds=min(each.rounds, FEW)) for each in chosen))


def _both(world: World, at: Sequence[Arm], chosen: Chosen) -> list[Series]:
    """Without and with the transform."""
    pairs = {PLAIN: at, LAYERED: [arm.changed(transform=LAYER) for arm in at]}
    return [
        Series(name, [Line(f"epsilon {arm.epsilon:g}", world, arm, chosen.of(arm)) for arm in arms])
        for name, arms in pairs.items()
    ]


def _ten(classes: int) -> World:
    return replace(holding(MNIST, classes), clients=10)


def _noisy(kind: Kind) -> Tuned:
    """Of figures without a transform; noise in shares is trained like the server's."""
    return _short(MNIST, "record" if kind == "record" else "central").plain


def _added(kind: Kind) -> View:
    """Figure 1: ten clients of six classes."""
    world, tuned = _ten(6), _noisy(kind)
    lines = [Line(f"epsilon {e:g}", world, Arm(kind, e, TEN_DELTA, heterogeneity=True), tuned) for e in EPSILONS]
    plain = Line("no noise", world, NO_NOISE, _noisy("central"))
    return View(UNITS[kind], "epsilon", EPSILONS, "emd", [Series("FedAvg", lines), Series("no noise", [plain])])


def _added_by_classes(kind: Kind) -> View:
    """Figure 8: ten clients of two to ten classes, epsilon 8."""
    arms = {
        "FedAvg": (Arm(kind, 8.0, TEN_DELTA, heterogeneity=True), _noisy(kind)),
        "no noise": (NO_NOISE, _noisy("central")),
    }
    series = [
        Series(name, [Line(f"{n} classes", _ten(n), arm, tuned) for n in CLASSES])
        for name, (arm, tuned) in arms.items()
    ]
    return View(UNITS[kind], "classes of a client", CLASSES, "emd", series)


def _functions(classes: Sequence[int]) -> View:
    """Figure 3."""
    chosen, series = _short(MNIST, "record"), []
    for name in ("none", "linear", "conv", "sigmoid", "tanh", "square", "relu"):
        layer = None if name == "none" else {"function": name} if name == "conv" else {"function": name, **LAYER}
        arm = Arm("record", transform=layer, heterogeneity=True)
        series.append(Series(name, [Line(f"{n} classes", holding(MNIST, n), arm, chosen.of(arm)) for n in classes]))
    return View("record-level, epsilon 8", "classes of a client", classes, "emd", series)


def _accuracy(world: World, kind: Kind, epsilons: Sequence[float]) -> View:
    """Figure 5."""
    arms = [Arm(kind, epsilon) for epsilon in epsilons]
    alone = Series("(c) training alone", [Line("alone", world, ALONE, OWN[world.name])])
    series = [*_both(world, arms, CHOSEN[world.name, kind]), alone]
    return View(f"{world.name}, {UNITS[kind]}", "epsilon", epsilons, "own", series)


def _reduced(world: World, kind: Kind) -> list[View]:
    """Figure 6: heterogeneity over classes, and the test loss over rounds."""
    chosen = _short(world, kind)
    plain = Arm(kind, heterogeneity=True)
    arms = {PLAIN: plain, LAYERED: plain.changed(transform=LAYER)}
    spread = [
        Series(name, [Line(f"{n} classes", holding(world, n), arm, chosen.of(arm)) for n in CLASSES])
        for name, arm in arms.items()
    ]
    two = [
        Series(name, [Line("2 classes", holding(world, 2), arm.changed(every=1), chosen.of(arm))])
        for name, arm in arms.items()
    ]
    title, rounds = f"{world.name}, {UNITS[kind]}", range(1, chosen.plain.rounds + 1)
    return [
        View(title, "classes of a client", CLASSES, "emd", spread),
        View(title, "round", rounds, "loss", two),
    ]


def _traded(world: World, kind: Kind) -> View:
    """Figure 7."""
    arms = [Arm(kind, epsilon, heterogeneity=True) for epsilon in EPSILONS]
    series = _both(world, arms, _short(world, kind))
    return View(f"{world.name}, {UNITS[kind]}", NAMES["emd"], "emd", "own", series)


def _fit(world: World, kind: Kind) -> World:
    """Features of CLIP are scaled under the record plan, as on their own page."""
    return CLIP_SCALED if world is CLIP and kind == "record" else world


_WORLDS: Final = (MNIST, FASHION, CHMNIST, LOCATION)
_KINDS: Final[tuple[Kind, Kind]] = ("record", "central")
_BOTH: Final[Sequence[tuple[World, Kind]]] = [(_fit(world, kind), kind) for world in (MNIST, CLIP) for kind in _KINDS]
_FEATURES: Final[Sequence[tuple[World, Kind]]] = [(world, kind) for world, kind in _BOTH if world is not MNIST]
FIGURES: Final = {
    "figure-1": Figure(
        "Heterogeneity that noise adds, over epsilon", [_added(kind) for kind in (*_KINDS, "distributed")]
    ),
    "figure-3": Figure(
        "Heterogeneity by transformation, over classes of a client", [_functions(CLASSES)], [_functions((2, 10))]
    ),
    "figure-5": Figure(
        "Accuracy over epsilon",
        [_accuracy(world, kind, EPSILONS) for world in _WORLDS for kind in _KINDS],
        [_accuracy(world, kind, (2.0, 8.0)) for world in _WORLDS for kind in _KINDS],
    ),
    "figure-6": Figure(
        "Heterogeneity and test loss, with and without the transform",
        [view for world, kind in _BOTH for view in _reduced(world, kind)],
        [view for world, kind in _FEATURES for view in _reduced(world, kind)],
    ),
    "figure-7": Figure(
        "Accuracy against heterogeneity",
        [_traded(world, kind) for world, kind in _BOTH],
        [_traded(world, kind) for world, kind in _FEATURES],
    ),
    "figure-8": Figure(
        "Heterogeneity that noise adds, over classes of a client", [_added_by_classes(kind) for kind in _KINDS]
    ),
}

PAGES: Final = {
    f"privatefl/{name}": Reproduction(
        f"privatefl/{name}",
        f"{figure.title} ({name.replace('-', ' ').capitalize()} of PrivateFL)",
        "PrivateFL (USENIX Security 2023). Client-level and record-level figures stand in tables of their own.",
        partial(make, figure),
        seeds=1,
        fewest=1,
        cells="privatefl",
    )
    for name, figure in FIGURES.items()
}
