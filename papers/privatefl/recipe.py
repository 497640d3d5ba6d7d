"""The settings of PrivateFL: worlds (who holds what, which model), arms (which protection), and what was chosen.

A world, an arm and a seed make one experiment, as a user would write it in a file. Where the paper's own settings are
not printed or would not fit its epsilon under correct accounting, `privatefl_selection` chose on validation rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tacit.experiments.config import Config, parse

Kind = Literal["central", "record", "distributed", "open"]
DELTA: Final = 1e-3
RELEASED: Final = {"budget": "released"}  # of noise in shares: epsilon against those who see the models
LAYER: Final = {"scale": "channel", "shift": "each"}  # alpha one a channel, beta one a pixel: the paper's best


@dataclass(frozen=True)
class World:
    """Who holds what, and the model."""

    name: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    clients: int = 100


@dataclass(frozen=True)
class Tuned:
    """How an arm is trained. `clip`: of an upload, or of one record's gradient. `pace`: the transform's learning rate,
    as a share of the model's."""

    rounds: int
    lr: float
    clip: float = 1.0
    batch: int = 64
    epochs: int = 1
    server_lr: float = 1.0
    rate: float = 1.0
    pace: float = 1.0


@dataclass(frozen=True)
class Arm:
    """A row of a table: protection, method, and whether there is a personal transform."""

    kind: Kind
    epsilon: float = 8.0
    delta: float = DELTA
    transform: Mapping[str, Any] | None = None
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    model: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    sampler: Mapping[str, Any] = field(default_factory=dict)  # instead of a rate
    heterogeneity: bool = False
    every: int | None = None  # rounds between evaluations; else only the last one is

    def changed(self, **changes: Any) -> "Arm":
        return replace(self, **changes)


def experiment(world: World, arm: Arm, tuned: Tuned, seed: int) -> Config:
    """One cell as a file would have it."""
    content = {
        "name": f"privatefl-{world.name}-{arm.kind}",
        "seed": seed,
        "rounds": tuned.rounds,
        **(arm.sampler or {"rate": tuned.rate}),
        "batch": tuned.batch,
        "epochs": tuned.epochs,
        "data": {**world.data, "clients": world.clients},
        "model": {**world.model, **arm.model, **({} if arm.transform is None else {"transform": arm.transform})},
        "method": _method(arm, tuned),
        "evaluate": {"every": arm.every or tuned.rounds, **({"heterogeneity": True} if arm.heterogeneity else {})},
        **_privacy(arm, tuned),
    }
    return parse(content)


def _method(arm: Arm, tuned: Tuned) -> dict[str, Any]:
    if "prototypes" in (arm.method.get("name"), arm.method.get("base")):  # one message: only its tuning has a rate
        return {**({} if arm.method["name"] == "prototypes" else {"personal_lr": tuned.lr}), **arm.method}
    alone = arm.method.get("name") == "local-only"
    server = {} if alone or tuned.server_lr == 1 else {"server": {"lr": tuned.server_lr}}
    pace = {} if alone or tuned.pace == 1 or arm.transform is None else {"pace": tuned.pace}
    return {"lr": tuned.lr, **server, **pace, **arm.method}


def _privacy(arm: Arm, tuned: Tuned) -> dict[str, Any]:
    if arm.kind == "open":
        return {}
    bound = {"bound": tuned.clip} if arm.kind == "record" else {"clip": tuned.clip}
    levels = {"private": {"epsilon": arm.epsilon, "delta": arm.delta}}
    return {"privacy": {"plan": arm.kind, **bound, **arm.privacy}, "levels": levels}


CLIP: Final = World(
    "cifar10-clip",
    {
        "source": "clip_vitb32",
        "partition": "privatefl",
        "test": "matched",
        "normalise": {"public_rows": 1000, "scale": 1.0},
    },
    {"name": "softmax"},
)
CLIP_SCALED: Final = replace(CLIP, data={**CLIP.data, "normalise": {"public_rows": 1000}})
CLIP_BY_CONSTANTS: Final = replace(
    CLIP, name="cifar10-clip-constants", data={**CLIP.data, "normalise": {"shift": 0.0, "scale": 0.5}}
)
MNIST: Final = World(
    "mnist",
    {"source": "mnist", "partition": "classes", "classes_each": 2, "test": "matched"},
    {"name": "mlp", "hidden": [64, 32]},
)
NARROW: Final = replace(MNIST, name="mnist-narrow", model={"name": "mlp", "hidden": [16, 16]})
LINEAR: Final = replace(MNIST, name="mnist-softmax", model={"name": "softmax"})
FASHION: Final = replace(MNIST, name="fashion-mnist", data={**MNIST.data, "source": "fashion_mnist"})
CHMNIST: Final = World(
    "chmnist",
    {
        "source": "chmnist",
        "partition": "classes",
        "classes_each": 2,
        "test": "matched",
        "normalise": {
            "shift": 0.6,
            "scale": 0.2,
        },  # public constants: eight layers do not learn from pixels as they are
    },
    {"name": "alexnet", "hidden": [16, 32, 48, 32, 32, 64, 64]},  # AlexNet's layers, narrower
    clients=40,
)
CHMNIST_RAW: Final = replace(
    CHMNIST, name="chmnist-raw", data={key: value for key, value in CHMNIST.data.items() if key != "normalise"}
)
LOCATION: Final = World(
    "location30",
    {"source": "location30", "partition": "classes", "classes_each": 2, "test": "matched"},
    {"name": "softmax"},  # a hundred records a client: noise leaves nothing of four layers
    clients=50,
)
LOCATION_DEEP: Final = replace(LOCATION, name="location30-deep", model={"name": "mlp", "hidden": [64, 32, 32]})
WRITERS: Final = World(
    "writers",
    {"source": "mnist", "partition": "writer", "test": "own", "test_fraction": 0.1},
    MNIST.model,
    clients=539,
)


def holding(world: World, classes: int) -> World:
    """The same with so many classes on each client, dealt anew."""
    data = {**world.data, "partition": "classes", "classes_each": classes}
    return replace(world, data=data)


def among(world: World, clients: int) -> World:
    return replace(holding(world, 2), clients=clients)
