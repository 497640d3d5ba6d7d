"""A round's clients as one tensor program: `vmap` of the method's client program over chunks of the cohort."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Program, Refused
from tacit.compile.kernels import compiled
from tacit.compile.passes.lower import small_matrix
from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask
from tacit.privacy.mechanisms.clipped_upload_sum import Uploads
from tacit.privacy.mechanisms.release import Totals, encode_all, encoded_sum, sum_messages
from tacit.privacy.plan import Plan
from tacit.simulation import secure_sum, totals
from tacit.simulation.chunks import Chunking, Compile, Inputs, Shape, outputs
from tacit.simulation.client_program import ClientProgram, handed_over
from tacit.simulation.client_states import Store
from tacit.simulation.decisions import Decisions, Key
from tacit.simulation.device import CPU, on, within
from tacit.simulation.kernels import accelerate
from tacit.simulation.rehearsal import recorded
from tacit.simulation.workers import Workers

Result = TypeVar("Result")
_log = logging.getLogger("tacit")


class Broadcast(NamedTuple):
    """What every client of a round is given."""

    view: Shared
    public: Tree  # the release's public state
    round: int

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(leaf.shape for leaf in pytree.tree_leaves((self.view, self.public)))


class Computed(NamedTuple):
    """What came of a chunk: the sum of its messages (or the messages), and what stays with its clients."""

    totals: Totals
    bodies: Tree  # every client's message, where the method gathers them
    states: Tree
    losses: Tree


@dataclass(frozen=True, eq=False)
class CohortProgram(ClientProgram):
    """Runs client programs. Results do not depend on `chunk` or threads beyond the order of floating-point sums.

    `compile`: whether a chunk's program is recorded and replayed; by default if the run is long enough to gain by it.
    `device`: where clients compute and are evaluated; on others than the CPU nothing is recorded, in one thread.
    """

    chunk: int | None = None
    compile: Compile = "auto"
    device: torch.device = CPU
    programs: dict[Key, Program | None] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", replace(self.task, kernels=accelerate))

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
        given = Broadcast(view, public, round)
        chunks = self._prepared(given, cohort)
        parts = self._parts(given, store, gathered or {}, chunks)
        blank = totals.no_messages(self.plan, like)
        if self.plan.secure_sum:
            return secure_sum.totals(self.plan, blank, zip(chunks, parts, strict=True), self.seed, round)
        return reduce(totals.add, parts, blank)

    def idle(self, view: Shared, cohort: np.ndarray, round: int, store: Store) -> None:
        """Everybody else's round: their states move on, and nothing comes of it but that."""

        def chunk(task: ModuleTask, clients: np.ndarray) -> None:
            inputs = self.inputs_for(self._states(view, clients, store), clients, round)
            store.write(clients, self.away(self.there.idled, task, view, round, inputs))

        everybody = np.arange(self.federation.clients)
        for _ in self.workers.map(chunk, self.chunking.split(np.setdiff1d(everybody, cohort))):
            pass

    def under(self, plan: Plan) -> "CohortProgram":
        """The same with another plan, that of the next rounds; the workers stay, what was recorded does not."""
        other = replace(self, plan=plan, programs={}, decisions={})
        other.__dict__["workers"] = self.workers
        if self.device != CPU:
            other.__dict__["_moved"] = replace(self._moved, plan=plan)
        return other

    @property
    def there(self) -> ClientProgram:
        """The client programs with their data on the device."""
        return self if self.device == CPU else self._moved

    @cached_property
    def _moved(self) -> ClientProgram:
        return replace(self, federation=self.federation.on(self.device), task=self.task.on(self.device))

    def away(self, program: Callable[..., Result], *given: object) -> Result:
        """What comes of a program on the device, brought back; it is given its arguments there."""
        with within(self.device):
            return on(CPU, program(*on(self.device, given)))

    @property
    def several(self) -> int:
        """How many chunks run at a time."""
        return self.workers.several

    @cached_property
    def workers(self) -> Workers[ModuleTask]:
        return Workers(self.there.task, torch.get_num_threads() if self.device == CPU else 1)

    @cached_property
    def chunking(self) -> Chunking:
        setting = self.plan.setting
        return Chunking(
            batches=setting.batches,
            rounds=setting.rounds,
            steps=self.steps,
            params=max(1, tree.size(self.start)),
            workers=self.several,
            asked=setting.sampler.rate(len(setting.ids)) * len(setting.ids),
            alike=self.devices.alike,
            gather=self.method.gather,
            chunk=self.chunk,
            compile=self.compile if self.device == CPU else "off",
            outputs=outputs(self.task, self.start, self.federation, self._batch),
            compiled=self._compiled,
            skipped=self._compiled and all(small_matrix(leaf) for leaf in self.start.values()),
        )

    @property
    def _compiled(self) -> bool:
        return self.device == CPU and self._dtype == torch.float32 and compiled()

    @property
    def _batch(self) -> int:
        """Rows of a step, as a client with the most rows would have them."""
        return max(1, round(self.plan.setting.batches.expected(int(self.federation.sizes.max()))))

    @property
    def recorded(self) -> bool:
        return self.chunking.recorded

    @property
    def path(self) -> str:
        """Which programs clients have run so far, in words: recorded ones, or the plain one and why."""
        ran = [program is not None for program in self.programs.values()]
        if any(ran):
            whole = all(ran) and self.chunking.records(np.arange(self.federation.clients))
            kernels = "and compiled" if self._compiled else "without compiled kernels"
            return f"recorded {kernels}" if whole else f"recorded {kernels} in part"
        refused = next((why for why in self.decisions.values() if why), None)
        short = "compilation is off" if self.compile == "off" else "the run is too short to gain by recording"
        return f"plain ({self.chunking.unrecorded or refused or short})"

    def check(self) -> None:
        """Raises a `TacitError` where compilation is required and cannot be had, before anything is charged."""
        if self.compile != "require":
            return
        why = self.chunking.unrecorded if self.device == CPU else f"nothing is recorded on device '{self.device}'"
        if why is None and self._dtype == torch.float32 and not compiled():
            why = "there are no compiled kernels: install a C compiler"
        if why is not None:
            raise TacitError(f"compile is 'require', and {why}; or use compile = 'auto'")

    def compute(self, task: ModuleTask, given: Broadcast, clients: np.ndarray, inputs: Inputs) -> Computed:
        """A chunk's round, from what its clients have and drew; nothing is written."""
        view, public, now = given.view, given.public, torch.tensor(given.round)
        run = self.programs.get(self._key(given, clients)) if self.chunking.records(clients) else None
        if run is not None:
            filled = self.chunking.shape(clients).fill(inputs)
            leaves, states, losses = run(view, self.told(public), now, filled)
            return self._released(public, handed_over(leaves, filled), states, losses)
        return self.away(self._computed, task, inputs.full, view, public, now, inputs)

    def _computed(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> Computed:
        leaves, states, losses = self.there.uploads(task, full, view, self.told(public), round, inputs)
        return self._released(public, handed_over(leaves, inputs), states, losses)

    def _released(self, public: Tree, uploads: Uploads, states: Tree, losses: Tree) -> Computed:
        """What the privacy room makes of raw uploads, recorded or not: the only way out of a chunk."""
        release, levels = self.plan.release, len(self.plan.setting.choices.menu.levels)
        if not (self.method.gather or self.plan.secure_sum):
            return Computed(encoded_sum(release, public, uploads, levels, self.noise), {}, states, losses)
        messages = encode_all(release, public, uploads, self.noise)
        totals = sum_messages(messages, uploads, levels, bodies=not self.plan.secure_sum)
        bodies = release.read(public, messages.body, uploads.level) if self.method.gather else {}
        return Computed(totals, bodies, states, losses)

    def told(self, public: Tree) -> Tree:
        """What a client program knows of the release's public state: nothing, unless its steps are kept inside.

        What the server remembers of earlier rounds is not among it, and may have another shape in every round.
        """
        return tree.pick(public, self.plan.release.start()) if self.plan.project else {}

    def _prepared(self, given: Broadcast, cohort: np.ndarray) -> list[np.ndarray]:
        """The cohort's chunks, their programs recorded. Where steps are no loop, long programs do without."""
        chunks = list(self.chunking.split(cohort))
        for clients in chunks:
            self.prepare(given, clients)
        if self.chunking.loops and any(shape.loop and why for (shape, _), why in self.decisions.items()):
            self.__dict__["chunking"] = replace(self.chunking, loops=False)
            return self._prepared(given, cohort)
        return chunks

    def prepare(self, given: Broadcast, clients: np.ndarray) -> None:
        """Records the program of these clients' chunk, if programs are recorded and it is not there yet.

        In one thread alone: nothing else may run while a program is recorded.
        """
        if not self.chunking.records(clients) or (key := self._key(given, clients)) in self.programs:
            return
        self.programs[key] = self._recording(key, given)

    def _recording(self, key: Key, given: Broadcast) -> Program | None:
        """The chunk's program, recorded; None, and a line in the log, where the plain one is to run."""
        why = self.decisions.get(key)
        if not why:
            try:
                made = recorded(self, key[0], given, sure=why is not None)
                self.decisions[key] = ""
                return made
            except Refused as refused:
                why = self.decisions[key] = str(refused)
        if self.compile == "require" and not (key[0].loop and replace(self.chunking, loops=False).unrecorded is None):
            raise TacitError(f"compile is 'require', and a program cannot be recorded ({why}): use compile = 'auto'")
        _log.warning("a program of %d clients is not recorded, the plain one runs: %s", key[0].clients, why)
        return None

    def _parts(self, given: Broadcast, store: Store, gathered: Tree, chunks: Sequence[np.ndarray]) -> Iterable[Totals]:
        """The totals of each chunk, in order; its clients' states are then in the store."""

        def chunk(task: ModuleTask, drawn: tuple[np.ndarray, Inputs]) -> Totals:
            clients, inputs = drawn
            state = self._states(given.view, clients, store)
            done = self.compute(task, given, clients, inputs._replace(state=state))
            return self._keep(given.round, store, gathered, clients, done)

        def ready(clients: np.ndarray) -> tuple[np.ndarray, Inputs]:
            steps = 0
            if self.chunking.records(clients) and not (shape := self.chunking.shape(clients)).loop:
                steps = shape.steps
            return clients, self.inputs_for({}, clients, given.round, steps=steps)

        return self.workers.map(chunk, map(ready, chunks))

    def _keep(self, round: int, store: Store, gathered: Tree, clients: np.ndarray, done: Computed) -> Totals:
        """Writes what a chunk leaves behind; a recorded program's may have rows that only fill it up."""
        for name, leaf in gathered.items():
            leaf[clients] = done.bodies[name]
        store.write(clients, tree.each(lambda leaf: leaf[: len(clients)], done.states))
        if self.diary is not None:
            self.diary.write(round, clients, done.losses["loss"][: len(clients)])
        return done.totals

    def _states(self, view: Shared, clients: np.ndarray, store: Store) -> Tree:
        return store.read(clients, self.method.join(view, self.start))

    def _key(self, given: Broadcast, clients: np.ndarray) -> Key:
        return self.chunking.shape(clients), given._replace(public=self.told(given.public)).shapes

    def _plain(
        self, task: ModuleTask, shape: Shape, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> tuple[Tree, Tree, Tree]:
        """The program of a chunk, as it is recorded: it ends with raw uploads."""
        return self.uploads(task, shape.full, view, public, round, inputs, shape.own)
