"""Clients that do not exist, for a chunk's program to be compared on before real ones come.

Only what is public is used: shapes and types, how many rows clients have, how many classes and levels there are, the
model's start. Rows, labels and everything that clients keep are drawn from a fixed generator, so that a program is
accepted or not whatever anybody's values are. Of a round's draws (which rows come in which step, which steps are
padding) the real rule is used: it knows numbers of rows and a seed, and makes what a program may count on.
"""

import copy
import mmap
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Program, Refused, Trial
from tacit.compile.handover import Handover
from tacit.compile.ir import trace
from tacit.compile.loop import Windows, loop_of
from tacit.compile.replay import Recording, Replayed, record
from tacit.core import tree
from tacit.core.columns import Columns
from tacit.core.contract import Shared, Tree
from tacit.data.dataset import WHOLE, as_input
from tacit.privacy.mechanisms.clipped_upload_sum import Product, stored, takes_product
from tacit.simulation import device
from tacit.simulation.chunks import Inputs, Shape
from tacit.simulation.isolation import keeps_clients_apart, moves_by_guarded_steps

if TYPE_CHECKING:
    from tacit.simulation.cohort_program import Broadcast, CohortProgram

_LENGTH: Final = 3.0  # of a row: steps of gradient descent then neither stand still nor leap
_SCALES: Final = (1.0, 0.3, 1.5, 0.05)  # of clients' rows: some uploads are long, some short
_INK: Final = 0.2  # share of an image's bytes that are not zero
_LARGE: Final = 2**24  # bytes of rows above which pages that nobody touches are to take no memory
_SEED: Final = 20


def recorded(engine: "CohortProgram", shape: Shape, given: "Broadcast", sure: bool = False) -> Replayed:
    """The recorded program of chunks of this shape. `Refused`, with the reason, where the plain one is to run.

    It is for states that lie as a store gives them, which then need not be copied. `sure`: it was accepted before. In
    one thread alone: nothing else may run while a program is recorded.
    """
    if isinstance(engine.federation.x, Columns):
        raise Refused("programs of models with several inputs are not recorded")
    try:
        rehearsal = Rehearsal(engine, shape, given)
        first = rehearsal.tame(0).inputs
        check = partial(_check, engine, rehearsal.program, first)
        uploads = uploads_of(len(engine.plan.setting.upload))
        with device.apart():
            make = partial(loop_of, _windows(shape.loop)) if shape.loop else None
            recording = record(
                rehearsal.program, *first, trials=rehearsal, sure=sure, uploads=uploads, check=check, make=make
            )
        recording.replace_constants(rehearsal.data)
        return recording
    except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise Refused.because(error) from error


def uploads_of(leaves: int) -> Handover:
    """The first leaves of a program's results, for the privacy room: in the forms that it takes."""
    return Handover(leaves, takes_product, Product, stored)


def _windows(size: int) -> Windows:
    """Of a chunk's program: only its inputs have steps."""

    def steps(inputs: tuple[Any, ...]) -> int:
        return int(inputs[3].live.shape[1])

    def cut(inputs: tuple[Any, ...], first: int, several: int) -> tuple[Any, ...]:
        return *inputs[:3], inputs[3].steps(first, several)

    return Windows(size, steps, cut)


def _check(engine: "CohortProgram", program: Program, inputs: tuple[Any, ...], recording: Replayed) -> str:
    """What a recorded program must keep beside the plain one's numbers (`isolation.py`)."""
    steps, uploads = engine.plan.steps, len(engine.plan.setting.upload)
    noisy = steps is not None and steps.noisy
    if noisy:
        if not isinstance(recording, Recording):
            return "loops over steps with noise are not recorded"
        if not moves_by_guarded_steps(recording, trace(program, *inputs), uploads, *inputs):
            return "data reach an upload other than by steps with noise"
    return "" if keeps_clients_apart(recording, *inputs) else "what is computed of one client depends on another"


class Rehearsal:
    """The trials of a chunk's program: `program` on made-up rows, `exact` the same in double precision.

    Rows lie in one tensor as large as the federation's, of which only the rehearsing clients' are written.
    """

    def __init__(self, engine: "CohortProgram", shape: Shape, given: "Broadcast") -> None:
        self.shape, self.clients = shape, shape.clients
        self._engine, self._given = engine, given
        self._who = _fitting(engine, shape)
        self.x, self.y = (_blank(leaf) for leaf in (engine.federation.x, engine.federation.y))
        self.exact: Program | None = None
        self.program = self._program(engine, self.x)
        if next(iter(engine.start.values())).dtype == torch.float32:
            self._double = _blank(self.x, self.x.dtype if self.x.dtype in WHOLE else torch.float64)
            self.exact = self._program(_in_double(engine), self._double)

    def _program(self, engine: "CohortProgram", x: Tensor) -> Program:
        federation = copy.copy(engine.federation)  # not checked again: it is to hold what no federation may
        object.__setattr__(federation, "x", x)
        object.__setattr__(federation, "y", self.y)
        standing_in = replace(engine, federation=federation, programs={})
        return partial(standing_in._plain, standing_in.task, self.shape)

    @cached_property
    def _states(self) -> Tree:
        """What clients have after their first round."""
        after = self.program(*self._inputs(torch.Generator().manual_seed(_SEED), 0))[1]
        return tree.each(lambda leaf: leaf.to(_kind(after)), after)

    @property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Made-up rows and labels, and the real ones that are to take their place."""
        federation = self._engine.federation
        return [(self.x, federation.x), (self.y, federation.y)]

    def tame(self, number: int) -> Trial:
        """Clients with ordinary rows; from the second on they have taken part before, and some are padding."""
        draw = torch.Generator().manual_seed(_SEED + number)
        self._write_rows(draw)
        return Trial("tame", self._inputs(draw, number))

    def wild(self, number: int) -> Trial | None:
        """Every second client's rows are not finite, huge or next to nothing; each of these is met."""
        spoiled = self._who[1::2] if len(self._who) > 1 else self._who
        numbers = self.x.is_floating_point() and not self._engine.task.tokens
        if not numbers or number * len(spoiled) >= len(self._spoils):
            return None
        draw = torch.Generator().manual_seed(_SEED + 100 + number)
        self._write_rows(draw)
        view, public, round, inputs = self._inputs(draw, 1)
        wild, lost, huge = (torch.zeros(self.clients, dtype=torch.bool) for _ in range(3))
        for at, client in enumerate(spoiled, number * len(spoiled)):
            rows, spoil = self._engine.federation.rows(int(client)), self._spoils[at % len(self._spoils)]
            self._write(rows, self.x[rows] * spoil)
            its = inputs.client == int(client)
            wild |= its if not spoil < 1 else torch.zeros_like(its)
            lost |= its & ~inputs.live.all(1)
            huge |= its if 1 < spoil < float("inf") else torch.zeros_like(its)
        uploads = len(self._engine.plan.setting.upload)
        return Trial("wild", (view, public, round, inputs), wild, lost, huge, uploads)

    @property
    def _spoils(self) -> tuple[float, ...]:
        """Not a number, infinite, so large that its square is infinite, subnormal."""
        kind = torch.finfo(self.x.dtype)
        return float("nan"), float("inf"), kind.max**0.8, kind.smallest_normal / 100

    def in_double(self, trial: Trial) -> tuple[Any, ...]:
        return pytree.tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, trial.inputs)

    def _write_rows(self, draw: torch.Generator) -> None:
        federation = self._engine.federation
        for at, client in enumerate(self._who):
            rows = federation.rows(int(client))
            self._write(rows, self._drawn(self.x[rows], draw, _SCALES[at % len(_SCALES)]))
            labels = self.y[rows]
            if labels.is_floating_point():
                self.y[rows] = torch.randn(labels.shape, generator=draw, dtype=labels.dtype)
            else:
                several = 2 if labels.dtype == torch.bool else federation.classes
                self.y[rows] = torch.randint(several, labels.shape, generator=draw).to(labels.dtype)

    def _write(self, rows: slice, values: Tensor) -> None:
        self.x[rows] = values.to(self.x.dtype)
        if self.exact is not None:
            self._double[rows] = as_input(self.x[rows]).to(self._double.dtype)

    def _drawn(self, like: Tensor, draw: torch.Generator, scale: float) -> Tensor:
        if like.dtype == torch.uint8:
            ink = torch.rand(like.shape, generator=draw) < _INK * scale
            return torch.randint(256, like.shape, generator=draw) * ink
        if tokens := self._engine.task.tokens or 2 * (like.dtype in WHOLE):
            return torch.randint(tokens, like.shape, generator=draw)
        return torch.randn(like.shape, generator=draw) * (scale * _LENGTH / max(1, like[0].numel()) ** 0.5)

    def _inputs(self, draw: torch.Generator, number: int) -> tuple[Any, ...]:
        engine, (view, public, _) = self._engine, self._given
        first = engine.method.init(engine.start).view
        if [leaf.shape for leaf in _leaves(first)] == [leaf.shape for leaf in _leaves(view)]:
            view = first
        view = Shared(*(tree.each(lambda leaf: _near(leaf, draw), part) for part in view))
        who = self._who if number == 0 or len(self._who) == 1 else self._who[:-1]
        states = _states(engine.method.join(view, engine.start), len(who), draw)
        drawn = engine.inputs_for(states, who, number)
        if self.shape.loop:
            drawn = drawn.steps(0, min(self.shape.steps, drawn.live.shape[1]))
        inputs = self._varied(self.shape.fill(drawn), draw, number)
        if number:  # of whatever kind a method means it to be
            inputs = inputs._replace(state=self._states)
        return view, engine.told(public), torch.tensor(number), inputs

    def _varied(self, inputs: Inputs, draw: torch.Generator, number: int) -> Inputs:
        levels = len(self._engine.plan.setting.choices.menu.levels)
        inputs = inputs._replace(level=torch.randint(levels, inputs.level.shape, generator=draw))
        if number and self.shape.full == 0:  # one whose every step is padding
            live = inputs.live.clone()
            live[2 % len(live)] = False
            inputs = inputs._replace(live=live)
        return inputs


def _leaves(view: Shared) -> list[Tensor]:
    return pytree.tree_leaves(view)


def _fitting(engine: "CohortProgram", shape: Shape) -> np.ndarray:
    """Clients of the population whose round this program can do, from those with the fewest steps to the most."""
    most = np.inf if shape.loop else shape.steps
    fits = np.flatnonzero((engine.steps <= most) & (engine.steps >= shape.full))
    ordered = fits[np.argsort(engine.steps[fits], kind="stable")]
    return ordered[np.unique(np.linspace(0, len(ordered) - 1, min(shape.clients, len(ordered))).astype(int))]


def _in_double(engine: "CohortProgram") -> "CohortProgram":
    task = replace(engine.task)
    object.__setattr__(task, "module", copy.deepcopy(task.module).double())  # the task's own copy shares what is frozen
    return replace(engine, task=task, start=tree.each(lambda leaf: leaf.double(), engine.start), programs={})


def _states(first: Tree, clients: int, draw: torch.Generator) -> Tree:
    """One row a client, with the strides of what a store gives: a program that expects others would copy all of it.

    Each leaf has memory of its own. Were it one for all, as in a store, a program could come to rely on where they lie.
    """
    if not first:
        return {}
    row = tree.flatten(first).to(_kind(first))
    rows = tree.unflatten(_near(row.expand(clients, -1), draw), first)
    return tree.each(lambda leaf: torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(leaf), rows)


def _kind(states: Tree) -> torch.dtype:
    """What a store keeps of all leaves: the type of the first."""
    return next(iter(states.values())).dtype


def _near(leaf: Tensor, draw: torch.Generator) -> Tensor:
    """Something like it: zeros that gradient descent would soon change are not zeros."""
    if not leaf.is_floating_point():
        return leaf.clone()
    moved = torch.randn((2, *leaf.shape), generator=draw, dtype=leaf.dtype)
    return leaf * (1 + 0.1 * moved[0]) + 0.01 * moved[1]


def _blank(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros of this shape; pages that nobody writes to take no memory."""
    dtype = dtype or like.dtype
    size = like.numel() * dtype.itemsize
    if size < _LARGE or not like.is_contiguous():
        return torch.zeros_like(like, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).reshape(like.shape)
