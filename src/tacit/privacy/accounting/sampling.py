"""What an accountant must know of whoever draws clients and rows, and of how often each batch is asked.

The objects that really draw state it. A record is in all queries of one Poisson batch or in none of them. So queries
compose inside the sample: a step whose batch answers k private gradients is a Poisson sample of the k-fold Gaussian,
never k samples. Events say k even where it is 1; a sampled Gaussian of a record that does not say it was written by an
earlier version (`earlier_events.py`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Relation


@runtime_checkable
class Sampler(Protocol):
    """Draws a round's clients."""

    @property
    def relation(self) -> Relation: ...

    @property
    def sensitivity(self) -> float:
        """Of a sum of contributions of norm at most 1, under that relation."""
        ...

    def rate(self, population: int) -> float:
        """Expected share of the clients in a round."""
        ...

    def most(self, population: int, rounds: int) -> int | None:
        """How often a client is asked in so many rounds, at most; None if chance alone limits it.

        Where there is such a number, participations are charged to the client and nothing else is. A sampler that could
        not keep to its own number for so many rounds refuses.
        """
        ...

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray: ...

    def event(self, inner: Any, population: int) -> Any:
        """The event of a mechanism `inner` applied to the clients drawn."""
        ...


class BatchRule(Protocol):
    """Draws a client's rows for every local step."""

    def steps(self, n: int) -> int: ...

    def expected(self, n: int) -> float:
        """Expected batch size of a client with `n` rows."""
        ...

    def event(self, inner: Any, n: int) -> Any:
        """The event of a mechanism `inner` applied to one step's rows; refuses where no accountant models the draw."""
        ...

    def draw(
        self, seed: int, round: int, client: int, n: int, purpose: str = "batches"
    ) -> tuple[np.ndarray, np.ndarray]: ...


Queries = Callable[[int], tuple[int, ...]]
"""Of a client's number of steps: private gradients on each of its batches, at most."""


@dataclass(frozen=True)
class Each:
    """The same number on every batch."""

    number: int = 1

    def __call__(self, steps: int) -> tuple[int, ...]:
        return (self.number,) * steps


@dataclass(frozen=True)
class Counts:
    """Found by dry runs: `programs` has, by its number of steps, how often a program asks each of its batches.

    In a chunk a client's program is filled up with steps that are not live, to as many as another client has. So a
    batch is charged for the most that any program of at least the client's steps asks of it: an upper bound for
    whichever runs, whatever its further steps do.
    """

    programs: Mapping[int, tuple[int, ...]]

    def __call__(self, steps: int) -> tuple[int, ...]:
        if steps == 0:
            return ()
        place = bisect_left(self._lengths, steps)
        if place == len(self._lengths):
            raise TacitError(f"private gradients were counted for programs of {self._lengths} steps, not of {steps}")
        return self._largest_programs[place][:steps]

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted(self.programs)

    @cached_property
    def _largest_programs(self) -> list[tuple[int, ...]]:
        """For each length: batch by batch, the most of the programs that are no shorter."""
        groups: list[tuple[int, ...]] = []
        for length in reversed(self._lengths):
            program = self.programs[length]
            groups.append(tuple(map(max, program, groups[-1])) if groups else program)
        return groups[::-1]


def round_event(batches: BatchRule, rows: int, queries: Sequence[int]) -> tuple[Callable[[float], Any], int]:
    """The event of a round as a function of the noise multiplier, and how often it happens; 0 if nothing is asked.

    `asked`: private gradients on each batch. Where all batches are asked alike, the event is that of one step.
    """
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

    groups = sorted(Counter(times for times in queries if times).items())

    def step(times: int, z: float) -> Any:
        return batches.event(SelfComposedDpEvent(GaussianDpEvent(z), times), rows)

    if len(groups) < 2:
        times, steps = groups[0] if groups else (0, 0)
        return lambda z: step(times, z), steps

    def whole(z: float) -> Any:
        parts: Any = tuple(SelfComposedDpEvent(step(times, z), steps) for times, steps in groups)
        return ComposedDpEvent(parts)  # a tuple: events are remembered by their hash

    return whole, 1
