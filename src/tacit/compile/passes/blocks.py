"""A client's own rows as a block in a recorded program: how batches are picked from it, and products with all of it.

Everything here adds operations to the program's graph, each at most once, for `low_rank_weights.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


class Rows(NamedTuple):
    """A batch as rows of a block [clients, n, ...]: which clients (all, in order), which rows [clients, batch]."""

    block: Node
    clients: Node
    picks: Node


def value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def shape_of(node: Any) -> torch.Size:
    return value(node).shape


def sizes(block: Node) -> tuple[int, int, int]:
    """Clients, rows, and numbers in a row."""
    clients, rows, *inputs = shape_of(block)
    return clients, rows, torch.Size(inputs).numel()


def picked_rows(graph: GraphModule, batch: Any) -> Rows | None:
    """Where a batch [clients, batch, inputs] was picked from."""
    if isinstance(batch, Node) and batch.target is aten.as_strided.default and _merged(batch):
        batch = batch.args[0]
    if not isinstance(batch, Node) or batch.target is not aten.index.Tensor:
        return None
    block, places = batch.args
    if (
        not isinstance(block, Node)
        or len(shape_of(block)) < 3
        or not isinstance(places, list | tuple)
        or len(places) != 2
    ):
        return None
    clients, picks = places
    if not isinstance(clients, Node) or not isinstance(picks, Node) or clients.op != "get_attr":
        return None
    return Rows(block, clients, picks) if _counts(graph, clients, len(value(block))) else None


def _merged(view: Node) -> bool:
    """Whether a view only flattens the dimensions of an input."""
    of, now = value(view.args[0]), value(view)
    return of.is_contiguous() and now.is_contiguous() and now.dim() == 3 and of.shape[:2] == now.shape[:2]


def _counts(graph: GraphModule, constant: Node, clients: int) -> bool:
    value = getattr(graph, str(constant.target))
    return torch.equal(value, torch.arange(clients).unsqueeze(1))


@dataclass
class Blocks:
    """Adds operations where the graph's insertion point is."""

    module: GraphModule
    made: dict[Any, Node] = field(default_factory=dict)

    def one_hot(self, rows: Rows) -> Node:
        """[clients, n, batch]: a one where the batch's row is the block's."""
        clients, several, _ = sizes(rows.block)
        picks, at = self._together(rows.picks)
        every = shape_of(picks)[1]
        column = self._once("numbers", several, lambda: self._column(several, picks))
        row = self.call(aten.unsqueeze.default, picks, 1, like=picks, shape=(clients, 1, every))
        shape, dtype = (clients, several, every), value(rows.block).dtype
        hot = self._once(
            "one hot",
            (rows.block, picks),
            lambda: self.call(
                aten._to_copy.default,
                self._equal(row, column, shape),
                like=rows.block,
                shape=shape,
                dtype=dtype,
            ),
        )
        hot.meta["one hot"] = picks
        return self._part(hot, 2, at)

    def _equal(self, a: Node, b: Node, shape: tuple[int, ...]) -> Node:
        same = self.call(aten.eq.Tensor, a, b, like=a, shape=shape)
        same.meta["val"] = torch.empty(shape, dtype=torch.bool, device="meta")
        return same

    def _column(self, several: int, like: Node) -> Node:
        numbers = self.call(aten.arange.default, several, like=like, shape=(several,))
        return self.call(aten.unsqueeze.default, numbers, 1, like=like, shape=(several, 1))

    def picked(self, rows: Rows, of: Node) -> Node:
        picks, at = self._together(rows.picks)
        return self._part(self._once("picked", (picks, of), lambda: self._taken(picks, of)), 1, at)

    def _taken(self, picks: Node, of: Node) -> Node:
        """Rows of [clients, n, outputs], each client's own: whole rows are copied faster than numbers one by one."""
        clients, several, outputs = shape_of(of)
        every = shape_of(picks)[1]
        places = self._once("places", (picks, several), lambda: self._places(picks, several))
        flat = self.call(
            aten.view.default, of, [clients * several, outputs], like=of, shape=(clients * several, outputs)
        )
        taken = self.call(aten.index_select.default, flat, 0, places, like=of, shape=(clients * every, outputs))
        shape = (clients, every, outputs)
        rows = self.call(aten.view.default, taken, list(shape), like=of, shape=shape)
        rows.meta["picked"] = of, picks
        return rows

    def _places(self, picks: Node, several: int) -> Node:
        """Row numbers of each client as places among all clients' rows."""
        clients, every = shape_of(picks)
        begin = self.call(aten.arange.start_step, 0, clients * several, several, like=picks, shape=(clients,))
        column = self.call(aten.unsqueeze.default, begin, 1, like=picks, shape=(clients, 1))
        places = self.call(aten.add.Tensor, picks, column, like=picks)
        return self.call(aten.view.default, places, [-1], like=picks, shape=(clients * every,))

    def _together(self, picks: Node) -> tuple[Node, slice]:
        """All steps' row numbers side by side [clients, steps x batch], and which of them are these."""
        clients, batch = shape_of(picks)
        every: Any = picks.args[0] if picks.target is aten.as_strided.default else picks
        steps = value(every)
        parts = steps.is_contiguous() and steps.dim() == 3 and len(steps) == clients
        if not parts or value(picks).stride() != (steps[0].numel(), 1):
            return picks, slice(0, batch)
        shape, start = (clients, steps[0].numel()), int(picks.args[3])  # pyright: ignore[reportArgumentType]
        make = lambda: self.call(aten.view.default, every, list(shape), like=picks, shape=shape)  # noqa: E731
        return self._once("together", every, make), slice(start, start + batch)

    def _part(self, of: Node, dim: int, at: slice) -> Node:
        shape = list(shape_of(of))
        if shape[dim] == at.stop - at.start:
            return of
        shape[dim] = at.stop - at.start
        return self.call(aten.slice.Tensor, of, dim, at.start, at.stop, like=of, shape=shape)

    def flat(self, block: Node) -> Node:
        shape = sizes(block)
        return (
            block
            if shape_of(block) == shape
            else self.call(aten.view.default, block, list(shape), like=block, shape=shape)
        )

    def turned(self, node: Any) -> Node:
        a, b, c = shape_of(node)
        return self.call(aten.transpose.int, node, 1, 2, like=node, shape=(a, c, b))

    def gram(self, block: Node) -> Node:
        clients, rows, _ = sizes(block)

        def make() -> Node:
            flat = self.flat(block)
            return self.call(aten.bmm.default, flat, self.turned(flat), like=block, shape=(clients, rows, rows))

        return self._once("gram", block, make)

    def of_block(self, block: Node, base: Node, outputs: int) -> Node:
        """B W_k', for weights of each client's own or weights that all of them share."""
        clients, rows, inputs = sizes(block)
        shape = (clients, rows, outputs)

        def make() -> Node:
            flat = self.flat(block)
            if shape_of(base) == (clients, outputs, inputs):
                return self.call(aten.bmm.default, flat, self.turned(base), like=block, shape=shape)
            one = self.call(aten.view.default, base, [outputs, inputs], like=base, shape=(outputs, inputs))
            turned = self.call(aten.t.default, one, like=base, shape=(inputs, outputs))
            merged = self.call(aten.view.default, flat, [-1, inputs], like=block, shape=(clients * rows, inputs))
            product = self.call(aten.mm.default, merged, turned, like=block, shape=(clients * rows, outputs))
            return self.call(aten.view.default, product, list(shape), like=block, shape=shape)

        return self._once("outputs", (block, base), make)

    def times(self, node: Node, factor: Any) -> Node:
        return node if factor == 1 else self.call(aten.mul.Tensor, node, factor, like=node)

    def plus(self, a: Node, b: Node, factor: float) -> Node:
        """a + factor b."""
        shape = torch.broadcast_shapes(shape_of(a), shape_of(b))
        return self.call(aten.add.Tensor, a, b, like=a, shape=shape, alpha=factor)

    def _once(self, what: str, of: Any, make: Callable[[], Node]) -> Node:
        if (what, of) not in self.made:
            self.made[what, of] = make()
        return self.made[what, of]

    def call(self, target: Any, *args: Any, like: Node, shape: Any = None, **kwargs: Any) -> Node:
        node = self.module.graph.call_function(target, args, kwargs)
        node.meta["val"] = torch.empty(
            shape_of(like) if shape is None else tuple(shape), dtype=value(like).dtype, device="meta"
        )
        return node
