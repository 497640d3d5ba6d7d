"""A menu of privacy levels, and who chose which. Private by default; opting out is explicit."""

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from tacit.core import rng
from tacit.core.checked import checked
from tacit.errors import TacitError


@checked
@dataclass(frozen=True)
class Level:
    """One entry of the menu: a budget (epsilon, delta), a given noise multiplier, or neither: opted out.

    What a client of the level is promised holds over the whole run, against those whom the plan names. A level without
    epsilon and noise promises nothing, and every report says so.

    Args:
        name: by which clients choose it.
        epsilon: what the whole run may cost a client of this level; the noise is calibrated to it.
        delta: the chance that epsilon does not hold; well below 1 / (number of clients, or of a client's records).
        noise: the noise multiplier. With both, the noise is the one that is given, and the epsilon a limit: who would
            pass it is not asked.

    Raises:
        TacitError: an epsilon or noise that is not positive, a private level without a delta between 0 and 1, or a
            delta with nothing that it belongs to.

    >>> import tacit
    >>> tacit.Level("private", epsilon=4, delta=1e-5).guarantee
    'epsilon at most 4, delta 1e-05'
    >>> tacit.Level("open").guarantee
    'no guarantee: opted out'
    """

    name: str
    epsilon: float | None = None
    delta: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise TacitError(f"a level cannot be called {self.name!r}: give it a name of printable letters")
        if self.name == "all":
            raise TacitError("a level cannot be called 'all': reports have a line of that name, for everybody")
        for field, value in (("epsilon", self.epsilon), ("noise", self.noise)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise TacitError(
                    f"{field} of level '{self.name}' must be positive, not {value}; leave it out to opt out of privacy"
                )
        if self.delta is not None and not self.private:
            raise TacitError(
                f"level '{self.name}' has delta {self.delta:g} and no epsilon, so nobody at it would be protected: "
                "add epsilon, for example 4, or leave out delta to opt out of privacy"
            )
        if self.private and (self.delta is None or not 0 < self.delta < 1):
            raise TacitError(f"delta of level '{self.name}' must lie between 0 and 1, not {self.delta}; try 1e-5")

    @property
    def private(self) -> bool:
        return self.epsilon is not None or self.noise is not None

    @property
    def guarantee(self) -> str:
        """What a client of this level is promised, in words."""
        if not self.private:
            return "no guarantee: opted out"
        if self.epsilon is None:
            return f"noise multiplier {self.noise:g}, no budget; delta {self.delta:g}"
        return f"epsilon at most {self.epsilon:g}, delta {self.delta:g}"


@dataclass(frozen=True)
class LevelOptions:
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if not names:
            raise TacitError("the menu of privacy levels is empty: offer at least one")
        if len(set(names)) < len(names):
            raise TacitError(f"two privacy levels share a name in {names}: give each its own")

    @property
    def names(self) -> list[str]:
        return [level.name for level in self.levels]

    @property
    def default(self) -> int:
        """The most private level: what a client that chose nothing gets."""
        return min(range(len(self.levels)), key=lambda j: _openness(self.levels[j]))

    def index(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        near = get_close_matches(name, self.names, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise TacitError(f"level '{name}' is not on the menu {self.names}{hint}")


def _openness(level: Level) -> tuple[float, float]:
    if not level.private:
        return math.inf, 0.0
    return (level.epsilon, 0.0) if level.epsilon is not None else (1e9, -(level.noise or 0.0))


@dataclass(frozen=True, eq=False)
class Choices:
    """The level of every client, as an index into the menu."""

    menu: LevelOptions
    level: np.ndarray  # int64 [clients]

    @property
    def counts(self) -> list[int]:
        return np.bincount(self.level, minlength=len(self.menu.levels)).tolist()

    @property
    def private(self) -> np.ndarray:
        return np.array([level.private for level in self.menu.levels])[self.level]

    def of(self, client: int) -> Level:
        return self.menu.levels[int(self.level[client])]


@checked
@dataclass(frozen=True)
class Among:
    """A share of all clients, drawn only from those that hold a class: for choices that depend on what people have.

    Args:
        share: of all clients, between 0 and 1.
        holding: the class, by its number.

    >>> import tacit
    >>> levels = (tacit.Level("private", epsilon=4, delta=1e-3), tacit.Level("open"))
    >>> tacit.Privacy(levels=levels, choices={"open": tacit.Among(0.05, holding=7)}).choices["open"]
    Among(share=0.05, holding=7)
    """

    share: float
    holding: int


Share = float | Among


def by_fraction(
    menu: LevelOptions, clients: int, fractions: Mapping[str, Share], seed: int, held: np.ndarray | None = None
) -> Choices:
    """A random share of the clients for each named level; everybody else has the default level.

    `held`: rows of each class at each client, [clients, classes], for shares among those that hold one.
    """
    shares = {name: share.share if isinstance(share, Among) else share for name, share in fractions.items()}
    for name, share in shares.items():
        menu.index(name)
        if not 0 <= share <= 1:
            raise TacitError(f"the share of clients at level '{name}' must lie between 0 and 1, not {share}")
    if sum(shares.values()) > 1 + 1e-9:
        raise TacitError(f"the shares of the levels add up to {sum(shares.values()):g}: at most 1 is possible")
    order = rng.generator(seed, "choices").permutation(clients)
    level = np.full(clients, menu.default, dtype=np.int64)
    free = np.ones(clients, bool)
    for name, wish in sorted(fractions.items(), key=lambda item: not isinstance(item[1], Among)):
        able = free & _holders(wish, held, clients)
        count = round(shares[name] * clients)
        chosen = order[able[order]][:count]  # shares that round up together leave one client fewer for the last
        if isinstance(wish, Among) and len(chosen) < count:
            raise TacitError(f"level '{name}' wants {count} clients, but only {len(chosen)} can: ask for fewer")
        level[chosen], free[chosen] = menu.index(name), False
    return Choices(menu, level)


def _holders(wish: Share, held: np.ndarray | None, clients: int) -> np.ndarray:
    if not isinstance(wish, Among):
        return np.ones(clients, bool)
    if held is None or not 0 <= wish.holding < held.shape[1]:
        raise TacitError(f"no client can hold class {wish.holding}: the classes are 0 to {_last(held)}")
    return held[:, wish.holding] > 0


def _last(held: np.ndarray | None) -> int:
    return 0 if held is None else held.shape[1] - 1


def read_choices(path: Path) -> dict[str, str]:
    """The level of each client in a CSV file with the columns client and level."""
    rows = read_rows(path, "choices", ("client", "level"))
    names = [row["client"] for row in rows]
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise TacitError(f"client '{twice}' chooses twice in {path}: leave one row")
    return {row["client"]: row["level"] for row in rows}


def read_rows(path: Path, subject: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file that has a header with these columns, and a value in each of them."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the {subject} in {path}: {error}") from error
    if not rows or not set(columns) <= rows[0].keys():
        *others, last = columns
        raise TacitError(
            f"{path} needs a header with the columns {', '.join(others)} and {last}, and a row for each of {subject}"
        )
    return rows


def by_client(menu: LevelOptions, ids: Sequence[str], chosen: Mapping[str, str]) -> Choices:
    """The named clients at the level they chose; everybody else at the default level."""
    position = {name: i for i, name in enumerate(ids)}
    unknown = next((name for name in chosen if name not in position), None)
    if unknown is not None:
        raise TacitError(f"client '{unknown}' chose a level but is not in the federation of {len(ids)} clients")
    level = np.full(len(ids), menu.default, dtype=np.int64)
    for name, choice in chosen.items():
        level[position[name]] = menu.index(choice)
    return Choices(menu, level)
