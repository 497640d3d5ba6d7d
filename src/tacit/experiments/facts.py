"""What a run promised to whom: the public facts of its plan, in a form that outlives the run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tacit.core import Method
from tacit.errors import StorageError
from tacit.privacy.events import describe
from tacit.privacy.plan import Account, Plan

Standing = Literal["protected", "opted out", "no noise", "never asked", "nothing leaves"]
"""Why a level has the guarantee it has. "no noise": it asked for one, and the plan is open."""


@dataclass(frozen=True)
class Promise:
    """One level of the menu: who chose it and what it was promised. `budget` None: noise was given instead."""

    level: str
    clients: int
    standing: Standing
    budget: float | None = None
    delta: float | None = None
    relation: str | None = None
    noise: float | None = None  # the noise multiplier; None where clients have their own
    release: str | None = None  # one round's event, in words


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

    @classmethod
    def of(cls, name: str, method: Method, plan: Plan, uploads: bool) -> "Facts":
        setting = plan.setting
        return cls(
            name=name,
            method=title(method),
            plan=plan.name,
            unit=plan.unit if uploads else "none",
            accountant=setting.accountant,
            rounds=setting.rounds,
            rate=setting.rate,
            clients=len(setting.ids),
            promises=tuple(_promise(j, plan, uploads) for j in range(len(setting.choices.menu.levels))),
            notes=plan.notes if uploads else (),
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
            return cls(**{**content, "promises": promises, "notes": tuple(content["notes"])})
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


def _promise(j: int, plan: Plan, uploads: bool) -> Promise:
    choices = plan.setting.choices
    level, clients = choices.menu.levels[j], choices.counts[j]
    standing = _standing(j, plan, uploads)
    account = account_of(plan, j) if standing == "protected" else None
    if account is None:
        return Promise(level.name, clients, standing, level.epsilon, level.delta)
    noise = plan.multipliers[j] if plan.multipliers else None
    release = describe(account.event, plan.unit) if noise is not None else None
    return Promise(level.name, clients, standing, level.epsilon, level.delta, account.relation, noise, release)


def _standing(j: int, plan: Plan, uploads: bool) -> Standing:
    level = plan.setting.choices.menu.levels[j]
    if not uploads:
        return "nothing leaves"
    if not level.private:
        return "opted out"
    if not plan.private:
        return "no noise"
    return "protected" if plan.asked_levels is None or plan.asked_levels[j] else "never asked"
