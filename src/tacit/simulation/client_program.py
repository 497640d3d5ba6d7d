"""What clients compute in a round, whoever carries the messages: pure, and for a whole chunk of them at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import rng, tree
from tacit.core.columns import Rows
from tacit.core.contract import Batch, Method, Minimum, ProximalProblem, Shared, Site, Tree
from tacit.core.dropout import Key
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask
from tacit.privacy.accounting.sampling import BatchRule
from tacit.privacy.mechanisms import certified_minimum
from tacit.privacy.mechanisms.clipped_upload_sum import Operand, Uploads
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.gradient import Counted, Exact
from tacit.privacy.mechanisms.noise import Noise, Seeded
from tacit.privacy.mechanisms.record import Private
from tacit.privacy.mechanisms.release import Message, encode_all
from tacit.privacy.mechanisms.stepwise import StepGuard, StepNoise
from tacit.privacy.plan import Plan
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Shuffled
from tacit.simulation.chunks import Inputs
from tacit.simulation.draws import drawn
from tacit.simulation.timing import LossRecorder, local_loss


@dataclass(frozen=True, eq=False)
class ClientProgram:
    """The client programs of a federation under a plan. A chunk may be one client; results do not depend on it."""

    method: Method
    task: ModuleTask
    plan: Plan
    federation: FederatedDataset
    start: Tree
    seed: int
    devices: Availability = field(default_factory=Availability, kw_only=True)
    noise: Callable[[Tensor], Noise] = field(default=Seeded, kw_only=True)  # of a client's key
    diary: LossRecorder | None = field(
        default=None, kw_only=True
    )  # where clients' training losses are written, if asked for
    identity: str | None = field(default=None, kw_only=True)  # of the run, for seeded noise; see `fingerprint.py`

    @cached_property
    def steps(self) -> np.ndarray:
        """Local steps that each client of the population has in a round."""
        return np.array([self.plan.setting.batches.steps(int(n)) for n in self.federation.sizes], dtype=np.int64)

    def work(self, clients: np.ndarray, round: int) -> np.ndarray:
        """Local steps that each of `clients` really takes in this round."""
        return self.devices.work(self.seed, round, clients, self.steps)

    def inputs_for(
        self, state: Tree, clients: np.ndarray, round: int, purpose: str = "batches", steps: int = 0
    ) -> Inputs:
        """What these clients have and draw; steps that are not live are added up to `steps`."""
        rule = self._adapting if purpose == "adapt" else self.plan.setting.batches
        draw = drawn(rule, self.seed, round, clients, self.federation, purpose, steps)
        if purpose == "batches" and not self.devices.alike:
            taken = torch.from_numpy(self.work(np.asarray(clients), round))
            draw = draw._replace(live=draw.live & (torch.arange(draw.live.shape[1]) < taken.unsqueeze(1)))
        record = self.plan.record
        z = np.zeros(len(clients)) if record is None else record.multipliers[clients]
        expected = np.ones(len(clients)) if record is None else record.expected[clients]
        return Inputs(
            state,
            *draw,
            level=torch.from_numpy(self.plan.setting.choices.level[clients]),
            z=torch.tensor(z, dtype=self._dtype),
            expected=torch.tensor(expected, dtype=self._dtype),
            gradient_key=self.keys("gradient", round, clients),
            release_key=self.keys("release", round, clients),
            real=torch.ones(len(clients), dtype=torch.bool),
            client=torch.from_numpy(np.asarray(clients, np.int64)),
        )

    @cached_property
    def _adapting(self) -> BatchRule:
        """How rows are dealt before a client predicts: as in a round, or in as many epochs as the method asks for."""
        rule, epochs = self.plan.setting.batches, self.method.adapt_epochs
        largest = int(self.federation.sizes.max())
        return Shuffled(max(1, round(rule.expected(largest))), epochs) if epochs else rule

    def site(
        self, task: ModuleTask, given: Inputs, round: int | Tensor, full: int, own: int = 0
    ) -> tuple[Site, Counted]:
        """One client's site; `full` leading steps are live for every client of the chunk.

        With `own`, no fewer than anybody's rows, a client's rows are fetched once, and batches are picked from them.
        """
        fetch = self._own_rows(given, own) if own else lambda step: self.federation.take(given.rows[step])

        def batch(step: int) -> Batch:
            return Batch(*fetch(step), given.mask[step])

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            return new if step < full else tree.where(given.live[step], new, old)

        def own_rows(step: int) -> Tensor:
            return given.rows[step] - self._first_rows[given.client]

        def key(step: int) -> Key | None:
            now = torch.as_tensor(round, device=given.rows.device)
            words = torch.broadcast_tensors(now, given.client, own_rows(step)) if task.drops else ()
            return Key(torch.stack(words, -1), self.seed, step % given.live.shape[0]) if words else None

        exact = Exact(task, batch, key)
        record = self.plan.record
        private = Counted(
            exact
            if record is None
            else Private(
                task, batch, record.bound, given.z, given.expected, self.noise(given.gradient_key), record.exact, key
            )
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
            own=lambda: self._all_rows(given.client),
            minimum=certified_minimum.Exact(torch.ones(())),
            private_minimum=private.counting(self._minimum(batch, given)),
        )
        return site, private

    def _minimum(self, batch: Callable[[int], Batch], given: Inputs) -> Callable[[ProximalProblem, int], Minimum]:
        """A step's problem solved: with its certificate and noise where the unit is a record, else as it is."""
        record, weight = self.plan.record, self._weights[given.client]
        if record is None:
            return lambda problem, step: certified_minimum.Exact(weight)(problem, batch(step))
        noise = self.noise(given.gradient_key)
        return certified_minimum.Certified(batch, record.bound, given.z, weight, noise, record.exact)

    def _all_rows(self, client: Tensor) -> Batch:
        first, end = self._first_rows[client], self._first_rows[client + 1]
        places = first + torch.arange(int(self.federation.sizes.max()))
        return Batch(*self.federation.take(places.clamp(max=end - 1)), places < end)

    def _own_rows(self, given: Inputs, own: int) -> Callable[[int], tuple[Rows, Tensor]]:
        first, end = self._first_rows[given.client], self._first_rows[given.client + 1]
        x, y = self.federation.take((first + torch.arange(own)).clamp(max=end - 1))  # its last row again, nobody else's
        picks = given.rows - first
        targets = y[picks]
        return lambda step: (x[picks[step]], targets[step])

    def uploads(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs, own: int = 0
    ) -> tuple[Tree, Tree, Tree]:
        """What every client of a chunk would upload, its new state, and its loss if there is a diary.

        Nothing is clipped here and nothing may leave: uploads go to the privacy room (`encoded_sum`) from here.
        """
        return vmap(lambda given: self._one(task, full, view, public, round, given, own))(inputs)

    def encoded(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, inputs: Inputs
    ) -> tuple[Message, Tree, Tree]:
        """What every client of a chunk sends, its new state, and its loss if there is a diary."""
        leaves, states, losses = self.uploads(task, full, view, public, round, inputs)
        return encode_all(self.plan.release, public, handed_over(leaves, inputs), self.noise), states, losses

    def alone(self, view: Shared, public: Tree, round: Tensor, inputs: Inputs) -> tuple[Message, Tree]:
        """What the only client of a chunk of one sends, and its new state: without `vmap`, so with any noise."""
        given = inputs.only
        upload, state, _ = self._one(self.task, inputs.full, view, public, round, given)
        noise = self.noise(given.release_key)
        return self.plan.release.encode(public, tree.split(upload), given.level, noise), state

    def _one(
        self, task: ModuleTask, full: int, view: Shared, public: Tree, round: Tensor, given: Inputs, own: int = 0
    ) -> tuple[Tree, Tree, Tree]:
        site, private = self.site(task, given, round, full, own)
        guard = self._guard(public) if self.plan.steps is None else self._step_guard(self.plan.steps, given)
        reply = self.method.client(view, given.state, site._replace(guard=guard))
        self._check_queries(private, site.steps)
        upload = tree.join(reply.upload)
        if self.plan.steps is not None and isinstance(guard, StepGuard) and upload:
            self.plan.steps.check(guard.calls)
        seen = {"loss": local_loss(self.method, view, reply, site, task.loss)} if self.diary else {}
        return upload, reply.state, seen

    def idled(self, task: ModuleTask, view: Shared, round: int, inputs: Inputs) -> Tree:
        """The new states of clients that were not asked."""
        full = inputs.full

        def one(given: Inputs) -> Tree:
            return self.method.idle(given.state, self.site(task, given, round, full)[0])

        return vmap(one)(inputs)

    def _guard(self, public: Tree) -> Callable[[Tree, Tree, Tree], Tree]:
        if not self.plan.project:
            return lambda start, before, now: now
        return lambda start, before, now: tree.add(start, clip(tree.sub(now, start), public["bound"])[0])

    def _step_guard(self, steps: StepNoise, given: Inputs) -> StepGuard:
        # noise is added here or in `encode`, never in both: one key is enough
        return steps.guard(given.level, self.noise(given.release_key))

    def _check_queries(self, private: Counted, steps: int) -> None:
        """Fails before anything is released if a client asked more of any batch than was paid for.

        What is paid for a batch does not shrink where a client has fewer steps: it holds for everybody in the chunk.
        """
        if self.plan.record is None:
            return
        for step, (times, paid) in enumerate(
            zip(private.by_batch(steps), self.plan.setting.queries(steps), strict=True)
        ):
            if times > paid:
                raise TacitError(
                    f"the method made more private queries of its batch {step} of {steps} ({times}) than the {paid} "
                    "that were accounted for: their number must not depend on the round or on data"
                )

    def keys(self, purpose: str, round: int, clients: np.ndarray) -> Tensor:
        """Of the clients' noise."""
        return torch.from_numpy(rng.keys(self.seed, self.noise_of(purpose), round, clients.tolist()).copy())

    def noise_of(self, purpose: str) -> str:
        """What seeded noise is keyed by beside seed, round and client: no two runs share any."""
        return f"{purpose} of {self.identity}" if self.identity else purpose

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self.start.values())).dtype

    @cached_property
    def _weights(self) -> Tensor:
        """How many rows of each client one row of an expected batch stands for: public numbers."""
        setting = self.plan.setting
        return torch.tensor([max(int(n), 1) / max(setting.batches.expected(int(n)), 1.0) for n in setting.sizes])

    @cached_property
    def _first_rows(self) -> Tensor:
        return torch.from_numpy(self.federation.offsets).to(self.federation.x.device)


def handed_over(leaves: Mapping[str, Operand], inputs: Inputs) -> Uploads:
    """A chunk's raw uploads as the privacy room takes them."""
    return Uploads(leaves, inputs.level, inputs.real, inputs.release_key)
