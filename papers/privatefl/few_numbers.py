"""Rows of tables on few numbers: prototypes in a public projection, and a transform that each client tunes for itself.

One run gives two rows. What the federation learns is the same; with the transform, each client tunes its own on its own
rows after the last round. It moves nothing that is sent, so it needs no noise under any plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from papers.privatefl.recipe import DELTA, MNIST, Arm, Kind, Tuned, World
from papers.privatefl.views import Line

PUBLIC: Final = 1000  # training rows that stand in for a public set: no client holds them, labels are not used
EACH: Final = {"scale": "each", "shift": "each"}  # of features: a scale and a shift for each
WHOLE: Final = 1024  # rows in a step: all that a client has
TUNING: Final = 0.1  # rate of the transform; 0.3 and 1 were worse on validation rows at epsilon 2
LAYERED: Final = ", with the transform"


def projected(
    world: World, components: int, whiten: float = 0.0, model: Mapping[str, Any] | None = None, public: int = PUBLIC
) -> World:
    """The same rows by their principal components, found on `public` rows; with a linear model, unless told."""
    how = {"public_rows": public, "project": components, **({"whiten": whiten} if whiten else {})}
    data = {**world.data, "normalise": how}
    return replace(world, name=f"{world.name}-projected", data=data, model=model or {"name": "softmax"})


def prototypes(arm: Arm, world: World, tuned: Tuned, offset: float) -> Line:
    """One way to run both rows."""
    method = {
        "name": "fine-tuned",
        "base": "prototypes",
        "only": ["transform"],
        "passes": 10,
        "offset": offset,
        "sharpness": 10.0,
    }
    return Line("", world, arm.changed(method=method, transform=EACH), tuned)


AFTER: Final[Mapping[str, Any]] = {
    "name": "fine-tuned",
    "base": "fedavg",
    "only": ["transform"],
    "passes": 2,
    "personal_lr": TUNING,
    "keep": ["transform"],
    "pace": 1e-9,  # in rounds a transform stays where it starts, so that one run gives two rows
}


def network(home: World, components: int, hidden: int, activation: str | None = None) -> World:
    """One hidden layer on whitened principal components of the same rows."""
    model = {"name": "mlp", "hidden": [hidden], **({} if activation is None else {"activation": activation})}
    return projected(home, components, whiten=0.5, model=model)


def trained(
    name: str, home: World, arm: Arm, paper: tuple[float | None, float | None], activation: str | None
) -> list[Line]:
    """Without and with the transform, from one run of FedAvg; each client tunes a transform after the last round."""
    options = [Line("", network(home, *size, activation), arm, tuned) for size, tuned in _tried(arm)]
    run = replace(options[0], arm=arm.changed(method=AFTER, transform=EACH), own_method=True)
    return prototype_pair(name, home, paper, run, options)


def _tried(arm: Arm) -> list[tuple[tuple[int, int], Tuned]]:
    """Components and hidden units, and settings, by how much noise there is."""
    if arm.delta < DELTA:
        return [((40, 32), Tuned(20, 1.0, 0.5, server_lr=rate)) for rate in (2.0, 4.0)]
    if arm.privacy.get("project"):  # smaller steps: an upload that is at its bound goes on turning
        if arm.epsilon <= 4:
            return [((25, 16), Tuned(20, 0.5, 2.0)), ((25, 16), Tuned(20, 0.25, 1.0, server_lr=2.0))]
        return [((40, 32), Tuned(20, rate, 1.0, server_lr=4.0)) for rate in (0.25, 0.5)]
    large = [((40, 32), Tuned(20, 1.0, 1.0, server_lr=4.0)), ((40, 32), Tuned(20, 2.0, 2.0))]
    small = [((25, 16), Tuned(20, 2.0, 2.0)), ((25, 16), Tuned(20, 1.0, 1.0, server_lr=2.0))]
    return [*small, *large[1:]] if arm.epsilon <= 4 else large


def one_message(name: str, home: World, paper: tuple[float | None, float | None]) -> list[Line]:
    """Of Tables 9 and 10, two classes a client: everybody sends class means once."""
    ways = ((40, 0.3), (40, 0.2), (25, 0.3))
    arm, offset = Arm("central", 8.0, 1e-5), 0.3
    options = [
        prototypes(arm, projected(home, size, whiten=0.5), Tuned(1, TUNING, clip, WHOLE), offset) for size, clip in ways
    ]
    return prototype_pair(name, home, paper, options[0], options)


def few_classes(name: str, home: World, paper: tuple[float | None, float | None], classes: int) -> list[Line]:
    """Of Table 9: class means lose to a small network where a client holds many classes."""
    if classes == 2:
        return one_message(name, home, paper)
    return trained(name, home, Arm("central", 8.0, 1e-5), paper, "tanh")


def prototype_pair(
    name: str, home: World, paper: tuple[float | None, float | None], run: Line, options: Sequence[Line]
) -> list[Line]:
    """Without and with the transform, from one run, with the settings of the option that is best on validation rows."""
    return [
        replace(run, name=name, paper=paper[0], options=options, shared=True, home=home),
        replace(run, name=name + LAYERED, paper=paper[1], options=options, home=home),
    ]


ASKED: Final = projected(MNIST, 25, whiten=0.5)


def asked_rarely(epsilon: float, times: int) -> list[Line]:
    """Table 11 at client level: ten clients a round, nobody more than `times` times."""
    arm = Arm("central", epsilon, sampler={"cohort": 10, "times": times})
    ways = ((0.2, 0.3), (0.3, 0.3))
    return [prototypes(arm, ASKED, Tuned(10 * times, TUNING, clip, WHOLE), offset) for clip, offset in ways]


TISSUE: Final = projected(
    World("chmnist-effnet", {"source": "chmnist_effnet", "partition": "classes", "classes_each": 2, "test": "matched"},
          {"name": "softmax"}, clients=40),
    32,
    public=500,
)  # fmt: skip
"""CH-MNIST's tiles as features of an encoder that was trained on ImageNet, as the authors' AlexNet was."""


def tissue(kind: Kind) -> list[Line]:
    """The paper draws curves for CH-MNIST and prints no figures."""
    ways = ((0.3, 0.3), (0.2, 1.0)) if kind == "central" else ((1.0, 0.3), (1.0, 1.0))
    lines: list[Line] = []
    for epsilon in (2.0, 4.0, 6.0, 8.0):
        options = [prototypes(Arm(kind, epsilon), TISSUE, Tuned(1, TUNING, clip, WHOLE), off) for clip, off in ways]
        lines += prototype_pair(f"epsilon {epsilon:g}", TISSUE, (None, None), options[0], options)
    return lines
