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

from tacit.compile.ir import calls, insert_call, meta_of, replace

aten, ours = torch.ops.aten, torch.ops.tacit
_PRODUCTS: dict[Any, int] = {aten.baddbmm.default: 1, ours.add_rows.default: 2}
"""Operations that add a product to their first operand, and which operand of it is masked."""


def mask_padding(graph: GraphModule) -> None:
    """Choices for a client as a whole between weights with and without a step become masks of the step's gradient."""
    masks = _Masks(graph)
    for node in calls(graph, aten.where.self):
        live, new, old = node.args
        if not isinstance(live, Node) or not isinstance(new, Node) or len(new.users) > 1 or new.args[:1] != (old,):
            continue
        if new.target in _PRODUCTS and _adds_to_whole(new) and _is_by_client(live, meta_of(new)):
            masks.mask_product(node)
        elif new.target is aten.add.Tensor and _is_by_client(live, meta_of(new)):
            masks.mask_sum(node)


def _adds_to_whole(product: Node) -> bool:
    beta: Any = product.args[4] if product.target is ours.add_rows.default else product.kwargs.get("beta", 1)
    return beta == 1


def _is_by_client(live: Node, result: torch.Tensor) -> bool:
    """Whether a condition has one value for each client."""
    return tuple(meta_of(live).shape) == (len(result), *[1] * (result.dim() - 1))


def _sum_over_batch(node: Any) -> Node | None:
    """The sum over the batch that it is, or is a view of, if nobody else reads it."""
    while isinstance(node, Node) and len(node.users) == 1 and node.target is aten.as_strided.default:
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not aten.sum.dim_IntList or len(node.users) > 1:
        return None
    return node if node.args[1] == [1] and meta_of(node.args[0]).dim() == 3 else None


@dataclass
class _Masks:
    graph: GraphModule
    negated: dict[Node, Node] = field(default_factory=dict)
    masked: dict[Any, Node] = field(default_factory=dict)

    @cached_property
    def order(self) -> dict[Node, int]:
        return {node: at for at, node in enumerate(self.graph.graph.nodes)}

    def mask_product(self, node: Node) -> None:
        args: Any = node.args
        live, new, _ = args
        at = _PRODUCTS[new.target]
        masked = self._masked_view(live, new.args[at])
        with self.graph.graph.inserting_before(node):
            factor = new.args[at]
            masked = masked or insert_call(self.graph, aten.masked_fill.Scalar, factor, self._dead(live), 0)
            operands = [*new.args[:at], masked, *new.args[at + 1 :]]
            product = insert_call(self.graph, new.target, *operands, **new.kwargs)
        replace(self.graph, node, product)
        self.graph.graph.erase_node(new)

    def mask_sum(self, node: Node) -> None:
        args: Any = node.args
        live, new, _ = args
        total = _sum_over_batch(new.args[1])
        masked = None if total is None else self._masked(live, total.args[0])
        if total is not None and masked is not None:
            total.update_arg(0, masked)
            replace(self.graph, node, new)

    def _masked_view(self, live: Node, factor: Any) -> Node | None:
        """The same view of what was masked where it was made."""
        if factor.target not in (aten.as_strided.default, aten.transpose.int):
            return self._masked(live, factor)
        source = factor.args[0]
        shape, stride = (meta_of(source).shape[:1], meta_of(source).stride(0))
        masked = self._masked(live, source) if shape == meta_of(factor).shape[:1] else None
        if masked is None or (factor.target is aten.as_strided.default and stride != meta_of(factor).stride(0)):
            return None
        with self.graph.graph.inserting_after(factor):
            return insert_call(self.graph, factor.target, masked, *factor.args[1:])

    def _masked(self, live: Node, factor: Any) -> Node | None:
        """Zeros for clients that skip the step, right after it was made; None where nobody knows yet who skips it."""
        known = self._known_early(live, factor)
        if not known:
            return None
        key = factor, *known
        if key not in self.masked:
            base, at = known
            shape = [len(meta_of(factor)), 1, 1]
            with self.graph.graph.inserting_after(factor):
                dead = insert_call(self.graph, aten.as_strided.default, self._dead(base), shape, [1, 1, 1], at)
            with self.graph.graph.inserting_after(dead):
                self.masked[key] = insert_call(self.graph, aten.masked_fill.Scalar, factor, dead, 0)
        return self.masked[key]

    def _known_early(self, live: Node, factor: Any) -> tuple[Node, int] | None:
        """All steps' live clients, where they were made before the factor, and where this step's begin."""
        meta = meta_of(factor)
        if live.target is not aten.as_strided.default or meta.dim() != 3 or not meta.is_contiguous():
            return None
        base, _, strides, at = live.args
        known = self.order.get(base, len(self.order)) < self.order.get(factor, -1)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return (base, at) if known and strides[0] == 1 else None  # pyright: ignore[reportReturnType, reportOptionalSubscript, reportIndexIssue, reportArgumentType]

    def _dead(self, live: Node) -> Node:
        if live not in self.negated:
            with self.graph.graph.inserting_after(live):
                self.negated[live] = insert_call(self.graph, aten.logical_not.default, live)
        return self.negated[live]
