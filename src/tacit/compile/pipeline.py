"""Passes over a recorded program: fewer operations, fewer trips through memory, the same numbers up to rounding.

`PASSES` is the order in which they are done; README.md says of each what it needs and what it does. Those of a few
lines are in this file. Names as in torch.fx: a node is one operation, its users are the operations that read it.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile.client_loop.fuse import fuse_client_loops
from tacit.compile.ir import calls, insert_call, is_zero, meta_of, replace, view_source
from tacit.compile.passes.hoist_steps import hoist_steps
from tacit.compile.passes.in_place import write_in_place
from tacit.compile.passes.low_rank_weights import factor_weights
from tacit.compile.passes.mask_padding import mask_padding
from tacit.compile.passes.skinny_gemm import use_skinny_gemm
from tacit.compile.passes.softmax_gradient import rewrite_softmax_gradients
from tacit.compile.verify import Contract, Malformed, contract_of, verify, wanted
from tacit.errors import TacitError

aten = torch.ops.aten
_FROM_NOTHING = {
    aten.scalar_tensor.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.arange.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
}
"""What these make depends on shapes alone."""


def simplify(graph: GraphModule) -> GraphModule:
    """The graph, changed in place."""
    contract, without = contract_of(graph) if wanted() else None, skipped()
    for name, rewrite in PASSES:
        if name in without:
            continue
        rewrite(graph)
        if contract is not None:
            _verify(name, graph, contract)
    graph.recompile()
    return graph


def skipped() -> frozenset[str]:
    """Passes to go without (`TACIT_SKIP=name,name`): to find one that is wrong, or what one brings.

    Raises:
        TacitError: there is no such pass, or others cannot do without it.
    """
    names = frozenset(name for name in os.environ.get("TACIT_SKIP", "").split(",") if name)
    if unknown := sorted(names - set(OPTIONAL)):
        raise TacitError(f"TACIT_SKIP names no pass that can be left out ({', '.join(unknown)}): {', '.join(OPTIONAL)}")
    return names


def _verify(name: str, graph: GraphModule, contract: Contract) -> None:
    try:
        verify(graph, contract)
    except Malformed as error:
        raise Malformed(f"the pass {name} left no program: {error}") from error


def _eliminate_dead_code(graph: GraphModule) -> None:
    graph.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def fold_constants(graph: GraphModule) -> None:
    """Computed once, now, rather than in every replay."""
    known: dict[Node, Tensor] = {n: getattr(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"}
    for node in calls(graph):
        if node.target not in _FROM_NOTHING and not _all_known(node, known):
            continue
        value = _evaluate(node, known)
        if not isinstance(value, Tensor):
            continue
        name = next((name for name, kept in graph.named_buffers() if _same(kept, value)), f"_kept_{len(known)}")
        graph.register_buffer(name, value)
        with graph.graph.inserting_before(node):
            constant = graph.graph.get_attr(name)
        constant.meta = dict(node.meta)
        known[constant] = value
        replace(graph, node, constant)


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(a, b)


def _all_known(node: Node, known: dict[Node, Tensor]) -> bool:
    return bool(node.all_input_nodes) and all(parent in known for parent in node.all_input_nodes)


def _evaluate(node: Node, known: dict[Node, Tensor]) -> Any:
    def value(parent: Node) -> Any:
        return known[parent] if parent in known else _blank(parent, "cpu")

    args, kwargs = (torch.fx.map_arg(a, value) for a in (node.args, node.kwargs))
    return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]


def drop_times_one(graph: GraphModule) -> None:
    for node in calls(graph):
        if node.target in (aten.mul.Scalar, aten.mul.Tensor) and node.args[1] == 1:
            replace(graph, node, node.args[0])  # pyright: ignore[reportArgumentType]


def merge_views(graph: GraphModule) -> None:
    """A chain of transposes and reshapes of one operation's result becomes one view, or none; equal views are one."""
    layouts: dict[Node, tuple[Node, Tensor]] = {}  # a node's base, and its shape and strides there
    views: dict[tuple[Any, ...], Node] = {}
    for node in calls(graph):
        if view_source(node) is None:
            layouts[node] = node, _blank(node)
        parent = node.args[0] if node.args else None
        if not _is_view(node) or parent not in layouts:  # others may start anywhere in their memory
            continue
        base, shape = layouts[parent]
        args, kwargs = (torch.fx.map_arg(a, lambda _, shape=shape: shape) for a in (node.args, node.kwargs))
        view: Tensor = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        key = (base, tuple(view.shape), view.stride(), view.storage_offset())
        if key not in views:
            views[key] = _as_strided(graph, node, base, view)
            layouts[views[key]] = base, view
        replace(graph, node, views[key])


def _is_view(node: Node) -> bool:
    one = isinstance(node.target, torch._ops.OpOverload) and str(node.target._schema.returns[0].type) == "Tensor"
    return one and view_source(node) is not None


def _blank(node: Node, device: str = "meta") -> Tensor:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return torch.empty(0, device=device)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _as_strided(graph: GraphModule, node: Node, base: Node, view: Tensor) -> Node:
    whole = _blank(base)
    if (whole.shape, whole.stride()) == (view.shape, view.stride()) and view.storage_offset() == 0:
        return base
    with graph.graph.inserting_before(node):
        args = base, list(view.shape), list(view.stride()), view.storage_offset()
        return insert_call(graph, aten.as_strided.default, *args, meta=meta_of(node))


def share_subexpressions(graph: GraphModule) -> None:
    """The same operation on the same values is done once."""
    seen: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        key = (node.op, node.target, repr(node.args), repr(node.kwargs))
        if key in seen:
            replace(graph, node, seen[key])
        else:
            seen[key] = node


def fuse_multiply_add(graph: GraphModule) -> None:
    """a + c (x @ y) in one call: the product is never stored."""
    for node in calls(graph, aten.add.Tensor):
        if len(node.args) != 2:
            continue
        a, b = node.args
        factor = node.kwargs.get("alpha", 1)
        if _is_only_product(b) and _fits(a, node, b):
            replace(graph, node, _baddbmm(graph, node, a, b, beta=1, alpha=factor))
        elif _is_only_product(a) and _fits(b, node, a):
            replace(graph, node, _baddbmm(graph, node, b, a, beta=factor, alpha=1))


def _is_only_product(node: Any) -> bool:
    return isinstance(node, Node) and node.target is aten.bmm.default and len(node.users) == 1


def _fits(term: Any, total: Node, product: Any) -> bool:
    same_shape = meta_of(total).shape == meta_of(product).shape
    return isinstance(term, Node) and same_shape and meta_of(term).dtype == meta_of(product).dtype


def _baddbmm(graph: GraphModule, node: Node, term: Any, product: Any, beta: Any, alpha: Any) -> Node:
    with graph.graph.inserting_before(node):
        args = term, *product.args
        return insert_call(graph, aten.baddbmm.default, *args, meta=meta_of(node), beta=beta, alpha=alpha)


def gather_rows(graph: GraphModule) -> None:
    """Rows of a constant, fetched by number, are copied whole (`index_select`), not number by number (`index`). Their
    numbers are places in the federation, so none is negative."""
    for node in calls(graph, aten.index.Tensor):
        args: Any = node.args
        source, indices = args[0], args[1][0]
        rows = isinstance(source, Node) and source.op == "get_attr" and len(args[1]) == 1 and meta_of(source).dim() > 1
        if not rows or not meta_of(source).is_contiguous() or meta_of(indices).dtype != torch.int64:
            continue
        flat, numbers = (
            meta_of(source).flatten(1),
            torch.empty(meta_of(indices).numel(), dtype=torch.int64, device="meta"),
        )
        with graph.graph.inserting_before(node):
            table = insert_call(graph, aten.view.default, source, list(flat.shape), meta=flat)
            one = insert_call(graph, aten.reshape.default, indices, [len(numbers)], meta=numbers)
            part = insert_call(
                graph,
                aten.index_select.default,
                table,
                0,
                one,
                meta=flat[: len(numbers)].new_empty(len(numbers), flat.shape[1]),
            )
            whole = insert_call(graph, aten.view.default, part, list(meta_of(node).shape), meta=meta_of(node))
        replace(graph, node, whole)


def fill_zeros(graph: GraphModule) -> None:
    """A choice between something and zero is something with zeros put in."""
    for node in calls(graph, aten.where.self):
        condition, operand, other = node.args
        if not is_zero(graph, other) or not isinstance(operand, Node) or _kind(operand) != _kind(node):
            continue
        with graph.graph.inserting_before(node):
            inverse = insert_call(graph, aten.logical_not.default, condition, meta=meta_of(condition))
            filled = insert_call(graph, aten.masked_fill.Scalar, operand, inverse, 0, meta=meta_of(node))
        replace(graph, node, filled)


def _kind(node: Node) -> tuple[torch.Size, torch.dtype]:
    return meta_of(node).shape, meta_of(node).dtype


Pass = Callable[[GraphModule], None]
"""Changes a graph in place."""
_NEEDED = "eliminate_dead_code"
_CLEAN: tuple[str, Pass] = (_NEEDED, _eliminate_dead_code)
PASSES: tuple[tuple[str, Pass], ...] = (
    _CLEAN,
    ("fold_constants", fold_constants),
    ("drop_times_one", drop_times_one),
    ("hoist_steps", hoist_steps),
    _CLEAN,
    ("merge_views", merge_views),
    ("share_subexpressions", share_subexpressions),
    _CLEAN,
    ("fuse_multiply_add", fuse_multiply_add),
    _CLEAN,
    ("low_rank_weights", factor_weights),
    ("mask_padding", mask_padding),
    ("gather_rows", gather_rows),
    _CLEAN,
    ("softmax_gradient", rewrite_softmax_gradients),
    ("fill_zeros", fill_zeros),
    ("share_subexpressions", share_subexpressions),
    _CLEAN,
    _CLEAN,
    ("client_loop", fuse_client_loops),
    _CLEAN,
    ("in_place", write_in_place),
    ("skinny_gemm", use_skinny_gemm),
)
"""Name and function, in order; what is done twice has one name."""
OPTIONAL: tuple[str, ...] = tuple(dict.fromkeys(name for name, _ in PASSES if name != _NEEDED))
"""Passes that others can do without."""
