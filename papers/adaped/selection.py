"""Settings of AdaPeD's comparison beside others, on a fifth of every client's training rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from papers.adaped.cells import (
    EVERYBODY,
    METHODS,
    MNIST,
    WRITERS_33,
    Make,
    Setting,
    World,
    federation,
    setting_of,
    trained,
    validated,
)
from papers.bench import Reproduction, Runner
from papers.page import Part, Results
from tacit import methods as m

_PUBLISHED: Final[Make] = lambda sgd, own: m.AdaPeD(sgd, own, distillation="as-published")  # noqa: E731
VARIANTS: Final = {**METHODS, "AdaPeD, eq. (65) for mu": _PUBLISHED}
_S = Setting
TRIED: Final[Mapping[str, Mapping[str, Sequence[Setting]]]] = {
    "writers": {
        "FedAvg": [_S(0.1, own=0.01), _S(0.15, own=0.01), _S(0.15, own=0.03), _S(0.2, own=0.01), _S(0.2, own=0.03)],
        "AdaPeD": [
            _S(0.1, 0.5, 0.01),
            _S(0.1, 0.8, 0.01),
            _S(0.1, 0.8, 0.03),
            _S(0.1, 0.9, 0.03),
            _S(0.15, 0.8, 0.01),
            _S(0.15, 0.8, 0.03),
            _S(0.15, 0.9, 0.01),
        ],
        "AdaPeD, eq. (65) for mu": [_S(0.15, 0.8, 0.01)],
        "QuPeD (FP)": [_S(0.1, 0.8, 0.01), _S(0.15, 0.8, 0.01), _S(0.15, 0.8, 0.03)],
        "Federated ML": [_S(0.1, 0.8, 0.01), _S(0.15, 0.8, 0.01), _S(0.15, 0.8, 0.03)],
        "pFedMe": [_S(0.1)],
        "Per-FedAvg": [_S(0.1), _S(0.2)],
        "local": [_S(0.05), _S(0.1)],
    },
    "mnist": {
        "AdaPeD": [
            _S(0.1),
            _S(0.1, 0.5),
            _S(0.1, 0.8),
            _S(0.1, 0.8, 0.03),
            _S(0.1, 0.5, 0.05),
            _S(0.1, 0.65, 0.05),
            _S(0.1, 0.65, 0.07),
            _S(0.1, 0.5, 0.05, psi=1.0),
        ],
        "AdaPeD, eq. (65) for mu": [_S(0.1, 0.5)],
        "Federated ML": [_S(0.1, 0.5), _S(0.1, 0.8, 0.03), _S(0.1, 0.5, 0.05), _S(0.1, 0.65, 0.05)],
    },
    "everybody, 60 rounds": {"AdaPeD": [_S(0.1, 0.5, 0.05), _S(0.1, 0.8, 0.05)]},
    "everybody, 120 rounds": {"AdaPeD": [_S(0.1, 0.9), _S(0.1, 0.9, 0.05)]},
}
"""Rates are of the paper's list (.2 .15 .125 .1 .075 .05), but for the own models' small ones."""


NOTE: Final = (
    "On the writers, rates above .1 are a little better on validation rows and end in NaN on reported seeds: FedAvg's "
    "at .15 and .2, and the start at .15 of the three that keep a model. These were looked at once each; since then .1 "
    "is used for all of them, with the best start and own rate that were tried at it. On MNIST the settings of 50% "
    "and 65% at own rates of .05 and .07, and psi from 1, were tried after the three test seeds had shown AdaPeD below "
    "Federated ML: none is better for AdaPeD, one is for Federated ML by .02, and Table 1 was left as it was."
)


def make(bench: Runner) -> list[Part]:
    return [NOTE, *_tables(bench)]


def _tables(bench: Runner) -> list[Part]:
    worlds = (WRITERS_33, MNIST, *(replace(EVERYBODY, epochs=epochs) for epochs in (10, 20)))
    return [_table(bench, world, tried) for world, tried in zip(worlds, TRIED.values(), strict=True)]


def _table(bench: Runner, world: World, tried: Mapping[str, Sequence[Setting]]) -> Results:
    rows = []
    for name, setting in [(name, each) for name, several in tried.items() for each in several]:
        cell = validation(bench, world, name, setting)
        used = "used" if name in METHODS and setting == setting_of(world, name) else ""
        figures = (f"{cell[which]:.2f}" for which in ("personal", "worst", "shared"))
        psi = f"{setting.psi or m.AdaPeD.psi:g}" if name.startswith("AdaPeD") else ""
        rows.append([name, *setting.words, psi, *figures, used])
    heads = ["method", "rate", "own", "start", "psi", "personal, %", "worst decile, %", "shared, %", ""]
    return Results(f"{world.name}, {world.rounds} rounds", heads, rows)


def validation(bench: Runner, world: World, name: str, setting: Setting) -> dict[str, float]:
    bench.console.print(f"  {world.name}, {name}, {setting}", style="dim")
    config = {"validation": name, "world": world.name, "rounds": world.rounds, **setting.config}
    data = federation(world.data, SEED)
    return bench.cell(config, lambda: trained(validated(data, SEED), VARIANTS[name], world, setting, SEED))


SEED: Final = 100  # of nothing that is reported
REPRODUCTION: Final = Reproduction(
    name="adaped/selection",
    title="Settings of AdaPeD's comparison beside others",
    paper="A fifth of every client's training rows stands in for its test rows; seed 100 is not reported.",
    make=make,
    seeds=1,
    version=3,
    cells="adaped",
    fewest=1,
)
