"""One run of AdaPeD's comparison as a cell of figures: the data, the methods and the settings of its Table 1."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from papers.bench import Cell
from papers.page import Results, over
from tacit import methods as m
from tacit import models
from tacit.core.contract import Method, Tree
from tacit.data import loaders
from tacit.data.dataset import FederatedDataset, as_input
from tacit.data.partition import validation_split
from tacit.errors import TacitError
from tacit.privacy.accounting.sampling import Sampler
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Performance, Privacy, Training, assemble
from tacit.rounds.loop import Outcome, Run, Schedule
from tacit.rounds.round import Report
from tacit.sampling.cohorts import FixedSize, Poisson

TAU, PER_EPOCH = 10, 60
WARM_SEED: Final = 1000
_SEEDS: Final = 3  # kept in memory: a table goes through them for one method after another
WRITERS_LR: Final = 0.05
Make = Callable[[m.LocalSgd, m.LocalSgd], Method]
"""From the steps of the model that is shared, and of one that a client keeps or tunes for itself."""

_ADAPED: Final[Make] = lambda sgd, own: m.AdaPeD(sgd, own)  # noqa: E731
VERSIONS: Final[Mapping[str, dict[str, str]]] = {"Federated ML": {"alpha": ".25 of the cross-entropy"}}
"""What cells of a method must say beside its settings: its weights once stood the other way round."""
METHODS: Final[Mapping[str, Make]] = {
    "FedAvg": lambda sgd, own: m.FineTuned(m.FedAvg(sgd), own),  # its shared model; the personal ones are the next row
    "AdaPeD": _ADAPED,
    "AdaPeD, random start": _ADAPED,
    "pFedMe": lambda sgd, _: m.PFedMe(sgd),
    "Per-FedAvg": lambda sgd, _: m.PerFedAvg(sgd, inner=0.01),
    "QuPeD (FP)": lambda sgd, own: m.QuPeD(sgd, own),
    "Federated ML": lambda sgd, own: m.MutualLearning(sgd, own),
    "local": lambda sgd, _: m.LocalOnly(sgd),
    "FedEM": lambda sgd, _: m.FedEM(sgd),
}


@dataclass(frozen=True)
class Setting:
    """`warm`: in this share of the rounds FedAvg finds the common start from which the method goes on.
    `own`: the rate of the model that a client keeps or tunes for itself, if it is another."""

    lr: float = 0.1
    warm: float = 0.0
    own: float | None = None
    psi: float | None = None  # where AdaPeD's starts, if not at the paper's 4

    @property
    def config(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def own_lr(self) -> float:
        return self.lr if self.own is None else self.own

    @property
    def words(self) -> list[str]:
        return [f"{self.lr:g}", f"{self.own_lr:g}", f"{self.warm:.0%}" if self.warm else "random"]

    def method(self, make: Make, before: int) -> Method:
        made = make(sgd(self.lr, before), sgd(self.own_lr, before))
        return replace(made, psi=self.psi) if isinstance(made, m.AdaPeD) and self.psi is not None else made


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


_KEPT: Final = Setting(0.1, warm=0.9, own=0.03)
SETTINGS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "mnist": {
        "AdaPeD": Setting(0.1, warm=0.5),
        "QuPeD (FP)": Setting(0.1, warm=0.5),
        "Federated ML": Setting(0.1, warm=0.5),
        "Per-FedAvg": Setting(0.075),
        "FedEM": Setting(0.2),
    },
    "writers": {
        "FedAvg": Setting(0.1, own=0.01),
        "AdaPeD": _KEPT,
        "QuPeD (FP)": _KEPT,
        "Federated ML": _KEPT,
        "local": Setting(0.05),
    },
    EVERYBODY.name: {"AdaPeD": Setting(0.1, warm=0.9)},
}
"""By data, or by column where that has settings of its own.

Chosen on validation rows (`adaped/selection`), or the paper's own; a rate of .1 for those that are not named."""


def setting_of(world: World, name: str) -> Setting:
    own = SETTINGS.get(world.name, {})
    return own.get(name) or SETTINGS[world.data].get(name, Setting(0.1))


def sized(world: World, full: bool) -> World:
    """MNIST as in the paper; the writers' columns a quarter as long unless `full`."""
    return world if full or world.data == "mnist" else replace(world, epochs=world.epochs // 4)


WRITERS: Final[Any] = {"partition": "writer", "group": 3, "clients": 66, "test": "own", "test_fraction": 0.1}


@lru_cache(maxsize=_SEEDS)
def federation(data: str, seed: int) -> FederatedDataset:
    if data == "mnist":
        return standard(loaders.load("mnist", clients=50, classes_each=3, test="matched", seed=seed))
    return standard(loaders.load("mnist", **WRITERS, seed=seed))


def standard(data: FederatedDataset) -> FederatedDataset:
    """Pixels less their mean, over their deviation: public constants of MNIST, as is usual for it."""
    x, test_x = ((as_input(part) - 0.1307) / 0.3081 for part in (data.x, data.test_x))
    return replace(data, x=x, test_x=test_x, common_x=None, common_y=None)


@lru_cache(maxsize=1)
def validated(data: FederatedDataset, seed: int) -> FederatedDataset:
    """The training rows alone: a fifth of each client's are held out and take the place of the test rows."""
    return validation_split(data, 0.2, seed)


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
    data: FederatedDataset,
    make: Make,
    world: World,
    setting: Setting,
    seed: int,
    *,
    privacy: Privacy | None = None,
    sampler: Sampler | None = None,
) -> Cell:
    """Accuracies in percent after the last round, seconds a round, bytes that a client uploads."""
    before = round(setting.warm * world.rounds)
    if before and privacy is not None:
        raise TacitError("a start that FedAvg found has no privacy: set warm to 0 in a private cell")
    training = training_of(world, world.rounds - before, sampler, seed)
    model = network(data, seed)
    if before:
        model.load_state_dict(_warmed(data, setting.lr, replace(training, rounds=before), seed, world.cohort))
    method, performance = setting.method(make, before), performance_of(world.cohort)
    parts = assemble(data, model, method, privacy or Privacy(), training, performance=performance)
    psi = _Psi()
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=10**9), watchers=[psi])
    psi.run = it
    began = time.process_time()
    outcome = it.go()
    return {
        **accuracies(outcome),
        "seconds": (time.process_time() - began) / training.rounds,
        "bytes": sum(leaf.numel() * leaf.element_size() for leaf in parts.shapes.upload.values()),
        "stopped": outcome.stopped or "",
        "psi": psi.path[:: max(1, len(psi.path) // 60)],
        "notes": list(it.plan.notes),
    }


def training_of(world: World, rounds: int, sampler: Sampler | None, seed: int) -> Training:
    cohort = sampler or FixedSize(world.cohort)
    return Training(rounds=rounds, sampler=cohort, batch=world.batch, steps=TAU, seed=seed)


def performance_of(cohort: int) -> Performance:
    return Performance(chunk=min(25, -(-cohort // torch.get_num_threads())))


def accuracies(outcome: Outcome) -> Cell:
    assert outcome.scores is not None
    personal, shared = (outcome.scores.summary(which) for which in ("personal", "shared"))
    return {"personal": 100 * personal.mean, "worst": 100 * personal.worst_decile, "shared": 100 * shared.mean}


def network(data: FederatedDataset, seed: int) -> torch.nn.Module:
    return models.initialise(models.build("five-layer-cnn", data.input_shape, data.classes), seed)


def sgd(lr: float, before: int) -> m.LocalSgd:
    """The rate falls by one percent an epoch; `before`: rounds in which it has already fallen."""
    decay = 0.99 ** (TAU / PER_EPOCH)
    return m.LocalSgd(lr * decay**before, weight_decay=1e-4, decay=decay)


@lru_cache(maxsize=_SEEDS)
def _warmed(data: FederatedDataset, lr: float, training: Training, seed: int, cohort: int) -> Tree:
    """The shared model after some rounds of FedAvg, with other cohorts and batches than in the rounds to come."""
    model = network(data, seed)
    training, performance = replace(training, seed=WARM_SEED + seed), performance_of(cohort)
    parts = assemble(data, model, m.FedAvg(sgd(lr, 0)), Privacy(), training, performance=performance)
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=10**9))
    while it.progress.round < training.rounds:
        it.step()
    return it.progress.server.view.model


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
