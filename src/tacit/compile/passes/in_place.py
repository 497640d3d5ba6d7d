"""What nobody reads again is written over: memory that is close, and no more of it.

Passes over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.kernels.native import can_be_written_over
from tacit.compile.trace import item

aten = torch.ops.aten
_IN_PLACE: dict[Any, Any] = {
    aten.baddbmm.default: aten.baddbmm_.default,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.nan_to_num.default: aten.nan_to_num_.default,
    aten.exp.default: aten.exp_.default,
}


def shares_memory(node: Node) -> bool:
    """Whether what it gives lies in the memory of what it was given."""
    if node.target is item:  # of several results: it is whatever they are
        node = node.all_input_nodes[0]
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "call_function"
    return node.target is aten._unsafe_view.default or any(r.alias_info for r in node.target._schema.returns)


def in_place(graph: GraphModule) -> None:
    """What nobody reads again is updated where it lies."""
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if node.target not in _IN_PLACE:
            continue
        target, *factors = node.args
        base = _base(target)
        if _free(base, order[node], order) and not any(_base(f) is base for f in factors) and _whole(target, node):
            node.target = _IN_PLACE[node.target]


def over_inputs(graph: GraphModule) -> None:
    """Gradients of a convolution's inputs are written over them where nobody reads them again: memory that is close."""
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if node.target is not torch.ops.tacit.convolve_back.default:
            continue
        args: Any = node.args
        gradient, which, x, weight, pool, relu, to_inputs, name = args
        free = _free(x, order[node], order) and not any(_base(other) is x for other in (gradient, which, weight))
        if not (to_inputs and free and can_be_written_over(x.meta["val"], name)):
            continue
        node.target = torch.ops.tacit.convolve_over.default
        node.args = (gradient, which, x, weight, pool, relu, name)


def _free(node: Any, after: int, order: dict[Node, int]) -> bool:
    """Made by an operation of this program that owns its memory, and read by nobody later than `after`."""
    owned = isinstance(node, Node) and node.op == "call_function" and (not shares_memory(node) or _updated(node))
    return owned and _last_read(node, order) <= after


def _updated(node: Node) -> bool:
    return node.target in _IN_PLACE.values()


def _last_read(node: Node, order: dict[Node, int]) -> int:
    """The last operation that reads this memory, also through a view."""
    later = [_last_read(user, order) for user in node.users if shares_memory(user) and not _updated(user)]
    return max([order[user] for user in node.users] + later, default=-1)


def _base(node: Any) -> Any:
    while isinstance(node, Node) and node.op == "call_function" and shares_memory(node) and not _updated(node):
        node = node.args[0]
    return node


def _whole(target: Any, node: Node) -> bool:
    a, b = target.meta["val"], node.meta["val"]
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.is_contiguous()
