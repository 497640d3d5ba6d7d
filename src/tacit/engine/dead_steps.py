"""Steps that only pad a client, without a second copy of its weights.

A padded step is a choice, weight by weight, between W + c D X and W. It is the same to choose between D and zeros,
which are few: what is added is then exactly nothing, and the weights can be updated where they lie.

A pass over a recorded program (see simplify.py).
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def dead_steps(graph: GraphModule) -> None:
    for node in [each for each in graph.graph.nodes if each.target is aten.where.self]:
        live, new, old = node.args
        if _skipped_product(live, new, old):
            _, factor, rows = new.args
            with graph.graph.inserting_before(node):
                kept = _where_live(graph, live, factor)
                moved = graph.graph.call_function(aten.baddbmm.default, (old, kept, rows), dict(new.kwargs))
            moved.meta = dict(new.meta)
            node.replace_all_uses_with(moved)
            graph.graph.erase_node(node)
            graph.graph.erase_node(new)


def _skipped_product(live: Any, new: Any, old: Any) -> bool:
    """Whether it is `old`, or `old` and a product, chosen for a client as a whole."""
    return (
        isinstance(live, Node)
        and isinstance(new, Node)
        and new.target is aten.baddbmm.default
        and new.args[0] is old
        and bool(new.kwargs.get("beta", 1) == 1)
        and len(new.users) == 1
        and tuple(live.meta["val"].shape) == (len(new.meta["val"]), 1, 1)
    )


def _where_live(graph: GraphModule, live: Node, factor: Any) -> Node:
    dead = graph.graph.call_function(aten.logical_not.default, (live,))
    dead.meta["val"] = torch.empty_like(live.meta["val"])
    kept = graph.graph.call_function(aten.masked_fill.Scalar, (factor, dead, 0))
    kept.meta["val"] = torch.empty_like(factor.meta["val"])
    return kept
