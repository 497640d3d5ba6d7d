"""Programs for clients of unequal lengths: which few are worth recording, and how a cohort is cut into them.

A program that is a little too large for its clients pads them; one that serves few clients spreads its operations'
fixed cost over few; one more program has to be recorded. All three are counted in the same unit, and what costs least
is taken.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

_PROGRAM = 8.0  # what a program costs besides its clients' steps
_CLIENT = 4.5  # what a client costs besides its steps: its update is made, measured and clipped
_OPERATIONS = 105_000  # parameters whose step costs as much as starting the operations of a step
_LEAST_OPERATIONS, _MOST_OPERATIONS = 0.3, 8.0
_RECORDING = 600  # times that a program's operations could be started while it is recorded
_SEVERAL = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32)  # clients that a program may have
_CLIENT_STEPS = 150  # of a program in the simplest menu, one for each length
_MOST_STEPS = 1200  # of all programs together: each step of a program holds most of a megabyte
_DRAWN, _FEWEST_DRAWS = 3200, 4  # clients of the cohorts that a menu is made for
_KEPT = 0.8  # of a menu that may still be too long


class Size(NamedTuple):
    """Of a program; both may be more than its clients need."""

    clients: int
    steps: int


@dataclass(frozen=True)
class Costs:
    """In steps of one client, as measured on one core for a small network: good for comparisons alone."""

    params: int

    @property
    def operations(self) -> float:
        """What a step costs, however few clients it serves."""
        return min(max(_OPERATIONS / self.params, _LEAST_OPERATIONS), _MOST_OPERATIONS)

    def of(self, size: Size) -> float:
        return size.steps * (self.operations + size.clients) + _CLIENT * size.clients + _PROGRAM

    def recording(self, size: Size) -> float:
        return _RECORDING * self.operations * size.steps


@dataclass(frozen=True, eq=False)
class ProgramSizes:
    """Programs that a cohort may be cut into. Every number of steps up to the longest program's finds one."""

    sizes: Sequence[Size]
    costs: Costs

    def cut(self, steps: np.ndarray) -> list[int]:
        """Into how large chunks clients with so many steps, the longest first, are cut: no cut costs less."""
        best = np.zeros(len(steps) + int(self._clients.max()))  # of the clients from here on
        choice = np.searchsorted(self._steps, steps)  # the first that is long enough
        for at in reversed(range(len(steps))):
            first = choice[at]
            totals = self._each[first:] + best[self._clients[first:] + at]
            cheapest = totals.argmin()
            choice[at], best[at] = first + cheapest, totals[cheapest]
        return list(self._chunks(choice))

    def size(self, several: int, steps: int) -> Size:
        """The cheapest program that so many clients fit into, the longest with so many steps."""
        first = int(np.searchsorted(self._steps, steps))
        costs = np.where(self._clients[first:] >= several, self._each[first:], np.inf)
        return self._ordered[first + int(np.argmin(costs))]

    def used(self, steps: np.ndarray) -> Iterator[Size]:
        """The programs of clients with so many steps, the longest first."""
        at = 0
        for several in self.cut(steps):
            yield self.size(several, int(steps[at]))
            at += several

    def _chunks(self, choice: np.ndarray) -> Iterator[int]:
        at = 0
        while at < len(choice):
            several = min(int(self._clients[choice[at]]), len(choice) - at)
            yield several
            at += several

    @cached_property
    def _ordered(self) -> list[Size]:
        return sorted(self.sizes, key=lambda size: (size.steps, size.clients))

    @cached_property
    def _clients(self) -> np.ndarray:
        return np.array([size.clients for size in self._ordered])

    @cached_property
    def _steps(self) -> np.ndarray:
        return np.array([size.steps for size in self._ordered])

    @cached_property
    def _each(self) -> np.ndarray:
        return np.array([self.costs.of(size) for size in self._ordered])


def menu(
    lengths: Sequence[int], clients: int, params: int, population: np.ndarray, asked: int, rounds: int
) -> ProgramSizes:
    """For programs of these lengths and at most so many clients: what costs least in so many rounds, all told.

    The same whenever it is made for the same population: cohorts are draws of its own, by public sizes.
    """
    costs, draw = Costs(params), np.random.default_rng(0)
    several = min(asked, len(population), _DRAWN // _FEWEST_DRAWS)
    cohorts = [-np.sort(-draw.choice(population, several, replace=False)) for _ in range(_DRAWN // several)]

    def total(menu: ProgramSizes) -> float:
        client = sum(costs.of(size) for steps in cohorts for size in menu.used(steps)) / (several * len(cohorts))
        return rounds * asked * client + sum(costs.recording(size) for size in menu.sizes)

    return min(_menus(lengths, clients, costs, cohorts), key=total)


def _menus(lengths: Sequence[int], clients: int, costs: Costs, cohorts: Sequence[np.ndarray]) -> Iterator[ProgramSizes]:
    """One program for each length; and ever fewer of all there could be, those that are used most."""
    yield ProgramSizes([Size(min(clients, max(2, _CLIENT_STEPS // max(1, steps))), steps) for steps in lengths], costs)
    several = [n for n in _SEVERAL if n < clients] + [clients]
    found = ProgramSizes([Size(n, steps) for n in several for steps in lengths], costs)
    while len(found.sizes) > len(lengths):
        found = _fewer(found, Size(several[0], max(lengths)), cohorts)
        if sum(size.steps for size in found.sizes) <= _MOST_STEPS:
            yield found


def _fewer(menu: ProgramSizes, longest: Size, cohorts: Sequence[np.ndarray]) -> ProgramSizes:
    uses = Counter(size for steps in cohorts for size in menu.used(steps))
    needed = [size for size, _ in uses.most_common() if size != longest]
    return ProgramSizes([longest, *needed[: int(_KEPT * len(needed))]], menu.costs)
