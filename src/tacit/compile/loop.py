"""Programs of many steps as a loop: what a few steps are, recorded once and replayed as often as there are steps.

A program is traced on a window of `size` + 2 steps. Where all steps but the first do the same, one after another, its
graph is cut twice: behind the first step, and before the last one. What crosses the first cut (parameters, momentum) is
what crosses the second, one loop later. So there are three graphs, each a function of a window and of what is carried:
how it begins, the loop, how it ends. A program of n loops takes n `size` + 2 steps; neighbouring windows share two.

Nothing of this is taken for granted: steps that differ in more than their data are refused, and the whole is compared
with the plain program on two loops (`acceptance.py`). So is one whose end looks at all steps: a window has but a few.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Program, Refused
from tacit.compile.handover import NOTHING, Handover, announce
from tacit.compile.ir import meta_of, view_source
from tacit.compile.pipeline import fold_constants, share_subexpressions, simplify
from tacit.compile.replay import Recording, traced

aten = torch.ops.aten
_BEFORE = -1  # the step of what depends on none


class Windows(NamedTuple):
    """How a program's inputs are cut: `size` steps of a loop, how many steps inputs have, and those from one on."""

    size: int
    steps: Callable[[tuple[Any, ...]], int]
    cut: Callable[[tuple[Any, ...], int, int], tuple[Any, ...]]  # (inputs, first step, steps)

    @property
    def wide(self) -> int:
        return self.size + 2

    def of(self, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        loops, rest = divmod(self.steps(inputs) - 2, self.size)
        if rest or loops < 1:
            raise ValueError(f"a program of {self.size} steps a loop was given {self.steps(inputs)} steps")
        return [self.cut(inputs, at * self.size, self.wide) for at in range(loops)]


class Cuts(NamedTuple):
    """What crosses the first cut of a window, and, in the same order, the second."""

    first: list[Node]
    second: list[Node]


class Loop:
    """A program that replays its loop as often as its inputs have windows."""

    def __init__(self, begin: Recording, loop: Recording, end: Recording, windows: Windows) -> None:
        self._parts, self._windows = (begin, loop, end), windows

    def __call__(self, *inputs: Any) -> Any:
        return self._run(inputs, self._parts[2])

    def stored(self, *inputs: Any) -> Any:
        """With uploads as tensors, to be compared."""
        return self._run(inputs, self._parts[2].stored)

    def _run(self, inputs: tuple[Any, ...], end: Callable[..., Any]) -> Any:
        begin, loop, _ = self._parts
        windows = self._windows.of(inputs)
        carried = begin(*windows[0])
        for window in windows:
            carried = loop(*window, carried)
        return end(*windows[-1], carried)

    def replace_constants(self, values: Sequence[tuple[Tensor, Tensor]]) -> None:
        """As `Recording.replace_constants`."""
        for part in self._parts:
            part.replace_constants(values)


def loop_of(windows: Windows, program: Program, inputs: tuple[Any, ...], uploads: Handover) -> Loop:
    """A `Maker`: the program as a loop. Raises `Refused` where its steps are not one."""
    first = windows.cut(inputs, 0, windows.wide)
    graph, structure = traced(program, first)
    fold_constants(graph)  # what steps have in common is one
    share_subexpressions(graph)
    cuts = find_cuts(graph, windows.wide)
    results: Any = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    carried = [_like(meta_of(node)) for node in cuts.first]
    many = pytree.tree_structure(carried)

    def part(given: Sequence[Node], wanted: Sequence[Node], form: Any, handover: Handover = NOTHING) -> Recording:
        some = simplify(announce(extract(graph, given, wanted), handover))
        return Recording(some, (*first, carried) if given else first, form, handover)

    begin, loop = part([], cuts.first, many), part(cuts.first, cuts.second, many)
    return Loop(begin, loop, part(cuts.second, list(results), structure, uploads), windows)


def _like(meta: Tensor) -> Tensor:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="meta")


def extract(graph: GraphModule, given: Sequence[Node], wanted: Sequence[Node]) -> GraphModule:
    """What leads from the graph's inputs and these nodes, which become further inputs, to those."""
    new, copies = Graph(), {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = new.node_copy(node)
    for at, node in enumerate(given):
        copies[node] = new.placeholder(f"carried_{at}")
        copies[node].meta = dict(node.meta)
    for node in graph.graph.nodes:
        known = node not in copies and all(parent in copies for parent in node.all_input_nodes)
        if known and node.op in ("get_attr", "call_function"):
            copies[node] = new.node_copy(node, copies.__getitem__)
    new.output(tuple(copies[node] for node in wanted))
    result = GraphModule(graph, new)
    result.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return result


def find_cuts(graph: GraphModule, steps: int) -> Cuts:
    """Raises `Refused` where steps 1 to the last are not the same operations on data of their own."""
    levels = _levels(graph, steps)
    bodies = [[node for node, level in levels.items() if level == step] for step in range(steps - 1)]
    if len(bodies) < 3 or not bodies[1] or any(len(body) != len(bodies[1]) for body in bodies[2:]):
        raise Refused("its steps are not all of the same operations")
    places = {node: (step, at) for step, body in enumerate(bodies) for at, node in enumerate(body)}
    pairs: dict[tuple[Node, Node], None] = {}
    for same in zip(*bodies[1:], strict=True):
        pairs |= {(node, bodies[-1][at]): None for node, at in _carried(same, places)}
    if not pairs:
        raise Refused("nothing is carried from step to step")
    first, second = (list(each) for each in zip(*pairs, strict=True))
    if len({*first}) != len(first) or len({*second}) != len(second):
        raise Refused("what one step carries to the next has two names")
    if any(_format(a) != _format(b) for a, b in pairs):
        raise Refused("what steps carry changes its shape")
    return Cuts(first, second)


def _levels(graph: GraphModule, steps: int) -> dict[Node, int]:
    """The last step that each operation depends on, in order; those that depend on none are left out."""
    levels: dict[Node, int] = {}
    for node in graph.graph.nodes:
        level = max((levels.get(parent, _BEFORE) for parent in node.all_input_nodes), default=_BEFORE)
        if level == _BEFORE and _is_step(node, steps):
            level = int(node.args[2])
        if level != _BEFORE and node.op == "call_function":
            levels[node] = level
    for node in reversed(levels):  # another view of what was made belongs to the step that looks at it
        users = [levels[user] for user in node.users if user in levels]
        if _is_view(node) and not _is_step(node, steps) and len(users) == len(node.users) > 0:
            levels[node] = max(levels[node], min(users))
    return levels


def _is_view(node: Node) -> bool:
    unchanged = node.target in (aten.mul.Scalar, aten.mul.Tensor) and bool(node.args[1] == 1)
    return unchanged or view_source(node) is not None


def _is_step(node: Node, steps: int) -> bool:
    if node.target is not aten.select.int:
        return False
    of, dim, _ = node.args
    return bool(dim == 1 and meta_of(of).dim() > 1 and meta_of(of).shape[1] == steps)


def _format(node: Node) -> Any:
    return meta_of(node).shape, meta_of(node).stride(), meta_of(node).dtype


def _carried(same: Sequence[Node], places: dict[Node, tuple[int, int]]) -> Iterator[tuple[Node, int]]:
    """One operation of all steps between the cuts: of what it reads, that which the step before has made, as the first
    of them reads it, and its place among the operations of its step."""
    forms = [_form(node, step, places) for step, node in enumerate(same, 1)]
    if len(set(forms[1:])) != 1 or same[0].target is not same[1].target:
        raise Refused(f"its steps differ in '{same[0].target}'")
    for first, second in zip(_operands(same[0]), _operands(same[1]), strict=True):
        made, at = places.get(second, (_BEFORE, 0))
        if made == 1:
            yield first, at
        elif made == 0 or (made == _BEFORE and first is not second):
            raise Refused(f"its steps differ in '{same[0].target}'")


def _operands(node: Node) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _form(node: Node, step: int, places: dict[Node, tuple[int, int]]) -> str:
    """Equal for operations that do the same with the data of their step; what was made before counts from there."""

    def name(parent: Node) -> str:
        if parent not in places:
            return parent.name
        made, at = places[parent]
        return f"<{step - made}:{at}>"

    named: Any = torch.fx.map_arg((node.args, node.kwargs), lambda parent: f"<{name(parent)}>")
    args, kwargs = named
    if node.target is aten.select.int and all(parent not in places for parent in node.all_input_nodes):
        args = (*args[:2], args[2] - step)
    return repr((node.target, args, kwargs))
