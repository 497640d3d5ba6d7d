"""Steps that only pad a client, without a second copy of its weights.

A padded step is a choice, weight by weight, between W + c D X and W. It is the same to choose between D and zeros,
which are few: what is added is then exactly nothing, and the weights can be updated where they lie. A bias moves by
the sum of the same D, so that it needs no choice of its own.

A pass over a recorded program (see pipeline.py).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.nodes import given
from tacit.compile.passes.blocks import shape_of, value

aten = torch.ops.aten


def dead_steps(graph: GraphModule) -> None:
    steps = _DeadSteps(graph)
    for node in [each for each in graph.graph.nodes if each.target is aten.where.self]:
        live, new, old = node.args
        if _skipped_product(live, new, old):
            steps.skip_product(node)
        elif _skipped_sum(live, new, old):
            steps.skip_sum(node)


def _skipped_product(live: Any, new: Any, old: Any) -> bool:
    """Whether it is `old`, or `old` and a product, chosen for a client as a whole."""
    return (
        isinstance(live, Node)
        and isinstance(new, Node)
        and new.target is aten.baddbmm.default
        and new.args[0] is old
        and bool(new.kwargs.get("beta", 1) == 1)
        and len(new.users) == 1
        and tuple(shape_of(live)) == (len(value(new)), 1, 1)
    )


def _skipped_sum(live: Any, new: Any, old: Any) -> bool:
    """Whether it is `old`, or `old` and a sum over a batch, chosen for a client as a whole."""
    if not isinstance(live, Node) or not isinstance(new, Node) or new.target is not aten.add.Tensor:
        return False
    total = _sum_of(new.args[1])
    return (
        new.args[0] is old
        and len(new.users) == 1
        and total is not None
        and len(shape_of(live)) == len(shape_of(new))
        and tuple(shape_of(live)) == (len(value(total)), *(1 for _ in shape_of(live)[1:]))
    )


def _sum_of(node: Any) -> Node | None:
    """The sum over the batch that it is, or is a view of, if nobody else reads it."""
    while isinstance(node, Node) and len(node.users) == 1 and node.target is aten.as_strided.default:
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.sum.dim_IntList or len(node.users) > 1:
        return None
    return node if node.args[1] == [1] and value(node.args[0]).dim() == 3 else None


@dataclass
class _DeadSteps:
    graph: GraphModule
    negated: dict[Node, Node] = field(default_factory=dict)
    masked: dict[Any, Node] = field(default_factory=dict)

    @cached_property
    def order(self) -> dict[Node, int]:
        return {node: at for at, node in enumerate(self.graph.graph.nodes)}

    def skip_product(self, node: Node) -> None:
        live: Any
        live, new, old = node.args
        _, factor, rows = new.args  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        kept = self._masked_view(live, factor)
        with self.graph.graph.inserting_before(node):
            kept = kept or given(self.graph, aten.masked_fill.Scalar, factor, self._dead(live), 0, like=value(factor))
            moved = self.graph.graph.call_function(aten.baddbmm.default, (old, kept, rows), dict(new.kwargs))  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        moved.meta = dict(node.meta)
        self._replace(node, moved)

    def skip_sum(self, node: Node) -> None:
        live: Any
        live, new, _ = node.args
        total = _sum_of(new.args[1])  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        kept = None if total is None else self._masked(live, total.args[0])
        if total is not None and kept is not None:
            total.replace_input_with(total.args[0], kept)  # pyright: ignore[reportArgumentType]
            node.replace_all_uses_with(new)  # pyright: ignore[reportArgumentType]
            self.graph.graph.erase_node(node)

    def _replace(self, node: Node, moved: Node) -> None:
        new: Any = node.args[1]
        node.replace_all_uses_with(moved)
        self.graph.graph.erase_node(node)
        self.graph.graph.erase_node(new)

    def _masked_view(self, live: Node, factor: Any) -> Node | None:
        """The same view of what was masked where it was made."""
        if factor.target is not aten.as_strided.default:
            return self._masked(live, factor)
        whole = factor.args[0]
        if shape_of(whole)[:1] != shape_of(factor)[:1] or value(whole).stride(0) != value(factor).stride(0):
            return None
        kept = self._masked(live, whole)
        if kept is None:
            return None
        with self.graph.graph.inserting_after(factor):
            return given(self.graph, aten.as_strided.default, kept, *factor.args[1:], like=value(factor))

    def _masked(self, live: Node, factor: Any) -> Node | None:
        """Zeros for clients that skip the step, right after it was made; None where nobody knows yet who skips it."""
        known = self._known_early(live, factor)
        if not known:
            return None
        key = factor, *known
        if key not in self.masked:
            base, at = known
            clients = len(value(factor))
            like = torch.empty(clients, 1, 1, dtype=torch.bool, device="meta")
            with self.graph.graph.inserting_after(factor):
                view = given(
                    self.graph, aten.as_strided.default, self._dead(base), [clients, 1, 1], [1, 1, 1], at, like=like
                )
            with self.graph.graph.inserting_after(view):
                self.masked[key] = given(self.graph, aten.masked_fill.Scalar, factor, view, 0, like=value(factor))
        return self.masked[key]

    def _known_early(self, live: Node, factor: Any) -> tuple[Node, int] | None:
        """All steps' live clients, where they were made before the factor, and where this step's begin."""
        if live.target is not aten.as_strided.default or value(factor).dim() != 3 or not value(factor).is_contiguous():
            return None
        base, _, strides, at = live.args
        known = self.order.get(base, len(self.order)) < self.order.get(factor, -1)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return (base, at) if known and strides[0] == 1 else None  # pyright: ignore[reportReturnType, reportOptionalSubscript, reportIndexIssue, reportArgumentType]

    def _dead(self, live: Node) -> Node:
        if live not in self.negated:
            with self.graph.graph.inserting_after(live):
                self.negated[live] = given(self.graph, aten.logical_not.default, live, like=value(live))
        return self.negated[live]
