"""Norms of uploads without a copy of their squares, and precise: what is clipped by them keeps to its bound.

A pass over a recorded program (see simplify.py).
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.models.native.sums import suits

aten = torch.ops.aten
_PIECE = 1024  # numbers whose squares are added up one after the other


def square_sums(graph: GraphModule) -> None:
    """The sum of a client's squares as its norm squared: the squares are never stored."""
    for node in [each for each in graph.graph.nodes if each.target is aten.sum.dim_IntList]:
        square = node.args[0] if len(node.args) == 2 else None
        if not (isinstance(square, Node) and square.target is aten.pow.Tensor_Scalar and square.args[1] == 2):
            continue
        of = square.args[0]
        value = of.meta["val"]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        if len(square.users) > 1 or not value.is_contiguous() or node.args[1] != list(range(1, value.dim())):
            continue
        with graph.graph.inserting_before(node):
            if suits(value):
                total = given(graph, torch.ops.tacit.square_sums.default, of, like=val(node))
            else:
                total = _by_blocks(graph, of, len(value), value[0].numel(), value.dtype)
        node.replace_all_uses_with(total)
        graph.graph.erase_node(node)


def _by_blocks(graph: GraphModule, of: Any, clients: int, size: int, dtype: torch.dtype) -> Node:
    """Squared norms of short pieces, added up: one norm over a million numbers loses a part in 2,000 to rounding, and
    a clipped upload would be that much too long."""

    def like(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def squared(part: Node, *shape: int) -> Node:
        norm = given(graph, aten.linalg_vector_norm.default, part, 2, [len(shape)], like=like(*shape))
        return given(graph, aten.mul.Tensor, norm, norm, like=like(*shape))

    several, rest = divmod(size, _PIECE)
    flat = given(graph, aten.view.default, of, [clients, size], like=like(clients, size))
    if not several:
        return squared(flat, clients)
    most = given(graph, aten.slice.Tensor, flat, 1, 0, several * _PIECE, like=like(clients, several * _PIECE))
    pieces = given(graph, aten.view.default, most, [clients, several, _PIECE], like=like(clients, several, _PIECE))
    total = given(graph, aten.sum.dim_IntList, squared(pieces, clients, several), [1], like=like(clients))
    if not rest:
        return total
    last = given(graph, aten.slice.Tensor, flat, 1, several * _PIECE, size, like=like(clients, rest))
    return given(graph, aten.add.Tensor, total, squared(last, clients), like=like(clients))


def given(graph: GraphModule, target: Any, *args: Any, like: Tensor) -> Node:
    node = graph.graph.call_function(target, args)
    node.meta["val"] = like
    return node


def val(node: Any) -> Tensor:
    """What its result is like: shape, strides and type, without numbers."""
    return node.meta["val"]
