"""Where the numbers of a recorded program's tensors lie: views followed back to the memory that they show.

What the program is given lies as it did when it was recorded; all other memory is taken to be unbroken, in the order of
its own tensor's shape.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_BY_SHAPE = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.transpose.int,
    aten.t.default,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}
"""Views that follow from the shape of what they show, however it lies in memory."""


class Place(NamedTuple):
    """The operation that made the memory, and a tensor without numbers of the shape, strides and offset there."""

    root: Node
    at: Tensor


def places(graph: GraphModule) -> dict[Node, Place]:
    found: dict[Node, Place] = {}
    for node in graph.graph.nodes:
        if isinstance(like := node.meta.get("val"), Tensor):
            found[node] = _view(node, found) or Place(node, _laid(like, node.op == "placeholder"))
    return found


def _laid(like: Tensor, given: bool) -> Tensor:
    if given:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    return torch.empty(like.shape, dtype=like.dtype, device="meta")


def _view(node: Node, found: dict[Node, Place]) -> Place | None:
    parent: Any = node.args[0] if node.args else None
    if parent not in found or not (node.target in _BY_SHAPE or node.target is aten.as_strided.default):
        return None
    root, at = found[parent]
    unbroken = (
        root.op != "placeholder"
        and at.is_contiguous()
        and at.storage_offset() == 0
        and parent.meta["val"].is_contiguous()
    )
    if node.target is aten.as_strided.default and not unbroken:
        return None  # it may speak of another layout
    try:
        shown: Tensor = node.target(at, *node.args[1:], **node.kwargs)  # pyright: ignore[reportCallIssue]
    except RuntimeError:  # these numbers are not where a view could show them
        return None
    same = shown.untyped_storage()._cdata == at.untyped_storage()._cdata
    return Place(root, shown) if same else None


def _whole(at: Tensor, node: Node) -> bool:
    """Whether a node's numbers are its memory's, from the first on, and were when it was recorded."""
    return at.is_contiguous() and at.storage_offset() == 0 and node.meta["val"].is_contiguous()
