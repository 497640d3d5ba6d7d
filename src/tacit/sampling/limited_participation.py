"""Cohorts of the cross-device kind: a device is asked once or twice, and then never again."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tacit.core.rng import generator
from tacit.data.validate import at_least
from tacit.errors import TacitError
from tacit.sampling.cohorts import FixedSize

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class LimitedParticipation:
    """Nobody is asked more than `times` times in a run, whatever happens in it.

    Everybody stands once on each of `times` shuffled lists, and a round asks the next `size` of the list; fewer than
    `size` at its end are left out. A function of (seed, round) alone, so that a resumed run cannot ask anybody again.
    Who is asked when is taken to be known, so that no amplification is claimed: a participation costs `inner` itself,
    and a client's cost is that of its participations. Neighbours: a client's contribution or zero.
    """

    size: int
    times: int = 1

    def __post_init__(self) -> None:
        at_least(self.size, 1, "the size of the cohort")
        at_least(self.times, 1, "the number of times that a client may be asked")

    @property
    def relation(self) -> Literal["zero-out"]:
        return "zero-out"

    @property
    def sensitivity(self) -> float:
        return 1.0

    def rate(self, population: int) -> float:
        return FixedSize(self.size).rate(population)

    def most(self, population: int, rounds: int) -> int:
        turns = self._turns(population)
        if rounds > turns * self.times:
            raise TacitError(
                f"{rounds} rounds of {self.size} of {population} clients would ask somebody more than {self.times} "
                f"times: use at most {turns * self.times} rounds, or a smaller cohort"
            )
        return -(-rounds // turns)

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray:
        turn, place = divmod(round, self._turns(len(eligible)))
        if turn >= self.times:
            return np.zeros(0, np.int64)
        order = generator(seed, "rota", turn).permutation(len(eligible))
        asked = np.sort(order[place * self.size : (place + 1) * self.size])
        return asked[eligible[asked]]

    def event(self, inner: "DpEvent", population: int) -> "DpEvent":
        return inner

    def _turns(self, population: int) -> int:
        """Rounds until a list is through."""
        FixedSize(self.size).rate(population)  # refuses a cohort that is larger than the population
        return population // self.size
