"""Where a client was when: its stays at levels, and the account that follows from them.

A level's event of a round is charged to everybody who was asked at that level in that round, drawn or not. So the
account of a client is the composition of the events of its levels, each over the rounds of its stay:

    account(k) = sum over stays s of k, private and asked, of the events of level(s) in rounds [from(s), until(s))

It grows by every round in which the client is asked at a private level and by nothing else; no stay that has ended is
ever taken out, so nothing is refunded. A round at a level without a guarantee costs nothing and promises nothing: what
the client contributed then is not protected by any later choice.

Why this is right: whether client k is there changes in round t only the sum of the level it is at (levels are public),
by at most the bound, and only if it is drawn: the event that the sampler and that level's noise state. Divisors and
weights are functions of choices, changes and events alone, all of them public. Rounds are composed adaptively. Changes
are taken as choices are: made without looking at private data, and fixed apart from what was released. (Whoever decides
by what was released makes the *sequence* of events adaptive; composition of loss distributions is not proven for that.)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tacit.privacy.ledger.earlier_events import spent

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from tacit.privacy.ledger.ledger import Ledger


class LevelPeriod(NamedTuple):
    """From `round` on a client is at a level, with what that level promises; `asked` is False once it cannot pay."""

    round: int
    level: str
    asked: bool = True
    epsilon: float | None = None
    delta: float | None = None  # None: opted out, no guarantee

    @property
    def private(self) -> bool:
        return self.delta is not None


Stays = tuple[LevelPeriod, ...]
"""Of one client, by round; each lasts until the next begins."""


def told(rows: Iterable[tuple[str, LevelPeriod]]) -> dict[str, Stays]:
    """The stays of each client from what was said one after the other; what is said later of the same round holds."""
    found: dict[str, dict[int, LevelPeriod]] = {}
    for client, stay in rows:
        found.setdefault(client, {})[stay.round] = stay
    return {client: tuple(by_round[round] for round in sorted(by_round)) for client, by_round in found.items()}


def at(stays: Stays, round: int) -> LevelPeriod:
    """The stay that a round falls into; the first one begins with the run."""
    return next((stay for stay in reversed(stays) if stay.round <= round), stays[0])


def once_open(stays: Stays) -> bool:
    """Whether the client was opted out at a draw, so that something of it may be out without protection."""
    return any(not stay.private for stay in stays)


def promise(stays: Stays) -> LevelPeriod:
    """The stay whose (epsilon, delta) an account is told by: the last private one; without any, the last."""
    return next((stay for stay in reversed(stays) if stay.private), stays[-1])


def accounts(
    ledger: "Ledger", stays: Mapping[str, Stays], until: int | None = None, epochs: int | None = None
) -> "dict[str, Counter[DpEvent]]":
    """What each client was charged before round `until`: at its levels, and in its own name. Equal stays are read once.

    See the module for the proof; `epochs`: as in `statement`.
    """

    def charged(scope: str, since: int, before: int | None) -> "Counter[DpEvent]":
        if scope.startswith("client:"):
            return spent(ledger, scope, before, epochs)
        return ledger.spent(scope, since, before)

    return replayed(charged, stays, until)


def replayed(
    spent: "Callable[[str, int, int | None], Counter[DpEvent]]", stays: Mapping[str, Stays], until: int | None
) -> "dict[str, Counter[DpEvent]]":
    """As `accounts`; `spent` says what a scope was charged in which rounds, as `Ledger.spent` does."""
    shared = {history: _at_levels(spent, history, until) for history in set(stays.values())}
    return {client: shared[history] + spent(f"client:{client}", 0, until) for client, history in stays.items()}


def _at_levels(
    spent: "Callable[[str, int, int | None], Counter[DpEvent]]", stays: Stays, until: int | None
) -> "Counter[DpEvent]":
    total: Counter[DpEvent] = Counter()
    for place, stay in enumerate(stays):
        ends = [stays[place + 1].round] if place + 1 < len(stays) else []
        ends += [] if until is None else [until]
        if stay.asked and stay.private:
            total += spent(f"level:{stay.level}", stay.round, min(ends, default=None))
    return total
