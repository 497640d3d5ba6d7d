"""A round's clients as one tensor program: `vmap` of the method's client program over chunks of the cohort."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit import rng, tree
from tacit.core import Batch, Method, Shared, Site, Task, Tree
from tacit.engine.store import Store
from tacit.engine.workers import Workers
from tacit.errors import TacitError
from tacit.federation.cohort import draw_batches
from tacit.federation.data import Federation
from tacit.models.task import ModuleTask
from tacit.privacy.clip import clip
from tacit.privacy.gradient import Counted, Exact, Private
from tacit.privacy.noise import Seeded
from tacit.privacy.plan import Plan
from tacit.privacy.release import Message, Totals
from tacit.privacy.stepwise import StepGuard, StepNoise

_CHUNK_NUMBERS = 2**25  # numbers in one copy of a chunk's parameters


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


@dataclass(frozen=True, eq=False)
class Vectorised:
    """Runs client programs. Results do not depend on `chunk` or threads beyond the order of floating-point sums."""

    method: Method
    task: ModuleTask
    plan: Plan
    federation: Federation
    start: Tree
    seed: int
    chunk: int | None = None

    def round(self, view: Shared, public: Tree, cohort: np.ndarray, round: int, store: Store, like: Tree) -> Totals:
        """The sum of the encoded uploads by level; the clients' new states go to the store."""
        first = self.method.join(view, self.start)

        def chunk(task: ModuleTask, clients: np.ndarray) -> Totals:
            inputs = self.inputs_for(store.read(clients, first), clients, round)
            messages, states = self._run(task, view, public, round, inputs)
            store.write(clients, states)
            return self._sum(messages, inputs.level)

        totals = self._nothing(like)
        for part in self.workers.map(chunk, self.chunks(cohort)):
            totals = Totals(
                tree.add(totals.body, part.body), *(a + b for a, b in zip(totals[1:], part[1:], strict=True))
            )
        return totals

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

    def chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """Clients with like numbers of steps together, so that little is padded; the longest first."""
        sizes = self.federation.sizes[cohort]
        steps = np.array([self.plan.setting.batches.steps(int(n)) for n in sizes], dtype=np.int64)
        ordered = cohort[np.argsort(-steps, kind="stable")]
        several = self.chunk or self._fitting(len(cohort))
        for begin in range(0, len(ordered), several):
            yield ordered[begin : begin + several]

    def _fitting(self, clients: int) -> int:
        """As many as memory likes, and few enough that every worker gets two chunks."""
        by_memory = _CHUNK_NUMBERS // max(1, tree.size(self.start))
        return max(1, min(by_memory, -(-clients // (2 * self.workers.several))))

    def site(self, task: ModuleTask, given: Inputs, round: int, full: int) -> tuple[Site, Counted]:
        """One client's site; `full` leading steps are live for every client of the chunk."""
        data = self.federation

        def batch(step: int) -> Batch:
            return Batch(*data.take(given.rows[step]), given.mask[step])

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            return new if step < full else tree.where(given.live[step], new, old)

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
            round=round,
        )
        return site, private

    def _run(self, task: ModuleTask, view: Shared, public: Tree, round: int, inputs: Inputs) -> tuple[Message, Tree]:
        full = int(inputs.live.sum(1).min())

        def one(given: Inputs) -> tuple[Message, Tree]:
            site, private = self.site(task, given, round, full)
            guard = self._guard(public) if self.plan.steps is None else self._step_guard(self.plan.steps, given)
            reply = self.method.client(view, given.state, site._replace(guard=guard))
            self._check_queries(private.calls, site.steps)
            if self.plan.steps is not None and isinstance(guard, StepGuard) and tree.join(reply.upload):
                self.plan.steps.check(guard.calls)
            message = self.plan.release.encode(public, reply.upload, given.level, Seeded(given.release_key))
            return message, reply.state

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
        )

    def _keys(self, purpose: str, round: int, clients: np.ndarray) -> Tensor:
        return torch.tensor([rng.key(self.seed, purpose, round, int(k)) for k in clients], dtype=torch.int64)

    def _nothing(self, like: Tree) -> Totals:
        levels = len(self.plan.setting.choices.menu.levels)
        body = tree.each(lambda leaf: torch.zeros(levels, *leaf.shape, dtype=leaf.dtype), like)
        return Totals(body, torch.zeros(levels), torch.zeros(levels), torch.zeros(levels))

    def _sum(self, messages: Message, level: Tensor) -> Totals:
        """The sum of a chunk's messages, by level."""
        belongs = torch.nn.functional.one_hot(level, len(self.plan.setting.choices.menu.levels)).T

        def by_level(leaf: Tensor) -> Tensor:
            return (belongs.to(leaf.dtype) @ leaf.reshape(len(leaf), -1)).reshape(len(belongs), *leaf.shape[1:])

        return Totals(
            tree.each(by_level, messages.body), by_level(messages.bit), by_level(messages.power), belongs.sum(1)
        )


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
