"""Hyper-parameters of PrivateFL's pages, and every setting that was tried beside them on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Final, NamedTuple

from papers.bench import Reproduction, Runner
from papers.page import Part, Results
from papers.privatefl.cell import described, validate
from papers.privatefl.recipe import (
    CHMNIST,
    CHMNIST_RAW,
    CLIP,
    CLIP_SCALED,
    LAYER,
    LINEAR,
    LOCATION,
    LOCATION_DEEP,
    MNIST,
    NARROW,
    RELEASED,
    WRITERS,
    Arm,
    Kind,
    Tuned,
    World,
)

CLIP_CENTRAL: Final = Tuned(rounds=20, lr=0.5, clip=0.5)
CLIP_RECORD: Final = Tuned(rounds=10, lr=2.0, clip=1.0)
MNIST_RECORD: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=4.0, pace=0.1)
MNIST_RECORD_PLAIN: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=2.0)  # without a transform
MNIST_CENTRAL: Final = Tuned(rounds=60, lr=0.1, clip=0.5)
LOCATION_CENTRAL: Final = Tuned(rounds=20, lr=0.5, clip=0.2, rate=0.5)
LOCATION_RECORD: Final = Tuned(rounds=20, lr=2.0, clip=1.0, server_lr=4.0, rate=0.5, pace=0.1)
CHMNIST_CENTRAL: Final = Tuned(rounds=20, lr=0.1, clip=0.5, batch=16, rate=0.8)
CHMNIST_RECORD: Final = Tuned(rounds=20, lr=1.0, clip=1.0, server_lr=2.0, rate=0.8, pace=0.1)
ONCE_CENTRAL: Final = Tuned(rounds=10, lr=0.1, clip=1.0, epochs=3)  # each client asked once or twice
WRITERS_SHARES: Final = Tuned(rounds=60, lr=0.1, clip=0.5, batch=20, rate=0.1875)


class Chosen(NamedTuple):
    """What a task is trained with, without and with the transform."""

    plain: Tuned
    layer: Tuned

    def of(self, arm: Arm) -> Tuned:
        return self.plain if arm.transform is None else self.layer

    def changed(self, **changes: float) -> "Chosen":
        return Chosen(*(replace(each, **changes) for each in self))

    @classmethod
    def alike(cls, tuned: Tuned) -> "Chosen":
        return cls(tuned, tuned)


CHOSEN: Final[Mapping[tuple[str, Kind], Chosen]] = {
    ("mnist", "central"): Chosen.alike(MNIST_CENTRAL),
    ("mnist", "record"): Chosen(MNIST_RECORD_PLAIN, MNIST_RECORD),
    ("fashion-mnist", "central"): Chosen.alike(replace(MNIST_CENTRAL, rate=0.3)),
    ("fashion-mnist", "record"): Chosen(MNIST_RECORD_PLAIN, MNIST_RECORD).changed(rate=0.3),
    ("chmnist", "central"): Chosen.alike(CHMNIST_CENTRAL),
    ("chmnist", "record"): Chosen.alike(CHMNIST_RECORD),
    ("location30", "central"): Chosen.alike(LOCATION_CENTRAL),
    ("location30", "record"): Chosen.alike(LOCATION_RECORD),
    ("cifar10-clip", "central"): Chosen.alike(CLIP_CENTRAL),
    ("cifar10-clip", "record"): Chosen.alike(CLIP_RECORD),
    ("writers", "distributed"): Chosen.alike(WRITERS_SHARES),
    ("mnist-narrow", "central"): Chosen.alike(ONCE_CENTRAL),
}
"""By the name of the world and the plan."""
OWN: Final[Mapping[str, Tuned]] = {
    "mnist": Tuned(rounds=10, lr=0.1),
    "mnist-narrow": Tuned(rounds=10, lr=0.1),
    "fashion-mnist": Tuned(rounds=10, lr=0.1),
    "chmnist": Tuned(rounds=20, lr=0.05, batch=16),
    "location30": Tuned(rounds=20, lr=0.5),
    "cifar10-clip": Tuned(rounds=20, lr=0.1),
    "writers": Tuned(rounds=20, lr=0.1, batch=20),
    "chmnist-effnet-projected": Tuned(rounds=20, lr=1.0),
}
"""Of training alone; not tuned."""

Tried = Mapping[str, tuple[World, Arm, Sequence[Tuned]]]
Grid = tuple[World, Arm, Sequence[float], Sequence[Mapping[str, str] | None], Sequence[Tuned]]
_BOTH: Final = (LAYER, None)
_WITH: Final = (LAYER,)
_WITHOUT: Final = (None,)
_CENTRAL: Final = (
    MNIST_CENTRAL,
    *(Tuned(rounds, lr, clip) for rounds, lr, clip in ((20, 0.1, 0.2), (20, 0.1, 0.5), (20, 0.1, 1.0), (40, 0.1, 0.5))),
    *(Tuned(rounds, lr, clip) for rounds, lr, clip in ((20, 0.3, 1.0), (20, 0.3, 2.0))),
)
_CLIP_RECORD: Final = (CLIP_RECORD, Tuned(10, 1.0, 1.0), Tuned(10, 4.0, 1.0))
_CLIP_PACE: Final = tuple(replace(CLIP_RECORD, pace=pace) for pace in (0.3, 0.1))
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
_DEEP_CENTRAL: Final = (
    *(Tuned(rounds, 0.1, clip, rate=0.5) for rounds in (60, 150) for clip in (0.5, 2.0)),
    *(Tuned(60, 0.3, 4.0, rate=0.5), Tuned(150, 0.3, 1.0, server_lr=2.0, rate=0.5)),
    Tuned(60, 0.1, 0.5, server_lr=4.0, rate=0.5),
)
_DEEP_RECORD: Final = (
    *(Tuned(rounds, 2.0, server_lr=4.0, rate=0.5, pace=0.1) for rounds in (20, 60, 150)),
    *(Tuned(60, 8.0, server_lr=4.0, rate=0.5, pace=0.05), Tuned(60, 4.0, server_lr=8.0, rate=0.5, pace=0.1)),
    Tuned(20, 2.0, server_lr=16.0, rate=0.5, pace=0.1),
)
_RAW: Final = Tuned(20, 0.5, server_lr=4.0, rate=0.8, pace=0.1)
_RAW_RECORD: Final = (_RAW, replace(_RAW, lr=2.0), replace(_RAW, rounds=10, server_lr=2.0))
_RAW_CENTRAL: Final = (Tuned(20, 0.2, 1.0, rate=0.8), Tuned(20, 0.05, 0.5, rate=0.8))
_ONCE: Final = Arm("central", sampler={"cohort": 10, "times": 1})
_ASKED_ONCE: Final = (
    ONCE_CENTRAL,
    *(
        Tuned(10, lr, clip, epochs=epochs, server_lr=server_lr)
        for lr, clip, epochs, server_lr in (
            *((0.1, 0.5, 1, 1.0), (0.1, 2.0, 3, 0.5), (0.03, 0.5, 3, 1.0), (0.3, 0.5, 1, 1.0), (0.1, 0.2, 1, 2.0)),
            *((0.1, 1.0, 1, 1.0), (0.1, 2.0, 3, 1.0), (0.1, 1.0, 3, 2.0), (0.2, 1.0, 3, 1.0)),
        )
    ),
)
_ASKED_ONCE_WIDE: Final = _ASKED_ONCE[:6]
_ASKED_ONCE_RECORD: Final = (
    replace(MNIST_RECORD_PLAIN, rounds=10),
    *(Tuned(10, lr, server_lr=server_lr) for lr, server_lr in ((2.0, 1.0), (1.0, 2.0), (0.5, 2.0), (2.0, 4.0))),
    *(Tuned(10, lr, epochs=3, server_lr=server_lr) for lr, server_lr in ((1.0, 2.0), (0.5, 1.0))),
)
_FEWER_ROUNDS: Final = (
    Tuned(1, 0.1, 1.0, epochs=3),
    Tuned(1, 0.1, 1.0, epochs=3, server_lr=2.0),
    Tuned(1, 0.1, 2.0, epochs=5, server_lr=2.0),
    Tuned(1, 0.1, 0.5, server_lr=4.0),
)
_LARGE_COHORTS: Final = tuple(
    (
        _ONCE.changed(sampler={"cohort": cohort, "times": 1}),
        tuple(replace(each, rounds=100 // cohort) for each in _FEWER_ROUNDS),
    )
    for cohort in (100, 50, 20)
)
_SHARES: Final = (WRITERS_SHARES, replace(WRITERS_SHARES, lr=0.3), replace(WRITERS_SHARES, clip=1.0))


def _title(world: World, arm: Arm) -> str:
    asked = f", asked {arm.sampler['times']}x, {arm.sampler['cohort']} in a round" if arm.sampler else ""
    layer = "without" if arm.transform is None else "with"
    return f"{world.name}: {arm.kind}, epsilon {arm.epsilon:g}{asked}, {layer} transform"


GRIDS: Final[tuple[Grid, ...]] = (
    (CLIP, Arm("central"), (2.0, 8.0), _BOTH, (CLIP_CENTRAL, Tuned(20, 0.5, 1.0))),
    (CLIP_SCALED, Arm("record"), (2.0, 8.0), _WITH, (*_CLIP_RECORD, *_CLIP_PACE)),
    (CLIP_SCALED, Arm("record"), (2.0, 8.0), _WITHOUT, _CLIP_RECORD),
    (MNIST, Arm("central"), (8.0,), _BOTH, _CENTRAL),
    (MNIST, Arm("record"), (8.0,), _WITH, _RECORD),
    (MNIST, Arm("record"), (8.0,), _WITHOUT, (MNIST_RECORD_PLAIN, MNIST_RECORD, Tuned(20, 2.0))),
    (LOCATION, Arm("central"), (8.0,), _BOTH, _LOCATION_CENTRAL),
    (LOCATION, Arm("record"), (8.0,), _BOTH, _LOCATION_RECORD),
    (CHMNIST, Arm("central"), (8.0,), _WITH, (CHMNIST_CENTRAL, replace(CHMNIST_CENTRAL, rounds=60, clip=0.2))),
    (CHMNIST, Arm("record"), (8.0,), _WITH, (CHMNIST_RECORD,)),
    (WRITERS, Arm("distributed", privacy=RELEASED), (8.0,), _WITH, _SHARES),
    (WRITERS, Arm("distributed", privacy=RELEASED), (8.0,), _WITHOUT, (WRITERS_SHARES,)),
    (NARROW, _ONCE, (4.0,), _WITHOUT, _ASKED_ONCE),
    (MNIST, _ONCE.changed(kind="record"), (4.0,), _WITHOUT, _ASKED_ONCE_RECORD),
)
DROPPED: Final[tuple[Grid, ...]] = (
    (CHMNIST_RAW, Arm("central"), (8.0,), _WITH, _RAW_CENTRAL),
    (CHMNIST_RAW, Arm("record"), (8.0,), _WITH, _RAW_RECORD),
    (LOCATION_DEEP, Arm("central"), (8.0,), _BOTH, _DEEP_CENTRAL),
    (LOCATION_DEEP, Arm("record"), (8.0,), _BOTH, _DEEP_RECORD),
    (MNIST, _ONCE, (4.0,), _WITHOUT, _ASKED_ONCE_WIDE),
    *((MNIST, arm, (4.0,), _WITHOUT, tried) for arm, tried in _LARGE_COHORTS),
    (LINEAR, _ONCE, (4.0,), _WITHOUT, tuple(Tuned(10, *each) for each in ((0.1, 0.5), (0.5, 1.0), (0.03, 0.5)))),
)
"""Other inputs and models that were tried, and that no page uses."""


def _named(grids: Sequence[Grid]) -> Tried:
    arms = [
        (world, arm.changed(epsilon=epsilon, transform=layer), tried)
        for world, arm, epsilons, layers, tried in grids
        for epsilon in epsilons
        for layer in layers
    ]
    return {_title(world, arm): (world, arm, tried) for world, arm, tried in arms}


TRIED: Final = _named([*GRIDS, *DROPPED])
"""The first of each is the one that the pages use, but for those that were dropped."""


_UNUSED: Final = frozenset(_named(DROPPED))


def make(bench: Runner) -> list[Part]:
    return [_table(bench, name, *tried) for name, tried in TRIED.items()]


def _table(bench: Runner, name: str, world: World, arm: Arm, tried: Sequence[Tuned]) -> Results:
    bench.console.print(f"  {described(arm)}", style="dim")
    columns = [field.name for field in fields(Tuned)]
    found = {each: validate(bench, world, arm, each) for each in tried}
    rows = [
        [
            *(f"{getattr(each, column):g}" for column in columns),
            f"{cell['own']:.4f}",
            f"{cell['whole']:.4f}",
            "used" if each == tried[0] and name not in _UNUSED else "",
        ]
        for each, cell in found.items()
    ]
    return Results(name, [*columns, "(a) own", "(b) whole", ""], rows)


REPRODUCTION: Final = Reproduction(
    "privatefl/selection",
    "How PrivateFL's hyper-parameters were chosen",
    "A fifth of every client's training rows stands in for the test rows, which stay unseen; seed 100 is not reported.",
    make,
    seeds=1,
    cells="privatefl",
)
