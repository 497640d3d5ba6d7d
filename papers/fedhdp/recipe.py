"""The settings of FeO2 and FedHDP, and what was chosen where the papers print nothing.

A recipe and an arm (a row of a table) make one experiment, as a user would write it in a file. Learning rates, batches
and clip quantiles are not in the papers: `fedhdp_selection` chose them on validation images, for each kind of arm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tacit.experiments.config import Config, parse

NON_PRIVATE, DP_FEDAVG, OPTIMAL = "non-private", "dp-fedavg", "optimal"
SEVERE, MENU = "optimal, severe level", "optimal, three levels"
DELTA: Final = 1e-4
SEVERE_EPSILON: Final = 1.0


def at(ratio: float) -> str:
    """The arm of a ratio, as the papers write it: "r=0.01"."""
    return f"r={ratio:g}"


@dataclass(frozen=True)
class Tuned:
    """What the papers leave open, for one kind of arm. `decay`: of the clients' learning rate, by round."""

    lr: float
    server_lr: float
    momentum: float = 0.9
    decay: float = 1.0
    target: float = 0.5
    start: float = 0.1


@dataclass(frozen=True)
class Recipe:
    """One table of the papers. `tuned` is by kind of arm: non-private, dp-fedavg, optimal (where it has a setting of
    its own), and fedhdp for all the rest."""

    name: str
    table: str  # of the paper, by the name that it has in `fedhdp_paper`
    clients: int
    rate: float
    tuned: Mapping[str, Tuned]
    epsilon: float = 3.6
    noise: float | None = None  # instead of epsilon
    opted_out: float | Mapping[str, Any] = 0.05
    partition: str = "one-class"
    shift: float = 0.0  # inputs are (pixel - shift) / scale, by public constants
    scale: float = 1.0
    model: str = "mlp"
    hidden: tuple[int, ...] = (64,)
    head: float = 5.0  # the last layer's weights start at so many times their usual size
    rounds: int = 500
    batch: int = 30
    steps: int | None = None  # local steps of one batch each, instead of one epoch
    personal_lr: float = 1.0
    strength: float = 0.005
    noisy: float = 0.5  # the ratio from which the noise is nearly DP-FedAvg's
    post: Mapping[str, float] = field(default_factory=dict[str, float])  # the plan's options that cost no privacy

    def kind(self, arm: str) -> str:
        """Whose setting an arm takes. Where its noise is nearly DP-FedAvg's it takes that one's."""
        if arm.startswith("r=") and float(arm.removeprefix("r=")) >= self.noisy:
            return DP_FEDAVG
        kind = OPTIMAL if arm in (SEVERE, MENU) else arm
        return kind if kind in self.tuned else "fedhdp"

    def experiment(self, arm: str, seed: int, strength: float | None = None, personal: bool = True) -> Config:
        """The experiment of one cell. `personal=False` trains the shared model alone, which comes out the same."""
        tuned = self.tuned[self.kind(arm)]
        method: dict[str, Any] = {
            "lr": tuned.lr,
            "decay": tuned.decay,
            "server": {"lr": tuned.server_lr, "momentum": tuned.momentum},
        }
        own = {"name": "ditto", "strength": self.strength if strength is None else strength}
        return parse(
            {
                "name": f"{self.name}-{arm}".translate(_PLAIN),
                "seed": seed,
                "rounds": self.rounds,
                "rate": self.rate,
                "batch": self.batch,
                **({"epochs": 1} if self.steps is None else {"steps": self.steps}),
                "data": {"source": "mnist", "partition": self.partition, "clients": self.clients},
                "model": {"name": self.model, "hidden": list(self.hidden)},
                "method": {**method, **(own | {"personal_lr": self.personal_lr} if personal else {"name": "fedavg"})},
                "evaluate": {"every": self.rounds},
                **self.privacy(arm, {"start": tuned.start, "target": tuned.target}),
            }
        )

    def privacy(self, arm: str, clip: Mapping[str, float]) -> dict[str, Any]:
        """Plan, levels and choices of an arm, as in a file."""
        usual = {"epsilon": self.epsilon} if self.noise is None else {"noise": self.noise}
        private, severe = usual | {"delta": DELTA}, {"epsilon": SEVERE_EPSILON, "delta": DELTA}
        if arm == NON_PRIVATE:
            return {}
        if arm == DP_FEDAVG:
            average = {"average": self.post["average"]} if "average" in self.post else {}
            return {"privacy": {"plan": "central", "clip": clip, **average}, "levels": {"private": private}}
        ratio = float(arm.removeprefix("r=")) if arm.startswith("r=") else "optimal"
        grouped = {"privacy": {"plan": "grouped", "clip": clip, "ratio": ratio, **self.post}}
        if arm == MENU:
            levels = {"severe": severe, "mild": private, "open": {}}
            return {**grouped, "levels": levels, "choices": {"open": self.opted_out, "mild": 0.475}}
        level = severe if arm == SEVERE else private
        return {**grouped, "levels": {"private": level, "open": {}}, "choices": {"open": self.opted_out}}


_PLAIN = str.maketrans({" ": "-", "=": "-", ",": None})

_MNIST_TUNED: Final = {
    NON_PRIVATE: Tuned(lr=0.3, server_lr=1.0),
    DP_FEDAVG: Tuned(lr=0.1, server_lr=0.2, decay=0.997),
    "fedhdp": Tuned(lr=0.1, server_lr=2.0, decay=0.998),
}
MNIST: Final = Recipe("mnist", "mnist", clients=2000, rate=0.05, tuned=_MNIST_TUNED, shift=0.13, personal_lr=3.0)
SKEWED: Final = replace(
    MNIST,
    name="skewed",
    table="mnist-skewed",
    opted_out={"share": 0.05, "holding": 7},
    tuned={
        **_MNIST_TUNED,
        "fedhdp": Tuned(lr=0.1, server_lr=0.3, decay=0.998),
        OPTIMAL: Tuned(lr=0.1, server_lr=0.15, decay=0.998),
    },
)

_WRITERS_TUNED: Final = {
    NON_PRIVATE: Tuned(lr=0.1, server_lr=1.0),
    DP_FEDAVG: Tuned(lr=0.1, server_lr=0.1, decay=0.997),
    "fedhdp": Tuned(lr=0.1, server_lr=0.3, decay=0.998),
}
WRITERS: Final = replace(
    MNIST,
    name="writers",
    table="writers",
    clients=539,
    rate=0.03,
    epsilon=0.6,
    partition="writer",
    batch=32,
    steps=1,
    tuned=_WRITERS_TUNED,
    personal_lr=0.3,
    strength=0.05,
)
WRITERS_AT_PAPERS_NOISE: Final = replace(WRITERS, name="writers-noise", rate=0.1875, noise=3.49)
WRITERS_CNN: Final = replace(
    WRITERS,
    name="writers-cnn",
    table="writers-cnn",
    epsilon=4.1,
    model="two-conv-cnn",
    hidden=(8, 16, 32),
    head=1.0,
    tuned={
        NON_PRIVATE: Tuned(lr=0.05, server_lr=1.0),
        DP_FEDAVG: Tuned(lr=0.1, server_lr=0.03, decay=0.997),
        "fedhdp": Tuned(lr=0.1, server_lr=0.3, decay=0.998),
    },
    personal_lr=0.3,
    noisy=0.1,
)
"""Fewer channels than the paper's network, because a sixth of its clients cannot average the noise of 1.2 million."""
