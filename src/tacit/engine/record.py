"""A client program recorded once as a flat list of tensor operations, and replayed without `vmap`, `grad` or modules.

The plain program is the reference: a recorded one is used only after it gave the same numbers on other inputs. What is
recorded depends on shapes alone, never on values, so a resumed run takes the same path as the one that was killed.
"""

import itertools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tacit.engine import allocator
from tacit.engine.simplify import simplify
from tacit.engine.tape import taped
from tacit.engine.unstored import operands
from tacit.models.batched import OPENED
from tacit.privacy.clip import clip
from tacit.privacy.clipped_upload_sum import stored

Program = Callable[..., Any]
_plainly: Any = getattr(torch.jit, "optimized_execution", nullcontext)
_TIPPED = 1e-3
_MOVED = 100  # roundings that a program's inputs are moved by, to see what it makes of one
_FAR = 0.1  # further off, nothing excuses it
_SCALES, _ENOUGH = (1.25, 0.8, 1.5, 0.6, 1.1), 2


def record(
    program: Program, *inputs: Any, uploads: int = 0, check: Callable[[GraphModule], bool] | None = None
) -> Program | None:
    """The program for inputs of these shapes, or None where it cannot be recorded or would not give the same.

    The first `uploads` leaves of its results are for the privacy room, and may be `Product`s. `check`: what else must
    hold of the graph.
    """
    try:
        with torch.no_grad(), allocator.apart():
            shape = pytree.tree_structure(program(*inputs))
            graph = simplify(taped(program, *inputs), uploads)
            if check is not None and not check(graph):
                return None
            replay = _replay(graph, inputs, shape)
            return replay if _often(_kept(program, uploads), _kept(replay, uploads), inputs) else None
    except RuntimeError:  # a value decides what is done next: only the plain program can know it
        return None


def _replay(graph: GraphModule, inputs: Any, shape: Any) -> Program:
    """Runs the graph on inputs that are laid out in memory as the recorded ones were."""
    leaves = pytree.tree_leaves(inputs)
    run = _interpreted(graph, leaves)

    def replay(*given: Any) -> Any:
        flat = [_laid(new, old) for new, old in zip(pytree.tree_leaves(given), leaves, strict=True)]
        with torch.no_grad():
            return pytree.tree_unflatten(operands(graph, list(run(*flat))), shape)

    return replay


def _kept(program: Program, uploads: int) -> Program:
    """The leaves of its results, to be compared: uploads stored, and without those that are not finite, which count for
    nothing whatever else they hold."""

    def run(*inputs: Any) -> list[Tensor]:
        leaves = [stored(leaf) for leaf in pytree.tree_leaves(program(*inputs))]
        kept, _ = clip({str(at): leaf for at, leaf in enumerate(leaves[:uploads])}, torch.inf, lead=1)
        return [*kept.values(), *leaves[uploads:]]

    return run


def _interpreted(graph: GraphModule, leaves: list[Tensor]) -> Program:
    """In torch's own interpreter, which holds no lock between operations: chunks run in parallel threads."""
    if not hasattr(torch.jit, "trace"):
        return graph
    _part(graph)
    _open(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(graph, tuple(leaves), check_trace=False, _store_inputs=False)

    def run(*given: Tensor) -> Any:
        with _plainly(False):  # its optimizer gains nothing here, and first runs the program twice to look at it
            return traced(*given)

    return run


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


def _laid(new: Tensor, old: Tensor) -> Tensor:
    if new.stride() == old.stride():
        return new
    return torch.empty_strided(new.shape, old.stride(), dtype=new.dtype, device=new.device).copy_(new)


def _often(program: Program, replay: Program, inputs: Any) -> bool:
    """Whether both agree on two of five other inputs, which a true recording does but for one start in thousands: a
    rounding that turns a unit of a network on may be all that differs on one."""
    agreed = (_agree(program, replay, _others(inputs, at)) for at in range(len(_SCALES)))
    return sum(itertools.islice(filter(None, agreed), _ENOUGH)) == _ENOUGH


def _others(inputs: Any, at: int = 0) -> Any:
    """Other values of the same shapes: clients in another order, numbers a little larger or smaller."""

    def other(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return leaf * _SCALES[at]
        return leaf.flip(0).roll(at, 0) if leaf.dim() else leaf + 1 + at

    return pytree.tree_map(other, inputs)


def _agree(program: Program, replay: Program, inputs: Any) -> bool:
    """Whether both give the same. A program that small changes tip over is compared with itself, a little moved."""
    expected, got = (pytree.tree_leaves(f(*inputs)) for f in (program, replay))
    if all(_close(a, b) for a, b in zip(expected, got, strict=True)):
        return True
    if not all(_close(a, b, _FAR) for a, b in zip(expected, got, strict=True)):
        return False
    moved = pytree.tree_leaves(program(*pytree.tree_map(_moved, inputs)))
    return all(_close(a, b, _distance(a, c)) for a, b, c in zip(expected, got, moved, strict=True))


def _moved(leaf: Tensor) -> Tensor:
    return leaf * (1 + _MOVED * torch.finfo(leaf.dtype).eps) if leaf.is_floating_point() else leaf


def _close(a: Tensor, b: Tensor, slack: float = 0.0) -> bool:
    """Equal up to rounding, or to `slack` where that is more. Norms are compared: a rounding may also turn a unit of a
    network on that was off.

    A true recording must not be refused by such a chance: a resumed run, which compares on other numbers, would differ.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():  # where uploads are rounded at random, the last digit of one may tip it over
        return torch.equal(a, b) or bool((a - b).abs().max() <= _TIPPED * a.abs().max())
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    return _distance(a, b) <= max(slack, 1e-9 if a.dtype == torch.float64 else _TIPPED)


def _distance(a: Tensor, b: Tensor) -> float:
    """Relative to the first, over what is finite in it."""
    if not a.is_floating_point():
        return 0.0
    finite = a.isfinite()
    a, b = a[finite].double(), b[finite].double()
    return float((a - b).norm()) / max(float(a.norm()), 1e-30)
