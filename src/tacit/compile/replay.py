"""A client program recorded once as a flat list of tensor operations, and replayed without `vmap`, `grad` or modules.

The plain program is the reference: a recorded one is used only after it gave the same on made-up inputs
(`acceptance.py`). Neither what is recorded nor whether it is accepted depends on anybody's values.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Pair, Program, Refused, Trial, Trials, accept
from tacit.compile.handover import NOTHING, Handover
from tacit.compile.kernels.batched import OPENED
from tacit.compile.passes.rematerialise_outer import operands
from tacit.compile.pipeline import simplify
from tacit.compile.trace import taped

_plainly: Any = getattr(torch.jit, "optimized_execution", nullcontext)


Check = Callable[[GraphModule, "Recording"], str]
"""Why a recorded program may not be used although it gives the same; "" if it may."""


def record(
    program: Program,
    *inputs: Any,
    trials: Trials | None = None,
    sure: bool = False,
    uploads: Handover = NOTHING,
    check: Check = lambda graph, recording: "",
) -> "Recording":
    """The program for inputs of these shapes. `Refused`, with the reason, where it cannot be recorded or differs.

    `uploads`: its first results, which are handed over to somebody else. `check`: what else must
    hold. `sure`: it was compared before, so it need not be again. In one thread alone: nothing else may run meanwhile.
    """
    compared: Trials = Scaled(inputs) if trials is None else trials
    try:
        with torch.no_grad():
            graph, shape = _simplified(program, inputs, uploads)
            recording = Recording(graph, _interpreted(graph, pytree.tree_leaves(inputs)), inputs, shape, uploads)
            if why := check(graph, recording):
                raise Refused(why)
            if not sure:
                accept(Pair(program, _stored(recording)), _in_double(compared, uploads), compared)
            return recording
    except Refused:
        raise
    except Exception as error:  # whatever a pass ran into, the plain program is there
        raise Refused.because(error) from error


def _stored(recording: "_Laid") -> Program:
    """With uploads as tensors, to be compared."""
    return lambda *inputs: pytree.tree_map(recording.uploads.stored, recording(*inputs))


def _in_double(trials: Trials, uploads: Handover) -> Pair | None:
    """The passes themselves, on the program in double precision: nothing there is compiled for single."""
    if trials.exact is None:
        return None
    inputs = trials.in_double(trials.tame(0))
    graph, shape = _simplified(trials.exact, inputs, uploads)
    return Pair(trials.exact, _stored(_Laid(graph, graph, inputs, shape, uploads)))


def _simplified(program: Program, inputs: Any, uploads: Handover) -> tuple[GraphModule, Any]:
    """What the passes make of it, and the structure of what it gives."""
    shapes = []

    def noted(*given: Any) -> Any:
        outputs = program(*given)
        shapes.append(pytree.tree_structure(outputs))
        return outputs

    return simplify(taped(noted, *inputs), uploads), shapes[0]


class _Laid:
    """Runs something on inputs that are laid out in memory as the recorded ones were."""

    def __init__(self, graph: GraphModule, run: Any, inputs: Any, shape: Any, uploads: Handover) -> None:
        self._graph, self.run, self._shape, self.uploads = graph, run, shape, uploads
        self._strides = [leaf.stride() for leaf in pytree.tree_leaves(inputs)]

    def __call__(self, *given: Any) -> Any:
        flat = [_laid(new, old) for new, old in zip(pytree.tree_leaves(given), self._strides, strict=True)]
        with torch.no_grad(), _plainly(False):  # its optimizer gains nothing here, and first runs the program twice
            return pytree.tree_unflatten(operands(self._graph, list(self.run(*flat)), self.uploads), self._shape)


class Recording(_Laid):
    """A program as it is replayed."""

    def replace_constants(self, values: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Puts other tensors of the same shape in the place of some that the program was recorded with."""
        for name, kept in list(self.run.named_buffers()):
            for old, new in values:
                if kept.data_ptr() == old.data_ptr() and kept.shape == old.shape:
                    _put(self.run, name, new)


def _put(module: Any, name: str, value: Tensor) -> None:
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, last, value)


@dataclass(frozen=True)
class Scaled:
    """Trials of any program: its own inputs, made larger and smaller."""

    inputs: tuple[Any, ...]
    exact: Program | None = None
    clients: int = 0

    def tame(self, number: int) -> Trial:
        scale = (1.25, 0.8, 1.5, 0.6, 1.1, 0.9)[number % 6]

        def other(leaf: Tensor) -> Tensor:
            if leaf.is_floating_point():
                return leaf * scale
            return leaf.flip(0).roll(number, 0) if leaf.dim() else leaf + 1 + number

        return Trial("other", pytree.tree_map(other, self.inputs))

    def wild(self, number: int) -> Trial | None:
        return None

    def in_double(self, trial: Trial) -> tuple[Any, ...]:
        return trial.inputs


def _interpreted(graph: GraphModule, leaves: list[Tensor]) -> Any:
    """In torch's own interpreter, which holds no lock between operations: chunks run in parallel threads."""
    if not hasattr(torch.jit, "trace"):
        return graph
    _part(graph)
    _open(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(graph, tuple(leaves), check_trace=False, _store_inputs=False)


def _open(graph: GraphModule) -> None:
    """What is written in Python is traced itself, so that a replay never waits for Python's lock."""
    for node in graph.graph.nodes:
        node.target = OPENED.get(node.target, node.target)
    graph.recompile()


def _part(graph: GraphModule) -> None:
    """`torch.jit.trace` refuses a constant that stands under two names: each gets its own."""
    seen: set[int] = set()
    for name, value in list(graph.named_buffers(remove_duplicate=False)):
        if id(value) in seen:
            setattr(graph, name, value.clone())
        seen.add(id(value))


def _laid(new: Tensor, strides: tuple[int, ...]) -> Tensor:
    if new.stride() == strides:
        return new
    return torch.empty_strided(new.shape, strides, dtype=new.dtype, device=new.device).copy_(new)
