"""What a program's first results are for: somebody else, who says in which forms they may be handed over.

The privacy room is that somebody. This room knows nothing of it: neither what becomes of a result nor by which rules.

What steps add to a first layer is y' x, shares times a client's rows (`passes/low_rank_weights.py`). Where nobody but
the other side asks for it, the program ends with y and x, and the numbers are made there. This is all that a pass can
do about an upload: say how it is represented.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile.ir import insert_call, meta_of

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten.as_strided.default)
_HANDOVER, _PRODUCTS = "handover", "products"  # of a graph's meta


def _as_it_is(leaf: Any) -> Tensor:
    return leaf


class Handover(NamedTuple):
    """The first `leaves` results. A pass may hand over a product of two tensors instead of a stored one, where it is
    taken: `product(left, right, shape)` stands for left' right of each client, in this shape."""

    leaves: int = 0
    takes: Callable[[Tensor, Tensor], bool] = lambda left, right: False
    product: Callable[[Tensor, Tensor, tuple[int, ...]], Any] = lambda left, right, shape: None
    stored: Callable[[Any], Tensor] = _as_it_is


NOTHING = Handover()


def announce(graph: GraphModule, handover: Handover) -> GraphModule:
    """The graph, with a note for the pass below."""
    graph.meta[_HANDOVER] = handover
    return graph


def hand_over_products(graph: GraphModule) -> None:
    """Makes products of those outputs that are, and may be handed over as such; see `operands`. A pass."""
    handover: Handover = graph.meta.get(_HANDOVER, NOTHING)
    end = next(node for node in graph.graph.nodes if node.op == "output")
    results: Any = end.args[0]
    outputs: list[Any] = list(results)
    places: dict[int, tuple[int, tuple[int, ...]]] = {}
    for at, node in enumerate(outputs[: handover.leaves]):
        if (product := _product(node, outputs, handover)) is not None:
            turned, right = product.args
            with graph.graph.inserting_before(end):
                outputs[at] = insert_call(graph, aten.transpose.int, turned, 1, 2)
            places[at] = len(outputs), tuple(meta_of(node).shape)
            outputs.append(right)
    end.args = (tuple(outputs),)
    graph.meta[_PRODUCTS] = places


def _product(node: Any, outputs: list[Any], handover: Handover) -> Node | None:
    """The product that an output is, itself or seen in another shape, if nothing else reads it."""
    if not isinstance(node, Node) or outputs.count(node) > 1:
        return None
    seen: Any = node
    while len(seen.users) == 1 and seen.target in _VIEWS and _whole(seen):
        seen = seen.args[0]
    made = isinstance(seen, Node) and seen.target is aten.bmm.default and len(seen.users) == 1
    return seen if made and handover.takes(meta_of(seen.args[0]).transpose(1, 2), meta_of(seen.args[1])) else None


def _whole(view: Node) -> bool:
    """Whether it shows all of something, in the same order, client by client."""
    source, shown = meta_of(view.args[0]), meta_of(view)
    same = source.is_contiguous() and shown.is_contiguous() and shown.storage_offset() == 0
    return same and source.numel() == shown.numel() and len(source) == len(shown)


def products(graph: GraphModule) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Which of a program's outputs are left parts: where the right one is, and the shape of what both stand for."""
    return graph.meta.get(_PRODUCTS, {})


def operands(graph: GraphModule, outputs: list[Any]) -> list[Any]:
    """The program's results as they were before: products in the places of what they stand for."""
    places, handover = products(graph), graph.meta.get(_HANDOVER, NOTHING)
    results: list[Any] = outputs[: len(outputs) - len(places)]
    for at, (right, shape) in places.items():
        results[at] = handover.product(results[at], outputs[right], shape)
    return results
