"""Gradients of a cross-entropy over few classes: softmax minus target in vector operations of many rows at once.

torch's own log_softmax goes row by row, and through each of fewer numbers than a vector register holds one by one: a
third of a small network's step. Nobody asks for the loss itself, so the logarithm is never needed:

    d = g - softmax(x) sum(g),    g the gradient of the loss in log_softmax(x)

A pass over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.nodes import given, val

aten = torch.ops.aten
_FEW = 16  # numbers of a vector register; for more classes torch's own is as fast


def soft_labels(graph: GraphModule) -> None:
    sums: dict[Node, Node] = {}
    for node in [each for each in graph.graph.nodes if each.target is aten._log_softmax_backward_data.default]:
        if _fits(node):
            _rewrite(graph, node, sums)


def _fits(node: Node) -> bool:
    """Whether the logarithm serves this gradient alone, over a last dimension that is short."""
    _, logarithm, dim, dtype = node.args
    x: Any = logarithm.args[0]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    alone = logarithm.target is aten._log_softmax.default and set(logarithm.users) == {node}  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    last = dim in (-1, val(x).dim() - 1) and val(x).shape[-1] < _FEW
    return alone and last and dtype == val(x).dtype == val(node.args[0]).dtype


def _rewrite(graph: GraphModule, node: Node, sums: dict[Node, Node]) -> None:
    gradient, logarithm, *_ = node.args
    x: Any = logarithm.args[0]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    like, row = val(node), val(x)[..., :1]
    total = _row_sums(graph, gradient, sums)
    with graph.graph.inserting_before(node):
        top = given(graph, aten.amax.default, x, [-1], True, like=row)
        moved = given(graph, aten.sub.Tensor, x, top, like=like)
        powers = given(graph, aten.exp.default, moved, like=like)
        several = given(graph, aten.sum.dim_IntList, powers, [-1], True, like=row)
        share = given(graph, aten.div.Tensor, total, several, like=row)
        new = given(graph, aten.addcmul.default, gradient, powers, share, like=like)
        new.kwargs = {"value": -1}
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def _row_sums(graph: GraphModule, gradient: Any, sums: dict[Node, Node]) -> Node:
    """Sums over classes; where all steps' gradients lie in one tensor, of all of them at once."""
    steps, classes = _whole(gradient), val(gradient).shape[-1]
    if steps not in sums:
        like = torch.empty((*val(steps).shape[:-1], 1), dtype=val(steps).dtype, device="meta")
        with graph.graph.inserting_after(steps):
            sums[steps] = given(graph, aten.sum.dim_IntList, steps, [-1], True, like=like)
    if steps is gradient:
        return sums[steps]
    shape = (*val(gradient).shape[:-1], 1)
    like = torch.empty(shape, dtype=val(gradient).dtype, device="meta")
    place = gradient.args[3] // classes
    with graph.graph.inserting_after(gradient):
        return given(graph, aten.as_strided.default, sums[steps], list(shape), list(like.stride()), place, like=like)


def _whole(gradient: Any) -> Node:
    """What a gradient is a part of, if it is a run of whole rows there."""
    if gradient.target is not aten.as_strided.default:
        return gradient
    steps, now = gradient.args[0], val(gradient)
    rows = val(steps).is_contiguous() and now.is_contiguous() and val(steps).shape[-1] == now.shape[-1]
    return steps if rows and gradient.args[3] % now.shape[-1] == 0 else gradient
