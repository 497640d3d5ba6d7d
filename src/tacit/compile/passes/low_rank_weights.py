"""Weights that met few examples, kept as what they were and a share of each example.

All that gradient steps ever add to the first layer's weights are multiples of the client's own n inputs B:

    W_t = sum_k c_k W_k + S_t' B,        S_t [n, outputs]

where W_k are the weights it started from or is drawn to. So a step needs no pass over W: its outputs are rows of
B W_k' and of (B B') S_t, and the gradient of a batch goes into the rows of S_t that the batch was taken from. This is
the same arithmetic in another order; W_t itself is made where somebody asks for it (an upload, a state), so what is
clipped and released is computed from the weights as ever. With 30 examples of 784 numbers it is a quarter of the
multiplications and hardly any traffic.

A row that is not finite spoils a client's whole round, also where it was to come in a step that the client skipped.

A pass over a recorded program (see pipeline.py): it looks for products of something with rows taken from one block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from tacit.compile.ir import calls, insert_call, meta_of, readers_of
from tacit.compile.kernels import each_client as _defines_rows  # noqa: F401  # pyright: ignore[reportUnusedImport]

aten, ours = torch.ops.aten, torch.ops.tacit
_PRODUCTS = (aten.bmm.default, aten.baddbmm.default)
_VIEWS = (aten.as_strided.default, aten.view.default, aten.expand.default, aten.transpose.int, aten.permute.default)
_COMPARISONS = aten.sign, aten.sgn, aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne
_JUMPS = {getattr(packet, name) for packet in _COMPARISONS for name in packet.overloads()}
_FEWEST = 4  # fewer products do not pay for B B'
_PASSES = 1.25  # what a wide product costs against its multiplications: it also goes through all weights in memory


class Rows(NamedTuple):
    """A batch as rows of a block [clients, n, ...]: which clients (all, in order), which rows [clients, batch]."""

    block: Node
    clients: Node
    indices: Node


def shape_of(node: Any) -> torch.Size:
    return meta_of(node).shape


def sizes(block: Node) -> tuple[int, int, int]:
    """Clients, rows, and numbers in a row."""
    clients, rows, *inputs = shape_of(block)
    return clients, rows, torch.Size(inputs).numel()


def batch_rows(graph: GraphModule, batch: Any) -> Rows | None:
    """Where a batch [clients, batch, inputs] was taken from."""
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
    clients, indices = places
    if not isinstance(clients, Node) or not isinstance(indices, Node) or clients.op != "get_attr":
        return None
    return Rows(block, clients, indices) if _counts(graph, clients, len(meta_of(block))) else None


def _merged(view: Node) -> bool:
    """Whether a view only flattens the dimensions of an input."""
    of, now = meta_of(view.args[0]), meta_of(view)
    return of.is_contiguous() and now.is_contiguous() and now.dim() == 3 and of.shape[:2] == now.shape[:2]


def _counts(graph: GraphModule, constant: Node, clients: int) -> bool:
    value = getattr(graph, str(constant.target))
    return torch.equal(value, torch.arange(clients).unsqueeze(1))


@dataclass(frozen=True)
class Form:
    """A sum of coefficients times bases, and S' B; without `shares` S is zero."""

    bases: dict[Node, float]
    block: Node
    shares: Node | None


def factor_weights(graph: GraphModule) -> None:
    """Rewrites the weights of every block where that is less work; does nothing where there is none."""
    met: dict[Node, list[Node]] = {}
    for node in calls(graph):
        if rows := _met(graph, node):
            met.setdefault(rows.block, []).append(node)
    worth = {block for block, products in met.items() if _worth(block, products)}
    if worth:
        _Factoring(graph, worth).rewrite()


def _worth(block: Node, products: list[Node]) -> bool:
    """Multiplications of a client: B B', B W', the weights at the end, two narrow products a step; or two wide ones."""
    _, rows, inputs = sizes(block)
    batch, outputs = shape_of(products[0].args[-1])[1], shape_of(products[0])[1]
    steps = 2 * len(products) * batch * outputs
    narrow = rows * rows * inputs + 2 * rows * outputs * inputs + steps * rows
    return len(products) >= _FEWEST and narrow <= _PASSES * steps * inputs


def _met(graph: GraphModule, node: Node) -> Rows | None:
    """The rows of a product D' X, alone or added to something."""
    return batch_rows(graph, node.args[-1]) if node.target in _PRODUCTS else None


def _fits(node: Any, block: Node) -> bool:
    """Whether it has the shape of weights that a block's rows meet."""
    return isinstance(node, Node) and len(shape_of(node)) in (2, 3) and shape_of(node)[-1] == sizes(block)[2]


def _summed(first: dict[Node, float], second: dict[Node, float], factor: float) -> dict[Node, float]:
    result = dict(first)
    for base, c in second.items():
        result[base] = result.get(base, 0.0) + factor * c
    return {base: c for base, c in result.items() if c}


def _transposed_operand(node: Any) -> Node | None:
    """What a transpose is of, if it is a matrix."""
    return node.args[0] if isinstance(node, Node) and node.target is aten.t.default else None  # pyright: ignore[reportReturnType]


def _in_one(batch: Node) -> bool:
    """Whether a view makes one matrix of all clients' rows."""
    of, now = meta_of(batch.args[0]), meta_of(batch)
    return of.is_contiguous() and now.is_contiguous() and now.shape == (of.shape[:2].numel(), of.shape[2:].numel())


@dataclass
class _Factoring:
    """Adds operations where the graph's insertion point is."""

    graph: GraphModule
    worth: set[Node]
    forms: dict[Node, Form] = field(default_factory=dict)
    cache: dict[Any, Node] = field(default_factory=dict)

    def rewrite(self) -> None:
        for node in calls(self.graph):
            with self.graph.graph.inserting_before(node):
                form = self._form(node)
                if form is not None:
                    self.forms[node] = form
                elif (outputs := self._outputs(node)) is not None:
                    node.replace_all_uses_with(outputs)
        for node, form in self.forms.items():
            self._make_dense(node, form)

    def _form(self, node: Node) -> Form | None:
        args: Any = node.args
        if node.target in _PRODUCTS and (rows := self._rows(args[-1])):
            return self._product(node, rows)
        if not any(self._known(a) for a in args):
            return None
        if node.target in (aten.add.Tensor, aten.sub.Tensor):
            if any(reader.target in _JUMPS for reader in readers_of(node)):
                return None  # W - W0 would be S' B, which is not 0 where the rounded weights are the same
            alpha: Any = node.kwargs.get("alpha", 1)
            return self._sum(args[0], args[1], alpha if node.target is aten.add.Tensor else -alpha)
        if node.target in (aten.mul.Tensor, aten.mul.Scalar) and isinstance(args[1], int | float):
            return self._scaled(self.forms[args[0]], args[1])
        return self._either(*args) if node.target is aten.where.self else None

    def _known(self, node: Any) -> bool:
        return isinstance(node, Node) and node in self.forms

    def _rows(self, batch: Any) -> Rows | None:
        rows = batch_rows(self.graph, batch)
        return rows if rows is not None and rows.block in self.worth else None

    def _as_form(self, node: Any, block: Node) -> Form | None:
        """Anything else of a weight's shape is a base, or a sum of such."""
        if self._known(node):
            return self.forms[node] if self.forms[node].block is block else None
        return Form(self._plain(node, block), block, None) if _fits(node, block) else None

    def _plain(self, node: Node, block: Node) -> dict[Node, float]:
        """Sums and multiples of weights, such as what draws them to others, taken apart: fewer bases meet the block."""
        args: Any = node.args
        if any(self._known(a) for a in args):
            return {node: 1.0}
        if node.target in (aten.add.Tensor, aten.sub.Tensor) and all(_fits(a, block) for a in args):
            alpha: Any = node.kwargs.get("alpha", 1)
            factor = alpha if node.target is aten.add.Tensor else -alpha
            return _summed(self._plain(args[0], block), self._plain(args[1], block), factor)
        if node.target in (aten.mul.Tensor, aten.mul.Scalar) and isinstance(args[1], int | float):
            return {base: c * args[1] for base, c in self._plain(args[0], block).items()}
        return {node: 1.0}

    def _product(self, node: Node, rows: Rows) -> Form | None:
        """beta F + alpha D' X: the gradient goes to the shares of the rows that X was taken from."""
        *term, gradient, _ = node.args
        beta, alpha = (float(node.kwargs.get(name, 1)) for name in ("beta", "alpha"))  # pyright: ignore[reportArgumentType]
        old = self._as_form(term[0], rows.block) if term else Form({}, rows.block, None)
        if old is None:
            return None
        added = self._transpose(gradient)
        args = old.shares, rows.indices, added, sizes(rows.block)[1], beta, alpha
        new = self._call(ours.add_rows.default, *args)
        return Form({base: c * beta for base, c in old.bases.items()}, rows.block, new)

    def _sum(self, a: Any, b: Any, factor: float) -> Form | None:
        block = next(self.forms[x].block for x in (a, b) if self._known(x))
        first, second = self._as_form(a, block), self._as_form(b, block)
        if first is None or second is None:
            return None
        shares = self._added(first.shares, second.shares, factor)
        return Form(_summed(first.bases, second.bases, factor), block, shares)

    def _added(self, a: Node | None, b: Node | None, factor: float) -> Node | None:
        if a is None or b is None:
            return a if b is None else self._times(b, factor)
        args: Any = b.args
        if b.target is not ours.add_rows.default or args[0] not in (a, None):
            return self._call(aten.add.Tensor, a, b, alpha=factor)
        # a + factor (beta a + alpha rows), as where weights are drawn to others, is one operation
        old, indices, rows, count, beta, alpha = args
        kept = 1.0 if old is None else 1 + factor * beta
        return self._call(ours.add_rows.default, a, indices, rows, count, kept, factor * alpha)

    def _scaled(self, form: Form, factor: float) -> Form:
        shares = None if form.shares is None else self._times(form.shares, factor)
        return Form({base: c * factor for base, c in form.bases.items()}, form.block, shares)

    def _either(self, chosen: Node, a: Any, b: Any) -> Form | None:
        """Steps that are not live: where both hold the same of every base, it is a choice between shares."""
        block = next(self.forms[x].block for x in (a, b) if self._known(x))
        first, second = self._as_form(a, block), self._as_form(b, block)
        if first is None or second is None or first.bases != second.bases or shape_of(chosen)[1:] != (1, 1):
            return None
        some = first.shares or second.shares
        if some is None:
            return None
        none = self._call(aten.zeros_like.default, some)
        shares = self._call(aten.where.self, chosen, first.shares or none, second.shares or none)
        return Form(first.bases, block, shares)

    def _outputs(self, node: Node) -> Node | None:
        """X W_t', with or without something added: rows of what the whole block's outputs are."""
        if node.target is aten.mm.default:
            return self._first_outputs(node)
        if node.target not in _PRODUCTS or any(node.kwargs.get(name, 1) != 1 for name in ("beta", "alpha")):
            return None
        *term, batch, weights = node.args
        rows = self._rows(batch)
        form = None if rows is None else self._transposed(weights, rows.block)
        if rows is None or form is None or form.block is not rows.block:
            return None
        total: Any = term[0] if term else None
        for base, c in form.bases.items():
            part = self._take_rows(rows, self._of_block(rows.block, base, shape_of(node)[2]))
            total = self._plus(total, part, c)
        if form.shares is None:
            return total
        return self._added_product(total, self._take_rows(rows, self._gram(rows.block)), form.shares)

    def _take_rows(self, rows: Rows, source: Node) -> Node:
        """Rows of [clients, n, outputs], each client's own."""
        return self._call(ours.take_rows.default, source, rows.indices)

    def _plus(self, total: Node | None, part: Node, factor: float) -> Node:
        """total + factor part."""
        if total is None:
            return self._times(part, factor)
        return self._call(aten.add.Tensor, total, part, alpha=factor)

    def _first_outputs(self, node: Node) -> Node | None:
        """The same before the first step, where all clients have the same weights and a batch is one long matrix."""
        batch, transposed = node.args
        if not isinstance(batch, Node) or batch.target is not aten.as_strided.default:
            return None
        rows, base = self._rows(batch.args[0]), _transposed_operand(transposed)
        if rows is None or base is None or not _in_one(batch) or not _fits(base, rows.block):
            return None
        outputs = self._take_rows(rows, self._of_block(rows.block, base, len(meta_of(base))))
        return self._call(aten.reshape.default, outputs, list(shape_of(node)))

    def _added_product(self, total: Node | None, a: Node, b: Node) -> Node:
        if total is None:
            return self._call(aten.bmm.default, a, b)
        return self._call(aten.baddbmm.default, total, a, b)

    def _transposed(self, view: Any, block: Node) -> Form | None:
        """The form whose transpose [clients, inputs, outputs] a view is."""
        whole = view
        while isinstance(whole, Node) and whole.target in _VIEWS:
            whole = whole.args[0]
        if not isinstance(whole, Node) or whole is view:
            return None
        of, now = meta_of(whole), meta_of(view)
        if of.ndim != 3 or now.storage_offset() != of.storage_offset():
            return None
        transposed = of.transpose(1, 2)
        same = (transposed.shape, transposed.stride()) == (now.shape, now.stride())
        return self._as_form(whole, block) if same else None

    def _make_dense(self, node: Node, form: Form) -> None:
        """For those who want the weights themselves."""
        asking = [
            user
            for user in node.users
            if user not in self.forms and (user.users or not self._transposed(user, form.block))
        ]
        if not asking or form.shares is None:  # without shares it never was more than its bases
            return
        with self.graph.graph.inserting_after(node):
            place = self.graph.graph.call_function(aten.clone.default, (node,))
        with self.graph.graph.inserting_before(place):
            total = self._dense(form.bases, form.shares, self._flat(form.block))
        for user in asking:
            user.replace_input_with(node, total)
        self.graph.graph.erase_node(place)

    def _dense(self, bases: dict[Node, float], shares: Node, rows: Node) -> Node:
        total: Node | None = None
        for base, c in sorted(bases.items(), key=lambda each: len(shape_of(each[0]))):  # what is small first
            total = self._plus(total, base, c)
        return self._added_product(total, self._transpose(shares), rows)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return insert_call(self.graph, target, *args, **kwargs)

    def _flat(self, block: Node) -> Node:
        shape = sizes(block)
        return block if shape_of(block) == shape else self._call(aten.view.default, block, list(shape))

    def _transpose(self, node: Any) -> Node:
        return self._call(aten.transpose.int, node, 1, 2)

    def _gram(self, block: Node) -> Node:
        def make() -> Node:
            flat = self._flat(block)
            return self._call(aten.bmm.default, flat, self._transpose(flat))

        return self._once("gram", block, make)

    def _of_block(self, block: Node, base: Node, outputs: int) -> Node:
        """B W_k', for weights of each client's own or weights that all of them share."""
        clients, rows, inputs = sizes(block)

        def make() -> Node:
            flat = self._flat(block)
            if shape_of(base) == (clients, outputs, inputs):
                return self._call(aten.bmm.default, flat, self._transpose(base))
            transposed = self._call(aten.t.default, self._call(aten.view.default, base, [outputs, inputs]))
            merged = self._call(aten.view.default, flat, [-1, inputs])
            product = self._call(aten.mm.default, merged, transposed)
            return self._call(aten.view.default, product, [clients, rows, outputs])

        return self._once("outputs", (block, base), make)

    def _times(self, node: Node, factor: Any) -> Node:
        return node if factor == 1 else self._call(aten.mul.Tensor, node, factor)

    def _once(self, what: str, of: Any, make: Callable[[], Node]) -> Node:
        if (what, of) not in self.cache:
            self.cache[what, of] = make()
        return self.cache[what, of]
