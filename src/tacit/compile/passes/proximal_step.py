"""Steps of weights that are drawn to others, in two operations instead of three or four:

    W + c (g + l (W - w))    as    ((1 + c l) W - c l w) + c g

A pass over a recorded program (see pipeline.py), where kernels are compiled: `blend` is one trip over W and w.
"""

from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tacit.compile.kernels.build import library
from tacit.compile.nodes import given, val

aten, ours = torch.ops.aten, torch.ops.tacit


_PLACES: dict[Any, tuple[int, str]] = {aten.baddbmm.default: (0, "beta"), aten.add.Tensor: (1, "alpha")}
"""Where an operation has what it adds to a gradient, and what it is multiplied with."""


class Pull(NamedTuple):
    """What a step adds besides its gradient: `strength` (W - `towards`)."""

    strength: float
    towards: Node


def pulls(graph: GraphModule) -> None:
    if library() is None:
        return
    for node in [each for each in graph.graph.nodes if each.target is aten.add.Tensor]:
        weights, step = node.args
        pull = _pull(weights, step) if val(node).dtype == torch.float32 else None
        if pull is not None and val(weights).shape == val(node).shape:
            _rewrite(graph, node, pull)


def _pull(weights: Any, step: Any) -> Pull | None:
    if not isinstance(step, Node) or len(step.users) > 1:
        return None
    if step.target not in _PLACES:
        return None
    place, name = _PLACES[step.target]
    apart: Any = step.args[place]
    drawn = isinstance(apart, Node) and apart.target is aten.sub.Tensor and apart.args[0] is weights
    towards: Any = apart.args[1] if drawn and not apart.kwargs else None
    return Pull(_number(step, name), towards) if isinstance(towards, Node) else None


def _rewrite(graph: GraphModule, node: Node, pull: Pull) -> None:
    args: Any = node.args
    weights, step = args
    scale = _number(node, "alpha")
    share = scale * pull.strength
    with graph.graph.inserting_before(node):
        start = given(graph, ours.blend.default, weights, pull.towards, 1 + share, -share, like=val(weights))
        if step.target is aten.baddbmm.default:
            new = given(graph, aten.baddbmm.default, start, *step.args[1:], like=val(node))
            new.kwargs = {"beta": 1, "alpha": scale * _number(step, "alpha")}
        else:
            new = given(graph, aten.add.Tensor, start, step.args[0], like=val(node))
            new.kwargs = {"alpha": scale}
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def _number(node: Node, name: str) -> float:
    value: Any = node.kwargs.get(name, 1)
    return float(value)
