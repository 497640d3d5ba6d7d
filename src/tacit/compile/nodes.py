"""What passes over recorded programs have in common: making a node, and asking what one is."""

from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node


def given(graph: GraphModule, target: Any, *args: Any, like: Tensor) -> Node:
    """A new operation at the graph's insertion point, whose result is like this."""
    node = graph.graph.call_function(target, args)
    node.meta["val"] = like
    return node


def val(node: Any) -> Tensor:
    """What its result is like: shape, strides and type, without numbers."""
    return node.meta["val"]


def is_zero(graph: GraphModule, node: Any) -> bool:
    """Whether it is the constant 0."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return False
    value = getattr(graph, str(node.target))
    return value.dim() == 0 and not value.is_complex() and float(value) == 0
