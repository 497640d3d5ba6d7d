"""Linear layers whose matrix is large and whose batch is small take kernels of their own, where these are compiled.

A pass over a recorded program (see pipeline.py), the last one: updates are in place by then.
"""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.kernels.native_linear import suits
from tacit.compile.nodes import given, val

aten = torch.ops.aten
_BACK = torch.ops.tacit.few_rows_back.default
_ADD = torch.ops.tacit.few_rows_add_.default


def few_rows(graph: GraphModule) -> None:
    for node in list(graph.graph.nodes):
        if node.target is aten.bmm.default:
            _product(graph, node, None, *node.args)
        elif node.target is aten.baddbmm.default and set(node.kwargs.values()) <= {1}:
            _product(graph, node, *node.args)
        elif node.target is aten.baddbmm_.default and node.kwargs.get("beta", 1) == 1:
            _update(graph, node)
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in [each for each in graph.graph.nodes if each.target is _BACK]:
        _together(graph, node, order)


def _together(graph: GraphModule, back: Node, order: dict[Node, int]) -> None:
    """What goes back through a matrix and the update of the matrix by the same rows: one trip through it for both."""
    y, weight = back.args
    readers = _readers(weight)
    updates = [reader for reader in readers if reader.target is _ADD and reader.args[0] is weight]
    later = [reader for reader in readers if reader not in updates and order[reader] > order[back]]
    if len(updates) != 1 or later or not _same(y, updates[0].args[1]):
        return
    update: Any = updates[0]
    _, _, x, factor = update.args
    if order.get(x, -1) > order[back] or val(x).shape != val(back).shape:
        return
    with graph.graph.inserting_before(back):
        both = graph.graph.call_function(torch.ops.tacit.few_rows_step_.default, (weight, y, x, factor))
        parts = [graph.graph.call_function(operator.getitem, (both, at)) for at in (0, 1)]
    for old, new in zip((back, update), parts, strict=True):
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
        graph.graph.erase_node(old)


def _readers(node: Any) -> list[Node]:
    """Who reads its memory, itself or through a view."""
    found: list[Node] = []
    for user in node.users:
        found += _readers(user) if _is_view(user) else [user]
    return found


def _is_view(node: Node) -> bool:
    """Whether it shows memory of what it was given, and writes nothing there."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(r.alias_info and not r.alias_info.is_write for r in node.target._schema.returns)


def _same(rows: Any, turned_back: Any) -> bool:
    """Whether the second is the first, turned and turned back."""
    while turned_back is not rows and _is_view(turned_back):
        turned_back = turned_back.args[0]
    return turned_back is rows and val(turned_back).is_contiguous()


def _product(graph: GraphModule, node: Node, term: Any, rows: Any, matrix: Any) -> None:
    """rows @ matrix, or with the matrix turned, and a bias for all rows alike."""
    (clients, several, _), (_, inputs, outputs) = val(rows).shape, val(matrix).shape
    if _turned(matrix) and _alike(term, clients, outputs) and suits(clients, several, inputs, outputs, val(node).dtype):
        with graph.graph.inserting_before(node):
            weight = given(graph, aten.transpose.int, matrix, 1, 2, like=val(matrix).transpose(1, 2))
            bias = None if term is None else given(graph, aten.select.int, term, 1, 0, like=val(term).select(1, 0))
        _become(node, torch.ops.tacit.few_rows.default, rows, weight, bias)
    elif val(matrix).is_contiguous() and term is None and suits(clients, several, outputs, inputs, val(node).dtype):
        _become(node, _BACK, rows, matrix)


def _update(graph: GraphModule, node: Node) -> None:
    """weight += factor y' x"""
    weight, turned, x = node.args
    (clients, outputs, inputs), several = val(weight).shape, val(x).shape[1]
    if not val(weight).is_contiguous() or not suits(clients, several, inputs, outputs, val(node).dtype):
        return
    with graph.graph.inserting_before(node):
        y = given(graph, aten.transpose.int, turned, 1, 2, like=val(turned).transpose(1, 2))
    _become(node, _ADD, weight, y, x, node.kwargs.get("alpha", 1))


def _turned(matrix: Any) -> bool:
    return val(matrix).transpose(1, 2).is_contiguous()


def _alike(term: Any, clients: int, outputs: int) -> bool:
    """Nothing, or for each client a row of its own for all outputs, again and again."""
    if term is None:
        return True
    value = val(term)
    whole = value.dim() == 3 and (value.shape[0], value.shape[2]) == (clients, outputs)
    return whole and (value.shape[1] == 1 or value.stride(1) == 0)


def _become(node: Node, target: Any, *args: Any) -> None:
    node.target, node.args, node.kwargs = target, args, {}
