"""Linear layers whose matrix is large and whose batch is small take kernels of their own, where these are compiled.

torch's own read such a matrix at a fraction of its memory's speed. A pass over a recorded program (see pipeline.py),
the last one: updates are in place by then.
"""

import operator
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile.ir import base_of, calls, insert_call, meta_of, readers_of
from tacit.compile.kernels import call, library, operation

aten, ours = torch.ops.aten, torch.ops.tacit
_FEW: Final = 64  # rows
_LARGE: Final = 2**18  # numbers of a matrix; smaller ones stay in a core's cache, and torch is as fast


def suits(clients: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """Whether these are faster than torch's own."""
    sized = clients > 0 and 0 < rows <= _FEW and inputs * outputs >= _LARGE and inputs % 16 == 0 and outputs % 4 == 0
    return sized and dtype == torch.float32 and library() is not None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[clients, rows, inputs] by [clients, outputs, inputs], with a bias [clients, outputs] or none."""
    x, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
    clients, outputs, inputs = weight.shape
    y = x.new_empty(clients, x.shape[1], outputs)
    call("linear_forward", (x, weight, bias, y), outputs * inputs, outputs, clients, x.shape[1], inputs, outputs)
    return y


def _back(y: Tensor, weight: Tensor) -> Tensor:
    """[clients, rows, outputs] by [clients, outputs, inputs]."""
    x = y.new_empty(*y.shape[:2], weight.shape[2])
    _call_step(weight.contiguous(), y, None, x, 0.0)
    return x


def _add(weight: Tensor, y: Tensor, x: Tensor, factor: float) -> Tensor:
    """weight += factor y' x, in place."""
    _call_step(weight, y, x, None, factor)
    return weight


def _step(weight: Tensor, y: Tensor, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """What `_back` gives, and then `_add`."""
    to_x = x.new_empty(x.shape)
    _call_step(weight, y, x, to_x, factor)
    return to_x, weight


def _call_step(weight: Tensor, y: Tensor, x: Tensor | None, to_x: Tensor | None, factor: float) -> None:
    clients, outputs, inputs = weight.shape
    tensors = weight, y.contiguous(), None if x is None else x.contiguous(), to_x
    call("linear_step", tensors, outputs * inputs, float(factor), clients, y.shape[1], inputs, outputs)


operation("few_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward)
operation("few_rows_back(Tensor y, Tensor weight) -> Tensor", _back)
operation("few_rows_add_(Tensor(a!) weight, Tensor y, Tensor x, float factor) -> Tensor(a!)", _add)
operation("few_rows_step_(Tensor(a!) weight, Tensor y, Tensor x, float factor) -> (Tensor, Tensor(a!))", _step)


def use_skinny_gemm(graph: GraphModule) -> None:
    """Replaces products x W', y W and updates W += c y' x; the last two are one where they have the same y."""
    for node in calls(graph):
        if node.target is aten.bmm.default:
            _replace_product(graph, node, None, *node.args)
        elif node.target is aten.baddbmm.default and set(node.kwargs.values()) <= {1}:
            _replace_product(graph, node, *node.args)
        elif node.target is aten.baddbmm_.default and node.kwargs.get("beta", 1) == 1:
            _replace_update(graph, node)
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in calls(graph, ours.few_rows_back.default):
        _fuse_update(graph, node, order)


def _replace_product(graph: GraphModule, node: Node, term: Any, rows: Any, matrix: Any) -> None:
    """rows @ matrix, or with the matrix transposed, and a bias for all rows alike."""
    (clients, batch, _), (_, inputs, outputs) = meta_of(rows).shape, meta_of(matrix).shape
    dtype, transposed = meta_of(node).dtype, meta_of(matrix).transpose(1, 2)
    if transposed.is_contiguous() and _is_bias(term, node) and suits(clients, batch, inputs, outputs, dtype):
        with graph.graph.inserting_before(node):
            weight = insert_call(graph, aten.transpose.int, matrix, 1, 2)
            bias = term and insert_call(graph, aten.select.int, term, 1, 0)
        _become(node, ours.few_rows.default, rows, weight, bias)
    elif meta_of(matrix).is_contiguous() and term is None and suits(clients, batch, outputs, inputs, dtype):
        _become(node, ours.few_rows_back.default, rows, matrix)


def _is_bias(term: Any, result: Node) -> bool:
    """Nothing, or for each client one row for its whole batch."""
    if term is None:
        return True
    bias, (clients, _, outputs) = meta_of(term), meta_of(result).shape
    whole = bias.dim() == 3 and (bias.shape[0], bias.shape[2]) == (clients, outputs)
    return whole and (bias.shape[1] == 1 or bias.stride(1) == 0)


def _replace_update(graph: GraphModule, node: Node) -> None:
    """weight += factor y' x"""
    weight, transposed, x = node.args
    (clients, outputs, inputs), batch = meta_of(weight).shape, meta_of(x).shape[1]
    if meta_of(weight).is_contiguous() and suits(clients, batch, inputs, outputs, meta_of(node).dtype):
        with graph.graph.inserting_before(node):
            y = insert_call(graph, aten.transpose.int, transposed, 1, 2)
        _become(node, ours.few_rows_add_.default, weight, y, x, node.kwargs.get("alpha", 1))


def _fuse_update(graph: GraphModule, back: Node, order: dict[Node, int]) -> None:
    """The product with a matrix on the way back, and the update of the matrix by the same rows: one trip for both."""
    y, weight = back.args
    readers = list(readers_of(weight))  # pyright: ignore[reportArgumentType]
    updates = [each for each in readers if each.target is ours.few_rows_add_.default and each.args[0] is weight]
    later = [reader for reader in readers if reader not in updates and order[reader] > order[back]]
    if len(updates) != 1 or later:
        return
    update: Any = updates[0]
    _, other, x, factor = update.args
    same_rows = base_of(other) is base_of(y) and meta_of(y).is_contiguous() and meta_of(other).shape == meta_of(y).shape
    if not same_rows or order.get(x, -1) > order[back] or meta_of(x).shape != meta_of(back).shape:
        return
    with graph.graph.inserting_before(back):
        both = graph.graph.call_function(ours.few_rows_step_.default, (weight, y, x, factor))
        parts = [graph.graph.call_function(operator.getitem, (both, at)) for at in (0, 1)]
    for old, new in zip((back, update), parts, strict=True):
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
        graph.graph.erase_node(old)


def _become(node: Node, target: Any, *args: Any) -> None:
    node.target, node.args, node.kwargs = target, args, {}
