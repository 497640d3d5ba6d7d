"""A step's rows, copied once and row by row: straight from all clients' rows, not from a copy of the client's own.

A client's own rows are fetched at the start of a recorded program for what is computed of all of them
(`low_rank_weights.py`). Where nobody does that and every row is met once, fetching them all first is one copy too many.
And whole rows are copied faster (`index_select`) than their numbers one by one (`index`). Row numbers are places in the
federation, so none is negative.

A pass over a recorded program (see pipeline.py).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tacit.compile.nodes import given
from tacit.compile.passes.blocks import picked_rows, shape_of, value

aten = torch.ops.aten


class Step(NamedTuple):
    """A step's rows: row numbers of all steps [clients, steps, batch], or what they are numbers of, and which step."""

    every: Node
    step: int
    block: Node | None = None  # rows of each client that the numbers count, if not all clients'
    clients: Node | None = None


def gathers(graph: GraphModule) -> None:
    found: dict[Any, list[tuple[Node, Step]]] = {}
    for node in graph.graph.nodes:
        if (source := _source(node)) and (step := _step(graph, node)):
            found.setdefault((source, step.every, step.block), []).append((node, step))
    for (source, every, block), nodes in found.items():
        if block is None or shape_of(every)[1:].numel() <= shape_of(block)[1]:  # each row once, or so
            _by_rows(graph, source, nodes)
    for node in [each for each in graph.graph.nodes if each.target is aten.index.Tensor]:
        _whole_rows(graph, node)


def _whole_rows(graph: GraphModule, node: Node) -> None:
    """Any rows that are fetched of a constant, wherever their numbers come from."""
    args: Any = node.args
    source, places = args
    if len(places) != 1 or not isinstance(places[0], Node) or _source(node) is not source:
        return
    numbers = value(places[0])
    if numbers.dtype != torch.int64 or not numbers.is_contiguous():
        return
    several, size = len(value(source)), value(source)[0].numel()
    rows = numbers.numel()
    with graph.graph.inserting_before(node):
        flat = given(graph, aten.view.default, source, [several, size], like=value(source).view(several, size))
        one = given(graph, aten.view.default, places[0], [rows], like=numbers.view(rows))
        taken = given(graph, aten.index_select.default, flat, 0, one, like=value(node).view(rows, size))
        view = given(graph, aten.view.default, taken, list(shape_of(node)), like=value(node))
    node.replace_all_uses_with(view)
    graph.graph.erase_node(node)


def _source(node: Node) -> Node | None:
    """The constant that rows are taken from, perhaps in two steps."""
    while node.target is aten.index.Tensor and isinstance(node.args[0], Node):
        node = node.args[0]
    whole = node.op == "get_attr" and value(node).dim() > 1 and value(node).is_contiguous()
    return node if whole else None


def _step(graph: GraphModule, node: Node) -> Step | None:
    if node.target is not aten.index.Tensor:
        return None
    places: Any = node.args[1]
    if len(places) == 1 and (numbers := _numbers(places[0])):
        return Step(*numbers)
    rows = picked_rows(graph, node)
    numbers = _numbers(rows.picks) if rows and rows.block.args[0] is _source(node) else None
    return Step(*numbers, rows.block, rows.clients) if rows and numbers else None


def _numbers(picks: Any) -> tuple[Node, int] | None:
    """All steps' row numbers [clients, steps, batch], and the step that these are."""
    if not isinstance(picks, Node) or picks.target not in (aten.select.int, aten.as_strided.default):
        return None
    every: Any = picks.args[0]
    of, now = value(every), value(picks)
    if of.dim() != 3 or not of.is_contiguous() or now.shape != (len(of), of.shape[2]):
        return None
    if picks.target is aten.select.int:
        return (every, int(picks.args[2])) if picks.args[1] == 1 else None  # pyright: ignore[reportArgumentType]
    step, rest = divmod(int(picks.args[3]), of.shape[2])  # pyright: ignore[reportArgumentType]
    return (every, step) if now.stride() == (of.stride(0), 1) and not rest and step < of.shape[1] else None


def _by_rows(graph: GraphModule, source: Node, nodes: Iterable[tuple[Node, Step]]) -> None:
    (first, step), *_ = nodes
    with graph.graph.inserting_before(first):
        numbers = _steps_first(graph, step)
        several, size = len(value(source)), value(source)[0].numel()
        flat = given(graph, aten.view.default, source, [several, size], like=value(source).view(several, size))
    for node, (_, at, *_) in nodes:
        clients, batch = shape_of(node)[:2]
        rows = clients * batch
        with graph.graph.inserting_before(node):
            part = given(
                graph, aten.as_strided.default, numbers, [rows], [1], at * rows, like=value(numbers).view(-1)[:rows]
            )
            taken = given(graph, aten.index_select.default, flat, 0, part, like=value(node).view(rows, size))
        _replace(graph, node, taken)


def _steps_first(graph: GraphModule, step: Step) -> Node:
    """Numbers among all clients' rows [steps, clients, batch]."""
    turned = value(step.every).permute(1, 0, 2)
    like = torch.empty(turned.shape, dtype=turned.dtype, device="meta")
    view = given(graph, aten.permute.default, step.every, [1, 0, 2], like=turned)
    numbers = graph.graph.call_function(aten.clone.default, (view,), {"memory_format": torch.contiguous_format})
    numbers.meta["val"] = like
    if step.block is None:
        return numbers
    own: Any = step.block.args[1]
    return given(graph, aten.index.Tensor, own[0], [step.clients, numbers], like=like)


def _replace(graph: GraphModule, node: Node, taken: Node) -> None:
    """Views of the old are views of the new, which lies in memory alike."""
    for user in [user for user in node.users if user.target is aten.as_strided.default]:
        user.replace_input_with(node, taken)
    if node.users:
        with graph.graph.inserting_after(taken):
            view = given(graph, aten.view.default, taken, list(shape_of(node)), like=value(node))
        node.replace_all_uses_with(view)
    graph.graph.erase_node(node)
