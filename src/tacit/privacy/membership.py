"""Who is at which level, and from which round on: choices at the start, and the changes since.

From where a client was when, its stays at levels, follows its account. A level's event of a round is charged to
everybody who was asked at that level in that round, drawn or not. So the account of a client is the composition of the
events of its levels, each over the rounds of its stay:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.privacy.ledger.earlier_events import spent
from tacit.privacy.levels import Choices, read_rows

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


LevelPeriods = tuple[LevelPeriod, ...]
"""Of one client, by round; each lasts until the next begins."""


def latest_periods(rows: Iterable[tuple[str, LevelPeriod]]) -> dict[str, LevelPeriods]:
    """The stays of each client from what was said one after the other; what is said later of the same round holds."""
    periods: dict[str, dict[int, LevelPeriod]] = {}
    for client, stay in rows:
        periods.setdefault(client, {})[stay.round] = stay
    return {client: tuple(by_round[round] for round in sorted(by_round)) for client, by_round in periods.items()}


def at(periods: LevelPeriods, round: int) -> LevelPeriod:
    """The stay that a round falls into; the first one begins with the run."""
    return next((stay for stay in reversed(periods) if stay.round <= round), periods[0])


def once_open(periods: LevelPeriods) -> bool:
    """Whether the client was opted out at a draw, so that something of it may be out without protection."""
    return any(not stay.private for stay in periods)


def promise(periods: LevelPeriods) -> LevelPeriod:
    """The stay whose (epsilon, delta) an account is told by: the last private one; without any, the last."""
    return next((stay for stay in reversed(periods) if stay.private), periods[-1])


def accounts(
    ledger: "Ledger", level_periods: Mapping[str, LevelPeriods], until: int | None = None, epochs: int | None = None
) -> "dict[str, Counter[DpEvent]]":
    """What each client was charged before round `until`: at its levels, and in its own name. Equal stays are read once.

    See the module for the proof; `epochs`: as in `statement`.
    """

    def charged(scope: str, since: int, before: int | None) -> "Counter[DpEvent]":
        if scope.startswith("client:"):
            return spent(ledger, scope, before, epochs)
        return ledger.spent(scope, since, before)

    return replayed(charged, level_periods, until)


def replayed(
    spent: "Callable[[str, int, int | None], Counter[DpEvent]]",
    level_periods: Mapping[str, LevelPeriods],
    until: int | None,
) -> "dict[str, Counter[DpEvent]]":
    """As `accounts`; `spent` says what a scope was charged in which rounds, as `Ledger.spent` does."""
    shared = {history: _at_levels(spent, history, until) for history in set(level_periods.values())}
    return {client: shared[history] + spent(f"client:{client}", 0, until) for client, history in level_periods.items()}


def _at_levels(
    spent: "Callable[[str, int, int | None], Counter[DpEvent]]", periods: LevelPeriods, until: int | None
) -> "Counter[DpEvent]":
    total: Counter[DpEvent] = Counter()
    for place, stay in enumerate(periods):
        ends = [periods[place + 1].round] if place + 1 < len(periods) else []
        ends += [] if until is None else [until]
        if stay.asked and stay.private:
            total += spent(f"level:{stay.level}", stay.round, min(ends, default=None))
    return total


@checked
@dataclass(frozen=True)
class Change:
    """After `round` rounds, at the next draw, a client is at another level. Public.

    What was spent before stays spent: a client's account is that of all the levels it has been at.

    Args:
        round: after how many rounds, from 1 to one less than the run has.
        client: its name in the data.
        level: the name of the level it moves to.

    >>> import tacit
    >>> tacit.Change(10, "c3", "open")
    Change(round=10, client='c3', level='open')
    """

    round: int
    client: str
    level: str


def check(changes: Sequence[Change], members: "LevelHistory", rounds: int) -> None:
    """Refuses changes of clients or levels that do not exist, twice at once, or at a draw that never comes."""
    for change in changes:
        members.position(change.client)
        members.choices.menu.index(change.level)
        if not 1 <= change.round < rounds:
            raise TacitError(
                f"client '{change.client}' changes its level after {change.round} rounds: give 1 to {rounds - 1}, "
                f"since the run has {rounds}; where it starts is a choice"
            )
    twice = [key for key, n in Counter((change.round, change.client) for change in changes).items() if n > 1]
    if twice:
        raise TacitError(f"client '{twice[0][1]}' changes twice after {twice[0][0]} rounds: leave one of the two")


def read_changes(path: Path) -> tuple[Change, ...]:
    """The changes in a CSV file with the columns round, client and level."""
    rows = read_rows(path, "changes", ("round", "client", "level"))
    wrong = next((row["round"] for row in rows if not row["round"].strip().isdecimal()), None)
    if wrong is not None:
        raise TacitError(f"a change in {path} is after '{wrong}' rounds: give a whole number")
    return tuple(Change(int(row["round"]), row["client"], row["level"]) for row in rows)


Rows = Mapping[str, Sequence[LevelPeriod]]
"""What a change adds to the ledger: for a client's first one, the stay that it ends comes first."""


@dataclass(frozen=True, eq=False)
class LevelHistory:
    """`stays` has the clients that ever changed; everybody else is where it was at the start."""

    choices: Choices  # at the start
    ids: Sequence[str]
    periods: Mapping[str, LevelPeriods] = field(default_factory=dict[str, LevelPeriods])

    def at(self, round: int) -> tuple[Choices, np.ndarray]:
        """The levels of a round, and who may be asked by its own account."""
        level, eligible = self.choices.level.copy(), np.ones(len(self.ids), bool)
        for client, periods in self.periods.items():
            now, place = at(periods, round), self.position(client)
            level[place], eligible[place] = self.choices.menu.index(now.level), now.asked
        return Choices(self.choices.menu, level), eligible

    def stay(self, client: str, round: int) -> LevelPeriod:
        periods = self.periods.get(client)
        return self._stay(0, self.choices.of(self.position(client)).name) if periods is None else at(periods, round)

    @cached_property
    def rounds(self) -> frozenset[int]:
        """Where stays begin."""
        return frozenset(stay.round for periods in self.periods.values() for stay in periods)

    @property
    def last(self) -> int:
        return max(self.rounds, default=0)

    def begun(self, round: int) -> np.ndarray:
        """Which clients have changed by then, bool [clients]."""
        movers = np.zeros(len(self.ids), bool)
        movers[[self.position(client) for client, periods in self.periods.items() if _moved(periods, round)]] = True
        return movers

    def beginning(self, round: int) -> dict[str, LevelPeriods]:
        """The clients whose stay begins in this very round."""
        return {client: periods for client, periods in self.periods.items() if at(periods, round).round == round}

    def changing(self, clients: Iterable[str], level: str, round: int) -> Rows:
        """The clients at a level from `round` on; those that are there already are left as they are."""
        stay = self._stay(round, level)
        return {client: self._rows(client, stay) for client in clients if self.stay(client, round).level != level}

    def planned(self, changes: Iterable[Change], round: int) -> Rows:
        """What the changes of this round add."""
        rows: dict[str, Sequence[LevelPeriod]] = {}
        for change in changes:
            if change.round == round:
                rows |= self.changing([change.client], change.level, round)
        return rows

    def dismissing(self, clients: Iterable[str], round: int) -> Rows:
        """The clients where they are, but not asked any more."""
        return {
            client: self._rows(client, self.stay(client, round)._replace(round=round, asked=False))
            for client in clients
        }

    def after(self, rows: Rows) -> "LevelHistory":
        """As the ledger will tell it once it has the rows."""
        extended = [
            (client, stay) for client, periods in rows.items() for stay in (*self.periods.get(client, ()), *periods)
        ]
        return LevelHistory(self.choices, self.ids, {**self.periods, **latest_periods(extended)})

    def position(self, client: str) -> int:
        if client in self._positions:
            return self._positions[client]
        near = get_close_matches(str(client), self.ids, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"ids are like '{self.ids[0]}'"
        raise TacitError(f"client '{client}' changes its level but is not among the {len(self.ids):,} clients: {hint}")

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.ids)}

    def _rows(self, client: str, stay: LevelPeriod) -> LevelPeriods:
        return (stay,) if client in self.periods else (self.stay(client, 0), stay)

    def _stay(self, round: int, level: str) -> LevelPeriod:
        menu = self.choices.menu
        chosen = menu.levels[menu.index(level)]
        return LevelPeriod(round, level, True, chosen.epsilon, chosen.delta if chosen.private else None)


def _moved(periods: LevelPeriods, round: int) -> bool:
    """A client that changed before the first draw has no earlier stay, and counts as changed all the same."""
    return len(periods) == 1 or periods[1].round <= round
