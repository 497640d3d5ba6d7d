"""Small operations that every client does with numbers of its own, one client after another in compiled code.

Where networks are small, starting an operation of torch takes as long as doing it for all clients of a chunk, and what
one leaves behind has left a core's cache before the next wants it. Here a run of such operations (products of small
matrices, element-wise work, sums along a dimension) becomes one: all of them for the first client, then for the second.
What only the run itself reads is never stored for more than one client.

A pass over a recorded program (see pipeline.py). Operations are drafted one by one (`lower.py`); a run takes as many
as do not wait for anything outside that waits for the run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tacit.compile.client_loop.lower import Draft, Read, drafts
from tacit.compile.client_loop.predicate import Mask, skips
from tacit.compile.kernels.build import library
from tacit.compile.kernels.native_client_loop import OWN, Operand, Operation, written
from tacit.compile.layout import places
from tacit.compile.nodes import given, val
from tacit.compile.trace import item

aten = torch.ops.aten
_BY_CLIENT = (aten.bmm.default, aten.baddbmm.default)
_FEWEST = 6  # operations that are worth a call
_PATIENCE = 200  # operations without one that joins, after which a run is over
_LINE = 16  # numbers that memory comes in


def each_client(graph: GraphModule) -> None:
    several = Counter(len(val(node)) for node in graph.graph.nodes if node.target in _BY_CLIENT)
    clients = several.most_common(1)[0][0] if several else 0
    if clients > 1 and library() is not None:
        _Pass(graph, clients).rewrite()


def _constants_first(graph: GraphModule) -> list[Node]:
    """All nodes, in an order in which constants wait for nothing."""
    first = next(node for node in graph.graph.nodes if node.op not in ("placeholder", "get_attr"))
    for constant in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        first.prepend(constant)
    return list(graph.graph.nodes)


@dataclass
class _Run:
    """Operations in order, and the first one outside that waits for any of them: the run is done right before it."""

    members: dict[Node, Draft] = field(default_factory=dict)
    waiting: dict[Node, None] = field(default_factory=dict)

    @property
    def before(self) -> Node | None:
        return next(iter(self.waiting), None)


class _Pass:
    def __init__(self, graph: GraphModule, clients: int) -> None:
        self.graph, self.clients = graph, clients
        self.nodes = _constants_first(graph)
        self.order = {node: at for at, node in enumerate(self.nodes)}
        self.places = places(graph)
        self.drafts = drafts(graph, self.places, clients)
        self.made: dict[Node, Node] = {}  # by runs: what an operation's result is now

    def rewrite(self) -> None:
        for at, node in enumerate(self.nodes):
            if node not in self.drafts:
                continue
            run = self._run(at)
            if len(run.members) >= _FEWEST:  # none of which is unused: somebody outside waits for it
                self._write(run)
                for member in run.members:
                    del self.drafts[member]
            else:
                del self.drafts[node]

    def _run(self, start: int) -> _Run:
        run, joined = _Run(), start
        for at, node in enumerate(self.nodes[start:], start):
            if at > joined + _PATIENCE:
                break
            if self._is_view(node) or node.op in ("placeholder", "get_attr"):
                continue
            roots = [self._root(each) for each in node.all_input_nodes]
            waits = any(root in run.waiting for root in roots)
            if node in self.drafts and not waits and all(self._readable(run, each) for each in self.drafts[node].reads):
                run.members[node], joined = self.drafts[node], at
            elif waits or any(root in run.members for root in roots):
                run.waiting[node] = None
        return run

    def _readable(self, run: _Run, read: Read) -> bool:
        if read.root in run.members:
            return read.own(val(read.root).numel() // self.clients)
        before = run.before
        return before is None or read.root in self.made or self.order[read.root] < self.order[before]

    def _is_view(self, node: Node) -> bool:
        return self._root(node) is not node

    def _root(self, node: Node) -> Node:
        return self.places[node].root if node in self.places else node

    def _write(self, run: _Run) -> None:
        asked = [node for node in run.members if any(user not in run.members for user in self._readers(node))]
        outside = (user for node in asked for user in self._readers(node) if user not in run.members)
        before = min(outside, key=self.order.__getitem__)
        memory = _Memory(self.clients, run.members, asked)
        operations = {node: memory.operation(node) for node in run.members}
        passed = skips(run.members, asked, memory.in_place)
        numbers, factors = written([memory.unless(each, passed.get(node)) for node, each in operations.items()])
        laid = [root for root in memory.inputs if root.op == "placeholder"]
        inputs = [self.made.get(root, root) for root in memory.inputs[len(laid) :]]
        widths = [val(root).dtype.itemsize for root in memory.inputs]
        sizes = [val(node).numel() // self.clients for node in asked]
        with self.graph.graph.inserting_before(before):
            lists = [self._constant(each) for each in (numbers, factors)]
            done = self.graph.graph.call_function(
                torch.ops.tacit.each_client.default, (laid, inputs, widths, *lists, sizes, self.clients, memory.most)
            )
            for at, node in enumerate(asked):
                self.made[node] = self._output(done, at, node)
        self._replace(run, before)

    def _readers(self, node: Node) -> Iterator[Node]:
        """Itself or through views."""
        for user in node.users:
            if self._is_view(user):
                yield from self._readers(user)
            else:
                yield user

    def _constant(self, value: torch.Tensor) -> Node:
        name = f"_each_client_{sum(1 for _ in self.graph.buffers())}"
        self.graph.register_buffer(name, value)
        constant = self.graph.graph.get_attr(name)
        constant.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="meta")
        return constant

    def _output(self, done: Node, at: int, node: Node) -> Node:
        like = torch.empty(val(node).shape, dtype=val(node).dtype, device="meta")
        part = given(self.graph, item, done, at, like=like.view(self.clients, -1))
        return given(self.graph, aten.view.default, part, list(like.shape), like=like)

    def _replace(self, run: _Run, before: Node) -> None:
        """Views of what the run makes come after it."""
        views = [n for n in self.nodes if self._root(n) in run.members and n not in run.members]
        for view in views:
            if self.order[view] < self.order[before]:
                before.prepend(view)
        for node in run.members:
            if node in self.made:
                node.replace_all_uses_with(self.made[node], lambda user: user not in run.members)
        gone = sorted([*run.members, *views], key=self.order.__getitem__, reverse=True)
        for node in gone:
            if not node.users:
                self.graph.graph.erase_node(node)


class _Memory:
    """Which memory a run's operations read and write: inputs, outputs, and places of its own that are used again."""

    def __init__(self, clients: int, members: dict[Node, Draft], asked: Sequence[Node]) -> None:
        self.clients, self.members = clients, members
        roots = (read.root for draft in members.values() for read in draft.reads)
        inputs = dict.fromkeys(root for root in roots if root not in members)
        self.inputs = sorted(inputs, key=lambda root: root.op != "placeholder")
        self.most = 0
        self.in_place: set[Node] = set()
        self._free: dict[int, list[int]] = {}
        self._last = {read.root: node for node, draft in members.items() for read in draft.reads}
        outputs = OWN + 1 + len(self.inputs)
        self._at: dict[Node, tuple[int, int]] = {root: (OWN + 1 + at, 0) for at, root in enumerate(self.inputs)}
        self._at |= {node: (outputs + at, 0) for at, node in enumerate(asked)}

    def operation(self, node: Node) -> Operation:
        """Of the next one: they are asked for in order."""
        draft = self.members[node]
        operands = tuple(self._operand(read) for read in draft.reads)
        over = self._dies(node, draft.over)
        if over and node not in self._at:
            self._at[node] = self._at[over]
            self.in_place.add(node)
        elif node not in self._at:
            self._at[node] = OWN, self._taken(self._size(node))
        for root in {read.root for read in draft.reads} - ({over} if node in self.in_place else set()):
            if self._dies(node, root):
                self._free.setdefault(self._size(root), []).append(self._at[root][1])
        memory, offset = self._at[node]
        to = Operand(memory, offset, 0 if memory == OWN else self._size(node), draft.to)
        return Operation(draft.kind, draft.sizes, to, operands, draft.depth, draft.alpha, draft.beta)

    def unless(self, operation: Operation, mask: Mask | None) -> Operation:
        """The same, passed over by clients for which the mask is true."""
        if mask is None:
            return operation
        memory, offset = self._at[mask.root]
        return operation._replace(unless=Operand(memory, offset + mask.offset, mask.step, ()))

    def _operand(self, read: Read) -> Operand:
        memory, offset = self._at[read.root]
        return Operand(memory, offset + read.offset, 0 if memory == OWN else read.step, read.strides)

    def _dies(self, node: Node, root: Any) -> Any:
        """The root, if it is in the run's own memory and nobody reads it after this."""
        return root if root in self._at and self._at[root][0] == OWN and self._last[root] is node else None

    def _size(self, node: Node) -> int:
        return val(node).numel() // self.clients

    def _taken(self, size: int) -> int:
        if free := self._free.get(size):
            return free.pop()
        self.most += -(-size // _LINE) * _LINE
        return self.most - -(-size // _LINE) * _LINE
