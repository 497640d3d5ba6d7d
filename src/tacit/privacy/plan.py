"""The one place where sampler, gradient, release and accountant meet.

A request (`Open`, `Central`, `Grouped`, `Local`, `Record`) becomes a `Plan` in a setting: who takes part, how often,
with how much data. The plan carries the noise, calibrated for the whole run, and says what each round costs whom.
Read this file to check a claim.

| plan    | unit of privacy  | who clips    | who adds noise | against whom           | neighbours          |
|---------|------------------|--------------|----------------|------------------------|---------------------|
| Open    | none             | -            | -              | -                      | -                   |
| Central | client           | encode       | the server     | who sees the models    | the sampler's       |
| Grouped | client, by level | encode       | the server     | who sees the models    | the sampler's       |
| Local   | client           | encode       | encode         | everybody              | replace, 2 bounds   |
| Record  | one record       | private_grad | private_grad   | everybody              | add/remove a record |
| Stepwise, messages | client | guard        | guard          | everybody              | replace, 2 bounds   |
| Stepwise, sum      | client | guard        | encode         | who sees the sum alone | zero-out            |

`Stepwise` is in a file of its own, with its proof.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from tacit.errors import TacitError
from tacit.privacy import release as releases
from tacit.privacy.account import Accountant, Relation, calibrate
from tacit.privacy.clip import Clip, Fixed, Quantile
from tacit.privacy.levels import Choices, Level
from tacit.privacy.merge import Merge, Optimal, Weighted
from tacit.privacy.sampling import BatchRule, Sampler

if TYPE_CHECKING:
    from tacit.privacy.stepwise import StepNoise


class Setting(NamedTuple):
    """The public facts that a plan is calibrated to."""

    ids: Sequence[str]
    sizes: np.ndarray  # rows of each client; under Record treated as public
    choices: Choices
    sampler: Sampler
    batches: BatchRule
    rounds: int
    queries: int = 1  # private gradients in one local step of the method
    accountant: Accountant = "pld"
    allow_large_delta: bool = False

    @property
    def rate(self) -> float:
        return self.sampler.rate(len(self.ids))


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


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run may release and its price. `levels` are charged every round, `client` when it takes part."""

    name: str
    setting: Setting
    release: releases.Release
    unit: str = "none"
    levels: tuple[Account, ...] = ()
    client: Callable[[int], Account | None] = lambda _: None
    record: RecordNoise | None = None
    project: bool = False  # clip what would be uploaded after every local step, too
    steps: "StepNoise | None" = None
    least: int = 0  # a round of fewer clients is left out
    multipliers: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    asked_levels: tuple[bool, ...] | None = None

    @property
    def private(self) -> bool:
        return self.unit != "none"

    @cached_property
    def asked(self) -> np.ndarray:
        """Which clients may be asked at all: everybody, but for levels of weight zero."""
        level = self.setting.choices.level
        return np.ones(len(level), bool) if self.asked_levels is None else np.array(self.asked_levels)[level]

    def accounts(self, cohort: np.ndarray) -> list[Account]:
        """Who pays for a round in which `cohort` takes part. A level pays even if nobody of it was drawn."""
        clients = (self.client(int(k)) for k in cohort)
        return [*self.levels, *(account for account in clients if account is not None)]


class Request(Protocol):
    """What a user asks for; `plan` calibrates it to a setting."""

    def plan(self, setting: Setting) -> Plan: ...


@dataclass(frozen=True)
class Open:
    """No privacy: for comparison, and for methods that upload nothing."""

    def plan(self, setting: Setting) -> Plan:
        return Plan("open", setting, releases.Open())


@dataclass(frozen=True)
class Grouped:
    """Each level has its own noise and its own epsilon; `ratio` is the weight of a private client beside an open one.

    1 weighs all clients alike, 0 does not ask the private ones at all, "optimal" weighs noise against bias in every
    round (`horizon`: see `merge.Optimal`).
    """

    clip: Clip = field(default_factory=Quantile)
    ratio: float | Literal["optimal"] = 1.0
    project: bool = False
    horizon: float = 100.0

    def __post_init__(self) -> None:
        if self.ratio != "optimal" and not (isinstance(self.ratio, int | float) and 0 <= self.ratio <= 1):
            raise TacitError(
                f"ratio must lie between 0 (private clients are not asked) and 1 (uniform), or be 'optimal', "
                f"not {self.ratio!r}"
            )
        Optimal((1.0,), self.horizon)

    def plan(self, setting: Setting) -> Plan:
        menu, counts = setting.choices.menu.levels, setting.choices.counts
        merge, notes = self._merge(setting.choices)
        accounts, multipliers = [], []
        for j, level in enumerate(menu):
            z = _central_noise(level, setting) if level.private and merge.asks(j) else 0.0
            multipliers.append(z)
            if z > 0:
                event = setting.sampler.event(gaussian(z), len(setting.ids))
                accounts.append(account(f"level:{level.name}", "client", setting.sampler.relation, event, 1, level))
        release = releases.Grouped(
            clip=self.clip,
            multipliers=tuple(multipliers),
            expected=tuple(setting.rate * n for n in counts),
            merge=merge,
            sensitivity=setting.sampler.sensitivity,
        )
        return Plan(
            "grouped",
            setting,
            release,
            unit="client",
            levels=tuple(accounts),
            project=self.project,
            multipliers=tuple(multipliers),
            asked_levels=tuple(merge.asks(j) for j in range(len(menu))),
            notes=notes,
        )

    def _merge(self, choices: Choices) -> tuple[Merge, tuple[str, ...]]:
        menu, counts = choices.menu.levels, choices.counts
        if self.ratio != "optimal":
            return Weighted(_weights(menu, counts, self.ratio)), ()
        if not (~choices.private).any():
            return Weighted(_weights(menu, counts, 1.0)), ("nobody opted out, so optimal weights are the shares",)
        return Optimal(tuple(n / sum(counts) for n in counts), self.horizon), ()


@dataclass(frozen=True)
class Central:
    """A trusted server, one level for everybody: DP-FedAvg."""

    clip: Clip = field(default_factory=Quantile)
    project: bool = False

    def plan(self, setting: Setting) -> Plan:
        used = [level.name for level, n in zip(setting.choices.menu.levels, setting.choices.counts, strict=True) if n]
        if len(used) != 1 or not setting.choices.private.all():
            raise TacitError(f"the central plan has one private level, but clients chose {used}: use plan 'grouped'")
        grouped = Grouped(self.clip, project=self.project).plan(setting)
        return Plan(**{**vars(grouped), "name": "central"})


@dataclass(frozen=True)
class Local:
    """Each client clips and adds the whole noise itself. Charged by participation, without amplification.

    The noise is calibrated to `participations` of one client (default: what 99% of the clients stay below); a client
    that has used them up is no longer asked.
    """

    clip: Clip = field(default_factory=Fixed)
    participations: int | None = None
    project: bool = False

    def plan(self, setting: Setting) -> Plan:
        menu, times = setting.choices.menu.levels, participations(self.participations, setting)
        z = [noise_of(level, setting, gaussian, times, "replace", len(setting.ids)) for level in menu]
        accounts = [account("", "client", "replace", gaussian(zj), 1, level) for zj, level in zip(z, menu, strict=True)]

        def client(k: int) -> Account | None:
            account = accounts[setting.choices.level[k]]
            return Account(**{**vars(account), "scope": f"client:{setting.ids[k]}"}) if account.event else None

        release = releases.Local(self.clip, tuple(z), expected=setting.rate * len(setting.ids))
        return Plan(
            "local",
            setting,
            release,
            unit="client",
            client=client,
            project=self.project,
            multipliers=tuple(z),
            notes=(f"noise calibrated for {times} participations of one client",),
        )


@dataclass(frozen=True)
class Record:
    """DP-SGD on every client: each example's gradient is clipped to `bound` and noise is added on the client.

    Every client has its own account, calibrated from its own number of rows (treated as public) to `participations`
    rounds; no amplification by client sampling. The upload then needs no further protection.
    """

    bound: float = 1.0
    participations: int | None = None

    def __post_init__(self) -> None:
        Fixed(self.bound)

    def plan(self, setting: Setting) -> Plan:
        times = participations(self.participations, setting)
        accounts = [self._account(k, setting, times) for k in range(len(setting.ids))]
        z = np.array([0.0 if account is None else _multiplier(account.event) for account in accounts])
        noise = RecordNoise(self.bound, z, np.array([setting.batches.expected(int(n)) for n in setting.sizes]))
        return Plan(
            "record",
            setting,
            releases.Open(),
            unit="record",
            client=lambda k: accounts[k],
            record=noise,
            notes=(
                f"noise calibrated for {times} participations of one client",
                "each client's number of rows is treated as public",
            ),
        )

    def _account(self, k: int, setting: Setting, times: int) -> Account | None:
        n, level = int(setting.sizes[k]), setting.choices.of(k)
        count = setting.batches.steps(n) * setting.queries
        if not level.private or count == 0:
            return None

        def event_of(z: float) -> Any:
            return setting.batches.event(gaussian(z), n)

        z = noise_of(level, setting, event_of, times * count, "add/remove", n)
        return account(f"client:{setting.ids[k]}", "record", "add/remove", event_of(z), count, level)


def gaussian(z: float) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(z) if z > 0 else None


def _multiplier(event: Any) -> float:
    while hasattr(event, "event"):
        event = event.event
    return float(event.noise_multiplier)


def account(scope: str, unit: str, relation: Relation, event: Any, count: int, level: Level) -> Account:
    return Account(scope, unit, relation, event, count, level.epsilon, level.delta or 0.0)


def _central_noise(level: Level, setting: Setting) -> float:
    population = len(setting.ids)

    def event_of(z: float) -> Any:
        return setting.sampler.event(gaussian(z), population)

    return noise_of(level, setting, event_of, setting.rounds, setting.sampler.relation, population)


def noise_of(
    level: Level, setting: Setting, event_of: Callable[[float], Any], times: int, relation: Relation, units: int
) -> float:
    """z of a level: 0 if it opted out, its own if given, or calibrated to its budget over the whole run."""
    if not level.private:
        return 0.0
    assert level.delta is not None  # a private level has one
    if level.delta >= 1 / units and not setting.allow_large_delta:
        raise TacitError(
            f"delta {level.delta:g} of level '{level.name}' is not below 1/{units}: a mechanism could publish "
            f"somebody's data whole; choose at most {0.1 / units:.1g}, or set allow_large_delta"
        )
    if level.noise is not None:
        return level.noise
    assert level.epsilon is not None
    return calibrate(event_of, level.epsilon, level.delta, relation, setting.accountant, times=max(times, 1))


def _weights(menu: Sequence[Level], counts: Sequence[int], ratio: float) -> tuple[float, ...]:
    """w_open : w_private = N_open : r N_private; with nobody opted out, counts."""
    somebody_open = any(n and not level.private for level, n in zip(menu, counts, strict=True))
    if ratio == 0 and not somebody_open:
        raise TacitError("ratio 0 asks nobody, because no client opted out: choose a ratio above 0")
    r = ratio if somebody_open else 1.0
    raw = [n * (r if level.private else 1.0) for level, n in zip(menu, counts, strict=True)]
    return tuple(weight / sum(raw) for weight in raw)


def participations(given: int | None, setting: Setting) -> int:
    if given is not None:
        if given < 1:
            raise TacitError(f"participations must be at least 1, not {given}")
        return given
    from scipy.stats import binom

    return max(1, int(binom.ppf(0.99, setting.rounds, setting.rate)))
