"""A client program recorded once as a flat list of tensor operations, and replayed without `vmap`, `grad` or modules.

The plain program is the reference: a recorded one is used only after it gave the same on made-up inputs
(`acceptance.py`). Neither what is recorded nor whether it is accepted depends on anybody's values.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Pair, Program, Refused, Trials, accept
from tacit.compile.handover import NOTHING, Handover, announce, operands
from tacit.compile.ir import trace
from tacit.compile.pipeline import simplify

Check = Callable[["Replayed"], str]
"""Why a recorded program may not be used although it gives the same; "" if it may."""


def record(
    program: Program,
    *inputs: Any,
    trials: Trials,
    sure: bool = False,
    uploads: Handover = NOTHING,
    check: Check = lambda recording: "",
    make: "Maker | None" = None,
) -> "Replayed":
    """The program for inputs of these shapes.

    Args:
        program: takes and gives trees of tensors.
        inputs: those it is traced on; later ones have the same shapes.
        trials: inputs to compare both programs on.
        sure: it was compared before, so it need not be again.
        uploads: its first results, which are handed over to somebody else.
        check: what else must hold.
        make: how it is recorded; by default as one list of operations.

    Raises:
        Refused: it cannot be recorded, or differs; with the reason.
    """
    try:
        with torch.no_grad():
            make = make or list_operations
            recording = make(program, inputs, uploads)
            if reason := check(recording):
                raise Refused(reason)
            if not sure:
                accept(Pair(program, recording.stored), _in_double(trials, uploads, make), trials)
            return recording
    except Refused:
        raise
    except Exception as error:  # whatever a pass ran into, the plain program is there
        raise Refused.because(error) from error


def _in_double(trials: Trials, uploads: Handover, make: "Maker") -> Pair | None:
    """The passes themselves, on the program in double precision: nothing there is compiled for single."""
    if trials.exact is None:
        return None
    return Pair(trials.exact, make(trials.exact, trials.in_double(trials.tame(0)), uploads).stored)


def list_operations(program: Program, inputs: tuple[Any, ...], uploads: Handover = NOTHING) -> "Recording":
    """The program as one list of operations, and nothing compared."""
    graph, structure = traced(program, inputs)
    return Recording(simplify(announce(graph, uploads)), inputs, structure, uploads)


def traced(program: Program, inputs: tuple[Any, ...]) -> tuple[GraphModule, Any]:
    """The program's graph as it is, and the structure of what it gives."""
    structures = []

    def note_structure(*leaves: Any) -> Any:
        outputs = program(*leaves)
        structures.append(pytree.tree_structure(outputs))
        return outputs

    return trace(note_structure, *inputs), structures[-1]


class Replayed(Protocol):
    """A recorded program, as it is used."""

    def __call__(self, *inputs: Any) -> Any: ...

    def stored(self, *inputs: Any) -> Any:
        """With uploads as tensors, to be compared."""
        ...

    def replace_constants(self, values: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Puts other tensors of the same shape in the place of some that the program was recorded with."""
        ...


Maker = Callable[[Program, tuple[Any, ...], Handover], Replayed]
"""Records a program on inputs, without comparing anything."""


class Recording:
    """A program as it is replayed: Python that torch.fx generates. Operations release Python's lock, so that chunks run
    in parallel threads. Inputs are copied where they do not lie in memory as the recorded ones did."""

    def __init__(self, graph: GraphModule, inputs: Any, structure: Any, uploads: Handover = NOTHING) -> None:
        self.graph, self._structure, self._uploads = graph, structure, uploads
        self._strides = [leaf.stride() for leaf in pytree.tree_leaves(inputs)]

    def __call__(self, *inputs: Any) -> Any:
        with torch.no_grad():
            results = operands(self.graph, list(self.graph.forward(*self.lay_out(*inputs))))
        return pytree.tree_unflatten(results, self._structure)

    def stored(self, *inputs: Any) -> Any:
        """With uploads as tensors, to be compared."""
        return pytree.tree_map(self._uploads.stored, self(*inputs))

    def lay_out(self, *inputs: Any) -> list[Tensor]:
        """The leaves of inputs, with the strides that the program counts on."""
        leaves = pytree.tree_leaves(inputs)
        return [_with_strides(leaf, strides) for leaf, strides in zip(leaves, self._strides, strict=True)]

    def replace_constants(self, values: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Puts other tensors of the same shape in the place of some that the program was recorded with."""
        for name, constant in list(self.graph.named_buffers(remove_duplicate=False)):
            for old, new in values:
                if constant.data_ptr() == old.data_ptr() and constant.shape == old.shape:
                    setattr(self.graph, name, new)


def _with_strides(leaf: Tensor, strides: tuple[int, ...]) -> Tensor:
    if leaf.stride() == strides:
        return leaf
    return torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=leaf.device).copy_(leaf)
