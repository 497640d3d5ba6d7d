"""Recorded programs as torch.fx graphs: making nodes, asking what they are, and in whose memory their numbers lie.

Every node with one tensor as its result has `meta["val"]`: a tensor on the device `meta`, with a shape, a type and
strides, and without numbers.
"""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_VIEWS_BY_SHAPE = {
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
"""Views that follow from the shape of their operand, whatever its strides are."""


def insert_call(graph: GraphModule, target: Any, *args: Any, meta: Tensor, **kwargs: Any) -> Node:
    """A new operation at the graph's insertion point, with a result of this shape and type."""
    node = graph.graph.call_function(target, args, kwargs)
    node.meta["val"] = meta
    return node


def meta_of(node: Any) -> Tensor:
    """Its result without numbers."""
    return node.meta["val"]


def calls(graph: GraphModule, *targets: Any) -> list[Node]:
    """All operations, or those of these kinds, in order."""
    nodes = (node for node in graph.graph.nodes if node.op == "call_function")
    return [node for node in nodes if not targets or node.target in targets]


def replace(graph: GraphModule, node: Node, new: Node) -> None:
    """All users of a node read another one; the node is erased."""
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def is_zero(graph: GraphModule, node: Any) -> bool:
    """Whether it is the constant 0."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return False
    value = getattr(graph, str(node.target))
    return value.dim() == 0 and not value.is_complex() and float(value) == 0


def view_source(node: Any) -> Node | None:
    """The operand whose memory a view shows; None for what has memory of its own, or has written to it."""
    call, at = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, 0)
    if not isinstance(call.target, OpOverload):
        return None
    if call.target is aten._unsafe_view.default:
        return call.args[0]
    returns = call.target._schema.returns
    alias = returns[at if len(returns) > 1 else 0].alias_info if returns else None
    if alias is None or alias.is_write:
        return None
    arguments = zip(call.target._schema.arguments, call.args, strict=False)
    sources = (arg for each, arg in arguments if each.alias_info and each.alias_info.before_set & alias.before_set)
    first: Any = call.args[0]  # of operations that give a list of views (split), schemas do not say which operand's
    return next((arg for arg in sources if isinstance(arg, Node)), first)


def base_of(node: Any) -> Any:
    """The operation that made the memory that a node shows, or was the last to write to it."""
    while isinstance(node, Node) and (source := view_source(node)) is not None:
        node = source
    return node


def readers_of(node: Node) -> Iterator[Node]:
    """Operations that read its numbers, directly or through views."""
    for user in node.users:
        if view_source(user) is not None and base_of(user) is base_of(node):
            yield from readers_of(user)
        else:
            yield user


class Place(NamedTuple):
    """The operation that made the memory, and a tensor without numbers of the shape, strides and offset there."""

    root: Node
    view: Tensor


def places(graph: GraphModule) -> dict[Node, Place]:
    """In which memory each tensor lies. Inputs have the strides that they were recorded with; all other memory is taken
    to be contiguous."""
    known: dict[Node, Place] = {}
    for node in graph.graph.nodes:
        if isinstance(meta := node.meta.get("val"), Tensor):
            strides = meta.stride() if node.op == "placeholder" else torch.empty(meta.shape, device="meta").stride()
            whole = torch.empty_strided(meta.shape, strides, dtype=meta.dtype, device="meta")
            known[node] = _place_of_view(node, known) or Place(node, whole)
    return known


def _place_of_view(node: Node, known: dict[Node, Place]) -> Place | None:
    parent: Any = node.args[0] if node.args else None
    if parent not in known or not (node.target in _VIEWS_BY_SHAPE or node.target is aten.as_strided.default):
        return None
    root, view = known[parent]
    whole = (
        root.op != "placeholder"
        and view.is_contiguous()
        and view.storage_offset() == 0
        and meta_of(parent).is_contiguous()
    )
    if node.target is aten.as_strided.default and not whole:
        return None  # its strides may be those of another layout
    try:
        part: Tensor = node.target(view, *node.args[1:], **node.kwargs)  # pyright: ignore[reportCallIssue]
    except RuntimeError:  # these numbers are not where a view could show them
        return None
    same = part.untyped_storage()._cdata == view.untyped_storage()._cdata
    return Place(root, part) if same else None
