"""Results written over memory that nobody reads again: memory that is close, and no more of it.

A pass over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.ir import base_of, calls, meta_of, readers_of

aten = torch.ops.aten
_IN_PLACE: dict[Any, Any] = {
    aten.baddbmm.default: aten.baddbmm_.default,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.nan_to_num.default: aten.nan_to_num_.default,
    aten.exp.default: aten.exp_.default,
}


def write_in_place(graph: GraphModule) -> None:
    """An operation whose first operand nobody reads later updates it where it lies."""
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in calls(graph, *_IN_PLACE):
        target, *factors = node.args
        base = base_of(target)
        if _is_last_reader(node, base, order) and base not in map(base_of, factors) and _covers(target, node):
            node.target = _IN_PLACE[node.target]


def _is_last_reader(node: Node, base: Any, order: dict[Node, int]) -> bool:
    """Whether an operation of this program made the memory, and nobody reads it after this one."""
    made_here = isinstance(base, Node) and base.op == "call_function"
    return made_here and all(order[reader] <= order[node] for reader in readers_of(base))


def _covers(target: Any, node: Node) -> bool:
    operand, result = meta_of(target), meta_of(node)
    return (operand.shape, operand.dtype) == (result.shape, result.dtype) and operand.is_contiguous()
