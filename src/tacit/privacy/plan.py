"""The one place where sampler, gradient, mechanism and accountant meet.

A mechanism (a file each in `mechanisms/`) becomes a `Plan` in a setting: who takes part, how often, with how much data.
The plan carries the noise, calibrated for the whole run, and says what each round costs whom. Read this file and the
mechanism's own to check a claim.

| mechanism | unit of privacy | who clips    | who adds noise | against whom           | neighbours          |
|---------|------------------|--------------|----------------|------------------------|---------------------|
| Open    | none             | -            | -              | -                      | -                   |
| Central | client           | encode       | the server     | who sees the models    | the sampler's       |
| Grouped | client, by level | encode       | the server     | who sees the models    | the sampler's       |
| Local   | client           | encode       | encode         | everybody              | replace, 2 bounds   |
| Record  | one record       | private_grad | private_grad   | everybody              | add/remove a record |
| Stepwise, messages | client | guard        | guard          | everybody              | replace, 2 bounds   |
| Stepwise, sum      | client | guard        | encode         | who sees the sum alone | zero-out            |
| Distributed | client       | encode       | encode, shares | the server, readers    | zero-out            |

Noise is calibrated for each level to the whole run, as if a member stayed for all of its rounds: a client that changes
its level meets the noise that the level has anyway.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import torch

from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Accountant, Relation, calibrate
from tacit.privacy.accounting.sampling import BatchRule, Each, Queries, Sampler
from tacit.privacy.levels import Choices, Level

if TYPE_CHECKING:
    from tacit.privacy.evaluation import Evaluated
    from tacit.privacy.mechanisms.clipping import Clip
    from tacit.privacy.mechanisms.record import RecordNoise
    from tacit.privacy.mechanisms.release import Release
    from tacit.privacy.mechanisms.stepwise import StepNoise

Unit = Literal["none", "client", "record"]
Seen = Literal["uploads", "messages", "sum"]
"""What the server sees of a client: its clipped upload, which it is trusted with; a message that carries all of its
noise; or nothing but a sum over many."""

EXACT: Final = (
    "noise is exact: discrete Gaussian on a lattice of integers, 2^26 steps for a noise of at least one clip bound"
)
FAST: Final = "noise is fast: Gaussian, on floating-point numbers; noise = 'exact' adds what a federation adds"


class CalibrationContext(NamedTuple):
    """The public facts that a plan is calibrated to."""

    ids: Sequence[str]
    sizes: np.ndarray  # rows of each client; treated as public where the unit is a record
    choices: Choices
    sampler: Sampler
    batches: BatchRule
    rounds: int
    queries: Queries = Each()  # private gradients on each batch of a client; where the unit is a record
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

    @property
    def only_level(self) -> Level:
        """The level that everybody is at, where noise comes in shares: a smaller share would protect others less."""
        used = [level for level, n in zip(self.choices.menu.levels, self.choices.counts, strict=True) if n]
        if len(used) != 1 or not used[0].private:
            names = [level.name for level in used]
            raise TacitError(f"noise in shares makes one sum, so there is one private level, but clients chose {names}")
        return used[0]

    def participations(self, asked_for: int | None) -> int:
        """Those that noise is calibrated to: `asked_for`, or else what 99% of the clients stay below."""
        if asked_for is not None:
            if asked_for < 1:
                raise TacitError(f"participations must be at least 1, not {asked_for}")
            return asked_for
        if self.most is not None:
            return self.most
        from scipy.stats import binom

        return max(1, int(binom.ppf(0.99, self.rounds, self.rate * (1 - self.drop))))

    def noise(
        self, level: Level, event_of: Callable[[float], Any], times: int, relation: Relation, units: int
    ) -> float:
        """z of a level: 0 if it opted out, its own if given, or calibrated to its budget over the whole run.

        The budget is that of all that the level's accounts will be charged, `beside` included.
        """
        if not level.private:
            return 0.0
        assert level.delta is not None  # a private level has one
        if level.delta >= 1 / units and not self.allow_large_delta:
            raise TacitError(
                f"delta {level.delta:g} of level '{level.name}' is not below 1/{units}: a mechanism could publish "
                f"somebody's data whole; choose at most {0.1 / units:.1g}, or set allow_large_delta"
            )
        if level.noise is not None:
            return level.noise
        assert level.epsilon is not None
        beside = self.beside.get(level.name, {})
        return calibrate(event_of, level.epsilon, level.delta, relation, self.accountant, max(times, 1), beside)

    def central_noise(self, level: Level) -> float:
        """z of a sum with a trusted server: for all rounds, or for as many as the sampler asks a client in."""
        population = len(self.ids)

        def event_of(z: float) -> Any:
            return self.sampler.event(gaussian_event(z), population)

        times = self.rounds if self.most is None else self.most
        return self.noise(level, event_of, times, self.sampler.relation, population)

    def account_of_each(
        self, events: Sequence[Any], relation: Relation, count: int = 1
    ) -> "Callable[[int], Account | None]":
        """A client's own account, which pays its level's event `count` times a participation; None if that is none."""
        menu = self.choices.menu.levels
        accounts = [
            event and Account.of("", "client", relation, event, count, level)
            for event, level in zip(events, menu, strict=True)
        ]

        def client(k: int) -> Account | None:
            account = accounts[self.choices.level[k]]
            return account and replace(account, scope=f"client:{self.ids[k]}")

        return client


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

    @classmethod
    def of(cls, scope: str, unit: str, relation: Relation, event: Any, count: int, level: Level) -> "Account":
        return cls(scope, unit, relation, event, count, level.epsilon, level.delta or 0.0)


class Words(NamedTuple):
    """What people are told of a plan.

    `against`: whom its guarantee holds against, in reports. `to_member`: whom somebody trusts who joins a federation.
    `shared`: a level's members have one account, so that its figure is everybody's; else it is the largest of theirs.
    """

    against: str = ""
    to_member: str = ""
    shared: bool = False


@dataclass(frozen=True)
class Mechanism(ABC):
    """What a user asks for: a frozen dataclass whose fields are its options, in Python and in an experiment's file.

    It states its unit, who sees what, and in words whom it protects from whom; `plan` calibrates it to a setting, with
    the release through which uploads leave. Nothing outside of its file asks which mechanism it is.
    """

    name: ClassVar[str]  # in an experiment's file
    unit: ClassVar[Unit] = "client"
    words: ClassVar[Mapping[str, Words]]  # by the name of a plan that it makes

    @property
    @abstractmethod
    def server_sees(self) -> Seen: ...

    @property
    def plan_name(self) -> str:
        """The plan by what a level's epsilon limits under it. A member of a federation agrees to this name."""
        return self.name

    @abstractmethod
    def plan(self, setting: CalibrationContext) -> "Plan":
        """Calibrated: the noise for the whole run, and what each round costs whom."""
        ...

    def for_figures(self, clip: "Clip", times: int) -> "Mechanism":
        """What protects members' accuracies, of norm at most the clip bound, as this protects uploads.

        Unless a mechanism says otherwise each client adds the whole noise to its own: nobody is trusted.
        """
        from tacit.privacy.mechanisms.local import Local

        return Local(clip, participations=times)


def _no_account(client: int) -> None:
    """A client without an account of its own."""


def _no_accounts(cohort: np.ndarray) -> Sequence[Account]:
    return ()


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run may release and its price. `levels` are charged every round, `client` when it takes part."""

    name: str
    mechanism: Mechanism
    setting: CalibrationContext
    release: "Release"
    relation: Relation = "add/remove"
    levels: tuple[Account, ...] = ()
    client: Callable[[int], Account | None] = _no_account
    beside: Callable[[np.ndarray], Sequence[Account]] = _no_accounts  # charged to be known, without a limit
    alone: Mapping[Any, int] = field(
        default_factory=dict[Any, int]
    )  # what a run costs a client whose own share is all the noise
    record: "RecordNoise | None" = None
    project: bool = False  # clip what would be uploaded after every local step, too
    steps: "StepNoise | None" = None
    secure_sum: bool = False  # a simulation, too, sums by secure aggregation
    multipliers: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    asked_levels: tuple[bool, ...] | None = None
    uploads: bool = True  # False: nothing leaves, so nothing is owed
    average: int = 0  # rounds whose models are averaged in the end
    first: "Plan | None" = None  # that of the first `first_rounds` rounds, if they have another
    first_rounds: int = 0
    evaluation: "Evaluated | None" = None  # in a deployment, of the models on the clients' own test rows

    @property
    def unit(self) -> Unit:
        return self.mechanism.unit

    @property
    def private(self) -> bool:
        return self.unit != "none"

    @property
    def summed(self) -> bool:
        """The noise is sized for a sum: nobody may see a message alone."""
        return self.mechanism.server_sees == "sum"

    @property
    def trusts_server(self) -> bool:
        """Clients send their uploads without noise, for the server to add it: then only what it releases counts."""
        return self.mechanism.server_sees == "uploads"

    @cached_property
    def eligible(self) -> np.ndarray:
        """Which clients may be asked at all: not those of levels of weight zero, nor those that spent their budget."""
        level, eligible = self.setting.choices.level, self.setting.asked
        able = np.ones(len(level), bool) if eligible is None else eligible
        return able if self.asked_levels is None else able & np.array(self.asked_levels)[level]

    def accounts(self, cohort: np.ndarray) -> list[Account]:
        """Who pays for a round in which `cohort` takes part. A level pays even if nobody of it was drawn."""
        clients = (self.client(int(k)) for k in cohort)
        return [*self.levels, *(account for account in clients if account is not None), *self.beside(cohort)]

    def of(self, client: int) -> Account | None:
        """What a round costs a client if it is asked: its own account, or that of the level it is at now."""
        account = self.client(client)
        return self._by_level.get(self.setting.choices.of(client).name) if account is None else account

    def at(self, round: int) -> "Plan":
        """The plan that a round is taken under, when so many are done."""
        return self.first if self.first is not None and round < self.first_rounds else self

    def moved(self, choices: Choices, eligible: np.ndarray) -> "Plan":
        """The plan of the rounds after a change of levels: the same noise, weights and divisors of who is asked now."""
        plan = self.mechanism.plan(self.setting._replace(choices=choices, asked=eligible))
        plan = plan if self.uploads else plan.without_upload()
        if self.setting.exact:
            return plan.exactly()
        return plan.with_fast_noise() if FAST in self.notes else plan

    def by_participation(self) -> "Plan":
        """The same, whose levels pay for every round, where the sampler limits how often a client takes part.

        A client's contribution enters the sums of its own rounds and no other, and which these are is public: they
        compose, the other rounds are functions of what was released and of others' data. So each participation is
        charged to the client, whoever knows of it, and the level owes nothing.
        """
        setting, accounts = self.setting, {account.scope: account for account in self.levels}
        if setting.most is None:
            return self

        def client(k: int) -> Account | None:
            account = accounts.get(f"level:{setting.choices.of(k).name}")
            return account and replace(account, scope=f"client:{setting.ids[k]}")

        note = (
            f"a client is asked at most {setting.most} times in the run; each is charged, and no sampling is credited"
        )
        return replace(self, name=f"{self.name}-rota", levels=(), client=client, notes=(*self.notes, note))

    def without_upload(self) -> "Plan":
        """The same for a method that uploads nothing: nothing leaves, so nothing is owed."""
        return replace(self, uploads=False, levels=(), client=_no_account, beside=_no_accounts, first=None)

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
        return replace(
            self,
            setting=self.setting._replace(exact=True),
            release=self.release.exactly(dtype),
            record=self.record and replace(self.record, exact=True),
            steps=self.steps and replace(self.steps, exact=True),
            evaluation=self.evaluation and self.evaluation._replace(plan=self.evaluation.plan.exactly()),
            first=self.first and self.first.exactly(),
            notes=(*(note for note in self.notes if note != FAST), *((EXACT,) if self.private else ())),
        )

    @cached_property
    def _by_level(self) -> dict[str, Account]:
        return {account.scope.removeprefix("level:"): account for account in self.levels}


def check_average(rounds: int) -> None:
    """Refuses a number of rounds to average over that is negative."""
    if rounds < 0:
        raise TacitError(f"average must be at least 0, not {rounds}: give the number of last rounds to average over")


def gaussian_event(z: float) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(z) if z > 0 else None


def multiplier_of(event: Any) -> float:
    """The noise multiplier of one query, all of whose event's parts have the same."""
    while not hasattr(event, "noise_multiplier"):
        event = event.events[0] if hasattr(event, "events") else event.event
    return float(event.noise_multiplier)
