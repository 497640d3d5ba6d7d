"""What requests have in common: noise from a level's budget, accounts, how often a client takes part."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Relation, calibrate
from tacit.privacy.levels import Level
from tacit.privacy.plan import Account, CalibrationContext, Plan


def gaussian_event(z: float) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(z) if z > 0 else None


def multiplier_of(event: Any) -> float:
    """The noise multiplier of one query, all of whose event's parts have the same."""
    while not hasattr(event, "noise_multiplier"):
        event = event.events[0] if hasattr(event, "events") else event.event
    return float(event.noise_multiplier)


def account_for(scope: str, unit: str, relation: Relation, event: Any, count: int, level: Level) -> Account:
    return Account(scope, unit, relation, event, count, level.epsilon, level.delta or 0.0)


def noise_for(
    level: Level,
    setting: CalibrationContext,
    event_of: Callable[[float], Any],
    times: int,
    relation: Relation,
    units: int,
) -> float:
    """z of a level: 0 if it opted out, its own if given, or calibrated to its budget over the whole run.

    The budget is that of all that the level's accounts will be charged, `setting.beside` included.
    """
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
    beside = setting.beside.get(level.name, {})
    return calibrate(event_of, level.epsilon, level.delta, relation, setting.accountant, max(times, 1), beside)


def central_noise(level: Level, setting: CalibrationContext) -> float:
    """z of a sum with a trusted server: for all rounds, or for as many as the sampler asks a client in."""
    population = len(setting.ids)

    def event_of(z: float) -> Any:
        return setting.sampler.event(gaussian_event(z), population)

    times = setting.rounds if setting.most is None else setting.most
    return noise_for(level, setting, event_of, times, setting.sampler.relation, population)


def by_participation(plan: Plan) -> Plan:
    """`plan`, whose levels pay for every round, where the sampler limits how often a client takes part.

    A client's contribution enters the sums of its own rounds and no other, and which these are is public: they compose,
    the other rounds are functions of what was released and of others' data. So each participation is charged to the
    client, whoever knows of it, and the level owes nothing.
    """
    setting, own = plan.setting, {account.scope: account for account in plan.levels}
    if setting.most is None:
        return plan

    def client(k: int) -> Account | None:
        account = own.get(f"level:{setting.choices.of(k).name}")
        return account and replace(account, scope=f"client:{setting.ids[k]}")

    said = f"a client is asked at most {setting.most} times in the run; each is charged, and no sampling is credited"
    return replace(plan, name=f"{plan.name}-rota", levels=(), client=client, notes=(*plan.notes, said))


def participations_of(given: int | None, setting: CalibrationContext) -> int:
    if given is not None:
        if given < 1:
            raise TacitError(f"participations must be at least 1, not {given}")
        return given
    if setting.most is not None:
        return setting.most
    from scipy.stats import binom

    return max(1, int(binom.ppf(0.99, setting.rounds, setting.rate * (1 - setting.drop))))


def only_level(setting: CalibrationContext) -> Level:
    """The level that everybody is at, where noise comes in shares: a smaller share would protect others less."""
    menu, counts = setting.choices.menu.levels, setting.choices.counts
    used = [level for level, n in zip(menu, counts, strict=True) if n]
    if len(used) != 1 or not used[0].private:
        names = [level.name for level in used]
        raise TacitError(f"noise in shares makes one sum, so there is one private level, but clients chose {names}")
    return used[0]
