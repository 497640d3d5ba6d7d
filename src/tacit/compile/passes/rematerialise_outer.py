"""Uploads of a first layer that are handed to the privacy room as products, and never stored.

What steps add to such a layer is y' x, shares times a client's rows (`low_rank_weights.py`). Where nobody but the
privacy room asks for it, the program ends with y and x (`handover.py`), and the room makes the numbers itself. This is
all that a pass can do about an upload: say how it is represented. What becomes of it, no pass is told.

A pass over a recorded program (see pipeline.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.handover import Handover
from tacit.compile.nodes import given, val

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten.as_strided.default)
_PRODUCTS = "products"  # of a graph's meta: which outputs are the left parts of products, and where the right ones are


def unstored(graph: GraphModule, uploads: Handover) -> None:
    """Makes products of those outputs that are, and may be handed over as such; see `operands`."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    results: Any = end.args[0]
    outputs: list[Any] = list(results)
    places: dict[int, tuple[int, tuple[int, ...]]] = {}
    for at, node in enumerate(outputs[: uploads.leaves]):
        if (product := _product(node, outputs, uploads)) is not None:
            turned, right = product.args
            with graph.graph.inserting_before(end):
                outputs[at] = given(graph, aten.transpose.int, turned, 1, 2, like=val(turned).transpose(1, 2))
            places[at] = len(outputs), tuple(val(node).shape)
            outputs.append(right)
    end.args = (tuple(outputs),)
    graph.meta[_PRODUCTS] = places


def _product(node: Any, outputs: list[Any], uploads: Handover) -> Node | None:
    """The product that an output is, itself or seen in another shape, if nothing else reads it."""
    if not isinstance(node, Node) or outputs.count(node) > 1:
        return None
    seen = node
    while len(seen.users) == 1 and seen.target in _VIEWS and _whole(seen):
        seen: Any = seen.args[0]
    made = isinstance(seen, Node) and seen.target is aten.bmm.default and len(seen.users) == 1
    return seen if made and uploads.takes(val(seen.args[0]).transpose(1, 2), val(seen.args[1])) else None


def _whole(view: Node) -> bool:
    """Whether it shows all of something, in the same order, client by client."""
    of, now = val(view.args[0]), val(view)
    same = of.is_contiguous() and now.is_contiguous() and now.storage_offset() == 0
    return same and of.numel() == now.numel() and len(of) == len(now)


def products(graph: GraphModule) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Which of a program's outputs are left parts: where the right one is, and the shape of what both stand for."""
    return graph.meta.get(_PRODUCTS, {})


def operands(graph: GraphModule, outputs: list[Any], uploads: Handover) -> list[Any]:
    """The program's results as they were before: products in the places of what they stand for."""
    places = products(graph)
    found: list[Any] = outputs[: len(outputs) - len(places)]
    for at, (right, shape) in places.items():
        found[at] = uploads.product(found[at], outputs[right], shape)
    return found
