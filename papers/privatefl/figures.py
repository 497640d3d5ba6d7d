"""The paper's figures: accuracy or heterogeneity of several arms, over epsilon, classes of a client, or each other."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from papers.bench import Reproduction
from papers.privatefl.cell import ALONE
from papers.privatefl.curves import LAYERED, NAMES, PLAIN, Figure, Series, View, make
from papers.privatefl.curves import OWN as TRAINED_ALONE
from papers.privatefl.recipe import (
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
from papers.privatefl.tables import function
from papers.privatefl.tuned import CHOSEN, OWN, Chosen
from papers.privatefl.views import Line

EPSILONS: Final = (2.0, 4.0, 6.0, 8.0)
CLASSES: Final = (2, 4, 6, 8, 10)
LEVEL: Final = "epsilon 8, delta 1e-3"
TEN_DELTA: Final = 1e-5  # with ten clients: one has 6,000 records, and delta is below one in them
FEW: Final = 20  # rounds of a figure on heterogeneity, at most
NO_NOISE: Final = Arm("open", heterogeneity=True)  # at the central plan's rates: the record plan's want clipping
UNITS: Final = {"central": "client-level", "record": "record-level", "distributed": "client-level, noise in shares"}


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
    return View(
        UNITS[kind], "epsilon", EPSILONS, "emd", [Series(PLAIN, lines), Series("no noise", [plain])], "delta 1e-5"
    )


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
    return View(UNITS[kind], "classes of a client", CLASSES, "emd", series, "epsilon 8, delta 1e-5")


def _functions(classes: Sequence[int]) -> View:
    """Figure 3."""
    chosen, series = _short(MNIST, "record"), []
    for name in ("none", "linear", "conv", "sigmoid", "tanh", "square", "relu"):
        arm = Arm("record", transform=function(name), heterogeneity=True)
        series.append(Series(name, [Line(f"{n} classes", holding(MNIST, n), arm, chosen.of(arm)) for n in classes]))
    return View("record-level", "classes of a client", classes, "emd", series, LEVEL)


def _accuracy(world: World, kind: Kind, epsilons: Sequence[float]) -> View:
    """Figure 5."""
    arms = [Arm(kind, epsilon) for epsilon in epsilons]
    alone = Series(TRAINED_ALONE, [Line("alone", world, ALONE, OWN[world.name])])
    series = [*_both(world, arms, CHOSEN[world.name, kind]), alone]
    return View(f"{world.name}, {UNITS[kind]}", "epsilon", epsilons, "own", series, "delta 1e-3")


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
        View(title, "classes of a client", CLASSES, "emd", spread, LEVEL),
        View(title, "round", rounds, "loss", two, LEVEL),
    ]


def _traded(world: World, kind: Kind) -> View:
    """Figure 7."""
    arms = [Arm(kind, epsilon, heterogeneity=True) for epsilon in EPSILONS]
    series = _both(world, arms, _short(world, kind))
    return View(f"{world.name}, {UNITS[kind]}", NAMES["emd"], "emd", "own", series, "delta 1e-3")


def _fit(world: World, kind: Kind) -> World:
    """Features of CLIP are scaled under the record plan, as on their own page."""
    return CLIP_SCALED if world is CLIP and kind == "record" else world


_WORLDS: Final = (MNIST, FASHION, CHMNIST, LOCATION)
_KINDS: Final[tuple[Kind, Kind]] = ("record", "central")
_BOTH: Final[Sequence[tuple[World, Kind]]] = [(_fit(world, kind), kind) for world in (MNIST, CLIP) for kind in _KINDS]
_FEW: Final[Sequence[tuple[World, Kind]]] = [each for each in _BOTH if each != (MNIST, "record")]
_STAND_INS: Final = """The paper draws curves and prints no figures. Location-30 stands in for Purchase-100, with a
linear model for its four layers; CH-MNIST has AlexNet's layers, narrower, and pixels shifted and scaled by public
constants."""
_SHORT: Final = f"At most {FEW} rounds: client-level MNIST has 60 in the tables, and is further there."
_DEALT: Final = """Clients of two classes are dealt here as those of four to ten are, a class among its holders; Figure
7 has the partition that came with CLIP's features, so that its heterogeneity is not the same."""
FIGURES: Final = {
    "figure-1": Figure(
        "Heterogeneity that noise adds, over epsilon",
        [_added(kind) for kind in (*_KINDS, "distributed")],
        note="MNIST, ten clients of six classes; the paper has noise in shares on EMNIST.",
    ),
    "figure-3": Figure(
        "Heterogeneity by transformation, over classes of a client",
        [_functions(CLASSES)],
        [_functions((2, 10))],
        "MNIST, 100 clients.",
    ),
    "figure-5": Figure(
        "Accuracy over epsilon",
        [_accuracy(world, kind, EPSILONS) for world in _WORLDS for kind in _KINDS],
        [_accuracy(world, kind, (2.0, 8.0)) for world in _WORLDS for kind in _KINDS],
        _STAND_INS,
    ),
    "figure-6": Figure(
        "Heterogeneity and test loss, with and without the transform",
        [view for world, kind in _BOTH for view in _reduced(world, kind)],
        [view for world, kind in _FEW for view in _reduced(world, kind)],
        f"{_SHORT} {_DEALT}",
    ),
    "figure-7": Figure(
        "Accuracy against heterogeneity",
        [_traded(world, kind) for world, kind in _BOTH],
        note=_SHORT,
    ),
    "figure-8": Figure(
        "Heterogeneity that noise adds, over classes of a client",
        [_added_by_classes(kind) for kind in _KINDS],
        note="MNIST, ten clients.",
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
