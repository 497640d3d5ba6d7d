"""Uploads of a first layer that are measured and summed, but never stored.

What steps add to such a layer is y' x, shares times a client's rows (`spans.py`). Where only its squares and its
weighted sum are asked for, both are made from y and x, piece by piece, the same numbers both times.

A pass over a recorded program (see simplify.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.engine.square_sums import given, val
from tacit.models.native.sums import suits_outer

aten, ours = torch.ops.aten, torch.ops.tacit
_VIEWS = (aten.view.default, aten.as_strided.default)


def unstored(graph: GraphModule) -> None:
    for node in [each for each in graph.graph.nodes if each.target is aten.bmm.default]:
        readers = _readers(node)
        if readers and all(reader.target in _FROM for reader in readers):
            _rewrite(graph, node, readers)


def _readers(node: Node) -> list[Node]:
    """Who reads all of it as [clients, ..], itself or through views that change nothing but its shape."""
    found: list[Node] = []
    for user in node.users:
        same = user.target in _VIEWS and val(user).is_contiguous() and val(user).numel() == val(node).numel()
        found += _readers(user) if same and len(val(user)) == len(val(node)) else [user]
    return found


def _rewrite(graph: GraphModule, node: Node, readers: list[Node]) -> None:
    turned, x = node.args
    if not suits_outer(val(turned), val(x)):
        return
    with graph.graph.inserting_before(node):
        y = given(graph, aten.transpose.int, turned, 1, 2, like=val(turned).transpose(1, 2))
    for reader in readers:
        with graph.graph.inserting_before(reader):
            new = given(graph, _FROM[reader.target], *reader.args[:-1], y, x, like=val(reader))
        reader.replace_all_uses_with(new)


_FROM: dict[Any, Any] = {
    ours.square_sums.default: ours.outer_squares.default,
    ours.weighted_sum.default: ours.outer_sum.default,
}
