"""Guarantees as sentences. Every epsilon comes with its unit, neighbours, delta and accountant.

Mechanisms are asked for their words when these are needed: who verifies a certificate has no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tacit.privacy.ledger.statement import SIMULATION

if TYPE_CHECKING:
    from tacit.privacy.plan import Words
    from tacit.report.facts import Facts, Promise

Epsilons = Mapping[str, float]

PERSONAL = (
    "Personal models stay on their clients: the guarantees cover what is released, not a personal model given away."
)

_UNIT = {"client": "client-level", "record": "record-level"}
_NEIGHBOURS = {
    "add/remove": "add/remove one {unit}",
    "replace-one": "replace one {unit}",
    "replace": "replace a client's data",
    "zero-out": "a client's contribution or zero",
}


def words_of(plan: str) -> Words:
    """What people are told of a plan, by its name."""
    from tacit.privacy import mechanisms

    return mechanisms.words_of(plan)


def number(value: float) -> str:
    """An epsilon, rounded up to two decimals: a report never states less than was spent."""
    if not math.isfinite(value):
        return "infinite"
    if value >= 1000:
        return f"{math.ceil(value):,}"
    return f"{math.ceil(value * 100 - 1e-9) / 100:.2f}"


def neighbours(promise: Promise, unit: str) -> str:
    return _NEIGHBOURS.get(promise.relation or "", promise.relation or "").format(unit=unit)


def guarantee(promise: Promise, facts: Facts) -> str:
    """What kind of guarantee the level has, short enough for a cell of a table."""
    if promise.standing != "protected":
        return _without(promise)
    return f"{_UNIT[facts.unit]}, {promise.relation}"


def spent(promise: Promise, epsilon: Epsilons | None) -> str:
    """Epsilon so far, of what budget, at which delta, by which accountant. The unit stands beside it: `guarantee`."""
    if promise.standing in ("nothing leaves", "never asked") and not _spent_before(promise, epsilon):
        return "0.00"
    if promise.standing not in ("protected", "never asked"):
        return "no guarantee"
    if not epsilon:
        return "nothing yet"
    budget = f" of {promise.budget:g}" if promise.budget is not None else ""
    value, by = _parts(epsilon)
    return f"{value}{budget} at delta {promise.delta:g} ({by})"


def _spent_before(promise: Promise, epsilon: Epsilons | None) -> bool:
    """Whether clients that are not asked at this level have paid at another."""
    return promise.standing == "never asked" and bool(epsilon) and max((epsilon or {}).values()) > 0


def headline(promise: Promise, epsilon: Epsilons | None) -> str:
    """The shortest true thing to say about a level."""
    if promise.standing == "protected":
        return f"epsilon {number(next(iter(epsilon.values())))}" if epsilon else "nothing spent yet"
    return {"nothing leaves": "nothing leaves", "never asked": "never asked"}.get(promise.standing, "no guarantee")


def terms(promise: Promise, facts: Facts, epsilon: Epsilons | None) -> str:
    """What must stand beside a bare epsilon; nothing where there is none."""
    if promise.standing != "protected" or not epsilon:
        return ""
    by = next(iter(epsilon)).upper()
    return f"{_UNIT[facts.unit]}, {promise.relation}, delta {promise.delta:g}, {by}; "


def _parts(epsilon: Epsilons) -> tuple[str, str]:
    """The value, and by which accountant, with the other one's beside it."""
    (first, value), *others = epsilon.items()
    return number(value), "; ".join([first.upper(), *(f"{name.upper()} {number(other)}" for name, other in others)])


def _figures(epsilon: Epsilons) -> str:
    value, by = _parts(epsilon)
    return f"{value} ({by})"


def _without(promise: Promise) -> str:
    return {
        "opted out": "no guarantee: opted out",
        "no noise": "no guarantee: the plan is open",
        "never asked": "never asked: nothing released",
        "nothing leaves": "nothing leaves the client",
    }[promise.standing]


def sentence(promise: Promise, facts: Facts, epsilon: Epsilons | None) -> str:
    """What a client of this level is guaranteed, in words."""
    prefix = f"{promise.level}: "
    if promise.standing == "opted out":
        return prefix + "no guarantee: these clients opted out."
    if promise.standing == "no noise":
        return prefix + "no guarantee: the plan is open, so no noise was added."
    if promise.standing == "never asked":
        never = "clients of this level are not asked" if promise.once_open else "these clients were never asked"
        return f"{prefix}{never}, so nothing of theirs {'is' if promise.once_open else 'was'} released.{_past(promise)}"
    if promise.standing == "nothing leaves":
        return prefix + "nothing leaves these clients, so there is nothing to protect."
    unit = f"{_UNIT[facts.unit]} differential privacy ({neighbours(promise, facts.unit)})"
    budget = f", of a budget of {promise.budget:g}" if promise.budget is not None else ", no budget was set"
    so_far = f"epsilon {_figures(epsilon)} at delta {promise.delta:g}{budget}" if epsilon else "nothing spent yet"
    words = words_of(facts.plan)
    worst = " The figure is that of the client that spent most." if facts.changed or not words.shared else ""
    return f"{prefix}{unit}, {so_far}; {words.against}.{worst}{_past(promise)}"


def _past(promise: Promise) -> str:
    """What a change of level leaves behind: it protects later rounds only, and refunds nothing."""
    text = ""
    if promise.once_open:
        text += (
            f" Of these clients {promise.once_open:,} had opted out for some rounds: there is no guarantee for what "
            "was contributed then, only for the other rounds."
        )
    if promise.dismissed:
        text += (
            f" Of these clients {promise.dismissed:,} changed level and will not be asked: one more round would take "
            "what was spent at all levels past this budget."
        )
    return text


def whole(facts: Facts, epsilons: Mapping[str, Epsilons]) -> str:
    """What holds for every client of the federation: no more than the least protected has."""
    prefix = "The federation as a whole: "
    if facts.unit == "none" and all(promise.standing == "nothing leaves" for promise in facts.promises):
        return prefix + "nothing is uploaded, so nothing is spent."
    bare = [promise for promise in facts.promises if promise.clients and promise.standing in ("opted out", "no noise")]
    once = sum(promise.once_open for promise in facts.promises if promise not in bare)
    if bare or once:
        why = "have none" if bare and bare[0].standing == "no noise" else "opted out"
        why += ", some of them for a time" if once else ""
        clients = sum(promise.clients for promise in bare) + once
        return f"{prefix}no guarantee, because {clients:,} of {facts.clients:,} clients {why}."
    held = [promise for promise in facts.promises if promise.clients and promise.standing == "protected"]
    known = [(promise, epsilons[promise.level]) for promise in held if epsilons.get(promise.level)]
    if not known:
        return prefix + "nothing spent yet."
    promise, epsilon = max(known, key=lambda pair: next(iter(pair[1].values())))
    delta = max(each.delta or 0.0 for each, _ in known)
    kind = f"{_UNIT[facts.unit]}, {neighbours(promise, facts.unit)}"
    return f"{prefix}{kind}, epsilon {_figures(epsilon)} at delta {delta:g}, that of level '{promise.level}'."


def guarantees(facts: Facts, epsilons: Mapping[str, Epsilons]) -> list[str]:
    """One sentence for each level that somebody chose, one for the federation, and what they rest on."""
    held = [promise for promise in facts.promises if promise.clients]
    lines = [sentence(promise, facts, epsilons.get(promise.level)) for promise in held]
    marks = [simulation(facts)] if simulation(facts) else []
    return [*lines, whole(facts, epsilons), *map(as_sentence, marks), *_changes(facts), *map(as_sentence, facts.notes)]


def simulation(facts: Facts) -> str:
    """What stands beside every guarantee of a run on one machine; nothing where none is given."""
    return SIMULATION if any(promise.standing == "protected" for promise in facts.promises) else ""


def _changes(facts: Facts) -> list[str]:
    if not facts.changed or facts.unit == "none":
        return []
    return [
        f"Changes of level between rounds: {facts.changed:,} clients, counted where they are now. Each keeps the "
        "account of all rounds it was charged for, at whichever level; changes are taken to be made without looking at "
        "private data or at released models."
    ]


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def warning(epsilons: Mapping[str, Epsilons]) -> str | None:
    """A large epsilon is hardly a guarantee, and the reader should know."""
    large = [level for level, spent in epsilons.items() if spent and next(iter(spent.values())) > 10]
    if not large:
        return None
    return (
        f"An epsilon above 10 ({', '.join(large)}) promises little: plan for less, with more clients or fewer rounds."
    )


STARVED: Final = 0.1
"""A clip that leaves less of an update's length than this is warned of."""


def clipped(ratio: float) -> str | None:
    """A simulation may look at updates before they are clipped, and say how much of them is left."""
    if ratio >= STARVED:
        return None
    share = f"{100 * ratio:.2g}%" if ratio > 0 else "nothing"
    return (
        f"The clip leaves {share} of the updates' length (median over a few clients; simulation only): the shared "
        "model hardly moves. Raise privacy.clip, lower the learning rate, or let Quantile() move the bound."
    )


def risen(first: float, now: float) -> str | None:
    """What released bounds alone say, for a deployment, which may not look at updates: bounds that an adaptive clip
    moves are paid for by its bits, and a tenfold rise shows that most updates were cut to a tenth at first."""
    if first > STARVED * now:
        return None
    return (
        f"The clip bound has risen from {first:.3g} to {now:.3g} by its private bits: the first rounds left less than "
        f"a tenth of most updates' length. Start the next run at {now:.2g}."
    )
