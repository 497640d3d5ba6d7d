"""Who is at which level, and from which round on: choices at the start, and the changes since."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import numpy as np

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.privacy.level_periods import LevelPeriod, Stays, at, told
from tacit.privacy.levels import Choices, read_rows


@checked
@dataclass(frozen=True)
class Change:
    """After `round` rounds, at the next draw, a client is at another level. Public."""

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
    stays: Mapping[str, Stays] = field(default_factory=dict)

    def at(self, round: int) -> tuple[Choices, np.ndarray]:
        """The levels of a round, and who may be asked by its own account."""
        level, asked = self.choices.level.copy(), np.ones(len(self.ids), bool)
        for client, stays in self.stays.items():
            now, place = at(stays, round), self.position(client)
            level[place], asked[place] = self.choices.menu.index(now.level), now.asked
        return Choices(self.choices.menu, level), asked

    def stay(self, client: str, round: int) -> LevelPeriod:
        stays = self.stays.get(client)
        return self._stay(0, self.choices.of(self.position(client)).name) if stays is None else at(stays, round)

    @cached_property
    def rounds(self) -> frozenset[int]:
        """Where stays begin."""
        return frozenset(stay.round for stays in self.stays.values() for stay in stays)

    @property
    def last(self) -> int:
        return max(self.rounds, default=0)

    def begun(self, round: int) -> np.ndarray:
        """Which clients have changed by then, bool [clients]."""
        movers = np.zeros(len(self.ids), bool)
        movers[[self.position(client) for client, stays in self.stays.items() if _moved(stays, round)]] = True
        return movers

    def beginning(self, round: int) -> dict[str, Stays]:
        """The clients whose stay begins in this very round."""
        return {client: stays for client, stays in self.stays.items() if at(stays, round).round == round}

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
        said = [(client, stay) for client, stays in rows.items() for stay in (*self.stays.get(client, ()), *stays)]
        return LevelHistory(self.choices, self.ids, {**self.stays, **told(said)})

    def position(self, client: str) -> int:
        if client in self._positions:
            return self._positions[client]
        near = get_close_matches(str(client), self.ids, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"ids are like '{self.ids[0]}'"
        raise TacitError(f"client '{client}' changes its level but is not among the {len(self.ids):,} clients: {hint}")

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.ids)}

    def _rows(self, client: str, stay: LevelPeriod) -> Stays:
        return (stay,) if client in self.stays else (self.stay(client, 0), stay)

    def _stay(self, round: int, level: str) -> LevelPeriod:
        menu = self.choices.menu
        chosen = menu.levels[menu.index(level)]
        return LevelPeriod(round, level, True, chosen.epsilon, chosen.delta if chosen.private else None)


def _moved(stays: Stays, round: int) -> bool:
    """A client that changed before the first draw has no earlier stay, and counts as changed all the same."""
    return len(stays) == 1 or stays[1].round <= round
