"""Passes over a recorded program: fewer operations, fewer trips through memory, the same numbers up to rounding.

`PASSES` is the order in which they are done; README.md says of each what it needs and what it does. Those of a few
lines are in this file. Names as in torch.fx: a node is one operation, its users are the operations that read it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile.handover import hand_over_products
from tacit.compile.ir import base_of, calls, insert_call, insert_constant, meta_of, readers_of, replace, view_source
from tacit.compile.passes.client_loop import fuse_client_loops
from tacit.compile.passes.hoist_steps import hoist_steps
from tacit.compile.passes.low_rank_weights import factor_weights
from tacit.compile.passes.mask_padding import mask_padding
from tacit.compile.passes.skinny_gemm import use_skinny_gemm

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
_FEW_CLASSES = 16  # numbers of a vector register; for more classes torch's own is as fast
_IN_PLACE: dict[Any, Any] = {
    aten.baddbmm.default: aten.baddbmm_.default,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.nan_to_num.default: aten.nan_to_num_.default,
    aten.exp.default: aten.exp_.default,
}


def simplify(graph: GraphModule) -> GraphModule:
    """The graph, changed in place."""
    for _, rewrite in PASSES:
        rewrite(graph)
    graph.recompile()
    return graph


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
        with graph.graph.inserting_before(node):
            constant = insert_constant(graph, value)
        known[constant] = value
        replace(graph, node, constant)


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
        args = list(view.shape), list(view.stride()), view.storage_offset()
        return insert_call(graph, aten.as_strided.default, base, *args)


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
        return insert_call(graph, aten.baddbmm.default, term, *product.args, beta=beta, alpha=alpha)


def gather_rows(graph: GraphModule) -> None:
    """Rows of a constant, fetched by number, are copied whole (`index_select`), not number by number (`index`). Their
    numbers are places in the federation, so none is negative."""
    for node in calls(graph, aten.index.Tensor):
        args: Any = node.args
        source, indices = args[0], args[1][0]
        rows = isinstance(source, Node) and source.op == "get_attr" and len(args[1]) == 1 and meta_of(source).dim() > 1
        if not rows or not meta_of(source).is_contiguous() or meta_of(indices).dtype != torch.int64:
            continue
        with graph.graph.inserting_before(node):
            table = insert_call(graph, aten.view.default, source, [len(meta_of(source)), -1])
            numbers = insert_call(graph, aten.reshape.default, indices, [-1])
            part = insert_call(graph, aten.index_select.default, table, 0, numbers)
            whole = insert_call(graph, aten.view.default, part, list(meta_of(node).shape))
        replace(graph, node, whole)


def softmax_gradient(graph: GraphModule) -> None:
    """Gradients of a cross-entropy over few classes, of logarithms that nothing else reads: g - softmax(x) sum(g).

    torch's own log_softmax goes row by row, and through each of fewer numbers than a vector register holds one by one:
    a third of a small network's step.
    """
    sums: dict[Node, Node] = {}
    for node in calls(graph, aten._log_softmax_backward_data.default):
        if _has_few_classes(node):
            _subtract_softmax(graph, node, sums)


def _has_few_classes(node: Node) -> bool:
    args: Any = node.args
    gradient, logarithm, dim, dtype = args
    if logarithm.target is not aten._log_softmax.default or set(logarithm.users) != {node}:
        return False
    x = meta_of(logarithm.args[0])
    short = dim in (-1, x.dim() - 1) and x.shape[-1] < _FEW_CLASSES
    return short and dtype == x.dtype == meta_of(gradient).dtype


def _subtract_softmax(graph: GraphModule, node: Node, sums: dict[Node, Node]) -> None:
    args: Any = node.args
    gradient, logarithm, *_ = args
    x = logarithm.args[0]
    total = _row_sums(graph, gradient, sums)
    with graph.graph.inserting_before(node):
        largest = insert_call(graph, aten.amax.default, x, [-1], True)
        powers = insert_call(graph, aten.exp.default, insert_call(graph, aten.sub.Tensor, x, largest))
        normaliser = insert_call(graph, aten.sum.dim_IntList, powers, [-1], True)
        share = insert_call(graph, aten.div.Tensor, total, normaliser)
        new = insert_call(graph, aten.addcmul.default, gradient, powers, share, value=-1)
    replace(graph, node, new)


def _row_sums(graph: GraphModule, gradient: Any, sums: dict[Node, Node]) -> Node:
    """Sums over classes; where all steps' gradients lie in one tensor, of all of them at once."""
    steps, classes = _all_steps(gradient), meta_of(gradient).shape[-1]
    if steps not in sums:
        with graph.graph.inserting_after(steps):
            sums[steps] = insert_call(graph, aten.sum.dim_IntList, steps, [-1], True)
    if steps is gradient:
        return sums[steps]
    one = torch.empty((*meta_of(gradient).shape[:-1], 1), device="meta")
    with graph.graph.inserting_after(gradient):
        args = list(one.shape), list(one.stride()), gradient.args[3] // classes
        return insert_call(graph, aten.as_strided.default, sums[steps], *args)


def _all_steps(gradient: Any) -> Node:
    """What a gradient is a part of, if it is a run of whole rows there."""
    if gradient.target is not aten.as_strided.default:
        return gradient
    steps, part = gradient.args[0], meta_of(gradient)
    rows = meta_of(steps).is_contiguous() and part.is_contiguous() and meta_of(steps).shape[-1] == part.shape[-1]
    return steps if rows and gradient.args[3] % part.shape[-1] == 0 else gradient


def write_in_place(graph: GraphModule) -> None:
    """An operation whose first operand nobody reads later updates it where it lies."""
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in calls(graph, *_IN_PLACE):
        target, *factors = node.args
        base = base_of(target)
        if _is_last_reader(node, base, order) and base not in map(base_of, factors) and _covers(target, node):
            node.target = _IN_PLACE[node.target]


def _is_last_reader(node: Node, base: Any, order: dict[Node, int]) -> bool:
    """Whether an operation of this program made the memory, and nobody reads it after this one."""
    made_here = isinstance(base, Node) and base.op == "call_function"
    return made_here and all(order[reader] <= order[node] for reader in readers_of(base))


def _covers(target: Any, node: Node) -> bool:
    operand, result = meta_of(target), meta_of(node)
    return (operand.shape, operand.dtype) == (result.shape, result.dtype) and operand.is_contiguous()


Pass = Callable[[GraphModule], None]
"""Changes a graph in place."""
_CLEAN: tuple[str, Pass] = ("eliminate_dead_code", _eliminate_dead_code)
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
    ("hand_over_products", hand_over_products),
    _CLEAN,
    ("softmax_gradient", softmax_gradient),
    _CLEAN,
    ("client_loop", fuse_client_loops),
    _CLEAN,
    ("in_place", write_in_place),
    ("skinny_gemm", use_skinny_gemm),
)
"""Name and function, in order; what is done twice has one name."""
