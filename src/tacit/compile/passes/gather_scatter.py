"""Rows that steps pick from a client's own (`blocks.py`), taken where they are wanted and added where they came from.

Where steps are done for one client after another (`client_loop`), rows lie close by: they need not be fetched for
all steps beforehand, nor put back by a product with ones and zeros.

A pass over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.kernels.build import library
from tacit.compile.nodes import given, val

aten, ours = torch.ops.aten, torch.ops.tacit
_PRODUCTS = (aten.bmm.default, aten.baddbmm.default)


def picks(graph: GraphModule) -> None:
    if library() is None:
        return
    for node in [each for each in graph.graph.nodes if each.meta.keys() & {"picked", "one hot"}]:
        if val(node).dtype != torch.float32:
            continue
        for part in [node, *(user for user in node.users if user.target is aten.slice.Tensor)]:
            if "picked" in node.meta:
                _take(graph, part, *node.meta["picked"])
            else:
                for reader in list(part.users):
                    _put(graph, reader, part, node.meta["one hot"])


def _numbers(graph: GraphModule, numbers: Node, part: Node) -> Node:
    """The same part of the rows' numbers; a whole is a part that was never cut."""
    if part.target is not aten.slice.Tensor:
        return numbers
    _, _, start, stop = part.args
    return given(graph, aten.slice.Tensor, numbers, 1, start, stop, like=val(numbers)[:, start:stop])


def _take(graph: GraphModule, part: Node, of: Node, numbers: Node) -> None:
    with graph.graph.inserting_before(part):
        taken = given(graph, ours.picked_rows.default, of, _numbers(graph, numbers, part), like=val(part))
    part.replace_all_uses_with(taken, lambda user: user.target is not aten.slice.Tensor)


def _put(graph: GraphModule, reader: Node, part: Node, numbers: Node) -> None:
    """beta S + alpha (ones and zeros) D"""
    args: Any = reader.args
    if reader.target not in _PRODUCTS or args[-2] is not part or args[-1] is part:
        return
    old = args[0] if reader.target is aten.baddbmm.default else None
    if old is not None and val(old).shape != val(reader).shape:
        return
    beta, alpha = (reader.kwargs.get(name, 1) for name in ("beta", "alpha"))
    with graph.graph.inserting_before(reader):
        which = _numbers(graph, numbers, part)
        new = given(
            graph, ours.put_rows.default, old, which, args[-1], val(reader).shape[1], beta, alpha, like=val(reader)
        )
    reader.replace_all_uses_with(new)
