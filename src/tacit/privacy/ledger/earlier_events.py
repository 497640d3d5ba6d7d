"""Charges of earlier versions that say less than was spent: recognised in a ledger, and recomputed.

Under the record plan, earlier versions charged k private gradients on one Poisson batch as k samples of their own: a
round of s steps as s k times a sampled Gaussian. The right event is s samples of the k-fold Gaussian (`sampling.py`).
For k = 1 both are the same.

*Recognised:* a record-level charge of a sampled Gaussian that does not say how many queries the sample answered. Later
versions say it, 1 included.

*Recomputed:* the charge holds the rate q', which is that of the batches, b/n, rounded up by at most 2^(1/16), and the
count s k, where s = epochs ceil(n/b). So k follows from the count and the epochs; earlier versions made sure that no
batch answered more. Where the epochs are not known, as in a ledger that lies apart from its run, several k may fit: the
largest one is taken, and said to be a bound. Rounds whose batches were asked unequally often were charged by the most;
for them, too, the figure is a bound.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attr

from tacit.errors import TacitError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.ledger.ledger import Entry, Ledger

_SLACK: Final = 1e-9  # of rounding
_ROUNDED: Final = 2 ** (1 / 16) * (1 + _SLACK)  # how much larger than the batches' rate a charged rate may be


class Charged(NamedTuple):
    """One scope's history: as it was charged, and as it has to be. `certain`: no guess about epochs was needed."""

    stated: "Counter[DpEvent]"
    right: "Counter[DpEvent]"
    certain: bool


def is_earlier(unit: str, event: Any) -> bool:
    """Whether a charge leaves open how many queries its sample answered."""
    import dp_accounting as dp

    return (
        unit == "record" and isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent)
    )


@lru_cache(maxsize=1 << 12)
def fitting(rate: float, count: int, epochs: int | None = None) -> tuple[int, ...]:
    """Numbers of queries of a batch that an earlier version would have charged a round for like this."""
    passes = range(math.ceil((1 - _SLACK) / rate), math.ceil(_ROUNDED / rate) + 1)  # steps in an epoch
    return tuple(
        k
        for k in range(1, count // passes.start + 1)
        if count % k == 0 and any(_steps_fit(count // k, each, epochs) for each in passes)
    )


def _steps_fit(steps: int, one_pass: int, epochs: int | None) -> bool:
    return steps % one_pass == 0 and epochs in (None, steps // one_pass)


def put_right(entry: "Entry", epochs: int | None = None) -> "Entry":
    """A row of the ledger as it has to be read; itself, if there is nothing to put right.

    A count that no earlier plan would have charged is taken at its word, and so is one that only k = 1 fits.
    """
    import dp_accounting as dp

    queries = max(_fitting(entry, epochs), default=1)
    if queries == 1:
        return entry
    sampled: Any = entry.event
    event = attr.evolve(sampled, event=dp.SelfComposedDpEvent(sampled.event, queries))
    return replace(entry, event=event, count=entry.count // queries)


def _fitting(entry: "Entry", epochs: int | None) -> tuple[int, ...]:
    event: Any = entry.event
    return fitting(event.sampling_probability, entry.count, epochs) if is_earlier(entry.unit, event) else ()


def recomputed(ledger: "Ledger", epochs: int | None = None) -> dict[str, Charged]:
    """Of the scopes that an earlier version charged too little, or may have: both histories."""
    terms = ledger.terms()
    charges: dict[str, Charged] = {}
    for scope, stated in ledger.histories().items():
        if scope not in terms:
            raise TacitError(
                f"the ledger has charges of '{scope}' and does not say what that is, so its epsilon cannot be told: "
                "it was changed from outside; restore the newest copy, see `tacit ledger RUN --verify`"
            )
        if any(is_earlier(terms[scope][0], event) for event in stated):
            entries = list(ledger.entries(scope))
            right = _history(put_right(entry, epochs) for entry in entries)
            if right != stated:
                certain = all(len(_fitting(entry, epochs)) < 2 for entry in entries)
                charges[scope] = Charged(stated, right, certain)
    return charges


def spent(ledger: "Ledger", scope: str, until: int | None = None, epochs: int | None = None) -> "Counter[DpEvent]":
    """As `Ledger.spent`, with what an earlier version charged too little put right."""
    as_charged, (unit, _) = ledger.spent(scope, 0, until), ledger.terms().get(scope, ("", ""))
    if not any(is_earlier(unit, event) for event in as_charged):
        return as_charged
    before = (entry for entry in ledger.entries(scope) if until is None or entry.round < until)
    return _history(put_right(entry, epochs) for entry in before)


def _history(entries: Iterable["Entry"]) -> "Counter[DpEvent]":
    history: Counter[DpEvent] = Counter()
    for entry in entries:
        history[entry.event] += entry.count
    return history


def refuse_to_go_on(ledger: "Ledger", epochs: int | None) -> None:
    """A run whose noise was calibrated to a figure that is too small cannot be finished as it was promised."""
    if earlier := recomputed(ledger, epochs):
        raise TacitError(
            f"this run was begun by an earlier version, which charged several private gradients on one batch as if "
            f"each had a batch of its own ({len(earlier):,} accounts): its noise is too small for its budget. "
            "`tacit ledger` says what was really spent; start a new run"
        )


def remark(stated: float, right: float, certain: bool) -> str:
    """What changed, for people who read reports. Epsilons are rounded up."""
    before, now = (f"{math.ceil(100 * each - 1e-6) / 100:.2f}" for each in (stated, right))
    if certain:
        return f"recomputed: earlier versions stated {before}; the same releases cost {now}"
    return (
        f"recomputed: earlier versions stated {before} and did not write down how many private gradients a batch "
        f"answered; the same releases cost at most {now}"
    )
