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

from tacit.compile.client_loop.fuse import each_client
from tacit.compile.handover import NOTHING, Handover
from tacit.compile.nodes import given, is_zero
from tacit.compile.passes.gather_scatter import picks
from tacit.compile.passes.hoist_steps import at_once
from tacit.compile.passes.in_place import in_place, over_inputs, shares_memory
from tacit.compile.passes.low_rank_weights import spans
from tacit.compile.passes.mask_padding import dead_steps
from tacit.compile.passes.proximal_step import pulls
from tacit.compile.passes.rematerialise_outer import unstored
from tacit.compile.passes.row_gather import gathers
from tacit.compile.passes.skinny_gemm import few_rows
from tacit.compile.passes.softmax_gradient import soft_labels
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


def simplify(graph: GraphModule, uploads: Handover = NOTHING) -> GraphModule:
    """The graph, changed in place. Its first results are handed over to somebody else (`handover.py`)."""
    contract, without = contract_of(graph) if wanted() else None, skipped()
    for name, rewrite in PASSES:
        if name in without:
            continue
        rewrite(graph, uploads)
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


def _drop_unused(graph: GraphModule) -> None:
    graph.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def _calls(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def _replace(graph: GraphModule, node: Node, new: Node) -> None:
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def _keep_constants(graph: GraphModule) -> None:
    """Computed once, now, rather than in every replay."""
    known: dict[Node, Tensor] = {n: getattr(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr"}
    for node in _calls(graph):
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
        _replace(graph, node, constant)


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(a, b)


def _all_known(node: Node, known: dict[Node, Tensor]) -> bool:
    return bool(node.all_input_nodes) and all(parent in known for parent in node.all_input_nodes)


def _evaluate(node: Node, known: dict[Node, Tensor]) -> Any:
    def value(parent: Node) -> Any:
        return known[parent] if parent in known else _shape(parent, "cpu")

    args, kwargs = (torch.fx.map_arg(a, value) for a in (node.args, node.kwargs))
    return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]


def _drop_times_one(graph: GraphModule) -> None:
    for node in _calls(graph):
        if node.target in (aten.mul.Scalar, aten.mul.Tensor) and node.args[1] == 1:
            _replace(graph, node, node.args[0])  # pyright: ignore[reportArgumentType]


def _is_view(node: Node) -> bool:
    if not shares_memory(node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return str(node.target._schema.returns[0].type) == "Tensor"


def _one_node_a_view(graph: GraphModule) -> None:
    """A chain of transposes and reshapes of what one operation made becomes one view, or none; equal views are one."""
    layout: dict[Node, tuple[Node, Tensor]] = {}  # a node's base, and its shape and strides there
    seen: dict[tuple[Any, ...], Node] = {}
    for node in _calls(graph):
        if not shares_memory(node):
            layout[node] = node, _shape(node)
        parent = node.args[0] if node.args else None
        if not _is_view(node) or parent not in layout:  # others may start anywhere in their memory
            continue
        base, shape = layout[parent]
        args, kwargs = (torch.fx.map_arg(a, lambda _, shape=shape: shape) for a in (node.args, node.kwargs))
        now: Tensor = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        key = (base, tuple(now.shape), now.stride(), now.storage_offset())
        if key not in seen:
            seen[key] = _as_strided(graph, node, base, now)
            layout[seen[key]] = base, now
        _replace(graph, node, seen[key])


def _shape(node: Node, device: str = "meta") -> Tensor:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return torch.empty(0, device=device)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _as_strided(graph: GraphModule, node: Node, base: Node, now: Tensor) -> Node:
    whole = _shape(base)
    if (whole.shape, whole.stride()) == (now.shape, now.stride()) and now.storage_offset() == 0:
        return base
    with graph.graph.inserting_before(node):
        view = graph.graph.call_function(
            aten.as_strided.default, (base, list(now.shape), list(now.stride()), now.storage_offset())
        )
    view.meta = dict(node.meta)
    return view


def _share(graph: GraphModule) -> None:
    """The same operation on the same values is done once."""
    seen: dict[Any, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        key = (node.op, node.target, repr(node.args), repr(node.kwargs))
        if key in seen:
            _replace(graph, node, seen[key])
        else:
            seen[key] = node


def _multiply_and_add(graph: GraphModule) -> None:
    """a + c (x @ y) in one call: the product is never stored."""
    for node in _calls(graph):
        if node.target is not aten.add.Tensor or len(node.args) != 2:
            continue
        a, b = node.args
        factor = node.kwargs.get("alpha", 1)
        if _only_product(b) and _fits(a, node, b):
            _replace(graph, node, _baddbmm(graph, node, a, b, beta=1, alpha=factor))
        elif _only_product(a) and _fits(b, node, a):
            _replace(graph, node, _baddbmm(graph, node, b, a, beta=factor, alpha=1))


def _only_product(node: Any) -> bool:
    return isinstance(node, Node) and node.target is aten.bmm.default and len(node.users) == 1


def _fits(term: Any, total: Node, product: Any) -> bool:
    return (
        isinstance(term, Node)
        and total.meta["val"].shape == product.meta["val"].shape
        and term.meta["val"].dtype == product.meta["val"].dtype
    )


def _baddbmm(graph: GraphModule, node: Node, term: Any, product: Any, beta: Any, alpha: Any) -> Node:
    with graph.graph.inserting_before(node):
        fused = graph.graph.call_function(aten.baddbmm.default, (term, *product.args), {"beta": beta, "alpha": alpha})
    fused.meta = dict(node.meta)
    return fused


def _zeros(graph: GraphModule) -> None:
    """A choice between something and zero is something with zeros put in."""
    for node in _calls(graph):
        if node.target is not aten.where.self or not is_zero(graph, node.args[2]):
            continue
        chosen, of, _ = node.args
        if not isinstance(of, Node) or (_shape(of).shape, _shape(of).dtype) != (_shape(node).shape, _shape(node).dtype):
            continue
        with graph.graph.inserting_before(node):
            left = given(graph, aten.logical_not.default, chosen, like=_shape(chosen))  # pyright: ignore[reportArgumentType]
            filled = given(graph, aten.masked_fill.Scalar, of, left, 0, like=node.meta["val"])
        _replace(graph, node, filled)


Pass = Callable[[GraphModule, Handover], None]
"""Changes a graph in place. What is handed over concerns the one pass that may change its form."""


def _of_graph(rewrite: Callable[[GraphModule], None]) -> Pass:
    return lambda graph, _: rewrite(graph)


_NEEDED = "eliminate_dead_code"
_CLEAN: tuple[str, Pass] = (_NEEDED, _of_graph(_drop_unused))
PASSES: tuple[tuple[str, Pass], ...] = (
    _CLEAN,
    ("fold_constants", _of_graph(_keep_constants)),
    ("drop_times_one", _of_graph(_drop_times_one)),
    ("hoist_steps", _of_graph(at_once)),
    _CLEAN,
    ("merge_views", _of_graph(_one_node_a_view)),
    ("share_subexpressions", _of_graph(_share)),
    _CLEAN,
    ("fuse_multiply_add", _of_graph(_multiply_and_add)),
    _CLEAN,
    ("low_rank_weights", _of_graph(spans)),
    ("mask_padding", _of_graph(dead_steps)),
    ("row_gather", _of_graph(gathers)),
    _CLEAN,
    ("rematerialise_outer", unstored),
    _CLEAN,
    ("softmax_gradient", _of_graph(soft_labels)),
    ("fill_zeros", _of_graph(_zeros)),
    ("share_subexpressions", _of_graph(_share)),
    _CLEAN,
    ("proximal_step", _of_graph(pulls)),
    ("gather_scatter", _of_graph(picks)),
    _CLEAN,
    ("client_loop", _of_graph(each_client)),
    _CLEAN,
    ("in_place", _of_graph(in_place)),
    ("skinny_gemm", _of_graph(few_rows)),
    ("write_over_inputs", _of_graph(over_inputs)),
)
"""Name and function, in order; what is done several times has one name."""
OPTIONAL: tuple[str, ...] = tuple(dict.fromkeys(name for name, _ in PASSES if name != _NEEDED))
"""Passes that others can do without."""
