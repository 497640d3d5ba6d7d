"""Hyper-parameters of PrivateFL's pages, and every setting that was tried beside them on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

from tacit.experiments.papers.privatefl_cell import described, validate
from tacit.experiments.papers.privatefl_recipe import (
    CHMNIST,
    CLIP,
    CLIP_SCALED,
    LAYER,
    LOCATION,
    MNIST,
    RELEASED,
    WRITERS,
    Arm,
    Kind,
    Tuned,
    World,
)
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part, Results

CLIP_CENTRAL: Final = Tuned(rounds=20, lr=0.5, clip=0.5)
CLIP_RECORD: Final = Tuned(rounds=10, lr=2.0, clip=1.0)
MNIST_RECORD: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=4.0, pace=0.1)
MNIST_RECORD_PLAIN: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=2.0)  # without a transform
MNIST_CENTRAL: Final = Tuned(rounds=60, lr=0.1, clip=0.5)
LOCATION_CENTRAL: Final = Tuned(rounds=20, lr=0.5, clip=0.2, rate=0.5)
LOCATION_RECORD: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=4.0, rate=0.5, pace=0.1)
CHMNIST_CENTRAL: Final = Tuned(rounds=20, lr=0.2, clip=1.0, rate=0.8)
CHMNIST_RECORD: Final = Tuned(rounds=20, lr=0.5, clip=1.0, server_lr=4.0, rate=0.8, pace=0.1)
WRITERS_SHARES: Final = Tuned(rounds=60, lr=0.1, clip=0.5, batch=20, rate=0.1875)

Tried = Mapping[str, tuple[World, Arm, Sequence[Tuned]]]
Grid = tuple[World, Kind, Sequence[float], Sequence[Mapping[str, str] | None], Sequence[Tuned]]
_BOTH: Final = (LAYER, None)
_WITH: Final = (LAYER,)
_WITHOUT: Final = (None,)
_CENTRAL: Final = (
    MNIST_CENTRAL,
    *(Tuned(rounds, lr, clip) for rounds, lr, clip in ((20, 0.1, 0.2), (20, 0.1, 0.5), (20, 0.1, 1.0), (40, 0.1, 0.5))),
    *(Tuned(rounds, lr, clip) for rounds, lr, clip in ((20, 0.3, 1.0), (20, 0.3, 2.0))),
)
_RECORD: Final = (
    MNIST_RECORD,
    Tuned(20, 2.0),
    Tuned(20, 2.0, pace=0.1),
    Tuned(20, 2.0, pace=0.01),
    Tuned(20, 1.0, pace=0.3),
    Tuned(20, 4.0, pace=0.1),
    Tuned(20, 4.0, batch=256, pace=0.1),
    Tuned(20, 2.0, server_lr=2.0, pace=0.1),
    Tuned(20, 4.0, server_lr=3.0, pace=0.05),
    Tuned(20, 1.0, server_lr=8.0, pace=0.1),
    Tuned(60, 2.0, pace=0.1),
)
_LOCATION_CENTRAL: Final = (
    LOCATION_CENTRAL,
    *(replace(LOCATION_CENTRAL, lr=lr, clip=clip) for lr, clip in ((0.1, 0.5), (0.5, 1.0))),
    *(replace(LOCATION_CENTRAL, rounds=60, lr=lr, clip=clip) for lr, clip in ((0.1, 0.5), (0.5, 1.0))),
)
_LOCATION_RECORD: Final = (
    LOCATION_RECORD,
    replace(LOCATION_RECORD, server_lr=1.0),
    replace(LOCATION_RECORD, server_lr=2.0, rounds=60),
    replace(LOCATION_RECORD, server_lr=2.0, lr=8.0, pace=0.05),
)
_CHMNIST_RECORD: Final = (
    CHMNIST_RECORD,
    replace(CHMNIST_RECORD, lr=2.0),
    replace(CHMNIST_RECORD, rounds=10, server_lr=2.0),
)
_SHARES: Final = (WRITERS_SHARES, replace(WRITERS_SHARES, lr=0.3), replace(WRITERS_SHARES, clip=1.0))
GRIDS: Final[tuple[Grid, ...]] = (
    (CLIP, "central", (2.0, 8.0), _BOTH, (CLIP_CENTRAL, Tuned(20, 0.5, 1.0))),
    (CLIP_SCALED, "record", (2.0, 8.0), _BOTH, (CLIP_RECORD, Tuned(10, 1.0, 1.0), Tuned(10, 4.0, 1.0))),
    (MNIST, "central", (8.0,), _BOTH, _CENTRAL),
    (MNIST, "record", (8.0,), _WITH, _RECORD),
    (MNIST, "record", (8.0,), _WITHOUT, (MNIST_RECORD_PLAIN, MNIST_RECORD, Tuned(20, 2.0))),
    (LOCATION, "central", (8.0,), _BOTH, _LOCATION_CENTRAL),
    (LOCATION, "record", (8.0,), _BOTH, _LOCATION_RECORD),
    (CHMNIST, "central", (8.0,), _WITH, (CHMNIST_CENTRAL, replace(CHMNIST_CENTRAL, lr=0.05, clip=0.5))),
    (CHMNIST, "record", (8.0,), _WITH, _CHMNIST_RECORD),
    (WRITERS, "distributed", (8.0,), _WITH, _SHARES),
    (WRITERS, "distributed", (8.0,), _WITHOUT, (WRITERS_SHARES,)),
)
TRIED: Final[Tried] = {
    f"{world.name}: {kind}, epsilon {epsilon:g}, {'with' if layer else 'without'} transform": (
        world,
        Arm(kind, epsilon, transform=layer, privacy=RELEASED if kind == "distributed" else {}),
        tried,
    )
    for world, kind, epsilons, layers, tried in GRIDS
    for epsilon in epsilons
    for layer in layers
}
"""The first of each is the one that the pages use."""


def make(bench: Bench) -> list[Part]:
    return [_table(bench, name, *tried) for name, tried in TRIED.items()]


def _table(bench: Bench, name: str, world: World, arm: Arm, tried: Sequence[Tuned]) -> Results:
    bench.console.print(f"  {described(arm)}", style="dim")
    names = [field.name for field in fields(Tuned)]
    found = {each: validate(bench, world, arm, each) for each in tried}
    rows = [
        [
            *(f"{getattr(each, name):g}" for name in names),
            f"{cell['own']:.4f}",
            f"{cell['whole']:.4f}",
            _used(each, tried),
        ]
        for each, cell in found.items()
    ]
    return Results(name, [*names, "(a) own", "(b) whole", ""], rows)


def _used(each: Tuned, tried: Sequence[Tuned]) -> str:
    return "used" if each == tried[0] else ""


REPRODUCTION: Final = Reproduction(
    "privatefl/selection",
    "How PrivateFL's hyper-parameters were chosen",
    "A fifth of every client's training rows stands in for the test rows, which stay unseen; seed 100 is not reported.",
    make,
    seeds=1,
    cells="privatefl",
)
