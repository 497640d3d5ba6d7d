"""Events in, epsilon out: what was released, and what it costs.

Two accountants: privacy loss distributions (PLD, tight) and Renyi divergences (RDP, the cross-check, and the only one
for cohorts of fixed size). Every answer is an upper bound and says which of the two gave it. On dp-accounting, which
takes over a second to import and is therefore imported where it is used.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import numpy as np

from tacit.errors import TacitError
from tacit.privacy.accounting.events import FLOOR, atoms, describe, from_json, to_json
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_multiplier

if TYPE_CHECKING:
    from dp_accounting import DpEvent

__all__ = [
    "Accountant",
    "Answer",
    "Profile",
    "Relation",
    "answer",
    "calibrate",
    "curve",
    "describe",
    "epsilon",
    "from_json",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_multiplier",
    "largest_count",
    "profile",
    "to_json",
]

Accountant = Literal["pld", "rdp"]
Relation = Literal["add/remove", "replace-one", "replace", "zero-out"]
"""Neighbours: with and without one unit; one unit exchanged in a fixed-size sample; any two data sets of a client
(local model); a client's contribution and zero. Multipliers are relative to the relation's own sensitivity."""

Profile = Callable[[np.ndarray], np.ndarray]
"""The least delta that is known to hold, of each epsilon."""

_CEILING: Final = 1e8  # no plausible target needs a larger multiplier
_DIGITS: Final = 5
_PROBES: Final = (0.5, 1.7, 42.3)


class Answer(NamedTuple):
    """An upper bound on epsilon, and the accountant that gave it."""

    epsilon: float
    accountant: Accountant


def epsilon(
    history: Mapping["DpEvent", int], delta: float, relation: Relation, accountant: Accountant = "pld"
) -> float:
    """What all events together cost, each as often as counted: 0 for none, infinity if one of them is not private."""
    return answer(history, delta, relation, accountant).epsilon


def answer(
    history: Mapping["DpEvent", int], delta: float, relation: Relation, accountant: Accountant = "pld"
) -> Answer:
    """As `epsilon`, with the name of the accountant: "rdp" where PLD was asked but does not model an event."""
    _check(delta, relation, accountant)
    return _answer(frozenset(atoms(history).items()), delta, relation, accountant)


def curve(
    event: "DpEvent", rounds: Sequence[int], delta: float, relation: Relation, accountant: Accountant = "pld"
) -> list[float]:
    """Epsilon after each of the numbers of rounds."""
    return [epsilon({event: count}, delta, relation, accountant) for count in rounds]


def profile(history: Mapping["DpEvent", int], relation: Relation, accountant: Accountant = "pld") -> Profile:
    """An upper bound on delta at each epsilon of at least 0, of all events together: what `answer` reads at one delta.

    Example:
        >>> import numpy as np
        >>> from dp_accounting import GaussianDpEvent
        >>> profile({GaussianDpEvent(1.0): 1}, "add/remove")(np.array([0.0])).round(4)
        array([0.3829])
    """
    from tacit.privacy.accounting.pld import pld_profile
    from tacit.privacy.accounting.rdp import rdp_profile

    _check(0.5, relation, accountant)
    events = atoms(history)
    if not events or any(_unprotected(event) for event in events):
        return lambda epsilons: np.full(np.shape(epsilons), float(bool(events)))
    exact = pld_profile(events, relation) if accountant == "pld" else None
    return rdp_profile(events, relation) if exact is None else exact


def _unprotected(event: "DpEvent") -> bool:
    import dp_accounting as dp

    return event == dp.NonPrivateDpEvent()


def calibrate(
    event_of: Callable[[float], "DpEvent"],
    epsilon: float,
    delta: float,
    relation: Relation,
    accountant: Accountant = "pld",
    times: int = 1,
    beside: Mapping["DpEvent", int] = MappingProxyType({}),
) -> float:
    """The smallest noise multiplier, rounded up in the fifth digit, with which `times` events cost at most the target.

    `beside`: what else the same account will be charged; all of it together costs at most the target. The promise is
    checked with the very number that is returned. Never below 0.01, where it costs thousands.
    `event_of` must be cheap, deterministic and never dearer for more noise; answers are remembered by what it returns.
    """
    _check(delta, relation, accountant)
    if not 0 < epsilon < math.inf:
        raise TacitError(f"epsilon {epsilon} is not a positive number: choose one, for instance 1.0")
    if times < 1:
        raise TacitError(f"cannot calibrate to {times} releases: give at least 1")
    family = _Family(tuple(to_json(event_of(z)) for z in _PROBES), event_of)
    return _calibrate(family, float(epsilon), float(delta), relation, accountant, int(times), frozenset(beside.items()))


def largest_count(
    event: "DpEvent",
    spent: Mapping["DpEvent", int],
    epsilon: float,
    delta: float,
    relation: Relation,
    accountant: Accountant = "pld",
    ceiling: int = 1 << 31,
) -> int:
    """How many more times `event` may happen after `spent` before epsilon is exceeded, at most `ceiling`.

    Never one too many. What was calibrated for T events gets at least T.
    """
    _check(delta, relation, accountant)
    if not epsilon >= 0:
        raise TacitError(f"a budget of epsilon {epsilon} is not a number of at least 0")
    return _largest_count(
        event, frozenset(spent.items()), float(epsilon), delta, relation, accountant, max(int(ceiling), 0)
    )


def _check(delta: float, relation: str, accountant: str) -> None:
    if not 0 < delta < 1:
        raise TacitError(
            f"delta {delta} must lie between 0 and 1: choose well below 1 / (number of clients or records)"
        )
    if relation not in get_args(Relation):
        raise TacitError(f"unknown neighbour relation {relation!r}: choose one of {', '.join(get_args(Relation))}")
    if accountant not in get_args(Accountant):
        raise TacitError(f"unknown accountant {accountant!r}: choose pld or rdp")


@lru_cache(maxsize=1 << 16)
def _answer(
    history: frozenset[tuple["DpEvent", int]], delta: float, relation: Relation, accountant: Accountant
) -> Answer:
    import dp_accounting as dp

    from tacit.privacy.accounting.pld import pld_epsilon
    from tacit.privacy.accounting.rdp import rdp_epsilon

    events = dict(history)
    if not events:
        return Answer(0.0, accountant)
    if dp.NonPrivateDpEvent() in events:
        return Answer(math.inf, accountant)
    if accountant == "pld":
        exact = pld_epsilon(events, delta, relation)
        if exact is not None:
            return Answer(exact, "pld")
    return Answer(rdp_epsilon(events, delta, relation), "rdp")


@dataclass(frozen=True)
class _Family:
    """A family of events by noise multiplier, known by three of its members."""

    probes: tuple[str, ...]
    event_of: Callable[[float], "DpEvent"] = field(compare=False)


@lru_cache(maxsize=1 << 14)
def _calibrate(
    family: _Family,
    target: float,
    delta: float,
    relation: Relation,
    accountant: Accountant,
    times: int,
    beside: frozenset[tuple["DpEvent", int]],
) -> float:
    from scipy.optimize import brentq

    def cost(z: float) -> float:
        return epsilon(Counter(dict(beside)) + Counter({family.event_of(z): times}), delta, relation, accountant)

    def excess(log_z: float) -> float:
        return math.log(min(max(cost(math.exp(log_z)), 1e-9), 1e9) / target)

    bracket = _bracket(lambda z: cost(z) <= target, gaussian_multiplier(target, delta) * math.sqrt(times), target)
    if bracket is None:
        return FLOOR
    z = _round_up(math.exp(float(brentq(excess, *map(math.log, bracket), xtol=1e-5))))
    while cost(z) > target:
        z = _round_up(z * (1 + 10.0**-_DIGITS))
    return z


def _bracket(holds: Callable[[float], bool], high: float, target: float) -> tuple[float, float] | None:
    """Multipliers that cost too much and little enough, within a factor of two. None: the floor is enough."""
    while not holds(high):
        high *= 2
        if high > _CEILING:
            raise TacitError(
                f"no amount of noise reaches epsilon {target:g}: a part of the event does not depend on it"
            )
    low = high / 2
    while holds(low):
        if low <= FLOOR:
            return None
        high, low = low, max(low / 2, FLOOR)
    return low, high


def _round_up(z: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(z)) + 1 - _DIGITS)
    return float(f"{math.ceil(z / unit - 1e-9) * unit:.{_DIGITS}g}")


@lru_cache(maxsize=1 << 16)
def _largest_count(
    event: "DpEvent",
    spent: frozenset[tuple["DpEvent", int]],
    budget: float,
    delta: float,
    relation: Relation,
    accountant: Accountant,
    ceiling: int,
) -> int:
    def cost(more: int) -> float:
        return epsilon(Counter(dict(spent)) + Counter({event: more}), delta, relation, accountant)

    low, high = 0, ceiling
    below, above = cost(low), cost(high)
    if above <= budget:
        return high
    if below > budget:
        return 0
    while high - low > 1:
        middle = _between(low, high, below, above, budget)
        price = cost(middle)
        if price <= budget:
            low, below = middle, price
        else:
            high, above = middle, price
    return low


def _between(low: int, high: int, below: float, above: float, budget: float) -> int:
    """A count to try next: where a line through both ends meets the budget, or the middle if that is near an end."""
    share = (budget - below) / (above - below) if above < math.inf else 0.5
    guess = low + round(share * (high - low))
    margin = (high - low) // 16 + 1
    return min(max(guess, low + margin), high - margin) if high - low > 2 else low + 1
