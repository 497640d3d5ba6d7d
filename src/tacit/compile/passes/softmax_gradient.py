"""Gradients of a cross-entropy over few classes: softmax minus target in vector operations of many rows at once.

torch's own log_softmax goes row by row, and through each of fewer numbers than a vector register holds one by one: a
third of a small network's step. Nobody asks for the loss itself, so the logarithm is never needed:

    d = g - softmax(x) sum(g),    g the gradient of the loss in log_softmax(x)

A pass over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.ir import calls, insert_call, meta_of, replace

aten = torch.ops.aten
_FEW = 16  # numbers of a vector register; for more classes torch's own is as fast


def rewrite_softmax_gradients(graph: GraphModule) -> None:
    """Rewrites those over a short last dimension, of logarithms that nothing else reads."""
    sums: dict[Node, Node] = {}
    for node in calls(graph, aten._log_softmax_backward_data.default):
        if _fits(node):
            _rewrite(graph, node, sums)


def _fits(node: Node) -> bool:
    args: Any = node.args
    gradient, logarithm, dim, dtype = args
    if logarithm.target is not aten._log_softmax.default or set(logarithm.users) != {node}:
        return False
    x = meta_of(logarithm.args[0])
    short = dim in (-1, x.dim() - 1) and x.shape[-1] < _FEW
    return short and dtype == x.dtype == meta_of(gradient).dtype


def _rewrite(graph: GraphModule, node: Node, sums: dict[Node, Node]) -> None:
    args: Any = node.args
    gradient, logarithm, *_ = args
    x = logarithm.args[0]
    whole, row = meta_of(node), meta_of(x)[..., :1]
    total = _row_sums(graph, gradient, sums)
    with graph.graph.inserting_before(node):
        largest = insert_call(graph, aten.amax.default, x, [-1], True, meta=row)
        shifted = insert_call(graph, aten.sub.Tensor, x, largest, meta=whole)
        powers = insert_call(graph, aten.exp.default, shifted, meta=whole)
        normaliser = insert_call(graph, aten.sum.dim_IntList, powers, [-1], True, meta=row)
        share = insert_call(graph, aten.div.Tensor, total, normaliser, meta=row)
        new = insert_call(graph, aten.addcmul.default, gradient, powers, share, meta=whole, value=-1)
    replace(graph, node, new)


def _row_sums(graph: GraphModule, gradient: Any, sums: dict[Node, Node]) -> Node:
    """Sums over classes; where all steps' gradients lie in one tensor, of all of them at once."""
    steps, classes = _all_steps(gradient), meta_of(gradient).shape[-1]
    if steps not in sums:
        with graph.graph.inserting_after(steps):
            sums[steps] = insert_call(graph, aten.sum.dim_IntList, steps, [-1], True, meta=_one_class(steps))
    if steps is gradient:
        return sums[steps]
    meta = _one_class(gradient)
    args = sums[steps], list(meta.shape), list(meta.stride()), gradient.args[3] // classes
    with graph.graph.inserting_after(gradient):
        return insert_call(graph, aten.as_strided.default, *args, meta=meta)


def _one_class(node: Node) -> torch.Tensor:
    return torch.empty((*meta_of(node).shape[:-1], 1), dtype=meta_of(node).dtype, device="meta")


def _all_steps(gradient: Any) -> Node:
    """What a gradient is a part of, if it is a run of whole rows there."""
    if gradient.target is not aten.as_strided.default:
        return gradient
    steps, part = gradient.args[0], meta_of(gradient)
    rows = meta_of(steps).is_contiguous() and part.is_contiguous() and meta_of(steps).shape[-1] == part.shape[-1]
    return steps if rows and gradient.args[3] % part.shape[-1] == 0 else gradient
