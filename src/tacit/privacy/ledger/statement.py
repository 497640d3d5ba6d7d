"""What every scope of a ledger has spent so far, replayed from its events."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tacit.privacy.accounting.accountant import Answer, Relation, answer, profile
from tacit.privacy.accounting.events import describe
from tacit.privacy.accounting.risk import Risk, risk
from tacit.privacy.ledger.earlier_events import Charged, recomputed, remark
from tacit.privacy.membership import LevelPeriods, accounts, promise

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.ledger.ledger import Ledger

NO_GUARANTEE: Final = "no guarantee"
SIMULATION: Final = "simulation: the noise is seeded, nobody is protected by this run"
"""What stands beside every guarantee whose noise somebody can draw again."""
_SHOWN: Final = 3
_AT: Final = "level "


@dataclass(frozen=True)
class Budget:
    """What a scope was promised when it was opened. Epsilon None: charged and reported, but without a limit."""

    scope: str
    unit: str
    relation: str
    epsilon: float | None
    delta: float
    accountant: str
    note: str = ""  # says whose account it is; no part of the promise

    @property
    def level(self) -> str | None:
        """The level that a client with an account of its own was at when it was opened, where the note says it."""
        return self.note.removeprefix(_AT) if self.note.startswith(_AT) else None

    @staticmethod
    def at(level: str) -> str:
        """The note of a client's account."""
        return f"{_AT}{level}"


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
    stated: float | None = None  # what an earlier version made of the same releases, where that was too little


@dataclass(frozen=True)
class Moved:
    """The one account of all clients that changed their level in the same way."""

    clients: tuple[str, ...]
    periods: LevelPeriods
    line: Line


def shown(epsilon: float) -> str:
    """Four digits, rounded up: a report never states less than was spent."""
    if epsilon == 0 or math.isinf(epsilon):
        return NO_GUARANTEE if epsilon else "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.4g}"


def statement(ledger: "Ledger", epochs: int | None = None) -> list[Line]:
    """A line for each scope, in the order of their names. Equal histories are computed once.

    What an earlier version charged too little is put right, and marked; `epochs` of the run, where they are known, tell
    how much that was (`earlier_events.py`).
    """
    budgets, histories, rounds = ledger.budgets(), ledger.histories(), ledger.charged_rounds()
    earlier = recomputed(ledger, epochs)
    histories |= {scope: charged.right for scope, charged in earlier.items()}
    budgets |= _latest(ledger, budgets)
    prices: dict[Any, tuple[Answer, Answer]] = {}
    lines: list[Line] = []
    for scope, (unit, relation) in sorted(ledger.terms().items()):
        history, budget = histories.get(scope, Counter()), budgets.get(scope)
        key = (frozenset(history.items()), relation, budget and (budget.delta, budget.accountant))
        if key not in prices:
            prices[key] = _price(history, relation, budget)
        line = _line(scope, unit, relation, history, budget, rounds.get(scope, 0), *prices[key])
        lines.append(_marked(line, earlier[scope], budget) if scope in earlier else line)
    return lines


def _marked(line: Line, charged: Charged, budget: Budget | None) -> Line:
    """Says what earlier versions stated. Should that be the larger figure, it stands."""
    stated = _price(charged.stated, line.relation, budget)
    if stated[0].epsilon > line.epsilon:
        return _line(line.scope, line.unit, line.relation, charged.stated, budget, line.rounds, *stated)
    note = remark(stated[0].epsilon, line.epsilon, charged.certain)
    return replace(line, stated=stated[0].epsilon, words=f"{line.words}; {note}")


def moved(ledger: "Ledger", only: str | None = None, epochs: int | None = None) -> list[Moved]:
    """The accounts of the clients that changed their level, by distinct history; most clients first.

    Each is the composition of every round charged to the client, told at the (epsilon, delta) of the level it is at,
    or, if it opted out in the end, of its last private one.
    """
    periods = {client: each for client, each in ledger.level_periods().items() if only in (None, client)}
    alike: dict[Any, list[str]] = {}
    for client, spent in accounts(ledger, periods, epochs=epochs).items():
        alike.setdefault((periods[client], frozenset(spent.items())), []).append(client)
    accounts_ = [_moved(ledger, tuple(clients), key[0], Counter(dict(key[1]))) for key, clients in alike.items()]
    return sorted(accounts_, key=lambda each: -len(each.clients))


def _moved(ledger: "Ledger", clients: tuple[str, ...], periods: LevelPeriods, history: "Counter[DpEvent]") -> Moved:
    account, last = f"client:{clients[0]}", promise(periods)
    terms, known = ledger.terms(), ledger.budgets()
    scope = next((name for name in (account, *(f"level:{stay.level}" for stay in periods)) if name in terms), account)
    unit, relation = terms.get(scope, ("client", "add/remove"))
    accountant = known[scope].accountant if scope in known else "pld"
    budget = Budget(account, unit, relation, last.epsilon, last.delta, accountant) if last.delta is not None else None
    rounds = ledger.charged_rounds().get(account, 0) or history.total()
    line = _line(account, unit, relation, history, budget, rounds, *_price(history, relation, budget))
    return Moved(clients, periods, line)


def _latest(ledger: "Ledger", budgets: Mapping[str, Budget]) -> dict[str, Budget]:
    """What clients that changed their level are promised now, where they have accounts of their own."""
    promises = {f"client:{client}": promise(periods) for client, periods in ledger.level_periods().items()}
    return {
        scope: replace(budgets[scope], epsilon=last.epsilon, delta=last.delta)
        for scope, last in promises.items()
        if scope in budgets and last.delta is not None
    }


def _price(history: Mapping["DpEvent", int], relation: Any, budget: Budget | None) -> tuple[Answer, Answer]:
    accountant: Any = budget.accountant if budget else "pld"
    if not history:
        return Answer(0.0, accountant), Answer(0.0, "rdp")
    pure = _pure(history) if budget is not None and budget.delta == 0 else None
    if pure is not None:
        return Answer(pure, accountant), Answer(pure, "rdp")
    if budget is None or not 0 < budget.delta < 1:
        return Answer(math.inf, accountant), Answer(math.inf, "rdp")
    return answer(history, budget.delta, relation, accountant), answer(history, budget.delta, relation, "rdp")


def _pure(history: Mapping["DpEvent", int]) -> float | None:
    """At delta 0: randomised responses, whose epsilons add up exactly; None if there is anything else."""
    import dp_accounting as dp

    total = 0.0
    for event, count in history.items():
        if not isinstance(event, dp.RandomizedResponseDpEvent) or not 0 < event.noise_parameter < 1:
            return None
        other = event.noise_parameter / event.num_buckets
        total += count * math.log((1 - event.noise_parameter + other) / other)
    return total


def _line(
    scope: str,
    unit: str,
    relation: str,
    history: Mapping["DpEvent", int],
    budget: Budget | None,
    rounds: int,
    price: Answer,
    rdp: Answer,
) -> Line:
    delta = budget.delta if budget else None
    terms = (
        f"{unit}-level, {relation}, delta {'unknown' if delta is None else f'{delta:g}'}, {price.accountant.upper()}"
    )
    claim = NO_GUARANTEE if math.isinf(price.epsilon) else f"epsilon {shown(price.epsilon)}"
    return Line(
        scope=scope,
        unit=unit,
        relation=relation,
        delta=delta,
        epsilon=price.epsilon,
        accountant=price.accountant,
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


def risk_of_all(ledger: "Ledger", relation: Relation) -> Risk:
    """What an attacker gets, at most, of somebody to whom every charge of the ledger counts."""
    together: Counter[Any] = Counter()
    for history in ledger.histories().values():
        together.update(history)
    return risk(profile(together, relation))
