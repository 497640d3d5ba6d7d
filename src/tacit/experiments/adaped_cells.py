"""One run of AdaPeD's comparison as a cell of figures: the data, the methods and the settings of its Table 1."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from tacit import methods as m
from tacit import models
from tacit.core import Method
from tacit.engine.assemble import Privacy, Training, assemble
from tacit.engine.loop import Report, Run, Schedule
from tacit.experiments.reproduce import Cell
from tacit.experiments.reproduce_page import Results, over
from tacit.federation import sources
from tacit.federation.cohort import FixedSize, Poisson
from tacit.federation.data import Federation, as_input, hold_out, offsets_of
from tacit.privacy.ledger import Ledger
from tacit.privacy.sampling import Sampler

TAU, PER_EPOCH = 10, 60
RATES: Final = (0.05, 0.1)  # of the paper's list .2 .15 .125 .1 .075 .05
STATED: Final = {"Per-FedAvg": 0.075, "FedEM": 0.2}  # the paper's own rates; .1 for the others
Make = Callable[[m.LocalSgd], Method]

METHODS: Final[Mapping[str, Make]] = {
    "FedAvg": lambda sgd: m.FineTuned(m.FedAvg(sgd), sgd),  # its shared model; the personal ones are the next row
    "AdaPeD": lambda sgd: m.AdaPeD(sgd, sgd),
    "pFedMe": lambda sgd: m.PFedMe(sgd),
    "Per-FedAvg": lambda sgd: m.PerFedAvg(sgd, inner=0.01),
    "QuPeD (FP)": lambda sgd: m.QuPeD(sgd, sgd),
    "Federated ML": lambda sgd: m.MutualLearning(sgd, sgd),
    "local": lambda sgd: m.LocalOnly(sgd),
    "FedEM": lambda sgd: m.FedEM(sgd),
}


@dataclass(frozen=True)
class World:
    """A column of the table: who holds what, who is asked, for how long."""

    name: str
    data: str  # mnist or writers
    cohort: int
    epochs: int
    batch: int  # so that an epoch has about 60 steps

    @property
    def rounds(self) -> int:
        return self.epochs * PER_EPOCH // TAU


MNIST: Final = World("MNIST, K/n = .1", "mnist", 5, 50, 20)
WRITERS_33: Final = World("writers, K/n = .33", "writers", 22, 40, 5)
WRITERS_15: Final = World("writers, K/n = .15", "writers", 10, 80, 5)
EVERYBODY: Final = World("MNIST, everybody", "mnist", 50, 50, 20)


def sized(world: World, full: bool) -> World:
    """MNIST as in the paper; the writers' columns a quarter as long unless `full`."""
    return world if full or world.data == "mnist" else replace(world, epochs=world.epochs // 4)


@lru_cache(maxsize=2)
def federation(data: str, seed: int) -> Federation:
    if data == "mnist":
        return _standard(sources.load("mnist", clients=50, classes_each=3, test="matched", seed=seed))
    own = {"partition": "writer", "group": 3, "clients": 66, "test": "own", "test_fraction": 0.1}
    return _standard(sources.load("mnist", **own, seed=seed))


def _standard(data: Federation) -> Federation:
    """Pixels less their mean, over their deviation: public constants of MNIST, as is usual for it."""
    x, test_x = ((as_input(part) - 0.1307) / 0.3081 for part in (data.x, data.test_x))
    return replace(data, x=x, test_x=test_x, common_x=None, common_y=None)


def validated(data: Federation, seed: int) -> Federation:
    """The training rows alone: a fifth of each client's are held out and take the place of the test rows."""
    split = [hold_out(int(n), 0.2, seed, k) for k, n in enumerate(data.sizes)]
    kept, held = (
        [rows + start for rows, start in zip(part, data.offsets, strict=False)] for part in zip(*split, strict=True)
    )
    train, test = (torch.from_numpy(np.concatenate(part)) for part in (kept, held))
    return replace(
        data,
        x=data.x[train],
        y=data.y[train],
        offsets=offsets_of([len(rows) for rows in kept]),
        test_x=data.x[test],
        test_y=data.y[test],
        test_offsets=offsets_of([len(rows) for rows in held]),
        common_x=None,
        common_y=None,
    )


class _Psi:
    """psi after every round, where the method has one."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.path: list[float] = []

    def after_round(self, report: Report) -> None:
        extra = self.run.progress.server.view.extra if self.run is not None else {}
        if "psi" in extra:
            self.path.append(round(float(extra["psi"]), 4))


def trained(
    data: Federation,
    make: Make,
    world: World,
    lr: float,
    seed: int,
    *,
    rounds: int | None = None,
    privacy: Privacy | None = None,
    sampler: Sampler | None = None,
    **options: Any,
) -> Cell:
    """Accuracies in percent after the last round, seconds a round, bytes that a client uploads."""
    sgd = m.LocalSgd(lr, weight_decay=1e-4, decay=0.99 ** (TAU / PER_EPOCH))
    model = models.initialise(models.build("five-layer-cnn", data.input_shape, data.classes), seed)
    training = Training(
        rounds=rounds or world.rounds,
        sampler=sampler or FixedSize(world.cohort),
        batch=world.batch,
        steps=TAU,
        seed=seed,
        chunk=min(25, -(-world.cohort // torch.get_num_threads())),
    )
    parts = assemble(data, model, make(sgd), privacy or Privacy(), training)
    psi = _Psi()
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=10**9), watchers=[psi])
    psi.run = it
    began = time.process_time()
    outcome = it.go()
    assert outcome.scores is not None
    personal, shared = (outcome.scores.summary(which) for which in ("personal", "shared"))
    return {
        "personal": 100 * personal.mean,
        "worst": 100 * personal.worst_decile,
        "shared": 100 * shared.mean,
        "seconds": (time.process_time() - began) / training.rounds,
        "bytes": sum(leaf.numel() * leaf.element_size() for leaf in parts.shapes.upload.values()),
        "stopped": outcome.stopped or "",
        "psi": psi.path[:: max(1, len(psi.path) // 60)],
        "notes": list(it.plan.notes),
    }


def costs(world: World, found: Mapping[tuple[str, str], Mapping[str, list[Any]]]) -> Results:
    """What a method gives and takes, by its name and epsilon: the rows of a decision."""
    heads = ["method", "epsilon", "accuracy, %", "worst decile, %", "processor seconds a round", "bytes uploaded"]
    rows = [
        [
            *(name, epsilon, over(row["personal"]), over(row["worst"]) or "-"),
            *(f"{np.median(row['seconds']):.2f}", f"{int(row['bytes'][0]):,}"),
        ]
        for (name, epsilon), row in found.items()
    ]
    note = "Worst decile: mean over the worst tenth of the clients. Bytes: by one client in one round."
    return Results(f"What it costs ({world.name}, {world.rounds} rounds)", heads, rows, note)


def poisson(world: World) -> Sampler:
    """Of the same expected cohort, for plans whose accountant wants it."""
    clients = 50 if world.data == "mnist" else 66
    return Poisson(world.cohort / clients)
