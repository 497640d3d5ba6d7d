"""A round's clients as one tensor program: `vmap` of the method's client program over chunks of the cohort."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit import tree
from tacit.core import Shared, Tree
from tacit.engine import secure_sum
from tacit.engine.chunk import Inputs, Shape
from tacit.engine.chunking import Chunking
from tacit.engine.clients import Clients
from tacit.engine.record import Program, record
from tacit.engine.store import Store
from tacit.engine.workers import Workers
from tacit.models.task import ModuleTask
from tacit.privacy.plan import Plan
from tacit.privacy.release import Message, Totals

Key = tuple[Shape, tuple[torch.Size, ...]]
"""Of a recorded program: its chunk, and the shapes of what is broadcast (a method's may change between rounds)."""


class Broadcast(NamedTuple):
    """What every client of a round is given."""

    view: Shared
    public: Tree  # the release's public state
    round: int

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(leaf.shape for leaf in pytree.tree_leaves((self.view, self.public)))


@dataclass(frozen=True, eq=False)
class Vectorised(Clients):
    """Runs client programs. Results do not depend on `chunk` or threads beyond the order of floating-point sums.

    `record`: whether a chunk's program is recorded and replayed; by default if the run is long enough to gain by it.
    """

    chunk: int | None = None
    record: bool | None = None
    programs: dict[Key, Program | None] = field(default_factory=dict)

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
        store.expect(cohort)
        given, chunks = Broadcast(view, public, round), list(self.chunking.split(cohort))
        if self.recorded:
            for clients in chunks:  # in this thread alone: nothing else may run while a program is recorded
                self._prepare(given, clients, store)
        parts = self.workers.map(partial(self._chunk, given, store, gathered or {}), chunks)
        if self.plan.secure_sum:
            return secure_sum.totals(self.plan, self.nothing(like), zip(chunks, parts, strict=True), self.seed, round)
        return reduce(_added, parts, self.nothing(like))

    def idle(self, view: Shared, cohort: np.ndarray, round: int, store: Store) -> None:
        """Everybody else's round: their states move on, and nothing comes of it but that."""

        def chunk(task: ModuleTask, clients: np.ndarray) -> None:
            inputs = self._inputs(view, clients, round, store)
            store.write(clients, self.idled(task, view, round, inputs))

        everybody = np.arange(self.federation.clients)
        for _ in self.workers.map(chunk, self.chunking.split(np.setdiff1d(everybody, cohort))):
            pass

    def under(self, plan: Plan) -> "Vectorised":
        """The same with another plan, that of the next rounds; the workers stay, what was recorded does not."""
        other = replace(self, plan=plan, programs={})
        other.__dict__["workers"] = self.workers
        return other

    @cached_property
    def workers(self) -> Workers[ModuleTask]:
        return Workers(self.task, torch.get_num_threads())

    @cached_property
    def chunking(self) -> Chunking:
        return Chunking(
            batches=self.plan.setting.batches,
            rounds=self.plan.setting.rounds,
            steps=self.steps,
            params=max(1, tree.size(self.start)),
            workers=self.workers.several,
            alike=self.devices.alike,
            gather=self.method.gather,
            chunk=self.chunk,
            record=self.record,
        )

    @property
    def recorded(self) -> bool:
        return self.chunking.recorded

    def _chunk(self, given: Broadcast, store: Store, gathered: Tree, task: ModuleTask, clients: np.ndarray) -> Totals:
        view, public, round = given
        inputs, now = self._inputs(view, clients, round, store), torch.tensor(round)
        run = self.programs.get(self._key(given, clients)) if self.recorded else None
        if run is not None:
            totals, states, losses = run(view, public, now, self.chunking.shape(clients).fill(inputs))
        else:
            messages, states, losses = self.encoded(task, inputs.full, view, public, now, inputs)
            totals = self._sum(messages, inputs.level, inputs.real)
            for name, leaf in gathered.items():
                leaf[clients] = messages.body[name]
        store.write(clients, tree.each(lambda leaf: leaf[: len(clients)], states))
        if self.diary is not None:
            self.diary.write(round, clients, losses["loss"][: len(clients)])
        return totals

    def _inputs(self, view: Shared, clients: np.ndarray, round: int, store: Store) -> Inputs:
        return self.inputs_for(store.read(clients, self.method.join(view, self.start)), clients, round)

    def _key(self, given: Broadcast, clients: np.ndarray) -> Key:
        return self.chunking.shape(clients), given.shapes

    def _prepare(self, given: Broadcast, clients: np.ndarray, store: Store) -> None:
        """Records the program of these clients' chunk, if it is not there yet."""
        key = self._key(given, clients)
        if key not in self.programs:
            (view, public, round), shape = given, key[0]
            inputs = shape.fill(self._inputs(view, clients, round, store))
            program = partial(self._plain, self.task, shape.full)
            self.programs[key] = record(program, view, public, torch.tensor(round), inputs)

    def _plain(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> tuple[Totals, Tree, Tree]:
        """The program of a chunk, as it is recorded."""
        messages, states, losses = self.encoded(task, full, view, public, round, inputs)
        return self._sum(messages, inputs.level, inputs.real), states, losses

    def nothing(self, like: Tree) -> Totals:
        """The sum of no message, for uploads of these shapes."""
        levels = len(self.plan.setting.choices.menu.levels)
        body = tree.each(lambda leaf: torch.zeros(levels, *leaf.shape, dtype=leaf.dtype), self.plan.release.blank(like))
        return Totals(body, torch.zeros(levels), torch.zeros(levels), torch.zeros(levels))

    def _sum(self, messages: Message, level: Tensor, real: Tensor) -> Totals:
        """The sum of a chunk's messages, by level; where it is to be made securely, every message's body instead."""
        levels = torch.arange(len(self.plan.setting.choices.menu.levels))
        belongs = (levels.unsqueeze(1) == level) & real

        def by_level(leaf: Tensor) -> Tensor:
            return (belongs.to(leaf.dtype) @ leaf.reshape(len(leaf), -1)).reshape(len(belongs), *leaf.shape[1:])

        body = messages.body if self.plan.secure_sum else tree.each(by_level, messages.body)
        return Totals(body, by_level(messages.bit), by_level(messages.power), belongs.sum(1))


def _added(one: Totals, other: Totals) -> Totals:
    return Totals(tree.add(one.body, other.body), *(a + b for a, b in zip(one[1:], other[1:], strict=True)))
