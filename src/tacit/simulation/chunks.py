"""Chunks of clients: a cohort is cut into them, and each is one tensor program.

How many numbers a network makes of a batch: by shapes alone, for the size of a chunk.

A chunk of clients as tensors: what differs between them, and what a program for all of them depends on.

Programs for clients of unequal lengths: which few are worth recording, and how a cohort is cut into them.

A program that is a little too large for its clients pads them; one that serves few clients spreads its operations'
fixed cost over few; one more program has to be recorded. All three are counted in the same unit, and what costs least
is taken.

How a cohort is cut into chunks, and whether a chunk's program is worth recording: from public facts alone.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.core import tree
from tacit.core.contract import Task, Tree
from tacit.data.dataset import FederatedDataset
from tacit.privacy.accounting.sampling import BatchRule
from tacit.sampling.cohorts import FixedSteps, Shuffled


def outputs(task: Task, params: Tree, federation: FederatedDataset, rows: int) -> int:
    """How many numbers a network makes of so many rows, on the way and at its end: by shapes alone."""
    x, _ = federation.take(torch.full((rows,), int(federation.offsets[0])))
    with torch.no_grad(), _Counting() as counting:
        task.apply(params, x)
    return counting.numbers


class _Counting(TorchDispatchMode):
    """Counts what operations make; views make nothing."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out


class Inputs(NamedTuple):
    """What differs between the clients of a chunk: every leaf has one row a client."""

    state: Tree
    rows: Tensor
    mask: Tensor
    live: Tensor
    level: Tensor
    z: Tensor
    expected: Tensor
    gradient_key: Tensor
    release_key: Tensor
    client: Tensor  # its place in the federation
    real: Tensor  # False for a row that only fills the chunk up

    @property
    def full(self) -> int:
        """Leading steps that are live for every client."""
        return int(self.live.sum(1).min())

    @property
    def only(self) -> "Inputs":
        """Of the only client of a chunk of one, without the row for it."""
        return Inputs(tree.each(lambda leaf: leaf[0], self.state), *(leaf[0] for leaf in self[1:]))

    def steps(self, first: int, several: int) -> "Inputs":
        """Of so many steps alone."""
        cut = [leaf[:, first : first + several].contiguous() for leaf in (self.rows, self.mask, self.live)]
        return self._replace(rows=cut[0], mask=cut[1], live=cut[2])


class Shape(NamedTuple):
    """All that a chunk's program depends on besides its inputs: public, and the same whenever a run is repeated."""

    clients: int
    steps: int
    full: int  # leading steps that are live for every client
    own: int = 0  # rows of a client that are fetched once, where batches come back to them
    loop: int = 0  # steps of a loop: then `steps` are those of two loops, and a program serves any number of them

    def length(self, steps: int) -> int:
        """Steps that a program of this shape takes for clients with at most so many."""
        return 2 + self.loop * max(1, -(-(steps - 2) // self.loop)) if self.loop else self.steps

    def fill(self, inputs: Inputs) -> Inputs:
        """Rows repeated to `clients`, steps that are not live added up to as many as the program takes."""
        several, steps = inputs.live.shape
        length = self.length(steps)
        if (several, steps) == (self.clients, length):
            return inputs
        rows = torch.arange(self.clients).clamp(max=several - 1)
        filled = Inputs(tree.each(lambda leaf: leaf[rows], inputs.state), *(leaf[rows] for leaf in inputs[1:]))
        more = length - steps
        return filled._replace(
            rows=torch.cat([filled.rows, filled.rows[:, :1].expand(-1, more, -1)], 1),
            mask=pad(filled.mask, (0, 0, 0, more)),
            live=pad(filled.live, (0, more)),
            real=torch.arange(self.clients) < several,
        )


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


Compile = Literal["auto", "off", "require"]
"""Whether chunks' programs are recorded: where it pays and can be done, never, or always (else it is an error)."""
_CHUNK_NUMBERS = 2**25  # numbers in one copy of a chunk's parameters
_STEP_NUMBERS = 2**28  # the same of what a step makes: a large frozen network makes many, whatever is trained of it
_CACHE_NUMBERS = 2**21  # the same with what a step makes, for a recorded program: fastest in a core's cache
_COMPILED_NUMBERS = 2**23  # the same where kernels are compiled: they take one client after another
_MOST_RECORDED_STEPS = 128  # of a program without a loop: it takes a tenth of a second a step to record
_MOST_UNLOOPED, _MOST_UNLOOPED_ALIKE = 128, 512  # the same where steps are no loop; where all clients have as many
_FEWEST, MOST, COMPILED_MOST = 4, 25, 50  # clients of a recorded program
_SEVERAL_EACH = 8  # chunks of a worker above which one that is not full costs little
_LOOPS = range(24, 41)  # steps that a loop may have: more take long to record, and fewer pay for its ends more often
_FEW_LENGTHS = 8
_ROUNDED = sorted({n << k for n in (4, 5, 6, 7) for k in range(40)} | {0, 1, 2, 3})  # .., 8, 10, 12, 14, 16, 20, ..
_WORTH_ROUNDS = 20  # rounds that pay for recording one program


@dataclass(frozen=True, eq=False)
class Chunking:
    """Decides by what is known before the first round, so that a resumed run decides alike.

    `chunk` and `compile` are the user's wishes: clients of a chunk (None to choose), and whether programs are recorded.
    """

    batches: BatchRule
    rounds: int
    steps: np.ndarray  # local steps that each client of the population has in a round
    params: int
    workers: int
    asked: float  # clients of a round, on average
    alike: bool  # nobody takes fewer steps than it has
    gather: bool
    chunk: int | None = None
    compile: Compile = "auto"
    outputs: int = 0  # numbers that a client's step makes on its way through the network
    compiled: bool = False  # whether kernels are compiled
    skipped: bool = False  # whether steps that only pad a client cost it next to nothing
    loops: bool = True  # whether very long programs are recorded as loops

    @cached_property
    def recorded(self) -> bool:
        """Whether chunks' programs are recorded and replayed: if the run is long enough to gain by it."""
        if self.compile == "off" or self.unrecorded is not None:
            return False
        programs = 1 if self._one_for_all else len(self._lengths)
        return self.compile == "require" or self.rounds >= _WORTH_ROUNDS * programs

    @property
    def unrecorded(self) -> str | None:
        """Why a program cannot be, or, where it must, some chunk's cannot; None where it can."""
        if self.gather:
            return "this method's server needs every single message, which recorded programs do not give"
        if not isinstance(self.batches, Shuffled | FixedSteps):
            return "programs with Poisson batches, as of plan 'record', are not recorded"
        if self.compile == "require" and not self.loops and self.steps.max() > self._most_steps:
            return f"a client takes {self.steps.max()} local steps, more than the {self._most_steps} of a program"
        return None

    def records(self, clients: np.ndarray) -> bool:
        """Whether the program of this chunk is: not if it would be very long, and cannot be a loop."""
        return self.recorded and (self.loops or self.steps[clients].max() <= self._most_steps)

    def split(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """Clients with like numbers of steps together, so that little is padded; what takes longest first."""
        ordered = cohort[np.argsort(-self.steps[cohort], kind="stable")]
        plain = int((self.steps[ordered] > self._most_steps).sum()) if self.recorded else len(ordered)
        several = self._program if self.recorded and self.loops else self._plain(len(cohort))
        yield from _pieces(ordered[:plain], itertools.repeat(several))
        if plain < len(ordered):
            yield from self._by_program(ordered[plain:])

    def shape(self, clients: np.ndarray) -> Shape:
        """Of the recorded program for these clients: a little larger than they are, so that there are few programs."""
        if self.loops and self.steps[clients].max() > self._most_steps:
            return self._looped
        return self._for_all if self._one_for_all else self._shape(self.steps[clients], len(clients))

    @cached_property
    def _looped(self) -> Shape:
        """Of all clients with more steps than a list of operations may have."""
        steps = self.steps[self.steps > self._most_steps]
        most, alike = int(steps.max()), self.alike and len(np.unique(steps)) == 1
        size = min(_LOOPS, key=lambda each: (-(2 - most) % each, -each))
        full = 2 * size + 2 if alike and (most - 2) % size == 0 else 0
        return Shape(self._program, 2 * size + 2, full, self._own(most) if alike else 0, size)

    @cached_property
    def _for_all(self) -> Shape:
        steps = self.steps[self.steps <= self._most_steps]
        return self._shape(steps, self._program)._replace(own=0)  # else a copy of as many rows as anybody has

    def _shape(self, steps: np.ndarray, several: int) -> Shape:
        size, least = self._size(steps, several), int(steps.min()) if self.alike else 0
        few = len(self._lengths) <= _FEW_LENGTHS // 2  # else there are many programs as it is
        full = max((n for n in self._lengths if n <= least), default=0) if few else 0
        return Shape(size.clients, size.steps, full, self._own(size.steps))

    def _by_program(self, ordered: np.ndarray) -> Iterator[np.ndarray]:
        if self._one_for_all:
            return _dealt(ordered, self.steps[ordered], self._program, self.workers)
        if not self._varied:
            return _pieces(ordered, itertools.repeat(self._program))
        chunks = _pieces(ordered, iter(self._menu.cut(self.steps[ordered])))
        return iter(sorted(chunks, key=self._cost, reverse=True))

    def _cost(self, chunk: np.ndarray) -> float:
        return self._menu.costs.of(self._size(self.steps[chunk], len(chunk)))

    def _size(self, steps: np.ndarray, several: int) -> Size:
        """Of the program for so many clients that take so many steps."""
        most = int(steps.max())
        return self._menu.size(several, most) if self._varied else Size(self._program, self._length(most))

    @property
    def _program(self) -> int:
        """Clients of a recorded program that is not from the menu."""
        return self.chunk or self._fitting

    @property
    def _one_for_all(self) -> bool:
        """Whether one program, as long as anybody needs it, serves clients of all lengths: others pass its end over."""
        return self.skipped and len(self._lengths) > 1

    @property
    def _most_steps(self) -> int:
        if self.loops:
            return _MOST_RECORDED_STEPS
        return _MOST_UNLOOPED_ALIKE if len(self._lengths) == 1 else _MOST_UNLOOPED

    @property
    def _varied(self) -> bool:
        """Whether programs have as many clients as suits their length."""
        return self.chunk is None and len(self._lengths) > 1 and not self.skipped

    @cached_property
    def _menu(self) -> ProgramSizes:
        lengths = [n for n in self._lengths if n <= self._most_steps]
        population = self.steps[self.steps <= self._most_steps]
        return menu(lengths, self._fitting, self.params, population, max(1, round(self.asked)), self.rounds)

    def _own(self, steps: int) -> int:
        """No fewer rows than anybody has who takes at most so many steps."""
        return steps // self.batches.epochs * self.batches.size if isinstance(self.batches, Shuffled) else 0

    def _length(self, steps: int) -> int:
        return next(n for n in self._lengths if n >= steps)

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """How many steps a recorded program may have: few different numbers, so that there are few programs."""
        found = np.unique(self.steps)
        if len(found) > _FEW_LENGTHS:
            found = np.unique([min(next(n for n in _ROUNDED if n >= steps), found[-1]) for steps in found])
        return tuple(int(n) for n in found)

    def _plain(self, cohort: int) -> int:
        """Clients of a chunk whose program is not recorded: as many as memory likes, two chunks a worker."""
        fitting = min(_CHUNK_NUMBERS // self.params, _STEP_NUMBERS // max(1, self.outputs))
        return self.chunk or max(1, min(fitting, -(-cohort // (2 * self.workers))))

    @cached_property
    def _fitting(self) -> int:
        """The most clients of a recorded program."""
        numbers, most = (_COMPILED_NUMBERS, COMPILED_MOST) if self.compiled else (_CACHE_NUMBERS, MOST)
        fitting = max(_FEWEST, min(most, numbers // (self.params + self.outputs)))
        if self.asked < self.workers * fitting:  # something for every worker, and little that only fills
            return min(fitting, max(2, math.ceil(self.asked / (2 * self.workers))))
        if self.asked < _SEVERAL_EACH * self.workers * fitting:
            return min(range(fitting, fitting // 2, -1), key=self._longest)
        return fitting

    def _longest(self, several: int) -> int:
        """Clients that one worker trains, those that only fill a chunk up included, if chunks have so many."""
        chunks = math.ceil(self.asked / several)
        return math.ceil(chunks / self.workers) * several


def _pieces(ordered: np.ndarray, sizes: Iterator[int]) -> Iterator[np.ndarray]:
    while len(ordered):
        several = next(sizes)
        yield ordered[:several]
        ordered = ordered[several:]


def _dealt(ordered: np.ndarray, steps: np.ndarray, most: int, workers: int) -> Iterator[np.ndarray]:
    """At most so many clients each, the longest first, dealt out so that all have about as many steps to take."""
    several = min(len(ordered), -(-len(ordered) // (most * workers)) * workers)
    chunks, taken = [[] for _ in range(several)], np.zeros(several)
    for client, more in zip(ordered, steps, strict=True):
        least = int(taken.argmin())
        chunks[least].append(client)
        taken[least] += more if len(chunks[least]) < most else np.inf
    return map(np.array, chunks)
