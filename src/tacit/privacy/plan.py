"""The one place where sampler, gradient, release and accountant meet.

A request (`requests.py`: `Open`, `Central`, `Grouped`, `Local`, `Record`, `Distributed`) becomes a `Plan` in a setting:
who takes part, how often, with how much data. The plan carries the noise, calibrated for the whole run, and says what
each round costs whom. Read these two files to check a claim.

| plan    | unit of privacy  | who clips    | who adds noise | against whom           | neighbours          |
|---------|------------------|--------------|----------------|------------------------|---------------------|
| Open    | none             | -            | -              | -                      | -                   |
| Central | client           | encode       | the server     | who sees the models    | the sampler's       |
| Grouped | client, by level | encode       | the server     | who sees the models    | the sampler's       |
| Local   | client           | encode       | encode         | everybody              | replace, 2 bounds   |
| Record  | one record       | private_grad | private_grad   | everybody              | add/remove a record |
| Stepwise, messages | client | guard        | guard          | everybody              | replace, 2 bounds   |
| Stepwise, sum      | client | guard        | encode         | who sees the sum alone | zero-out            |
| Distributed | client       | encode       | encode, shares | the server, readers    | zero-out            |

`Stepwise` is in a file of its own, with its proof, and so is `Distributed` (`distributed_plan.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from tacit.core.contract import Tree
from tacit.privacy.accounting.accountant import Accountant, Relation
from tacit.privacy.accounting.queries import Each, Queries
from tacit.privacy.accounting.sampling import BatchRule, Sampler
from tacit.privacy.levels import Choices
from tacit.privacy.mechanisms.release import Grouped, Local, Release

if TYPE_CHECKING:
    from tacit.privacy.evaluation import Evaluated
    from tacit.privacy.mechanisms.stepwise import StepNoise


EXACT: Final = (
    "noise is exact: discrete Gaussian on a lattice of integers, 2^26 steps for a noise of at least one clip bound"
)
FAST: Final = "noise is fast: Gaussian, on floating-point numbers; noise = 'exact' adds what a federation adds"


class CalibrationContext(NamedTuple):
    """The public facts that a plan is calibrated to."""

    ids: Sequence[str]
    sizes: np.ndarray  # rows of each client; under Record treated as public
    choices: Choices
    sampler: Sampler
    batches: BatchRule
    rounds: int
    queries: Queries = Each()  # private gradients on each batch of a client; under Record
    accountant: Accountant = "pld"
    allow_large_delta: bool = False
    drop: float = 0.0  # probability that a client that was asked sends nothing; the divisor of a mean ignores it
    upload: Tree = {}  # shapes of what is uploaded
    asked: np.ndarray | None = None  # bool [clients]: whose own account has a round left; None: everybody's
    beside: Mapping[str, Mapping[Any, int]] = MappingProxyType({})  # by level: what else its account will be charged
    exact: bool = False  # noise is discrete, on integers; see `Plan.exactly`

    @property
    def rate(self) -> float:
        return self.sampler.rate(len(self.ids))

    @property
    def most(self) -> int | None:
        """How often a client takes part at most, where the sampler limits it; see `Sampler.most`."""
        return self.sampler.most(len(self.ids), self.rounds)

    @property
    def counts(self) -> list[int]:
        """Members of each level that are still asked. Public: it follows from choices, changes and events alone."""
        level = self.choices.level if self.asked is None else self.choices.level[self.asked]
        return np.bincount(level, minlength=len(self.choices.menu.levels)).tolist()


@dataclass(frozen=True)
class Account:
    """One line of the ledger: whose it is, what one round costs it, and its budget (epsilon None: no budget)."""

    scope: str
    unit: str
    relation: Relation
    event: Any
    count: int
    epsilon: float | None
    delta: float


@dataclass(frozen=True, eq=False)
class RecordNoise:
    """Per-example clipping and noise on the clients: what `private_grad` does under `Record`."""

    bound: float
    multipliers: np.ndarray  # z of each client, 0 where it opted out
    expected: np.ndarray  # expected batch size of each client
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run may release and its price. `levels` are charged every round, `client` when it takes part."""

    name: str
    request: "Request"
    setting: CalibrationContext
    release: Release
    unit: str = "none"
    relation: Relation = "add/remove"
    levels: tuple[Account, ...] = ()
    client: Callable[[int], Account | None] = lambda _: None
    beside: Callable[[np.ndarray], Sequence[Account]] = lambda _: ()  # charged to be known, without a limit
    record: RecordNoise | None = None
    project: bool = False  # clip what would be uploaded after every local step, too
    steps: "StepNoise | None" = None
    summed: bool = False  # the noise is sized for a sum: nobody may see a message alone
    secure_sum: bool = False  # a simulation, too, sums by secure aggregation
    multipliers: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    asked_levels: tuple[bool, ...] | None = None
    evaluation: "Evaluated | None" = None  # in a deployment, of the models on the clients' own test rows

    @property
    def private(self) -> bool:
        return self.unit != "none"

    @cached_property
    def asked(self) -> np.ndarray:
        """Which clients may be asked at all: not those of levels of weight zero, nor those that spent their budget."""
        level, asked = self.setting.choices.level, self.setting.asked
        able = np.ones(len(level), bool) if asked is None else asked
        return able if self.asked_levels is None else able & np.array(self.asked_levels)[level]

    def accounts(self, cohort: np.ndarray) -> list[Account]:
        """Who pays for a round in which `cohort` takes part. A level pays even if nobody of it was drawn."""
        clients = (self.client(int(k)) for k in cohort)
        return [*self.levels, *(account for account in clients if account is not None), *self.beside(cohort)]

    def of(self, client: int) -> Account | None:
        """What a round costs a client if it is asked: its own account, or that of the level it is at now."""
        own = self.client(client)
        return self._by_level.get(self.setting.choices.of(client).name) if own is None else own

    def moved(self, choices: Choices, asked: np.ndarray) -> "Plan":
        """The plan of the rounds after a change of levels: the same noise, weights and divisors of who is asked now."""
        plan = self.request.plan(self.setting._replace(choices=choices, asked=asked))
        if self.setting.exact:
            return plan.exactly()
        return plan.with_fast_noise() if FAST in self.notes else plan

    def with_fast_noise(self) -> "Plan":
        """The same, and it says of its Gaussian noise what it is."""
        return replace(self, notes=(*self.notes, FAST)) if self.private and not self.summed else self

    def exactly(self) -> "Plan":
        """The same with noise that floating point cannot betray: discrete Gaussian, on integers, the same events.

        The stated multipliers hold by the proofs in `lattice` and `discrete_gaussian`. Shares of Gaussian noise that
        only a sum has in full (`seen = "sum"`) stay as they are; plan `distributed` has shares of integers.
        """
        if self.summed:
            return self
        dtype = next((leaf.dtype for leaf in self.setting.upload.values()), torch.float32)
        release = self.release
        return replace(
            self,
            setting=self.setting._replace(exact=True),
            release=replace(release, exact=dtype) if isinstance(release, Grouped | Local) else release,
            record=self.record and replace(self.record, exact=True),
            steps=self.steps and replace(self.steps, exact=True),
            evaluation=self.evaluation and self.evaluation._replace(plan=self.evaluation.plan.exactly()),
            notes=(*(note for note in self.notes if note != FAST), *((EXACT,) if self.private else ())),
        )

    @cached_property
    def _by_level(self) -> dict[str, Account]:
        return {account.scope.removeprefix("level:"): account for account in self.levels}


@runtime_checkable
class Request(Protocol):
    """What a user asks for; `plan` calibrates it to a setting."""

    def plan(self, setting: CalibrationContext) -> Plan: ...
