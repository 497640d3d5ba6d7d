"""A program's tensor operations as a torch.fx graph: what `vmap`, `grad` and modules come down to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def trace(program: Callable[..., Any], *inputs: Any) -> GraphModule:
    """A graph from the leaves of `inputs` to the leaves of the result, run once on these inputs.

    No operation of it writes to memory: what the program changes in place becomes a new value, for views of it, too.

    Raises:
        RuntimeError: a value decides what is done next.
    """
    leaves, structure = pytree.tree_flatten(inputs)

    def run(*flat: Tensor) -> tuple[Tensor, ...]:
        return tuple(pytree.tree_leaves(program(*pytree.tree_unflatten(flat, structure))))

    graph = make_fx(run)(*leaves)
    if any(_writes(node) for node in graph.graph.nodes):  # apart: functionalize knows no autograd.Function
        graph = make_fx(functionalize(graph, remove="mutations"))(*leaves)
    for node in graph.graph.nodes:
        node.meta = _shape(graph, node)
    return graph


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _shape(graph: GraphModule, node: Node) -> dict[str, Tensor]:
    """What a node says of its result; nothing where it has several."""
    value: Any = getattr(graph, str(node.target)) if node.op == "get_attr" else node.meta.get("val")
    if not isinstance(value, Tensor):
        return {}
    return {"val": torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")}
