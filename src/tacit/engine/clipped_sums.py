"""The sum of clipped uploads without the clipped uploads: what each is multiplied with goes into the sum's weights.

    sum_k w_k (f_k u_k where finite_k, else 0)    as    (w f) @ u,    with f_k = 0 where not finite_k

so a chunk's updates are passed over once less, and never chosen number by number. Zero times NaN is NaN, but only a
client of factor 0 has any: a compiled sum passes it over; without one such numbers first become some that are finite.

A pass over a recorded program (see simplify.py).
"""

from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tacit.engine.square_sums import given, val
from tacit.models.native.sums import suits

aten = torch.ops.aten


class Clipped(NamedTuple):
    """finite_k f_k u_k, or zero, for clients k; and the sums over clients that read it."""

    node: Node
    uploads: Node
    factor: Node  # [clients, 1, ..]
    finite: Node  # [clients, 1, ..]
    sums: list[Node]


def clipped_sums(graph: GraphModule) -> None:
    for node in [each for each in graph.graph.nodes if each.target is aten.where.self]:
        if found := _clipped(graph, node):
            _rewrite(graph, found)


def _clipped(graph: GraphModule, node: Node) -> Clipped | None:
    finite, scaled, nothing = node.args
    if not (is_zero(graph, nothing) and isinstance(scaled, Node) and scaled.target is aten.mul.Tensor):
        return None
    uploads, factor = scaled.args
    if len(scaled.users) > 1 or not all(_of_clients(each, node) for each in (finite, factor)):
        return None
    sums = [_sum(user, node) for user in node.users]
    if not isinstance(uploads, Node) or val(uploads).shape != val(node).shape or not all(sums):
        return None
    fits = val(uploads).is_contiguous() and val(uploads).dtype == val(node).dtype
    return Clipped(node, uploads, factor, finite, sums) if fits else None  # pyright: ignore[reportArgumentType]


def _of_clients(node: Any, like: Node) -> bool:
    """Whether it has one number for each client, which is all the same to its leaves."""
    several = val(like).shape
    return isinstance(node, Node) and val(node).shape == (several[0], *(1 for _ in several[1:])) and len(several) > 1


def _sum(user: Node, of: Node) -> Node | None:
    """weights [levels, clients] @ what is clipped, as [clients, numbers]."""
    if user.target is aten.as_strided.default and len(user.users) == 1:
        view, (user,) = val(user), user.users
    else:
        view = val(of)
    flat = (len(val(of)), val(of)[0].numel())
    rows = tuple(view.shape) == flat and view.is_contiguous() and view.storage_offset() == 0
    whole = user.target is aten.mm.default and isinstance(user.args[0], Node) and user.args[0] is not of
    return user if rows and whole else None


def _rewrite(graph: GraphModule, found: Clipped) -> None:
    clients = len(val(found.node))
    with graph.graph.inserting_before(found.node):
        kept = found.uploads
        if not suits(val(kept)):
            kept = given(graph, aten.nan_to_num.default, kept, like=val(kept))
        numbers = [clients, val(kept)[0].numel()]
        rows = given(graph, aten.view.default, kept, numbers, like=val(kept).view(numbers))
        factor, finite = (
            given(graph, aten.view.default, each, [clients], like=val(each).reshape(clients))
            for each in (found.factor, found.finite)
        )
        nothing: Any = found.node.args[2]
        factors = given(graph, aten.where.self, finite, factor, nothing, like=val(factor))
    for total in dict.fromkeys(found.sums):
        weights: Any = total.args[0]
        with graph.graph.inserting_before(total):
            scaled = given(graph, aten.mul.Tensor, weights, factors, like=val(weights))
            by = torch.ops.tacit.weighted_sum.default if suits(val(kept)) else aten.mm.default
            new = given(graph, by, scaled, rows, like=val(total))
        total.replace_all_uses_with(new)


def is_zero(graph: GraphModule, node: Any) -> bool:
    """Whether it is the constant 0."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return False
    value = getattr(graph, str(node.target))
    return value.dim() == 0 and not value.is_complex() and float(value) == 0
