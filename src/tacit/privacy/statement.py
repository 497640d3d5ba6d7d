"""What every scope of a ledger has spent so far, replayed from its events."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tacit.privacy.account import Answer, answer
from tacit.privacy.events import describe

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.ledger import Budget, Ledger

NO_GUARANTEE: Final = "no guarantee"
_SHOWN: Final = 3


@dataclass(frozen=True)
class Line:
    """One scope's account. Two lines may be compared only if unit, relation and delta agree."""

    scope: str
    unit: str
    relation: str
    delta: float | None  # None: the scope was never given a budget line
    epsilon: float  # infinite: no guarantee
    accountant: str  # the one that answered
    epsilon_rdp: float
    budget: float | None
    rounds: int  # in how many it was charged
    words: str


def shown(epsilon: float) -> str:
    """Four digits, rounded up: a report never states less than was spent."""
    if epsilon == 0 or math.isinf(epsilon):
        return NO_GUARANTEE if epsilon else "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.4g}"


def statement(ledger: "Ledger") -> list[Line]:
    """A line for each scope, in the order of their names. Equal histories are computed once."""
    budgets, histories, rounds = ledger.budgets(), ledger.histories(), ledger.charged_rounds()
    prices: dict[Any, tuple[Answer, Answer]] = {}
    lines = []
    for scope, (unit, relation) in sorted(ledger.terms().items()):
        history, budget = histories.get(scope, Counter()), budgets.get(scope)
        key = (frozenset(history.items()), relation, budget and (budget.delta, budget.accountant))
        if key not in prices:
            prices[key] = _price(history, relation, budget)
        lines.append(_line(scope, unit, relation, history, budget, rounds.get(scope, 0), *prices[key]))
    return lines


def _price(history: Mapping["DpEvent", int], relation: Any, budget: "Budget | None") -> tuple[Answer, Answer]:
    accountant: Any = budget.accountant if budget else "pld"
    if not history:
        return Answer(0.0, accountant), Answer(0.0, "rdp")
    if budget is None or not 0 < budget.delta < 1:
        return Answer(math.inf, accountant), Answer(math.inf, "rdp")
    return answer(history, budget.delta, relation, accountant), answer(history, budget.delta, relation, "rdp")


def _line(
    scope: str,
    unit: str,
    relation: str,
    history: Mapping["DpEvent", int],
    budget: "Budget | None",
    rounds: int,
    found: Answer,
    rdp: Answer,
) -> Line:
    delta = budget.delta if budget else None
    terms = (
        f"{unit}-level, {relation}, delta {'unknown' if delta is None else f'{delta:g}'}, {found.accountant.upper()}"
    )
    claim = NO_GUARANTEE if math.isinf(found.epsilon) else f"epsilon {shown(found.epsilon)}"
    return Line(
        scope=scope,
        unit=unit,
        relation=relation,
        delta=delta,
        epsilon=found.epsilon,
        accountant=found.accountant,
        epsilon_rdp=rdp.epsilon,
        budget=budget.epsilon if budget else None,
        rounds=rounds,
        words=f"{claim} ({terms}): {_history_in_words(history, unit)}",
    )


def _history_in_words(history: Mapping["DpEvent", int], unit: str) -> str:
    if not history:
        return "nothing was released"
    often = sorted(history.items(), key=lambda item: -item[1])
    parts = [f"{count:,} times {describe(event, unit)}" for event, count in often[:_SHOWN]]
    more = len(history) - _SHOWN
    return "; ".join(parts) + (f"; and {more} other events" if more > 0 else "")
