"""Puts a run together from its parts, and refuses combinations whose guarantee would not hold."""

import copy
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Method, Tree
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask, Objective, check, fit_inputs, has_batch_statistics, params
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import Accountant
from tacit.privacy.accounting.sampling import BatchRule, Sampler
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.levels import Choices, Level, LevelOptions, Share, by_client, by_fraction
from tacit.privacy.mechanisms.noise import NoiseKind
from tacit.privacy.membership import Change, LevelHistory
from tacit.privacy.membership import check as check_changes
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan
from tacit.rounds.preflight import Probe, count_guarded, count_queries, interferes, probe
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import FixedSize, FixedSteps, Poisson, PoissonBatches, Shuffled
from tacit.simulation import secure_sum
from tacit.simulation.chunks import Compile
from tacit.simulation.cohort_program import CohortProgram
from tacit.simulation.device import device_of


@checked
@dataclass(frozen=True)
class Performance:
    """How a run uses the machine. Its result is the same but for the order of floating-point sums, and so is its name.

    Args:
        chunk: so many clients compute at once; None: chosen by size.
        threads: how many chunks compute side by side; None: as many as torch has.
        engine: chunks run in threads ("local"), or on a Ray cluster ("ray"), with as many workers as `threads` where it
            starts one.
        device: where clients compute, as torch names it.
        compile: client programs are recorded where that pays ("auto"), never ("off"), or always, and an error says why
            one cannot be ("require").

    Raises:
        TacitError: a number below 1, a device that is not there, or Ray with another device than the CPU.

    >>> import tacit
    >>> tacit.Performance(chunk=64, threads=2).device
    'cpu'
    """

    chunk: int | None = None
    threads: int | None = None
    engine: Literal["local", "ray"] = "local"
    device: str = "cpu"
    compile: Compile = "auto"

    def __post_init__(self) -> None:
        if self.engine == "ray" and self.device != "cpu":
            raise TacitError(f"device is '{self.device}', and Ray's workers compute on CPUs: leave out one of the two")
        device_of(self.device)
        if self.chunk is not None and self.chunk < 1:
            raise TacitError(f"chunk must be at least 1, not {self.chunk}; leave it out to choose it by size")
        if self.threads is not None and self.threads < 1:
            raise TacitError(f"threads must be at least 1, not {self.threads}; leave it out to use torch's")

    @contextmanager
    def threading(self) -> Generator[None]:
        """Torch has so many threads meanwhile."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@checked
@dataclass(frozen=True)
class Training:
    """How a run goes on: everything that decides its result and is neither data, model, method nor privacy.

    Args:
        rounds: of the whole run; the noise is calibrated to all of them.
        sampler: who is asked in a round; `rate=0.1` is short for `sampler=Poisson(0.1)`, `cohort=50` for
            `FixedSize(50)`.
        batch: rows of a local step.
        epochs: passes over a client's rows in a round.
        steps: instead of epochs, as many for every client, however many rows it has.
        seed: of the start, the draws and, in a simulation, the noise.
        precision: "bfloat16": networks compute their products in it; parameters, gradients, clipping, noise and sums
            stay in float32.
        dtype: of the model, torch.float32 or torch.float64.
        devices: which of them drop out or do less.
        chunk: this and what follows is of `Performance` now; taken with a warning.
        engine: see `chunk`.
        device: see `chunk`.
        compile: see `chunk`.

    Raises:
        TacitError: a number below its least value, steps together with epochs, or a dtype that is not floating-point.

    >>> import tacit
    >>> tacit.Training(rounds=40, rate=0.25).sampler
    Poisson(share=0.25)
    """

    rounds: int = 100
    sampler: Sampler = field(
        default_factory=lambda: Poisson(0.1), metadata={"keywords": {"rate": Poisson, "cohort": FixedSize}}
    )
    batch: int = 10
    epochs: int = 1
    steps: int | None = None  # instead of epochs: as many for every client, however many rows it has
    seed: int = 0
    dtype: torch.dtype = torch.float32
    devices: Availability = field(default_factory=Availability)
    precision: Literal["full", "bfloat16"] = "full"
    chunk: InitVar[int | None] = None  # this and what follows is of `Performance` now
    engine: InitVar[str | None] = None
    device: InitVar[str | None] = None
    compile: InitVar[str | None] = None
    performance: Performance = field(default=Performance(), init=False, repr=False, compare=False)

    def __post_init__(self, chunk: int | None, engine: str | None, device: str | None, compile: str | None) -> None:
        if not self.dtype.is_floating_point:
            raise TacitError(f"dtype is {self.dtype}: use torch.float32 or torch.float64")
        if self.precision == "bfloat16" and self.dtype != torch.float32:
            raise TacitError(f"precision is bfloat16 and dtype {self.dtype}: masters are float32 then, leave out dtype")
        for name, least in (("rounds", 1), ("batch", 1), ("epochs", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise TacitError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise TacitError(f"steps must be at least 1, not {self.steps}; leave it out to train for epochs")
        if self.steps is not None and self.epochs != 1:
            raise TacitError(f"steps is {self.steps} and epochs is {self.epochs}: give one of the two")
        before = {"chunk": chunk, "engine": engine, "device": device, "compile": compile}
        moved: dict[str, Any] = {name: value for name, value in before.items() if value is not None}
        if moved:
            said = ", ".join(f"{name}={value!r}" for name, value in moved.items())
            warnings.warn(f"Training({said}) is now performance=Performance({said})", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "performance", Performance(**moved))

    def batches(self, mechanism: Mechanism) -> BatchRule:
        """Where the unit is a record, rows are drawn as the accountant assumes; elsewhere in shuffled passes."""
        if mechanism.unit == "record":
            if self.steps is not None:
                raise TacitError("the record plan trains for epochs of Poisson batches: leave out steps")
            return PoissonBatches(self.batch, self.epochs)
        return Shuffled(self.batch, self.epochs) if self.steps is None else FixedSteps(self.batch, self.steps)


@checked
@dataclass(frozen=True)
class Privacy:
    """A plan, a menu of levels, and the clients' choices among them.

    Without a plan, levels that promise something are kept by `Grouped`; a menu that promises nothing is `Open`. A level
    that promises something under `Open`, which adds no noise, is refused where anything is uploaded.

    Args:
        plan: what may leave a client and how: `Central`, `Grouped`, `Local`, `Record`, `Stepwise`, `Distributed`,
            `Open`, or the name of one.
        levels: the menu. Who chooses nothing is at the most private one.
        choices: a share of the clients for each level, or a level for each client. A share may be drawn among the
            clients that hold a class: `{"open": Among(0.05, holding=7)}`.
        accountant: "pld" (tighter) or "rdp".
        allow_large_delta: accept a delta of 1 / n and more, which a report will say.
        changes: who moves to another level after how many rounds, where that is known beforehand; see also
            `Run.change`.
        evaluation: how members' accuracies are protected in a deployment.
        noise: of a simulation. "fast" is Gaussian noise on floats, the same but for rounding; "exact" is what a
            federation adds, discrete Gaussian noise on integers (`privacy/mechanisms/discrete_gaussian.py`). Both are
            seeded.

    Raises:
        TacitError: a plan with no level that it protects, or a value that does not fit.

    >>> import tacit
    >>> levels = (tacit.Level("private", epsilon=4, delta=1e-3), tacit.Level("open"))
    >>> tacit.Privacy(levels=levels, choices={"open": 0.1}).plan.name
    'grouped'
    """

    plan: Mechanism = field(default=None, metadata={"short": lambda name: plans.MECHANISMS.find(name)()})  # type: ignore[assignment]
    levels: tuple[Level, ...] = (Level("open"),)
    choices: Mapping[str, Share | str] = field(default_factory=dict[str, Share | str])
    accountant: Accountant = "pld"
    allow_large_delta: bool = False
    changes: tuple[Change, ...] = ()
    evaluation: Evaluation | None = field(default=None, repr=False)  # of private clients, in a deployment
    noise: NoiseKind = field(default="fast", repr=False)  # of a simulation; a federation's is exact

    def __post_init__(self) -> None:
        if cast(Mechanism | None, self.plan) is None:  # never once it is made
            object.__setattr__(self, "plan", default_plan(self.levels))
        asked = "noise 'exact'" if self.noise == "exact" else f"plan {type(self.plan).__name__}"
        if asked != "plan Open" and not any(level.private for level in self.levels):
            raise TacitError(
                f"{asked} protects nobody, for no level has an epsilon or a noise: add one, or leave it out"
            )

    def choose(self, federation: FederatedDataset, seed: int) -> Choices:
        menu = LevelOptions(self.levels)
        chosen = {name: value for name, value in self.choices.items() if isinstance(value, str)}
        shares = {name: value for name, value in self.choices.items() if not isinstance(value, str)}
        if chosen and shares:
            raise TacitError("choices give shares for some levels and levels for some clients: use one of the two")
        if chosen:
            return by_client(menu, federation.ids, chosen)
        return by_fraction(menu, federation.clients, shares, seed, federation.class_counts())


def default_plan(levels: Sequence[Level]) -> Mechanism:
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
    performance: Performance | None = None,
    objective: Objective = Objective(),
) -> Assembled:
    """Everything checked and calibrated; nothing has been looked at that is not public but for shapes.

    `sizes`: the clients' public numbers of rows, where the federation at hand has not all the rows.
    """
    sizes = federation.sizes if sizes is None else sizes
    if not (federation.x.dtype == torch.uint8 and training.dtype == torch.float32):  # bytes are scaled by the batch
        federation = federation.astype(training.dtype)
    model = copy.deepcopy(model).to(training.dtype)
    federation = fit_inputs(model, federation, training.dtype)
    low = torch.bfloat16 if training.precision == "bfloat16" else None
    task, start = check(model, federation, objective, low), params(model)
    training.sampler.most(federation.clients, training.rounds)  # refuses more rounds than it can keep its word for
    _refuse_other_levels(method, len(privacy.levels))
    method = method.sized(sizes.tolist())
    shapes = probe(method, task, federation, start, len(privacy.levels) - 1)
    if shapes.upload:
        _refuse_empty_promises(privacy)
    privacy = _with_public_range(privacy, task)
    setting = _setting(federation, privacy, training, sizes, shapes)
    if privacy.plan.unit == "record":  # no other plan pays by the query
        lengths = {setting.batches.steps(int(n)) for n in sizes}
        setting = setting._replace(queries=count_queries(method, task, federation, start, lengths))
    plan = _plan(privacy, setting)
    _even(plan, training)
    _rehearse(plan, privacy.changes)
    _refuse(plan, model, method, task, federation, start)
    performance = performance or training.performance
    if low is not None and performance.compile == "require":
        raise TacitError("programs in bfloat16 are not recorded: leave out compile='require'")
    machine: dict[str, Any] = {"chunk": performance.chunk, "compile": performance.compile if low is None else "off"}
    machine |= {"devices": training.devices, "device": device_of(performance.device)}
    program = _kind(performance)(method, task, plan, federation, start, training.seed, **machine)
    return Assembled(program, shapes)


def _with_public_range(privacy: Privacy, task: ModuleTask) -> Privacy:
    """A metric that is released has a range that is public: its own, or one that was stated."""
    evaluation, metric = privacy.evaluation, task.metrics[0]
    if evaluation is None or evaluation.range is not None:
        return privacy
    if metric.range is None:
        raise TacitError(
            f"the metric '{metric.name}' has no range, so that no noise covers what one client does to its mean: state "
            "one with evaluate.range = [lowest, highest], into which figures are clipped, or use another metric"
        )
    return replace(privacy, evaluation=replace(evaluation, range=metric.range))


def _refuse_other_levels(method: Method, levels: int) -> None:
    """Settings for each level are as many as there are levels, of methods inside the method, too."""
    if method.levels not in (None, levels):
        raise TacitError(
            f"{type(method).__name__} has settings for {method.levels} privacy levels, and there are {levels}: give "
            "one for all, or one for each"
        )
    for part in fields(method) if is_dataclass(method) else ():
        if isinstance(inner := getattr(method, part.name), Method):
            _refuse_other_levels(inner, levels)


def _refuse_empty_promises(privacy: Privacy) -> None:
    """Where nothing is uploaded any promise is kept."""
    promised = [level for level in privacy.levels if level.private]
    if privacy.plan.unit == "none" and promised:
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


def _kind(performance: Performance) -> type[CohortProgram]:
    if performance.engine == "local":
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
    alone = plan.mechanism.server_sees == "messages" and plan.steps is None  # a message carries all of its noise
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
    if plan.steps is not None and plan.setting.upload:
        plan.steps.check(count_guarded(method, task, federation, start, plan.steps.steps))
    if plan.record is not None and interferes(method, task, federation, start):
        raise TacitError(
            f"{type(method).__name__} uploads something learned with exact gradients, or asks for private gradients at "
            "personal parameters that were learned with exact gradients (one record more or less would move all other "
            "records' gradients with them), so the record plan's guarantee would not hold: use a client-level plan "
            "(central, grouped, local, distributed)"
        )
