"""Puts a run together from its parts, and refuses combinations whose guarantee would not hold."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import nn

from tacit.core import tree
from tacit.core.contract import Method, Tree
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask, check, has_batch_statistics, params
from tacit.privacy.accounting.accountant import Accountant
from tacit.privacy.accounting.sampling import BatchRule, Sampler
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.levels import Choices, Level, LevelOptions, Share, by_client, by_fraction
from tacit.privacy.mechanisms import release as releases
from tacit.privacy.mechanisms import requests as plans
from tacit.privacy.mechanisms.noise import NoiseKind
from tacit.privacy.membership import Change, LevelHistory
from tacit.privacy.membership import check as check_changes
from tacit.privacy.plan import CalibrationContext, Plan, Request
from tacit.rounds.preflight import Probe, count_queries, interferes, probe
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import FixedSteps, Poisson, PoissonBatches, Shuffled
from tacit.simulation import secure_sum
from tacit.simulation.chunks import Compile
from tacit.simulation.cohort_program import CohortProgram
from tacit.simulation.device import device_of


@dataclass(frozen=True)
class Training:
    """How a run goes on: everything that is neither data, model, method nor privacy."""

    rounds: int = 100
    sampler: Sampler = field(default_factory=lambda: Poisson(0.1))
    batch: int = 10
    epochs: int = 1
    steps: int | None = None  # instead of epochs: as many for every client, however many rows it has
    seed: int = 0
    chunk: int | None = None
    dtype: torch.dtype = torch.float32
    devices: Availability = field(default_factory=Availability)
    engine: Literal["local", "ray"] = "local"  # where chunks of a cohort run: in threads, or on a Ray cluster
    device: str = field(default="cpu", repr=False)  # where clients compute, as torch names it: no part of a result
    compile: Compile = field(default="auto", repr=False)  # client programs: "auto", "off", or "require" (else an error)

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise TacitError(f"engine is {self.engine!r}: use 'local' (this machine) or 'ray' (a Ray cluster)")
        if self.engine == "ray" and self.device != "cpu":
            raise TacitError(f"device is '{self.device}', and Ray's workers compute on CPUs: leave out one of the two")
        if self.compile not in get_args(Compile):
            raise TacitError(f"compile is {self.compile!r}: use 'auto', 'off' or 'require'")
        device_of(self.device)
        for name, least in (("rounds", 1), ("batch", 1), ("epochs", 0)):
            if getattr(self, name) < least:
                raise TacitError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise TacitError(f"steps must be at least 1, not {self.steps}; leave it out to train for epochs")
        if self.chunk is not None and self.chunk < 1:
            raise TacitError(f"chunk must be at least 1, not {self.chunk}; leave it out to choose it by size")

    def batches(self, request: Request) -> BatchRule:
        """Under `Record` rows are drawn as the accountant assumes; elsewhere in shuffled passes."""
        if isinstance(request, plans.Record):
            if self.steps is not None:
                raise TacitError("the record plan trains for epochs of Poisson batches: leave out steps")
            return PoissonBatches(self.batch, self.epochs)
        return Shuffled(self.batch, self.epochs) if self.steps is None else FixedSteps(self.batch, self.steps)


@dataclass(frozen=True)
class Privacy:
    """A plan, a menu of levels, and the clients' choices: a share for each level, or a level for each client.

    Without a plan, levels that promise something are kept by `Grouped`; a menu that promises nothing is `Open`. A level
    that promises something under `Open`, which adds no noise, is refused where anything is uploaded (`assemble`).
    A share may be drawn among the clients that hold a class: `{"open": Among(0.05, holding=7)}`. `changes`: who moves
    to another level after how many rounds, where that is known beforehand; see also `Run.change`.

    `noise` of a simulation: "fast" is Gaussian noise on floats, the same but for rounding; "exact" is what a federation
    adds, discrete Gaussian noise on integers (`privacy/mechanisms/discrete_gaussian.py`). Both are seeded.
    """

    plan: Request = None  # type: ignore[assignment]  # never None once it is made
    levels: tuple[Level, ...] = (Level("open"),)
    choices: Mapping[str, Share] | Mapping[str, str] = field(default_factory=dict)
    accountant: Accountant = "pld"
    allow_large_delta: bool = False
    changes: tuple[Change, ...] = ()
    evaluation: Evaluation | None = field(default=None, repr=False)  # of private clients, in a deployment
    noise: NoiseKind = field(default="fast", repr=False)  # of a simulation; a federation's is exact

    def __post_init__(self) -> None:
        if self.noise not in get_args(NoiseKind):
            raise TacitError(f"noise is '{self.noise}': use 'fast' (Gaussian, on floats) or 'exact' (on integers)")
        if self.plan is None:
            object.__setattr__(self, "plan", default_plan(self.levels))

    def choose(self, federation: FederatedDataset, seed: int) -> Choices:
        menu = LevelOptions(self.levels)
        chosen = {name: value for name, value in self.choices.items() if isinstance(value, str)}
        shares = {name: value for name, value in self.choices.items() if not isinstance(value, str)}
        if chosen and shares:
            raise TacitError("choices give shares for some levels and levels for some clients: use one of the two")
        if chosen:
            return by_client(menu, federation.ids, chosen)
        return by_fraction(menu, federation.clients, shares, seed, federation.class_counts())


def default_plan(levels: Sequence[Level]) -> Request:
    """The plan where none is named, in Python as in a file: what is promised is kept."""
    return plans.Grouped() if any(level.private for level in levels) else plans.Open()


class Assembled(NamedTuple):
    engine: CohortProgram
    shapes: Probe

    def exactly(self) -> "Assembled":
        """With exact noise: whatever the terms say, a side that protects somebody adds no other."""
        return self._replace(engine=replace(self.engine, plan=self.engine.plan.exactly(), programs={}))


def assemble(
    federation: FederatedDataset,
    model: nn.Module,
    method: Method,
    privacy: Privacy,
    training: Training,
    sizes: np.ndarray | None = None,
) -> Assembled:
    """Everything checked and calibrated; nothing has been looked at that is not public but for shapes.

    `sizes`: the clients' public numbers of rows, where the federation at hand has not all the rows.
    """
    sizes = federation.sizes if sizes is None else sizes
    if not (federation.x.dtype == torch.uint8 and training.dtype == torch.float32):  # bytes are scaled by the batch
        federation = federation.astype(training.dtype)
    model = copy.deepcopy(model).to(training.dtype)
    task, start = check(model, federation), params(model)
    training.sampler.most(federation.clients, training.rounds)  # refuses more rounds than it can keep its word for
    method = method.sized(sizes.tolist())
    shapes = probe(method, task, federation, start)
    if shapes.upload:
        _refuse_empty_promises(privacy)
    setting = _setting(federation, privacy, training, sizes, shapes)
    if isinstance(privacy.plan, plans.Record):  # no other plan pays by the query
        lengths = {setting.batches.steps(int(n)) for n in sizes}
        setting = setting._replace(queries=count_queries(method, task, federation, start, lengths))
    plan = _plan(privacy, setting)
    _even(plan, training)
    _rehearse(plan, privacy.changes)
    _refuse(plan, model, method, task, federation, start)
    engine = _kind(training)(
        method,
        task,
        plan,
        federation,
        start,
        training.seed,
        chunk=training.chunk,
        compile=training.compile,
        devices=training.devices,
        device=device_of(training.device),
    )
    return Assembled(engine, shapes)


def _refuse_empty_promises(privacy: Privacy) -> None:
    """Where nothing is uploaded any promise is kept."""
    promised = [level for level in privacy.levels if level.private]
    if isinstance(privacy.plan, plans.Open) and promised:
        raise TacitError(
            f"level '{promised[0].name}' promises {promised[0].guarantee}, and the plan Open adds no noise: "
            "leave out the plan or use Grouped, or leave out the level's epsilon and noise"
        )


def _setting(
    federation: FederatedDataset, privacy: Privacy, training: Training, sizes: np.ndarray, shapes: Probe
) -> CalibrationContext:
    return CalibrationContext(
        ids=federation.ids,
        sizes=sizes,
        choices=privacy.choose(federation, training.seed),
        sampler=training.sampler,
        batches=training.batches(privacy.plan),
        rounds=training.rounds,
        accountant=privacy.accountant,
        allow_large_delta=privacy.allow_large_delta,
        drop=training.devices.drop,
        upload=tree.each(lambda leaf: leaf.to("meta"), shapes.upload),
    )


def _even(plan: Plan, training: Training) -> None:
    if plan.unit == "client" and training.devices.even_work and training.steps is None:
        raise TacitError(
            "with even_work the fewest rows that any client has decide how much all of them do, which no bound covers: "
            "give every client the same steps, or leave it out"
        )


def _plan(privacy: Privacy, setting: CalibrationContext) -> Plan:
    """Calibrated to everything that will be charged: rounds and, if there are any, evaluations."""
    plan = _calibrated(privacy, setting)
    if privacy.noise == "exact" and plan.steps is not None and plan.summed:
        raise TacitError("noise in shares of floats is not exact: use plan 'distributed', or leave out noise = 'exact'")
    return plan.exactly() if privacy.noise == "exact" else plan.with_fast_noise()


def _calibrated(privacy: Privacy, setting: CalibrationContext) -> Plan:
    if privacy.evaluation is None:
        return privacy.plan.plan(setting)
    evaluation = privacy.evaluation.plan(privacy.plan, setting)
    return replace(privacy.plan.plan(setting._replace(beside=evaluation.beside)), evaluation=evaluation)


def _kind(training: Training) -> type[CohortProgram]:
    if training.engine == "local":
        return CohortProgram
    from tacit.simulation.ray import OnRay, connect

    connect()
    return OnRay


def _rehearse(plan: Plan, changes: Sequence[Change]) -> None:
    """Refuses changes that the plan could not follow, before the first round, and calibrates the levels they need."""
    members = LevelHistory(plan.setting.choices, plan.setting.ids)
    check_changes(changes, members, plan.setting.rounds)
    for round in sorted({change.round for change in changes}):
        members = members.after(members.planned(changes, round))
        plan.moved(*members.at(round))


def _refuse(
    plan: Plan, model: nn.Module, method: Method, task: ModuleTask, federation: FederatedDataset, start: Tree
) -> None:
    alone = isinstance(plan.release, releases.Local) and not plan.summed  # a message carries all of its noise
    if method.gather and plan.unit == "client" and not alone:
        raise TacitError(
            f"{type(method).__name__} needs every client's own message, and under plan '{plan.name}' the server would "
            "see it before all noise is added: use plan 'local', 'record' or 'open'"
        )
    if plan.secure_sum:
        secure_sum.check()
    norms = has_batch_statistics(model)
    if plan.record is not None and norms:  # else the bound is that of a whole upload, however it came about
        raise TacitError(
            f"BatchNorm layer '{norms[0]}' mixes the rows of a batch, so no bound for one record holds: "
            f"use GroupNorm under plan '{plan.name}'"
        )
    if plan.steps is not None and plan.steps.noisy and interferes(method, task, federation, start, "guard"):
        raise TacitError(
            f"{type(method).__name__} uploads something that its guard did not see, so the stepwise plan's guarantee "
            "would not hold: use plan 'central' or 'local'"
        )
    if plan.record is not None and interferes(method, task, federation, start):
        raise TacitError(
            f"{type(method).__name__} uploads something learned with exact gradients, or asks for private gradients at "
            "personal parameters that were learned with exact gradients (one record more or less would move all other "
            "records' gradients with them), so the record plan's guarantee would not hold: use a client-level plan "
            "(central, grouped, local, distributed)"
        )
