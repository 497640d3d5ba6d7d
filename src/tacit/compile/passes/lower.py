"""A recorded program's small operations as `each_client.c` could do them for one client: what they read, and how.

An operation is drafted where all clients do the same with numbers of their own: its first dimension is that of clients.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Size, Tensor
from torch.fx import GraphModule, Node

from tacit.compile.ir import Place, meta_of
from tacit.compile.kernels.each_client import DIMENSIONS, Kind

aten, ours = torch.ops.aten, torch.ops.tacit
_LARGEST: Final = 2**17  # numbers of a client that a core's cache has room for, with others like them
_MOST_PRODUCTS: Final = {2: 2**20, 3: 2**22}  # of a client with what all share, or with its own; torch is as fast above
Strides = tuple[int, ...]


class Read(NamedTuple):
    """Numbers of a client: where they begin in the memory of `root`, how far it is to the next client's."""

    root: Node
    offset: int
    step: int
    strides: Strides
    last: int  # the furthest place from the first that is read

    def is_own(self, size: int) -> bool:
        """Whether each client reads what the same client made, indices are so many numbers."""
        return self.step == size and self.offset + self.last < size


class Draft(NamedTuple):
    kind: Kind
    sizes: tuple[int, ...]
    to: Strides
    reads: tuple[Read, ...]
    depth: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    over: Node | None = None  # what may be overwritten with the result: it is read number by number, in the same order


def small_matrix(leaf: Tensor) -> bool:
    """Whether products with weights like these can be drafted: a network of such alone is one run of operations."""
    return leaf.dim() <= 2 and leaf.numel() <= _LARGEST


def lower(graph: GraphModule, where: dict[Node, Place], clients: int) -> dict[Node, Draft]:
    """Drafts of all operations that can be drafted."""
    nodes = (node for node in graph.graph.nodes if node.target in _KINDS)
    return {node: draft for node in nodes if (draft := _draft(node, where, clients))}


def _draft(node: Node, where: dict[Node, Place], clients: int) -> Draft | None:
    out = meta_of(node)
    restrided = not out.is_contiguous() and any(user.target is aten.as_strided.default for user in node.users)
    if out.dtype != torch.float32 or restrided or not 0 < out.numel() <= _LARGEST * clients:
        return None
    return _KINDS[node.target](_Operation(node, where, clients))


class _Operation:
    def __init__(self, node: Node, where: dict[Node, Place], clients: int) -> None:
        self.node, self.clients, self._where = node, clients, where
        self.args: Any = node.args
        self.shape: Size = meta_of(node).shape

    def factor(self, name: str) -> float:
        return float(self.node.kwargs.get(name, 1))  # pyright: ignore[reportArgumentType]

    def layout(self, node: Any, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """An operand's shape and strides in its memory, if it is of this type."""
        view = self._where[node].view if isinstance(node, Node) and node in self._where else None
        return view if view is not None and view.dtype == dtype else None

    def read(self, node: Any, step: int, sizes: Sequence[int], strides: Strides) -> Read:
        root, view = self._where[node]
        last = sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        return Read(root, int(view.storage_offset()), step, strides, last)

    def whole(self, read: Read, to: Strides, sizes: Sequence[int]) -> Node | None:
        """Its root, if it is read from the first number to the last as the result is written."""
        same = read.strides == to and read.offset == 0 and read.step == math.prod(sizes)
        return read.root if same and meta_of(read.root).numel() == self.clients * math.prod(sizes) else None


def elementwise(
    kind: Kind,
    alpha: Callable[[_Operation], Any] = lambda _: 1,
    beta: Callable[[_Operation], Any] = lambda _: 1,
    masks: tuple[int, ...] = (),
) -> Any:
    """Of as many operands as there are nodes among the arguments; those at `masks` are true or false."""

    def draft(d: _Operation) -> Draft | None:
        nodes = [each for each in d.args if isinstance(each, Node)]
        layouts = [d.layout(each, torch.bool if at in masks else torch.float32) for at, each in enumerate(nodes)]
        wanted = {Kind.MULTIPLE: 1, Kind.RECTIFIED: 1, Kind.EXPONENTIAL: 1, Kind.ADDED_PRODUCT: 3, Kind.CHOSEN: 3}
        if len(nodes) != wanted.get(kind, 2) or None in layouts or d.shape[:1] != (d.clients,):
            return None
        out = torch.empty(d.shape, device="meta")
        spread = [out, *(each.expand(d.shape) for each in layouts if each is not None)]
        sizes, strides = merge_dimensions(d.shape[1:], [each.stride()[1:] for each in spread])
        if len(sizes) > DIMENSIONS or any(one[-1] not in (0, 1) for one in strides):
            return None
        reads = tuple(
            d.read(node, each.stride(0), sizes, one)
            for node, each, one in zip(nodes, spread[1:], strides[1:], strict=True)
        )
        whole = {d.whole(read, strides[0], sizes): None for at, read in enumerate(reads) if at not in masks}
        others = {read.root for read in reads if d.whole(read, strides[0], sizes) is None}
        over = next((root for root in whole if root not in others), None)
        return Draft(kind, sizes, strides[0], reads, alpha=float(alpha(d)), beta=float(beta(d)), over=over)

    return draft


def merge_dimensions(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[tuple[int, ...], list[Strides]]:
    """Neighbouring dimensions made one where all tensors allow it; at least three, the last ones those that matter."""
    sizes, steps = [1], [(1,) * len(strides)]
    for size, step in zip(reversed(shape), reversed(list(zip(*strides, strict=True))), strict=True):
        if size == 1:
            continue
        if sizes[-1] == 1:
            sizes[-1], steps[-1] = size, step
        elif all(outer == inner * sizes[-1] for outer, inner in zip(step, steps[-1], strict=True)):
            sizes[-1] *= size
        else:
            sizes.append(size)
            steps.append(step)
    fill = DIMENSIONS - len(sizes)
    columns = [*[(0,) * len(strides)] * fill, *reversed(steps)]
    return (*[1] * fill, *reversed(sizes)), [tuple(each) for each in zip(*columns, strict=True)]


def product(d: _Operation) -> Draft | None:
    """bmm, baddbmm, or a matrix product of all clients' rows with what they share."""
    *term, a, b = d.args
    first, second = d.layout(a), d.layout(b)
    if first is None or second is None or d.shape[0] % d.clients or (first.dim() == 3 and d.shape[0] != d.clients):
        return None
    most = _MOST_PRODUCTS[first.dim()]
    if first.dim() == 2:
        rows = d.shape[0] // d.clients
        first = first.as_strided((d.clients, rows, first.shape[1]), (rows * first.stride(0), *first.stride()))
        second = second.expand(d.clients, *second.shape)
    rows, depth, columns = *first.shape[1:], second.shape[2]
    vectors = _along(second)[1] == 1 or (_along(first)[1] == 1 and _along(second)[0] == 1)
    if not vectors or max(rows * depth, depth * columns) > _LARGEST or rows * depth * columns > most:
        return None
    beta = d.factor("beta") if term else 0.0
    reads = [
        d.read(a, first.stride(0), (rows, depth), _along(first)),
        d.read(b, second.stride(0), (depth, columns), _along(second)),
    ]
    to, over = (columns, 1), None
    if beta:
        third = d.layout(term[0])
        third = None if third is None else third.expand(d.clients, rows, columns)
        if third is None or _along(third)[1] not in (0, 1):
            return None
        reads.append(d.read(term[0], third.stride(0), (rows, columns), _along(third)))
        over = d.whole(reads[-1], to, (rows, columns))
        over = None if over in (reads[0].root, reads[1].root) else over
    return Draft(Kind.MATRIX, (rows, columns), to, tuple(reads), depth, d.factor("alpha"), beta, over)


def take_rows(d: _Operation) -> Draft | None:
    source, numbers = d.args
    rows, indices = d.layout(source), d.layout(numbers, torch.int64)
    if rows is None or indices is None or rows.dim() != 3 or _along(rows)[1] != 1:
        return None
    sizes = (1, indices.shape[1], rows.shape[2])
    reads = (
        d.read(source, rows.stride(0), rows.shape[1:], tuple(rows.stride()[1:])),
        d.read(numbers, indices.stride(0), indices.shape[1:], indices.stride()[1:]),
    )
    reads = tuple(read._replace(strides=(0, read.strides[0], 1)) for read in reads)
    return Draft(Kind.TAKE_ROWS, sizes, (0, sizes[2], 1), reads, depth=rows.shape[1])


def index_select(d: _Operation) -> Draft | None:
    """Rows of what all clients share, as many for each client."""
    source, dim, numbers = d.args
    rows, indices = d.layout(source), d.layout(numbers, torch.int64)
    if rows is None or indices is None or dim or rows.dim() != 2 or rows.stride(1) != 1 or d.shape[0] % d.clients:
        return None
    count = d.shape[0] // d.clients
    reads = (
        d.read(source, 0, (1, *rows.shape), (0, rows.stride(0), 1)),
        d.read(numbers, count * indices.stride(0), (1, count, 1), (0, indices.stride(0), 1)),
    )
    return Draft(Kind.TAKE_ROWS, (1, count, rows.shape[1]), (0, rows.shape[1], 1), reads, depth=rows.shape[0])


def add_rows(d: _Operation) -> Draft | None:
    old, numbers, rows, count, beta, alpha = d.args
    indices, added = d.layout(numbers, torch.int64), d.layout(rows)
    total = None if old is None else d.layout(old)
    if indices is None or added is None or _along(added)[1] != 1 or (old is not None and total is None):
        return None
    reads = [
        d.read(numbers, indices.stride(0), indices.shape[1:], indices.stride()[1:]),
        d.read(rows, added.stride(0), added.shape[1:], _along(added)),
    ]
    over, wide = None, added.shape[2]
    if total is not None:
        reads.append(d.read(old, total.stride(0), (count, wide), _along(total)))
        over = d.whole(reads[-1], (wide, 1), (count, wide))
        if over is None or over is reads[1].root:
            return None
    return Draft(Kind.ADD_ROWS, (count, wide), (wide, 1), tuple(reads), added.shape[1], float(alpha), float(beta), over)


def _along(matrix: Tensor) -> Strides:
    """Its strides; where there is only one, any would do."""
    return tuple(1 if n == 1 else stride for n, stride in zip(matrix.shape[1:], matrix.stride()[1:], strict=True))


def reduced(kind: Kind) -> Any:
    """Along neighbouring dimensions."""

    def draft(d: _Operation) -> Draft | None:
        view = d.layout(d.args[0])
        if view is None or d.node.kwargs or view.shape[:1] != (d.clients,):
            return None
        dims = sorted(dim % view.dim() for dim in (d.args[1] if len(d.args) > 1 else None) or ())
        if not dims or dims != list(range(dims[0], dims[-1] + 1)) or dims[0] == 0:
            return None
        groups = [range(1, dims[0]), range(dims[0], dims[-1] + 1), range(dims[-1] + 1, view.dim())]
        groups_merged = [
            merge_dimensions([view.shape[at] for at in g], [tuple(view.stride(at) for at in g)]) for g in groups
        ]
        if any(math.prod(sizes[:-1]) > 1 for sizes, _ in groups_merged):
            return None
        (outer, along, inner), strides = (m[0][-1] for m in groups_merged), tuple(m[1][0][-1] for m in groups_merged)
        if strides[1 if inner == 1 else 2] != 1:
            return None
        read = d.read(d.args[0], view.stride(0), (outer, along, inner), strides)
        return Draft(kind, (outer, along, inner), (inner, 0, 1), (read,))

    return draft


def _multiplied(d: _Operation) -> Draft | None:
    if isinstance(d.args[1], Node):
        return elementwise(Kind.PRODUCT)(d)
    return elementwise(Kind.MULTIPLE, lambda d: d.args[1])(d)


_KINDS: dict[Any, Callable[[_Operation], Draft | None]] = {
    aten.add.Tensor: elementwise(Kind.SUM, lambda d: d.factor("alpha")),
    aten.sub.Tensor: elementwise(Kind.SUM, lambda d: -d.factor("alpha")),
    aten.mul.Tensor: _multiplied,
    aten.mul.Scalar: _multiplied,
    aten.div.Tensor: elementwise(Kind.QUOTIENT),
    aten.neg.default: elementwise(Kind.MULTIPLE, lambda _: -1),
    aten.relu.default: elementwise(Kind.RECTIFIED),
    aten.threshold_backward.default: elementwise(Kind.GATED, lambda d: d.args[2]),
    aten.exp.default: elementwise(Kind.EXPONENTIAL),
    aten.addcmul.default: elementwise(Kind.ADDED_PRODUCT, lambda d: d.node.kwargs.get("value", 1)),
    aten.masked_fill.Scalar: elementwise(Kind.FILLED, lambda d: d.args[2], masks=(1,)),
    aten.where.self: elementwise(Kind.CHOSEN, masks=(0,)),
    aten.sum.dim_IntList: reduced(Kind.TOTAL),
    aten.amax.default: reduced(Kind.LARGEST),
    aten.bmm.default: product,
    aten.baddbmm.default: product,
    aten.mm.default: product,
    ours.take_rows.default: take_rows,
    ours.add_rows.default: add_rows,
    aten.index_select.default: index_select,
}
