"""A round's clients as one tensor program: `vmap` of the method's client program over chunks of the cohort."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from tacit import rng, tree
from tacit.core import Batch, Method, Shared, Site, Task, Tree
from tacit.engine.heterogeneity import Diary, local_loss
from tacit.engine.record import Program, record
from tacit.engine.store import Store
from tacit.engine.workers import Workers
from tacit.errors import TacitError
from tacit.federation.cohort import FixedSteps, Shuffled, draw_batches
from tacit.federation.data import Federation
from tacit.federation.devices import Devices
from tacit.models.task import ModuleTask
from tacit.privacy.clip import clip
from tacit.privacy.gradient import Counted, Exact, Private
from tacit.privacy.noise import Seeded
from tacit.privacy.plan import Plan
from tacit.privacy.release import Message, Totals
from tacit.privacy.stepwise import StepGuard, StepNoise

_CHUNK_NUMBERS = 2**25  # numbers in one copy of a chunk's parameters
_CACHE_NUMBERS = 2**21  # the same for a recorded program, which is fastest while all of it stays in a core's cache
_MOST_STEPS = 40  # a recorded program is as long as its steps are many
_FEWEST, _MOST = 4, 25  # clients of a recorded program
_FEW_LENGTHS = 8
_WORTH_ROUNDS = 20  # rounds that pay for recording one program


class Inputs(NamedTuple):
    """What differs between the clients of a chunk: every leaf has one row a client."""

    state: Tree
    rows: Tensor
    mask: Tensor
    live: Tensor
    level: Tensor
    z: Tensor
    expected: Tensor
    gradient_key: Tensor
    release_key: Tensor
    client: Tensor  # its place in the federation
    real: Tensor  # False for a row that only fills the chunk up


class Shape(NamedTuple):
    """All that a chunk's program depends on besides its inputs: public, and the same whenever a run is repeated."""

    clients: int
    steps: int
    full: int  # leading steps that are live for every client

    def fill(self, inputs: Inputs) -> Inputs:
        """Rows repeated to `clients`, steps that are not live added up to `steps`."""
        several, steps = inputs.live.shape
        rows = torch.arange(self.clients).clamp(max=several - 1)
        filled = Inputs(tree.each(lambda leaf: leaf[rows], inputs.state), *(leaf[rows] for leaf in inputs[1:]))
        more = self.steps - steps
        return filled._replace(
            rows=torch.cat([filled.rows, filled.rows[:, :1].expand(-1, more, -1)], 1),
            mask=pad(filled.mask, (0, 0, 0, more)),
            live=pad(filled.live, (0, more)),
            real=torch.arange(self.clients) < several,
        )


Key = tuple[Shape, tuple[torch.Size, ...]]
"""Of a recorded program: its chunk, and the shapes of what is broadcast (a method's may change between rounds)."""


@dataclass(frozen=True, eq=False)
class Vectorised:
    """Runs client programs. Results do not depend on `chunk` or threads beyond the order of floating-point sums.

    `record`: whether a chunk's program is recorded and replayed; by default if the run is long enough to gain by it.
    """

    method: Method
    task: ModuleTask
    plan: Plan
    federation: Federation
    start: Tree
    seed: int
    chunk: int | None = None
    record: bool | None = None
    programs: dict[Key, Program | None] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)
    diary: Diary | None = None  # where clients' training losses are written, if they are asked for

    def round(
        self,
        view: Shared,
        public: Tree,
        cohort: np.ndarray,
        round: int,
        store: Store,
        like: Tree,
        gathered: Tree | None = None,
    ) -> Totals:
        """The sum of the encoded uploads by level; the clients' new states go to the store.

        With `gathered`, whose leaves have a row for each client, every message is also written into its own row.
        """
        first = self.method.join(view, self.start)
        now = torch.tensor(round)
        shared = tuple(leaf.shape for leaf in pytree.tree_leaves((view, public)))

        def inputs(clients: np.ndarray) -> Inputs:
            return self.inputs_for(store.read(clients, first), clients, round)

        def chunk(task: ModuleTask, clients: np.ndarray) -> Totals:
            given, shape = inputs(clients), self.shape(clients)
            run = self.programs.get((shape, shared))
            if run is not None:
                totals, states, losses = run(view, public, now, shape.fill(given))
            else:
                full = int(given.live.sum(1).min())
                messages, states, losses = self.encoded(task, full, view, public, now, given)
                totals = self._sum(messages, given.level, given.real)
                for name, leaf in (gathered or {}).items():
                    leaf[clients] = messages.body[name]
            store.write(clients, tree.each(lambda leaf: leaf[: len(clients)], states))
            if self.diary is not None:
                self.diary.write(round, clients, losses["loss"][: len(clients)])
            return totals

        chunks = list(self.chunks(cohort))
        if self.recorded:
            for clients in chunks:  # in this thread alone: nothing else may run while a program is recorded
                self._prepare((self.shape(clients), shared), lambda c=clients: (view, public, now, inputs(c)))
        totals = self._nothing(like)
        for part in self.workers.map(chunk, chunks):
            totals = Totals(
                tree.add(totals.body, part.body), *(a + b for a, b in zip(totals[1:], part[1:], strict=True))
            )
        return totals

    def under(self, plan: Plan) -> "Vectorised":
        """The same with another plan, that of the next rounds; the workers stay, what was recorded does not."""
        other = replace(self, plan=plan, programs={})
        other.__dict__["workers"] = self.workers
        return other

    @cached_property
    def steps(self) -> np.ndarray:
        """Local steps that each client of the population has in a round."""
        return np.array([self.plan.setting.batches.steps(int(n)) for n in self.federation.sizes], dtype=np.int64)

    def work(self, clients: np.ndarray, round: int) -> np.ndarray:
        """Local steps that each of `clients` really takes in this round."""
        return self.devices.work(self.seed, round, clients, self.steps)

    @cached_property
    def _first_rows(self) -> Tensor:
        return torch.from_numpy(self.federation.offsets[:-1])

    def idle(self, view: Shared, cohort: np.ndarray, round: int, store: Store) -> None:
        """Everybody else's round: their states move on, and nothing comes of it but that."""
        first = self.method.join(view, self.start)

        def chunk(task: ModuleTask, clients: np.ndarray) -> None:
            inputs = self.inputs_for(store.read(clients, first), clients, round)
            full = int(inputs.live.sum(1).min())

            def one(given: Inputs) -> Tree:
                return self.method.idle(given.state, self.site(task, given, round, full)[0])

            store.write(clients, vmap(one)(inputs))

        everybody = np.arange(self.federation.clients)
        for _ in self.workers.map(chunk, self.chunks(np.setdiff1d(everybody, cohort))):
            pass

    @cached_property
    def workers(self) -> Workers[ModuleTask]:
        return Workers(self.task, torch.get_num_threads())

    @cached_property
    def recorded(self) -> bool:
        """Decided by what is known before the first round, so that a resumed run decides alike."""
        batches, rounds = self.plan.setting.batches, self.plan.setting.rounds
        if self.record is False or self.method.gather or not isinstance(batches, Shuffled | FixedSteps):
            return False
        if self._lengths[-1] > _MOST_STEPS:
            return False
        return self.record is True or rounds >= _WORTH_ROUNDS * len(self._lengths)

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """How many steps a recorded program may have: few different numbers, so that there are few programs."""
        found = np.unique(self.steps)
        if len(found) > _FEW_LENGTHS:  # 1, 2, 3, 4, 6, 8, 12, 16, ...
            found = np.unique([next(n for n in _ROUNDED if n >= steps) for steps in found])
        return tuple(int(n) for n in found)

    def _prepare(self, key: Key, example: Callable[[], tuple[Shared, Tree, Tensor, Inputs]]) -> None:
        if key not in self.programs:
            shape, (view, public, now, inputs) = key[0], example()
            program = partial(self._run, self.task, shape.full)
            self.programs[key] = record(program, view, public, now, shape.fill(inputs))

    def shape(self, clients: np.ndarray) -> Shape:
        steps = self.steps[clients]
        if not self.recorded:
            return Shape(len(clients), int(steps.max()), int(steps.min()))
        most = next(n for n in self._lengths if n >= steps.max())
        least = int(steps.min()) if self.devices.alike else 0
        return Shape(self._several(len(clients)), most, max((n for n in self._lengths if n <= least), default=0))

    def chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """Clients with like numbers of steps together, so that little is padded; the longest first."""
        ordered = cohort[np.argsort(-self.steps[cohort], kind="stable")]
        several = self._several(len(cohort))
        for begin in range(0, len(ordered), several):
            yield ordered[begin : begin + several]

    def _several(self, clients: int) -> int:
        """A recorded program has a fixed number of clients; else as many as memory likes, two chunks a worker."""
        if self.chunk:
            return self.chunk
        params = max(1, tree.size(self.start))
        if self.recorded:
            return max(_FEWEST, min(_MOST, _CACHE_NUMBERS // params))
        return max(1, min(_CHUNK_NUMBERS // params, -(-clients // (2 * self.workers.several))))

    def site(self, task: ModuleTask, given: Inputs, round: int | Tensor, full: int) -> tuple[Site, Counted]:
        """One client's site; `full` leading steps are live for every client of the chunk."""
        data = self.federation

        def batch(step: int) -> Batch:
            return Batch(*data.take(given.rows[step]), given.mask[step])

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            return new if step < full else tree.where(given.live[step], new, old)

        def own_rows(step: int) -> Tensor:
            return given.rows[step] - self._first_rows[given.client]

        exact = Exact(task, batch)
        record = self.plan.record
        private = Counted(
            exact
            if record is None
            else Private(task, batch, record.bound, given.z, given.expected, Seeded(given.gradient_key))
        )
        site = Site(
            task=task,
            steps=given.live.shape[0],
            live=given.live,
            batch=batch,
            grad=exact,
            private_grad=private,
            advance=advance,
            level=given.level,
            round=torch.as_tensor(round),
            client=given.client,
            rows=own_rows,
        )
        return site, private

    def _run(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> tuple[Totals, Tree, Tree]:
        """The plain program of a chunk."""
        messages, states, losses = self.encoded(task, full, view, public, round, inputs)
        return self._sum(messages, inputs.level, inputs.real), states, losses

    def encoded(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> tuple[Message, Tree, Tree]:
        """What every client of a chunk sends, its new state, and its loss if there is a diary."""

        def one(given: Inputs) -> tuple[Message, Tree, Tree]:
            site, private = self.site(task, given, round, full)
            guard = self._guard(public) if self.plan.steps is None else self._step_guard(self.plan.steps, given)
            reply = self.method.client(view, given.state, site._replace(guard=guard))
            self._check_queries(private.calls, site.steps)
            if self.plan.steps is not None and isinstance(guard, StepGuard) and tree.join(reply.upload):
                self.plan.steps.check(guard.calls)
            message = self.plan.release.encode(public, reply.upload, given.level, Seeded(given.release_key))
            seen = {"loss": local_loss(self.method, view, reply, site, task.loss)} if self.diary else {}
            return message, reply.state, seen

        return vmap(one)(inputs)

    def _guard(self, public: Tree) -> Callable[[Tree, Tree, Tree], Tree]:
        if not self.plan.project:
            return lambda start, before, now: now
        return lambda start, before, now: tree.add(start, clip(tree.sub(now, start), public["bound"])[0])

    def _step_guard(self, steps: StepNoise, given: Inputs) -> StepGuard:
        # noise is added here or in `encode`, never in both: one key is enough
        return steps.guard(given.level, Seeded(given.release_key), next(iter(self.start.values())).dtype)

    def _check_queries(self, calls: list[int], steps: int) -> None:
        """Fails before anything is released if a client asked more of its data than was paid for."""
        paid = self.plan.setting.queries
        if self.plan.record is not None and any(calls.count(step) > paid for step in range(steps)):
            raise TacitError(f"the method made more private queries in a step than the {paid} that were accounted for")

    def inputs_for(self, state: Tree, clients: np.ndarray, round: int, purpose: str = "batches") -> Inputs:
        draw = draw_batches(self.plan.setting.batches, self.seed, round, clients, self.federation, purpose)
        if purpose == "batches" and not self.devices.alike:
            taken = torch.from_numpy(self.work(np.asarray(clients), round))
            draw = draw._replace(live=draw.live & (torch.arange(draw.live.shape[1]) < taken.unsqueeze(1)))
        record = self.plan.record
        dtype = next(iter(self.start.values())).dtype
        z = np.zeros(len(clients)) if record is None else record.multipliers[clients]
        expected = np.ones(len(clients)) if record is None else record.expected[clients]
        return Inputs(
            state,
            *draw,
            level=torch.from_numpy(self.plan.setting.choices.level[clients]),
            z=torch.tensor(z, dtype=dtype),
            expected=torch.tensor(expected, dtype=dtype),
            gradient_key=self._keys("gradient", round, clients),
            release_key=self._keys("release", round, clients),
            real=torch.ones(len(clients), dtype=torch.bool),
            client=torch.from_numpy(np.asarray(clients, np.int64)),
        )

    def _keys(self, purpose: str, round: int, clients: np.ndarray) -> Tensor:
        return torch.tensor([rng.key(self.seed, purpose, round, int(k)) for k in clients], dtype=torch.int64)

    def _nothing(self, like: Tree) -> Totals:
        levels = len(self.plan.setting.choices.menu.levels)
        body = tree.each(lambda leaf: torch.zeros(levels, *leaf.shape, dtype=leaf.dtype), self.plan.release.blank(like))
        return Totals(body, torch.zeros(levels), torch.zeros(levels), torch.zeros(levels))

    def _sum(self, messages: Message, level: Tensor, real: Tensor) -> Totals:
        """The sum of a chunk's messages, by level."""
        levels = torch.arange(len(self.plan.setting.choices.menu.levels))
        belongs = (levels.unsqueeze(1) == level) & real

        def by_level(leaf: Tensor) -> Tensor:
            return (belongs.to(leaf.dtype) @ leaf.reshape(len(leaf), -1)).reshape(len(belongs), *leaf.shape[1:])

        return Totals(
            tree.each(by_level, messages.body), by_level(messages.bit), by_level(messages.power), belongs.sum(1)
        )


_ROUNDED = sorted({n << k for n in (2, 3) for k in range(40)} | {0, 1})


class Probe(NamedTuple):
    """What one dry client program showed: the shapes of upload and state, and private queries in a step."""

    upload: Tree
    state: Tree
    queries: int


def probe(method: Method, task: Task, federation: Federation, start: Tree) -> Probe:
    """Runs the client program once, on two steps of the first client's first row, and looks at shapes and calls."""
    view = method.init(start).view
    row = torch.full((2, 1), int(federation.offsets[0]))

    def batch(step: int) -> Batch:
        return Batch(*federation.take(row[step]), torch.ones(1, dtype=torch.bool))

    exact = Exact(task, batch)
    private = Counted(exact)
    site = Site(
        task=task,
        steps=2,
        live=torch.ones(2, dtype=torch.bool),
        batch=batch,
        grad=exact,
        private_grad=private,
    )
    reply = method.client(view, method.join(view, start), site)
    return Probe(tree.join(reply.upload), reply.state, max(private.calls.count(step) for step in range(2)))
