"""What requests have in common: noise from a level's budget, accounts, how often a client takes part."""

from collections.abc import Callable
from typing import Any

from tacit.errors import TacitError
from tacit.privacy.account import Relation, calibrate
from tacit.privacy.levels import Level
from tacit.privacy.plan import Account, Setting


def gaussian_event(z: float) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(z) if z > 0 else None


def multiplier_of(event: Any) -> float:
    while hasattr(event, "event"):
        event = event.event
    return float(event.noise_multiplier)


def account_for(scope: str, unit: str, relation: Relation, event: Any, count: int, level: Level) -> Account:
    return Account(scope, unit, relation, event, count, level.epsilon, level.delta or 0.0)


def noise_for(
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


def central_noise(level: Level, setting: Setting) -> float:
    population = len(setting.ids)

    def event_of(z: float) -> Any:
        return setting.sampler.event(gaussian_event(z), population)

    return noise_for(level, setting, event_of, setting.rounds, setting.sampler.relation, population)


def participations_of(given: int | None, setting: Setting) -> int:
    if given is not None:
        if given < 1:
            raise TacitError(f"participations must be at least 1, not {given}")
        return given
    from scipy.stats import binom

    return max(1, int(binom.ppf(0.99, setting.rounds, setting.rate * (1 - setting.drop))))
