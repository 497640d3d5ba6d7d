"""What a run promised to whom: the public facts of its plan, in a form that outlives the run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from tacit.core.contract import Method
from tacit.errors import StorageError
from tacit.privacy.accounting.events import describe
from tacit.privacy.ledger.statement import SIMULATION
from tacit.privacy.membership import LevelPeriods, once_open
from tacit.privacy.plan import Account, Plan
from tacit.rounds.evaluate import ACCURACY, Metric

Standing = Literal["protected", "opted out", "no noise", "never asked", "nothing leaves"]
"""Why a level has the guarantee it has. "no noise": it asked for one, and the plan is open."""


@dataclass(frozen=True)
class Promise:
    """One level of the menu: who is at it and what it was promised. `budget` None: noise was given instead."""

    level: str
    clients: int
    standing: Standing
    budget: float | None = None
    delta: float | None = None
    relation: str | None = None
    noise: float | None = None  # the noise multiplier; None where clients have their own
    release: str | None = None  # one round's event, in words
    once_open: int = 0  # of the clients, those that were opted out for some rounds
    dismissed: int = 0  # of the clients, those that are no longer asked


@dataclass(frozen=True)
class Facts:
    """One run: what was done under which plan. `unit` is what a guarantee protects: a client, a record, or none."""

    name: str
    method: str
    plan: str
    unit: str
    accountant: str
    rounds: int
    rate: float
    clients: int
    promises: tuple[Promise, ...]
    notes: tuple[str, ...] = ()
    changed: int = 0  # clients that changed their level
    metric: str = ACCURACY.name  # what tables and charts show
    larger: bool = True  # whether larger is better
    range: tuple[float, ...] | None = ACCURACY.range
    simulation: str = SIMULATION  # for readers of the file: nothing depends on it

    @classmethod
    def of(
        cls,
        name: str,
        method: Method,
        plan: Plan,
        uploads: bool,
        level_periods: Mapping[str, LevelPeriods] | None = None,
        metric: Metric = ACCURACY,
    ) -> "Facts":
        """`plan`: that of the last draw; `stays`: of the clients that changed their level."""
        setting, level_periods = plan.setting, level_periods or {}
        return cls(
            name=name,
            method=title(method),
            plan=plan.name,
            unit=plan.unit if uploads else "none",
            accountant=setting.accountant,
            rounds=setting.rounds,
            rate=setting.rate,
            clients=len(setting.ids),
            promises=tuple(_promise(j, plan, uploads, level_periods) for j in range(len(setting.choices.menu.levels))),
            notes=plan.notes if uploads else (),
            changed=len(level_periods),
            metric=metric.name,
            larger=metric.larger,
            range=metric.range,
        )

    @property
    def levels(self) -> list[str]:
        return [promise.level for promise in self.promises]

    @property
    def shares(self) -> bool:
        """Whether anything is uploaded, so that there is a shared model to speak of."""
        return any(promise.standing != "nothing leaves" for promise in self.promises)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Facts":
        try:
            content: Mapping[str, Any] = json.loads(text)
            promises = tuple(Promise(**each) for each in content["promises"])
            range = content.get("range", ACCURACY.range)
            range = range and tuple(range)
            return cls(**{**content, "promises": promises, "notes": tuple(content["notes"]), "range": range})
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"the facts of the run cannot be read ({error}): restore facts.json") from error


def title(method: Method) -> str:
    """The method's name with what it wraps: 'KeepLocal(Ditto)'. FedAvg inside goes without saying."""
    inner = getattr(method, "base", None)
    name = type(method).__name__
    return name if inner is None or type(inner).__name__ == "FedAvg" else f"{name}({title(inner)})"


def account_of(plan: Plan, level: int) -> Account | None:
    """The account of a level, or that of its first client where every client has its own."""
    name = plan.setting.choices.menu.names[level]
    shared = next((account for account in plan.levels if account.scope == f"level:{name}"), None)
    if shared is not None:
        return shared
    members = np.flatnonzero(plan.setting.choices.level == level)
    return next((account for k in members if (account := plan.client(int(k))) is not None), None)


def _promise(j: int, plan: Plan, uploads: bool, level_periods: Mapping[str, LevelPeriods]) -> Promise:
    choices, participates = plan.setting.choices, plan.setting.asked
    level, members = choices.menu.levels[j], choices.level == j
    dismissed = 0 if participates is None else int((members & ~participates).sum())
    names = {name for name, member in zip(plan.setting.ids, members, strict=True) if member} if level_periods else set()
    standing = _standing(j, plan, uploads, dismissed)
    promise = Promise(
        level.name,
        choices.counts[j],
        standing,
        level.epsilon,
        level.delta,
        once_open=sum(name in names and once_open(periods) for name, periods in level_periods.items()),
        dismissed=dismissed,
    )
    account = account_of(plan, j) if standing == "protected" else None
    if account is None:
        return replace(promise, relation=plan.relation if standing == "protected" else None)
    noise = plan.multipliers[j] if plan.multipliers else None
    release = describe(account.event, plan.unit) if noise is not None else None
    return replace(promise, relation=account.relation, noise=noise, release=release)


def _standing(j: int, plan: Plan, uploads: bool, dismissed: int) -> Standing:
    level = plan.setting.choices.menu.levels[j]
    if not uploads:
        return "nothing leaves"
    if not level.private:
        return "opted out"
    if not plan.private:
        return "no noise"
    return "protected" if plan.asked_levels is None or plan.asked_levels[j] or dismissed else "never asked"
