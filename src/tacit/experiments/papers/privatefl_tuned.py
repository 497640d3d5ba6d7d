"""Hyper-parameters of PrivateFL's pages, and every setting that was tried beside them on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final

from tacit.experiments.papers.privatefl_cell import described, validate
from tacit.experiments.papers.privatefl_recipe import CLIP, CLIP_SCALED, LAYER, MNIST, Arm, Kind, Tuned, World
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part, Results

CLIP_CENTRAL: Final = Tuned(rounds=20, lr=0.5, clip=0.5)
CLIP_RECORD: Final = Tuned(rounds=10, lr=2.0, clip=1.0)
MNIST_RECORD: Final = Tuned(rounds=60, lr=2.0, clip=1.0)
MNIST_CENTRAL: Final = Tuned(rounds=20, lr=0.1, clip=0.5)
CHMNIST_CENTRAL: Final = Tuned(rounds=20, lr=0.05, clip=0.5, rate=0.8)
CHMNIST_RECORD: Final = Tuned(rounds=30, lr=0.5, clip=1.0, rate=0.8)
LOCATION_CENTRAL: Final = Tuned(rounds=20, lr=0.1, clip=0.5, rate=0.5)
LOCATION_RECORD: Final = Tuned(rounds=60, lr=0.5, clip=1.0, rate=0.5)
WRITERS_SHARES: Final = Tuned(rounds=60, lr=0.1, clip=0.5, batch=20, rate=0.1875)
"""Of these no selection has been run: the pages that use them say so."""

Tried = Mapping[str, tuple[World, Arm, Sequence[Tuned]]]
Grid = tuple[World, Kind, Sequence[float], Sequence[Tuned]]
GRIDS: Final[tuple[Grid, ...]] = (
    (CLIP, "central", (2.0, 8.0), (CLIP_CENTRAL, Tuned(20, 0.5, 1.0))),
    (CLIP_SCALED, "record", (2.0, 8.0), (CLIP_RECORD, Tuned(10, 1.0, 1.0), Tuned(10, 4.0, 1.0))),
    (MNIST, "record", (8.0,), (MNIST_RECORD, Tuned(20, 2.0, 1.0))),
)
TRIED: Final[Tried] = {
    f"{world.name}: {kind}, epsilon {epsilon:g}, {'with' if layer else 'without'} transform": (
        world,
        Arm(kind, epsilon, transform=layer),
        tried,
    )
    for world, kind, epsilons, tried in GRIDS
    for epsilon in epsilons
    for layer in (LAYER, None)
}
"""The first of each is the one that the pages use."""


def make(bench: Bench) -> list[Part]:
    """MNIST's settings take minutes each: only with --full."""
    asked = {name: tried for name, tried in TRIED.items() if bench.full or tried[0] is not MNIST}
    return [_table(bench, name, *tried) for name, tried in asked.items()]


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
