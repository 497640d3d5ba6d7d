"""Settings of AdaPeD's comparison beside others, on a fifth of every client's training rows."""

from typing import Final

from tacit import methods as m
from tacit.experiments.adaped_cells import (
    METHODS,
    MNIST,
    WRITERS_33,
    Make,
    Setting,
    World,
    federation,
    setting_of,
    sized,
    trained,
    validated,
)
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part, Results

_PUBLISHED: Final[Make] = lambda sgd: m.AdaPeD(sgd, sgd, distillation="as-published")  # noqa: E731
VARIANTS: Final = {**METHODS, "AdaPeD, eq. (65) for mu": _PUBLISHED}
RATES: Final = (0.05, 0.1, 0.2)  # of the paper's list .2 .15 .125 .1 .075 .05
STARTS: Final = (0.0, 0.5)
Tried = tuple[str, Setting]


def tried(world: World) -> list[Tried]:
    """Rates for every method; starts for those that keep a personal model; eq. (65) beside what is used."""
    kept = [(name, Setting(0.1, warm)) for name in ("AdaPeD", "AdaPeD, eq. (65) for mu") for warm in STARTS]
    others = [(name, Setting(lr, setting_of(world, name).warm)) for name in _NAMES for lr in RATES]
    return list(dict.fromkeys([*kept, *others]))


_NAMES: Final = ("FedAvg", "AdaPeD", "QuPeD (FP)", "Federated ML", "pFedMe", "Per-FedAvg", "local")


def make(bench: Bench) -> list[Part]:
    return [_table(bench, sized(world, bench.full)) for world in (WRITERS_33, MNIST)]


def _table(bench: Bench, world: World) -> Results:
    rows = []
    for name, setting in tried(world):
        cell = validation(bench, world, name, setting)
        used = "used" if name in METHODS and setting == setting_of(world, name) else ""
        figures = (f"{cell[which]:.2f}" for which in ("personal", "worst", "shared"))
        rows.append([name, f"{setting.lr:g}", _start(setting), *figures, used])
    heads = ["method", "rate", "start", "personal, %", "worst decile, %", "shared, %", ""]
    return Results(f"{world.name}, {world.rounds} rounds", heads, rows)


def validation(bench: Bench, world: World, name: str, setting: Setting) -> dict[str, float]:
    bench.console.print(f"  {world.name}, {name}, {setting}", style="dim")
    config = {"validation": name, "world": world.name, "rounds": world.rounds, **setting.config}
    data = federation(world.data, SEED)
    return bench.cell(config, lambda: trained(validated(data, SEED), VARIANTS[name], world, setting, SEED))


def _start(setting: Setting) -> str:
    return f"FedAvg for {setting.warm:.0%} of the rounds" if setting.warm else "random"


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
