"""Small operations that every client does with numbers of its own, one client after another in compiled code.

Where networks are small, starting an operation of torch takes as long as doing it for all clients of a chunk, and what
one leaves behind has left a core's cache before the next wants it. Here a run of such operations (products of small
matrices, element-wise work, sums along a dimension) becomes one: all of them for the first client, then for the second.
What only the run itself reads is never stored for more than one client.

A pass over a recorded program (see pipeline.py). Operations are drafted one by one (`lower.py`); a run takes as many
as do not wait for anything outside that waits for the run.

A client may pass over operations in a step that only pads it. Such a step masks a gradient's factor with zeros
(`mask_padding.py`), so that what it adds is exactly nothing. An operation is passed over where it adds nothing to what
lies there already, which then stands for its result, or where all who read it are passed over, too.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tacit.compile.ir import calls, insert_call, insert_constant, meta_of, places
from tacit.compile.kernels import library
from tacit.compile.kernels.each_client import OWN, Kind, Operand, Operation, encode
from tacit.compile.passes.lower import Draft, Read, lower

aten = torch.ops.aten
_BY_CLIENT = (aten.bmm.default, aten.baddbmm.default)
_FEWEST = 6  # operations that are worth a call
_PATIENCE = 200  # operations without one that joins, after which a run is over
_LINE = 16  # numbers that memory comes in
_ZERO_OF: dict[Kind, tuple[int, ...]] = {
    Kind.MULTIPLE: (0,),
    Kind.TOTAL: (0,),
    Kind.GATED: (0,),
    Kind.FILLED: (0,),
    Kind.PRODUCT: (0, 1),
    Kind.MATRIX: (0, 1),
}
"""Operands of which one that is zero makes the result zero, where nothing is added."""
_ADDED: dict[Kind, tuple[int, tuple[int, ...]]] = {
    Kind.SUM: (0, (1,)),
    Kind.MATRIX: (2, (0, 1)),
    Kind.ADD_ROWS: (2, (1,)),
}
"""The operand that is added to, and those of which one that is zero adds nothing."""


class Mask(NamedTuple):
    """One byte for each client, true where a step pads it."""

    root: Node
    offset: int
    step: int


def fuse_client_loops(graph: GraphModule) -> None:
    """Makes lists of all runs that are long enough. Clients are the most frequent first dimension of products."""
    sizes = Counter(len(meta_of(node)) for node in calls(graph, *_BY_CLIENT))
    clients = sizes.most_common(1)[0][0] if sizes else 0
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
        self.drafts = lower(graph, self.places, clients)
        self.results: dict[Node, Node] = {}  # of runs: what an operation's result is now

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
            return read.is_own(meta_of(read.root).numel() // self.clients)
        before = run.before
        return before is None or read.root in self.results or self.order[read.root] < self.order[before]

    def _is_view(self, node: Node) -> bool:
        return self._root(node) is not node

    def _root(self, node: Node) -> Node:
        return self.places[node].root if node in self.places else node

    def _write(self, run: _Run) -> None:
        outputs = [node for node in run.members if any(user not in run.members for user in self._readers(node))]
        outside = (user for node in outputs for user in self._readers(node) if user not in run.members)
        before = min(outside, key=self.order.__getitem__)
        memory = _Memory(self.clients, run.members, outputs)
        operations = {node: memory.operation(node) for node in run.members}
        masks = skippable(run.members, outputs, memory.in_place)
        numbers, factors = encode([memory.unless(each, masks.get(node)) for node, each in operations.items()])
        placeholders = [root for root in memory.inputs if root.op == "placeholder"]
        inputs = [self.results.get(root, root) for root in memory.inputs[len(placeholders) :]]
        widths = [meta_of(root).dtype.itemsize for root in memory.inputs]
        sizes = [meta_of(node).numel() // self.clients for node in outputs]
        with self.graph.graph.inserting_before(before):
            lists = [insert_constant(self.graph, each) for each in (numbers, factors)]
            loop = self.graph.graph.call_function(
                torch.ops.tacit.each_client.default,
                (placeholders, inputs, widths, *lists, sizes, self.clients, memory.most),
            )
            for at, node in enumerate(outputs):
                self.results[node] = self._output(loop, at, node)
        self._replace(run, before)

    def _readers(self, node: Node) -> Iterator[Node]:
        """Itself or through views."""
        for user in node.users:
            if self._is_view(user):
                yield from self._readers(user)
            else:
                yield user

    def _output(self, loop: Node, at: int, node: Node) -> Node:
        part = self.graph.graph.call_function(operator.getitem, (loop, at))
        part.meta["val"] = torch.empty(self.clients, meta_of(node).numel() // self.clients, device="meta")
        return insert_call(self.graph, aten.view.default, part, list(meta_of(node).shape))

    def _replace(self, run: _Run, before: Node) -> None:
        """Views of what the run makes come after it."""
        views = [n for n in self.nodes if self._root(n) in run.members and n not in run.members]
        for view in views:
            if self.order[view] < self.order[before]:
                before.prepend(view)
        for node in run.members:
            if node in self.results:
                node.replace_all_uses_with(self.results[node], lambda user: user not in run.members)
        unused = sorted([*run.members, *views], key=self.order.__getitem__, reverse=True)
        for node in unused:
            if not node.users:
                self.graph.graph.erase_node(node)


class _Memory:
    """Which memory a run's operations read and write: inputs, outputs, and places of its own that are used again."""

    def __init__(self, clients: int, members: dict[Node, Draft], outputs: Sequence[Node]) -> None:
        self.clients, self.members = clients, members
        roots = (read.root for draft in members.values() for read in draft.reads)
        inputs = dict.fromkeys(root for root in roots if root not in members)
        self.inputs = sorted(inputs, key=lambda root: root.op != "placeholder")
        self.most = 0
        self.in_place: set[Node] = set()
        self._free: dict[int, list[int]] = {}
        self._last = {read.root: node for node, draft in members.items() for read in draft.reads}
        memories = enumerate([*self.inputs, *outputs], OWN + 1)
        self._at: dict[Node, tuple[int, int]] = {node: (memory, 0) for memory, node in memories}

    def operation(self, node: Node) -> Operation:
        """Of the next one: they are outputs for in order."""
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
        return meta_of(node).numel() // self.clients

    def _taken(self, size: int) -> int:
        if free := self._free.get(size):
            return free.pop()
        self.most += -(-size // _LINE) * _LINE
        return self.most - -(-size // _LINE) * _LINE


def skippable(members: dict[Node, Draft], outputs: Sequence[Node], in_place: set[Node]) -> dict[Node, Mask]:
    """The mask under which each may be passed over, of those that may; `in_place` write over what they add to."""
    zeros = _zeros(members)
    readers: dict[Node, list[Node]] = {}
    for node, draft in members.items():
        for read in draft.reads:
            readers.setdefault(read.root, []).append(node)
    result: dict[Node, Mask] = {}
    stand_in: set[Node] = set()  # what others that are passed over leave as it is
    for node, draft in reversed(members.items()):
        masks = {result.get(reader) for reader in readers.get(node, ())}
        unread = masks.pop() if len(masks) == 1 and node not in outputs and node not in stand_in else None
        idle = _adds_nothing(draft, zeros) if node in in_place else set()
        if unread:
            result[node] = unread
        elif idle and draft.over:
            result[node] = min(idle, key=lambda mask: mask.offset)
            stand_in.add(draft.over)
    return result


def _zeros(members: dict[Node, Draft]) -> dict[Node, set[Mask]]:
    """Under which masks each is zero."""
    zeros: dict[Node, set[Mask]] = {}
    for node, draft in members.items():
        adds = draft.kind is Kind.MATRIX and draft.beta != 0
        parts = () if adds else _ZERO_OF.get(draft.kind, ())
        zeros[node] = {mask for at in parts for mask in zeros.get(draft.reads[at].root, ())}
        if draft.kind is Kind.FILLED and draft.alpha == 0 and (mask := _of_clients(draft.reads[1])):
            zeros[node].add(mask)
    return zeros


def _of_clients(read: Read) -> Mask | None:
    return None if any(read.strides) else Mask(read.root, read.offset, read.step)


def _adds_nothing(draft: Draft, zeros: dict[Node, set[Mask]]) -> set[Mask]:
    if draft.kind not in _ADDED or draft.beta != 1:
        return set()
    to, parts = _ADDED[draft.kind]
    if len(draft.reads) <= to or draft.reads[to].root is not draft.over:
        return set()
    return {mask for at in parts for mask in zeros.get(draft.reads[at].root, ())}
