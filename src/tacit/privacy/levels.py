"""A menu of privacy levels, and who chose which. Private by default; opting out is explicit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from tacit import rng
from tacit.errors import TacitError


@dataclass(frozen=True)
class Level:
    """One entry of the menu: a budget (epsilon, delta), a given noise multiplier, or neither: opted out."""

    name: str
    epsilon: float | None = None
    delta: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        for what, value in (("epsilon", self.epsilon), ("noise", self.noise)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise TacitError(
                    f"{what} of level '{self.name}' must be positive, not {value}; leave it out to opt out of privacy"
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
class Menu:
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

    menu: Menu
    level: np.ndarray  # int64 [clients]

    @property
    def counts(self) -> list[int]:
        return np.bincount(self.level, minlength=len(self.menu.levels)).tolist()

    @property
    def private(self) -> np.ndarray:
        return np.array([level.private for level in self.menu.levels])[self.level]

    def of(self, client: int) -> Level:
        return self.menu.levels[self.level[client]]


def by_fraction(menu: Menu, clients: int, fractions: Mapping[str, float], seed: int) -> Choices:
    """A random share of the clients for each named level; everybody else has the default level."""
    for name, share in fractions.items():
        menu.index(name)
        if not 0 <= share <= 1:
            raise TacitError(f"the share of clients at level '{name}' must lie between 0 and 1, not {share}")
    if sum(fractions.values()) > 1 + 1e-9:
        raise TacitError(f"the shares of the levels add up to {sum(fractions.values()):g}: at most 1 is possible")
    order = rng.generator(seed, "choices").permutation(clients)
    level = np.full(clients, menu.default, dtype=np.int64)
    start = 0
    for name, share in fractions.items():
        end = start + round(share * clients)
        level[order[start:end]] = menu.index(name)
        start = end
    return Choices(menu, level)


def by_client(menu: Menu, ids: Sequence[str], chosen: Mapping[str, str]) -> Choices:
    """The named clients at the level they chose; everybody else at the default level."""
    position = {name: i for i, name in enumerate(ids)}
    unknown = next((name for name in chosen if name not in position), None)
    if unknown is not None:
        raise TacitError(f"client '{unknown}' chose a level but is not in the federation of {len(ids)} clients")
    level = np.full(len(ids), menu.default, dtype=np.int64)
    for name, choice in chosen.items():
        level[position[name]] = menu.index(choice)
    return Choices(menu, level)
