"""The boundary holds for every method, mechanism and kind of data, on the path that users run: recorded and compiled.

For each client, what it adds to the sums of a round is found by leaving it out. That is at most its bound, whatever the
data, and what the plain program gives to 1e-4 of the bound. The two are compared where rounding decides nothing: where
the plain program itself, on inputs moved by a few roundings, moves by at most a tenth of that. (A unit of a network
that turns on or off, or a division by almost nothing, moves it by far more.) Of tame data every client is compared,
also where a method divides by a small number (hessian-free Per-FedAvg's difference quotient moves by a fiftieth of it).

Programs end with raw uploads and know nothing of a mechanism, so that one recording serves all mechanisms here, as it
does not in a run; `Stepwise`, which clips within the program, has one of its own. Composed methods, and a recording for
each mechanism, are `pytest -m slow tests/conformance/test_boundary.py`.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.compile.acceptance import Program
from tacit.compile.ir import calls
from tacit.compile.kernels import compiled
from tacit.compile.replay import Recording
from tacit.core import tree
from tacit.core.contract import Method, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import REGISTRY, FedAvg, Multitask
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed, clip
from tacit.privacy.mechanisms.distributed import DistributedRelease
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.rounds.assemble import Performance, Privacy, Training, assemble
from tacit.sampling.cohorts import Poisson
from tacit.simulation.client_program import handed_over
from tacit.simulation.client_states import MemoryStore
from tacit.simulation.cohort_program import Broadcast, CohortProgram, Computed
from tests.conformance.test_methods import METHODS
from tests.worlds import OPEN

BOUND, CLIENTS, INPUTS, STEPS = 0.5, 5, 64, 4
QUIET = Level("private", delta=1e-3, noise=1e-9)
MECHANISMS = {
    "central": Privacy(plans.Central(Fixed(BOUND)), (QUIET,)),
    "grouped": Privacy(plans.Grouped(Fixed(BOUND)), (QUIET, OPEN), {"open": 0.4}),
    "local": Privacy(plans.Local(Fixed(BOUND)), (QUIET,)),
    "distributed": Privacy(plans.Distributed(Fixed(BOUND)), (Level("private", delta=1e-3, noise=1.0),)),
    "stepwise": Privacy(Stepwise(BOUND / STEPS), (QUIET,)),
    "stepwise, summed": Privacy(Stepwise(BOUND / STEPS, seen="sum", least=1), (QUIET,)),
}
QUICK = tuple(name for name in MECHANISMS if name != "stepwise, summed")
SAME = 1e-4  # of the bound
REFUSALS = "every client's own message", "its guard did not see", "guarded 0 steps"
NAN, INF = math.nan, math.inf
DATA: dict[str, tuple[float, ...]] = {
    "tame": (1, 1, 1, 1, 1),
    "huge": (1e6, 1e18, 1e9, 3e38, 1e4),
    "nan": (NAN,) * 5,
    "infinite": (INF, -INF, INF, INF, INF),
    "subnormal": (1e-42, 1e-40, 1e-44, 1e-38, 1e-42),
    "mixed": (1, 1e6, NAN, INF, 1e-41),
}
"""What each client's rows are multiplied with; of "mixed" only one number of NaN and infinity each."""


EVEN, RAGGED = (8, 5, 6, 8, 7), (8, 1, 5, 8, 3)
"""Rows of each client: as many steps for all, so that first layers are shares of rows; or steps that only pad some."""


def federation(sizes: Sequence[int]) -> FederatedDataset:
    draw = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = draw.integers(3, size=n)
        return draw.normal(size=(n, INPUTS)) * 0.3 + y[:, None], y

    return from_clients({f"c{k}": (*rows(n), *rows(2)) for k, n in enumerate(sizes)}, classes=3)


def model_for(method: Method) -> nn.Module:
    if isinstance(method, Multitask):
        return initialise(SoftmaxRegression(INPUTS, 3), 0)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers |= {"body": nn.Linear(INPUTS, 8), "act": nn.Tanh(), "norm": nn.GroupNorm(2, 8), "head": nn.Linear(8, 3)}
    return initialise(nn.Sequential(layers), 0)


def engine_for(method: Method, privacy: Privacy, rows: FederatedDataset) -> CohortProgram:
    stepwise = isinstance(privacy.plan, Stepwise)
    training = Training(5, Poisson(1.0), 4, 1 if stepwise else 2, STEPS if stepwise else None, seed=3)
    performance = Performance(chunk=CLIENTS)
    engine, _ = assemble(rows, model_for(method), method, privacy, training, performance=performance)
    return replace(engine, compile="require", programs={}, decisions={})


@dataclass(frozen=True)
class World:
    """A method under one mechanism; its data can be changed, also for what was recorded."""

    engine: CohortProgram
    tame: Tensor
    known: dict[tuple[object, ...], Tree]

    def spoil(self, kind: str, moved: float = 1.0) -> None:
        x, offsets = self.engine.federation.x, self.engine.federation.offsets
        for k, scale in enumerate(DATA[kind]):
            own, tame = x[offsets[k] : offsets[k + 1]], self.tame[offsets[k] : offsets[k + 1]]
            one_number = kind == "mixed" and not math.isfinite(scale)
            own.copy_(tame * moved * (1.0 if one_number else scale))
            if one_number:
                own[0, 0] = scale

    @cached_property
    def given(self) -> Broadcast:
        return Broadcast(self.engine.method.init(self.engine.start).view, self.engine.plan.release.start(), 0)

    def state(self, clients: np.ndarray) -> Tree:
        """As a store gives it: all leaves of one type."""
        first = self.engine.method.join(self.given.view, self.engine.start)
        return MemoryStore(CLIENTS, first).read(clients, first) if first else {}

    def record(self, programs: dict[str, Program]) -> None:
        """Once for all mechanisms that clip at the end."""
        everybody, kind = np.arange(CLIENTS), self.engine.plan.name if self.engine.plan.steps else "the end"
        if kind not in programs:
            self.engine.prepare(self.given, everybody)
            (found,) = self.engine.programs.values()
            assert found is not None, "a program was refused"
            programs[kind] = found
        self.engine.programs[self.engine._key(self.given, everybody)] = programs[kind]

    def computed(self, clients: np.ndarray) -> Computed:
        """A round of these clients, recorded where there is a recording."""
        inputs = self.engine.inputs_for(self.state(clients), clients, 0)
        if not self.engine.method.gather:
            assert self.engine.programs[self.engine._key(self.given, clients)] is not None
        return self.engine.compute(self.engine.task, self.given, clients, inputs)

    def recorded(self) -> list[Tensor]:
        """What each client adds to the sums of all: by leaving it out."""
        everybody = np.arange(CLIENTS)
        whole = self._vector(self.computed(everybody).totals.body)
        return [
            self._bare(whole - self._vector(self.computed(np.delete(everybody, k)).totals.body), k)
            for k in range(CLIENTS)
        ]

    def raw(self, kind: str, moved: float = 1.0) -> Tree:
        """The plain program's uploads."""
        everybody = np.arange(CLIENTS)
        inputs = self.engine.inputs_for(self.state(everybody), everybody, 0)
        key = kind, moved, self.engine.plan.steps, tuple(inputs.level.tolist()) if moved == 1 else ()
        if key not in self.known:
            self.spoil(kind, moved)
            view, public, round = self.given
            self.known[key] = self.engine.uploads(self.engine.task, 0, view, public, torch.tensor(round), inputs)[0]
        return self.known[key]

    def clipped(self, raw: Tree) -> list[Tensor]:
        body, _ = clip(raw, 1.0, lead=1)
        return list(tree.flatten(body, 1)) if body else [torch.zeros(1)] * CLIENTS

    def length(self, vector: Tensor) -> float:
        """Of what the mechanism bounds: `Stepwise` bounds every step of a model, and all else that is sent follows from
        the noisy steps (a control variate, say)."""
        upload = self.engine.plan.setting.upload
        if self.engine.plan.steps is None or not self.engine.plan.steps.noisy or not upload:
            return float(vector.norm())
        model = torch.cat([torch.full((leaf.numel(),), name.startswith("model/")) for name, leaf in upload.items()])
        return float(vector[model].norm())

    @property
    def rounding(self) -> float:
        """What the bound may be exceeded by: nothing where numbers are whole."""
        return 0.0 if isinstance(self.engine.plan.release, DistributedRelease) else 1e-5

    def same(self, a: Tensor, b: Tensor) -> bool:
        release = self.engine.plan.release
        if not isinstance(release, DistributedRelease):
            return float((a - b).norm()) <= SAME
        apart = ((a - b) * release.coding.l2).round().abs()  # a number near the middle may be rounded either way
        return float(apart.max()) <= 1 and int(apart.count_nonzero()) <= 2 + 0.02 * len(apart)

    def plain(self, raw: Tree) -> list[Tensor]:
        """The same of the plain program's uploads, each client alone."""
        everybody = np.arange(CLIENTS)
        inputs = self.engine.inputs_for({}, everybody, 0)
        return [
            self._bare(
                self._vector(
                    self.engine._released(
                        self.given.public, handed_over(raw, inputs._replace(real=inputs.client == k)), {}, {}
                    ).totals.body
                ),
                k,
            )
            for k in range(CLIENTS)
        ]

    def _vector(self, body: Tree) -> Tensor:
        return tree.flatten(tree.each(lambda leaf: leaf.double().flatten(), body)) if body else torch.zeros(1)

    def _bare(self, vector: Tensor, client: int) -> Tensor:
        """Without its own noise, in units of the bound: `Distributed` states a sensitivity in integers."""
        release = self.engine.plan.release
        if not isinstance(release, DistributedRelease) or len(vector) == 1:
            return vector / BOUND
        noise = Seeded(self.engine.keys("release", 0, np.array([client]))[0])
        noise.next_call()  # its rounding
        return (vector - noise.skellam(release.coding.padded, release.coding.share)) / release.coding.l2


@dataclass(frozen=True)
class Shared:
    """What mechanisms have in common that clip at the end: the rows, the recording and the plain program's uploads."""

    programs: dict[str, Program] = field(default_factory=dict)
    raw: dict[tuple[object, ...], Tree] = field(default_factory=dict)


def worlds(method: Method, mechanisms: Iterable[str], sizes: Sequence[int] = EVEN) -> Iterator[tuple[str, World]]:
    """Under every mechanism that takes the method, recorded."""
    rows, shared = federation(sizes), Shared()
    tame = rows.x.clone()
    for name in mechanisms:
        try:
            engine = replace(engine_for(method, MECHANISMS[name], federation(sizes)), federation=rows)
        except TacitError as error:  # refused: see the tests of the plans
            if any(reason in str(error) for reason in REFUSALS):
                continue
            raise
        world = World(engine, tame, shared.raw)
        world.spoil("tame")
        if not method.gather:
            world.record(shared.programs)
        yield name, world


def compare(name: str, kind: str, world: World) -> None:
    raw = world.raw(kind)
    lost = kind in ("nan", "infinite")  # all that is sent is zero, however it is moved
    moved = raw if lost else world.raw(kind, 1 + 4 * torch.finfo(torch.float32).eps)
    steady = [float((a - b).norm()) <= SAME / 10 for a, b in zip(world.clipped(moved), world.clipped(raw), strict=True)]
    world.spoil(kind)
    for k, (got, expected) in enumerate(zip(world.recorded(), world.plain(raw), strict=True)):
        where = f"{name}, {kind} data, client {k}"
        assert world.length(got) <= 1 + world.rounding, where
        assert world.length(expected) <= 1 + world.rounding, where
        assert steady[k] or kind != "tame", where
        if steady[k]:
            assert world.same(got, expected), where


@pytest.mark.parametrize("name", REGISTRY)
def test_no_client_adds_more_than_its_bound_and_recorded_programs_add_what_plain_ones_do(name: str) -> None:
    for mechanism, world in worlds(REGISTRY[name](), QUICK):
        for kind in DATA:
            compare(mechanism, kind, world)


@pytest.mark.skipif(not compiled(), reason="no C compiler")
def test_first_layers_are_shares_of_rows_here() -> None:
    """So that what is said above is said of them, too."""
    for _, world in worlds(FedAvg(), ["central"]):
        (program,) = world.engine.programs.values()
        assert isinstance(program, Recording)
        assert calls(program.graph, torch.ops.tacit.add_rows.default)


@pytest.mark.skipif(not compiled(), reason="no C compiler: then no program serves clients of all lengths")
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_it_holds_where_steps_only_pad_some_clients(name: str) -> None:
    for mechanism, world in worlds(REGISTRY[name](), ["central", "distributed"], RAGGED):
        for kind in DATA:
            compare(mechanism, kind, world)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", METHODS)
def test_it_holds_for_composed_methods_and_each_mechanisms_own_recording(name: str, mechanism: str) -> None:
    for _, world in worlds(METHODS[name], [mechanism]):
        for kind in DATA:
            compare(mechanism, kind, world)
