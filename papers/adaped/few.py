"""DP-AdaPeD that shares few numbers: class means in a public projection, released once, teach every personal model.

theta is the network of the other rows; what differs is mu, which is linear in a few components of the input. Everybody
sends its class means once, before training: noise of one release on 10 k numbers, in place of one of every round on
44,426.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor, nn

from papers.adaped.cells import (
    WRITERS,
    WRITERS_33,
    World,
    accuracies,
    federation,
    network,
    performance_of,
    poisson,
    sgd,
    sized,
    standard,
    training_of,
)
from papers.adaped.dp import DELTA, FROZEN, LR, OPEN, Found, measured, paired
from papers.bench import Cell, Reproduction, Runner
from papers.page import Part, Results, over
from tacit import methods as m
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.data import loaders
from tacit.data.dataset import FederatedDataset
from tacit.data.normalise import Projection, find_projection
from tacit.methods.mutual import taught
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Outcome, Run, Schedule
from tacit.sampling.cohorts import Poisson

PUBLIC: Final = 1000  # rows of writers that are in no client; their labels are not used
WHOLE: Final = 1024  # rows in a step: all that a client has


@dataclass(frozen=True)
class Lesson:
    """How mu is made and how much is learned from it. `psi`: AdaPeD's, which is kept."""

    components: int = 25
    whiten: float = 0.5
    clip: float = 0.2
    offset: float = 0.3
    sharpness: float = 10.0
    psi: float = 0.5


class Beside(nn.Module):
    """The student's outputs plus those of a linear head on the projection. Each model has the other part at zero."""

    head: nn.Linear

    def __init__(self, student: nn.Module, projection: Projection, classes: int) -> None:
        super().__init__()
        self.projection = projection
        self.student = student
        self.head = nn.Linear(projection.matrix.shape[1], classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        shift, matrix = (each.to(x) for each in self.projection)
        return self.student(x) + self.head((x.flatten(1) - shift) @ matrix)


@dataclass(frozen=True)
class Taught(Method):
    """theta <- theta - eta (grad f(theta) + grad KD(theta, mu) / (2 psi)), lines 10 and 11; mu and psi stand still."""

    personal: m.LocalSgd
    psi: float

    def init(self, params: Tree) -> Server:
        return Server(Shared(only(params, "head")))

    def join(self, view: Shared, start: Tree) -> Tree:
        return only(start, "student")

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def loss_and_lesson(theta: View, x: Tensor, y: Tensor) -> Tensor:
            loss, divergence = taught(site.task, view.model, only(theta, "student"), x, y)
            return loss + divergence / (2 * self.psi)

        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            return site.grad(params, step, loss_and_lesson)

        return Reply(Shared({}), self.personal.run(state, site, gradient))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return server

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)


def only(params: View, part: str) -> Tree:
    """The other part at zero, so that it adds nothing to the outputs."""
    return {name: leaf if name.startswith(part) else torch.zeros_like(leaf) for name, leaf in params.items()}


def few_numbers(world: World, lesson: Lesson, seed: int, epsilon: float | None) -> Cell:
    """One release at `epsilon`, then as many local steps as in the other rows; None: a teacher that says nothing."""
    data = federation(world.data, seed)
    model = Beside(network(data, seed), projection_of(seed, lesson.components, lesson.whiten), data.classes)
    notes: list[str] = []
    began = time.process_time()
    if epsilon is not None:
        notes = _release(data, model, lesson, Level("private", epsilon=epsilon, delta=DELTA), seed)
    training = training_of(world, world.rounds, poisson(world), seed)
    outcome = _run(data, model, Taught(sgd(LR, 0), lesson.psi), Privacy(), training, world.cohort)[0]
    sent = 4 * model.head.weight.numel() if epsilon is not None else 0
    seconds = (time.process_time() - began) / world.rounds
    return {**accuracies(outcome), "seconds": seconds, "bytes": sent, "stopped": "", "psi": [], "notes": notes}


def _release(data: FederatedDataset, model: Beside, lesson: Lesson, level: Level, seed: int) -> list[str]:
    """Everybody's class means, clipped and summed under noise, once; they become the model's head."""
    plan = Privacy(Central(Fixed(lesson.clip)), (level,))
    training = Training(rounds=1, sampler=Poisson(1.0), batch=WHOLE, steps=1, seed=seed)
    method = m.Prototypes(offset=lesson.offset, sharpness=lesson.sharpness)
    _, it = _run(data, model, method, plan, training, data.clients)
    found = it.progress.server.view.model
    with torch.no_grad():
        for name, leaf in model.head.named_parameters():
            leaf.copy_(found[f"head.{name}"])
    return list(it.plan.notes)


def _run(data: FederatedDataset, model: Beside, method: Method, privacy: Privacy, training: Training, cohort: int
         ) -> tuple[Outcome, Run]:  # fmt: skip
    parts = assemble(data, model, method, privacy, training, performance=performance_of(cohort))
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=10**9))
    return it.go(), it


@lru_cache(maxsize=3)
def projection_of(seed: int, components: int, whiten: float) -> Projection:
    """Principal components of rows whose writers are in no client."""
    rows = torch.as_tensor(standard(loaders.load("mnist", **WRITERS | {"clients": 179}, seed=seed)).x)
    held = {row.numpy().tobytes() for row in federation("writers", seed).x}
    free = torch.stack([row for row in rows if row.numpy().tobytes() not in held])
    drawn = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[:PUBLIC]
    return find_projection(free[0].numel(), free[drawn], {"project": components, "whiten": whiten}, seed)


def make(bench: Runner) -> list[Part]:
    world, lesson = sized(WRITERS_33, bench.full), Lesson()
    plain = {name: measured(bench, world, name, OPEN[name], None, None) for name in ("local", FROZEN)}
    few = {
        SILENT: _found(bench, world, lesson, None),
        **{f"class means, epsilon {epsilon:g}": _found(bench, world, lesson, epsilon) for epsilon in EPSILONS},
    }
    return [_table(plain | few, world), _WHAT]


def _found(bench: Runner, world: World, lesson: Lesson, epsilon: float | None) -> Found:
    said = {"psi": lesson.psi} if epsilon is None else {"lesson": repr(lesson)}
    config = {"way": "few numbers", "world": world.name, "rounds": world.rounds, "epsilon": epsilon, **said}
    return bench.over_seeds(config, lambda seed: few_numbers(world, lesson, seed, epsilon))


def _table(found: dict[str, Found], world: World) -> Results:
    controls = ("local", FROZEN, SILENT)
    rows = [
        [name, over(row["personal"]), over(row["shared"]), *(paired(row, found[c]) for c in controls)]
        for name, row in found.items()
    ]
    heads = ["mu", "accuracy", "shared model", "less local", "less frozen", "less silent"]
    seeds = len(found["local"]["personal"])
    note = (
        f"{world.name}, {world.rounds} rounds, seeds: {seeds}. Percent after the last round; differences in points, "
        "over the same seeds, with standard errors where there are several."
    )
    return Results("Accuracy", heads, rows, note)


EPSILONS: Final = (1.0,)
SILENT: Final = "silent teacher: all classes alike"
_WHAT: Final = f"""**What federation adds** is what a row has above the silent teacher: the same steps at the same psi
({Lesson().psi:g}), taught that all classes are alike. What that row has above the frozen teacher (psi 4) and above
training alone is smoothed labels, and needs nobody.

**Setting.** As on [the page of DP-AdaPeD](adaped-dp.md), but mu. mu is linear in {Lesson().components} whitened
principal components of {PUBLIC:,} rows of writers that are in no client (their labels are not used). All 66 clients
send its class means once, before training, clipped to {Lesson().clip:g}; a trusted server adds noise (client-level,
add/remove, delta {DELTA:g}). psi is AdaPeD's floor, where mu counts most; components and clip are near those of
PrivateFL's tables. Nothing was chosen on these clients' test rows.

**What can be paid for.** One release at epsilon 1 has noise of 2.57 bounds: in the mean of 66 clients .039 of a bound
for each number. On 250 numbers that is .62 bounds in all, and class means survive it. On mu's 44,426 numbers it is 8.2
bounds in one release, and more over 60. What survives is a linear model, and a client's own network is better: on
validation rows of one seed that is not reported, adding mu's outputs to theta's made predictions worse at every weight
from .05 to 1.5."""

REPRODUCTION: Final = Reproduction(
    name="adaped/few-numbers",
    title="DP-AdaPeD with few numbers: class means as the teacher",
    paper="A generative framework, Section 4; the variant is ours.",
    make=make,
    seeds=1,
    version=3,
    cells="adaped",
    fewest=1,
)
