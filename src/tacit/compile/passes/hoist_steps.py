"""What every step does alike to its part of what is given (masks, counts, targets), done for all steps at once.

Where clients are few, a step takes as long as it has operations, however small they are. These become one operation of
a program instead of one of each step: the same arithmetic, on a tensor with one dimension more.

A pass over a recorded program (see pipeline.py). It looks for equal expressions of x[:, 0], x[:, 1], .., makes the
expression of one step a function, and writes down `vmap` of it over the steps.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule, Node

from tacit.compile.ir import insert_constant, meta_of, trace

aten = torch.ops.aten
_FEWEST = 3  # steps that are worth it
_LARGEST = 4096  # numbers of a client's step: what is larger stays where it is used, in a core's cache


class Part(NamedTuple):
    """A node of one step: what it has in common with other steps' (as a number), and which step."""

    form: int
    step: int


def hoist_steps(graph: GraphModule) -> None:
    """Only what other operations read is replaced; what led to it is then unused."""
    parts = _parts(graph)
    forms: dict[int, list[Node]] = {}
    for node, part in parts.items():
        if not _is_step(node) and any(user not in parts for user in node.users):
            forms.setdefault(part.form, []).append(node)
    for nodes in forms.values():
        if len({parts[node].step for node in nodes}) >= _FEWEST:
            _replace(graph, nodes, parts)


def _is_step(node: Node) -> bool:
    return node.target is aten.select.int and bool(node.args[1] == 1)


def _parts(graph: GraphModule) -> dict[Node, Part]:
    """Every node that depends on one step of something, and on nothing else but constants."""
    parts: dict[Node, Part] = {}
    forms: dict[Any, int] = {}
    for node in graph.graph.nodes:
        if (step := _step(node, parts)) is not None:
            parts[node] = Part(forms.setdefault(_form(node, parts), len(forms)), step)
    return parts


def _step(node: Node, parts: dict[Node, Part]) -> int | None:
    if node.op != "call_function":
        return None
    if _is_step(node) and node.args[0] not in parts:
        return int(node.args[2])  # pyright: ignore[reportArgumentType]
    steps = {parts[each].step for each in node.all_input_nodes if each in parts}
    known = all(each in parts or each.op == "get_attr" for each in node.all_input_nodes)
    return steps.pop() if known and len(steps) == 1 and _small(node) else None


def _small(node: Node) -> bool:
    """Whether it is an operation that makes little of little, and draws nothing."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or not isinstance(value, Tensor):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or value.dim() == 0 or value.numel() > _LARGEST * len(value):
        return False
    return target is not aten.index.Tensor or meta_of(node.args[0]).dim() == 1


def _form(node: Node, parts: dict[Node, Part]) -> Any:
    """Equal for nodes that do the same to another step of the same."""
    if _is_step(node) and node.args[0] not in parts:
        return node.args[0]
    names = {each: f"{parts[each].form}" if each in parts else each.target for each in node.all_input_nodes}
    args, kwargs = (torch.fx.map_arg(a, lambda each: f"<{names[each]}>") for a in (node.args, node.kwargs))
    return node.target, repr(args), repr(kwargs)


def _replace(graph: GraphModule, nodes: list[Node], parts: dict[Node, Part]) -> None:
    first = nodes[0]
    steps = [each for each in _ancestors(first, parts) if _is_step(each) and each.args[0] not in parts]
    every: list[Any] = [each.args[0] for each in steps]
    if len({meta_of(each).shape[1] for each in every}) != 1:
        return
    with graph.graph.inserting_before(_after(graph, every)):
        whole = _inline(graph, _over_steps(_one_step(graph, first, steps, parts)), every)
    one = meta_of(whole).select(0, 0)
    if not one.is_contiguous() and one.stride() != meta_of(first).stride():  # whoever reads it may want a view
        return
    for node in nodes:
        with graph.graph.inserting_before(node):
            part = graph.graph.call_function(aten.select.int, (whole, 0, parts[node].step))
        part.meta = dict(node.meta) | {"val": one}
        node.replace_all_uses_with(part, lambda user: user not in parts)


def _after(graph: GraphModule, operands: list[Node]) -> Node:
    """The first operation that may read all of these: others may want the result early."""
    left = set(operands)
    for node in graph.graph.nodes:
        if not left and node.op != "placeholder":
            return node
        left.discard(node)
    raise AssertionError("a graph ends with its output")


def _ancestors(node: Node, parts: dict[Node, Part]) -> list[Node]:
    """What leads from steps to a node, itself the last."""
    visited: dict[Node, None] = {}

    def visit(each: Node) -> Iterator[Node]:
        if each in parts and each not in visited:
            for parent in each.all_input_nodes:
                yield from visit(parent)
            visited[each] = None
            yield each

    return list(visit(node))


def _one_step(graph: GraphModule, node: Node, steps: list[Node], parts: dict[Node, Part]) -> Callable[..., Tensor]:
    todo = [each for each in _ancestors(node, parts) if each not in steps]

    def run(*inputs: Tensor) -> Tensor:
        known = dict(zip(steps, inputs, strict=True))
        for each in todo:
            value = lambda parent: known[parent] if parent in known else getattr(graph, str(parent.target))  # noqa: E731
            args, kwargs = (torch.fx.map_arg(a, value) for a in (each.args, each.kwargs))
            known[each] = each.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        return known[node]

    return run


def _over_steps(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Steps first, so that one of them lies in memory as if it had been computed alone."""
    return lambda *inputs: vmap(program)(*(each.movedim(1, 0).contiguous() for each in inputs))


def _inline(graph: GraphModule, program: Callable[..., Tensor], operands: list[Node]) -> Node:
    """The program's operations on these nodes, written where the insertion point is."""
    zeros = [torch.zeros(meta_of(each).shape, dtype=meta_of(each).dtype) for each in operands]
    inner = trace(program, *zeros)
    placeholders = iter(operands)
    copies: dict[Node, Node] = {}
    for node in inner.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(placeholders)
        elif node.op == "get_attr":
            copies[node] = insert_constant(graph, getattr(inner, str(node.target)))
        elif node.op == "output":
            return copies[node.args[0][0]]
        else:
            copies[node] = graph.graph.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph ends with its output")
