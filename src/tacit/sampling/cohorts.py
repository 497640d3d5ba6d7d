"""Who is asked in a round, and which rows each local step sees.

A draw depends on (seed, round) and, for rows, on the client: never on which other clients are eligible or asked.

Cohorts of the cross-device kind: a device is asked once or twice, and then never again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core.checked import checked
from tacit.core.rng import generator, uniforms
from tacit.data.dataset import FederatedDataset
from tacit.data.validate import at_least, proportion
from tacit.errors import TacitError
from tacit.privacy.accounting.sampling import BatchRule

if TYPE_CHECKING:
    from dp_accounting import DpEvent

BLOCK = 1 << 20  # uniform numbers drawn at a time; bounds memory, does not change what is drawn


@checked
@dataclass(frozen=True)
class Poisson:
    """Each client is asked independently with probability `share`: what amplification by sampling is proven for.

    Args:
        share: between 0 and 1, above 0.

    Raises:
        TacitError: another share.

    >>> import tacit
    >>> tacit.Training(sampler=tacit.Poisson(0.1)) == tacit.Training(rate=0.1)
    True
    """

    share: float

    @property
    def relation(self) -> Literal["add/remove"]:
        return "add/remove"

    @property
    def sensitivity(self) -> float:
        return 1.0

    def __post_init__(self) -> None:
        proportion(self.share, "the share of clients", zero=False)

    def rate(self, population: int) -> float:
        return self.share

    def most(self, population: int, rounds: int) -> None:
        return None

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray:
        return np.flatnonzero((_lots(seed, round, eligible) < self.share) & eligible)

    def event(self, inner: "DpEvent", population: int) -> "DpEvent":
        if self.share == 1:
            return inner
        from dp_accounting import PoissonSampledDpEvent

        return PoissonSampledDpEvent(self.share, inner)


@checked
@dataclass(frozen=True)
class FixedSize:
    """`size` clients of the whole population, without replacement; those of them who are not eligible drop out.

    Neighbours are populations with one client replaced, so that noise is twice that of `Poisson` for the same
    multiplier.

    Args:
        size: of the cohort.
        refill: ask `size` of the eligible ones (all of them if fewer). A client is then asked more often than
            size/population when others are not eligible, so that no amplification is claimed: `event` is `inner`
            itself.

    Raises:
        TacitError: a size below 1, or above the number of clients in a run.

    >>> import tacit
    >>> tacit.FixedSize(50).rate(200)
    0.25
    """

    size: int
    refill: bool = False

    @property
    def relation(self) -> Literal["replace-one"]:
        return "replace-one"

    @property
    def sensitivity(self) -> float:
        return 2.0

    def __post_init__(self) -> None:
        at_least(self.size, 1, "the size of the cohort")

    def rate(self, population: int) -> float:
        self._fits(population)
        return self.size / population

    def most(self, population: int, rounds: int) -> None:
        return None

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray:
        self._fits(len(eligible))
        lots = _lots(seed, round, eligible)
        if self.refill:
            lots[~eligible] = np.inf
        first = np.sort(np.argpartition(lots, self.size - 1)[: self.size])
        return first[eligible[first]]

    def event(self, inner: "DpEvent", population: int) -> "DpEvent":
        self._fits(population)
        if self.refill:
            return inner
        from dp_accounting import SampledWithoutReplacementDpEvent

        return SampledWithoutReplacementDpEvent(population, self.size, inner)

    def _fits(self, population: int) -> None:
        if self.size > population:
            raise TacitError(f"a cohort of {self.size} from {population} clients: use a size of at most {population}")


def _lots(seed: int, round: int, eligible: np.ndarray) -> np.ndarray:
    """One uniform number for each client of the whole population, whoever is eligible."""
    if eligible.dtype != np.bool_:
        raise TacitError(f"eligible is {eligible.dtype}: give one bool for each client")
    return generator(seed, "cohort", round).random(len(eligible))


Rows = tuple[np.ndarray, np.ndarray]
"""(index, mask), both [steps, width]: local row numbers, and which of them are real."""


@checked
@dataclass(frozen=True)
class Shuffled:
    """Shuffled passes over the rows in batches of `size`: every row exactly once in each epoch.

    A short batch is filled up with the client's own rows, in the order of the pass, under mask 0.
    """

    size: int
    epochs: int = 1

    def __post_init__(self) -> None:
        _batch_rule(self.size, self.epochs)

    def steps(self, n: int) -> int:
        return self.epochs * -(-n // self.size)

    def expected(self, n: int) -> float:
        return float(min(self.size, n))

    def event(self, inner: "DpEvent", n: int) -> "DpEvent":
        raise TacitError("no accountant models shuffled batches of records: draw them with PoissonBatches")

    def draw(self, seed: int, round: int, client: int, n: int, purpose: str = "batches") -> Rows:
        places, mask = _filled_up(n, self.size, self.epochs)
        order = uniforms((self.epochs, n), seed, purpose, round, client).argsort(1)
        return order.take(places, 1).reshape(-1, self.size), mask


@lru_cache(maxsize=4096)
def _filled_up(n: int, size: int, epochs: int) -> Rows:
    """Places of a pass over n rows in whole batches, from the start again at its end; and which rows are real."""
    places = np.arange(-(-n // size) * size)
    mask = np.tile(places < n, epochs).reshape(-1, size)
    mask.setflags(write=False)
    return places % n, mask


@checked
@dataclass(frozen=True)
class FixedSteps:
    """`steps` batches of `size` rows, however many rows a client has: its number of rows stays its own.

    Rows come in shuffled passes, each pass whole before the next begins. A client of fewer than `size` rows sees all
    of them in every step.
    """

    size: int
    count: int

    def __post_init__(self) -> None:
        at_least(self.size, 1, "the batch size")
        at_least(self.count, 1, "the number of steps")

    def steps(self, n: int) -> int:
        return self.count

    def expected(self, n: int) -> float:
        return float(min(self.size, n))

    def event(self, inner: "DpEvent", n: int) -> "DpEvent":
        raise TacitError("no accountant models shuffled batches of records: draw them with PoissonBatches")

    def draw(self, seed: int, round: int, client: int, n: int, purpose: str = "batches") -> Rows:
        width = min(self.size, n)
        passes = -(-self.count * width // n)
        order = uniforms((passes, n), seed, purpose, round, client).argsort(1)
        rows, mask = np.zeros((self.count, self.size), np.int64), np.zeros((self.count, self.size), bool)
        rows[:, :width] = order.reshape(-1)[: self.count * width].reshape(self.count, width)
        mask[:, :width] = True  # as wide for everybody: a recorded program has one width
        return rows, mask


@checked
@dataclass(frozen=True)
class PoissonBatches:
    """Each row independently with rate min(1, size/n) in each step: what record-level accounting assumes.

    The width is the largest number of rows that a step drew, and at least 1: an empty batch is one row of mask 0.
    """

    size: int
    epochs: int = 1

    def __post_init__(self) -> None:
        _batch_rule(self.size, self.epochs)

    def rate(self, n: int) -> float:
        return min(1.0, self.size / n)

    def expected(self, n: int) -> float:
        """The public number that a sum over a batch is divided by."""
        return self.rate(n) * n

    def steps(self, n: int) -> int:
        return self.epochs * -(-n // self.size)

    def event(self, inner: "DpEvent", n: int) -> "DpEvent":
        """At the rate, rounded up to a power of 2^(1/16): a larger rate never costs less, and clients of like sizes
        share one calibration."""
        return Poisson(min(1.0, 2 ** (math.ceil(16 * math.log2(self.rate(n)) - 1e-9) / 16))).event(inner, n)

    def draw(self, seed: int, round: int, client: int, n: int, purpose: str = "batches") -> Rows:
        step, row = self._drawn(generator(seed, purpose, round, client), n)
        counts = np.bincount(step, minlength=self.steps(n))
        shape = (self.steps(n), max(1, int(counts.max(initial=0))))
        index, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
        place = np.arange(len(step)) - (np.cumsum(counts) - counts)[step]
        index[step, place], mask[step, place] = row, True
        return index, mask

    def _drawn(self, rng: np.random.Generator, n: int) -> Rows:
        """(step, row) of everything drawn, in order of steps."""
        block = max(1, BLOCK // n)
        parts = [
            np.nonzero(rng.random((min(block, self.steps(n) - start), n)) < self.rate(n))
            for start in range(0, self.steps(n), block)
        ]
        steps = [part[0] + at * block for at, part in enumerate(parts)]
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *steps]), np.concatenate([none, *(part[1] for part in parts)])


def _batch_rule(size: int, epochs: int) -> None:
    at_least(size, 1, "the batch size")
    at_least(epochs, 0, "the number of epochs")


class Draw(NamedTuple):
    """Rows of several clients, padded to the most steps and the widest batch among them."""

    rows: Tensor  # [clients, steps, width], of the federation; padding points at a row of the same client
    mask: Tensor  # [clients, steps, width], bool: which rows are real
    live: Tensor  # [clients, steps], bool: which steps are; public


def draw_batches(
    rule: BatchRule,
    seed: int,
    round: int,
    clients: Sequence[int] | np.ndarray,
    federation: FederatedDataset,
    purpose: str = "batches",
    least: int = 0,
) -> Draw:
    """The batches of one round for the listed clients, padded to at least so many steps.

    Those of a client do not depend on the rest of the list.
    """
    places = [int(client) for client in clients]
    sizes, starts = federation.sizes, federation.offsets[places]
    drawn = [rule.draw(seed, round, client, int(sizes[client]), purpose) for client in places]
    steps = np.array([len(index) for index, _ in drawn], np.int64)
    shape = (len(places), int(steps.max(initial=least)), max((index.shape[1] for index, _ in drawn), default=1))
    index, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for at, (rows, real) in enumerate(drawn):
        index[at, : rows.shape[0], : rows.shape[1]] = rows
        mask[at, : rows.shape[0], : rows.shape[1]] = real
    index += starts[:, None, None]
    live = np.arange(shape[1]) < steps[:, None]
    return Draw(torch.from_numpy(index), torch.from_numpy(mask), torch.from_numpy(live))


@checked
@dataclass(frozen=True)
class LimitedParticipation:
    """Nobody is asked more than `times` times in a run, whatever happens in it.

    Everybody stands once on each of `times` shuffled lists, and a round asks the next `size` of the list; fewer than
    `size` at its end are left out. A function of (seed, round) alone, so that a resumed run cannot ask anybody again.
    Who is asked when is taken to be known, so that no amplification is claimed: a participation costs `inner` itself,
    and a client's cost is that of its participations. Neighbours: a client's contribution or zero.

    Args:
        size: of the cohort.
        times: that a client may be asked.

    Raises:
        TacitError: numbers below 1; and in a run, more rounds than the lists have.

    >>> import tacit
    >>> tacit.LimitedParticipation(10, times=2).most(100, rounds=20)
    2
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
