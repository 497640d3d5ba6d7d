"""Recorded programs as torch.fx graphs: tracing one, making nodes, asking what they are, and where their numbers lie.

Every node with one tensor as its result has `meta["val"]`: a tensor on the device `meta`, with a shape, a type and
strides, and without numbers.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten
_VIEWS_BY_SHAPE = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.transpose.int,
    aten.t.default,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}
"""Views that follow from the shape of their operand, whatever its strides are."""


def trace(program: Callable[..., Any], *inputs: Any) -> GraphModule:
    """A graph from the leaves of `inputs` to the leaves of the result, run once on these inputs.

    No operation of it writes to memory: what the program changes in place becomes a new value.

    Raises:
        RuntimeError: a value decides what is done next, or memory that was changed in place is read under another name.
    """
    tape = _Tape(pytree.tree_leaves(inputs))
    with tape:
        outputs = program(*inputs)
    tape.graph.output(tuple(tape.node(leaf) for leaf in pytree.tree_leaves(outputs)))
    return GraphModule(tape.constants, tape.graph)


class _Tape(TorchDispatchMode):
    """Writes down what torch does. `make_fx` does so, too, and takes ten times as long."""

    def __init__(self, leaves: list[Tensor]) -> None:
        super().__init__()
        self.graph = Graph()
        self.constants: dict[str, Tensor] = {}
        self._nodes: Any = WeakTensorKeyDictionary()
        for at, leaf in enumerate(leaves):
            self._keep(leaf, self.graph.placeholder(f"input_{at}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            raise RuntimeError("a value decides what is done next")
        operands = map_aggregate((args, kwargs), lambda each: self.node(each) if isinstance(each, Tensor) else each)
        result = func(*args, **kwargs)
        call = self.graph.call_function(_pure(func), *operands)
        if func._schema.is_mutable and torch.Tag.inplace_view not in func.tags:
            self._forget_other_names(args[0])
        if isinstance(result, Tensor):
            self._keep(result, call)
        else:
            for at, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._keep(part, self.graph.call_function(operator.getitem, (call, at)))
        return result

    def node(self, value: Tensor) -> Node:
        """Who made it; what nobody made is a constant."""
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value.detach()
            self._keep(value, self.graph.get_attr(name))
        if self._nodes[value] is None:
            raise RuntimeError("memory that was changed in place is read under another name")
        return self._nodes[value]

    def _keep(self, value: Tensor, node: Node) -> None:
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self._nodes[value] = node

    def _forget_other_names(self, written: Tensor) -> None:
        """Whoever else shows this memory has another value now, and no node for it."""
        memory = written.untyped_storage()._cdata
        if any(constant.untyped_storage()._cdata == memory for constant in self.constants.values()):
            raise RuntimeError("a constant is changed in place")
        for other in [each for each in self._nodes if each.untyped_storage()._cdata == memory]:
            self._nodes[other] = None


def _pure(func: Any) -> Any:
    """The operation that gives what `func` leaves in its first argument."""
    if not func._schema.is_mutable:
        return func
    name = func._schema.name.removeprefix("aten::")
    if not name.endswith("_") or not hasattr(aten, name[:-1]):
        raise RuntimeError(f"{name} writes to memory that was given")
    return getattr(getattr(aten, name[:-1]), func._overloadname)


def insert_call(graph: GraphModule, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new operation at the graph's insertion point; what its result is like is found without numbers."""
    node = graph.graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*torch.fx.map_arg(args, meta_of), **torch.fx.map_arg(kwargs, meta_of))
    return node


def insert_constant(graph: GraphModule, value: Tensor) -> Node:
    """A constant at the graph's insertion point; equal ones are one."""
    names = (name for name, kept in graph.named_buffers() if kept is value or _same(kept, value))
    name = next(names, f"_kept_{sum(1 for _ in graph.buffers())}")
    graph.register_buffer(name, value)
    node = graph.graph.get_attr(name)
    node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return node


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(a, b)


def meta_of(node: Any) -> Tensor:
    """Its result without numbers."""
    return node.meta["val"]


def calls(graph: GraphModule, *targets: Any) -> list[Node]:
    """All operations, or those of these kinds, in order."""
    nodes = (node for node in graph.graph.nodes if node.op == "call_function")
    return [node for node in nodes if not targets or node.target in targets]


def replace(graph: GraphModule, node: Node, new: Node) -> None:
    """All users of a node read another one; the node is erased."""
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def view_source(node: Any) -> Node | None:
    """The operand whose memory a view shows; None for what has memory of its own, or has written to it."""
    call, at = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, 0)
    if not isinstance(call.target, OpOverload):
        return None
    if call.target is aten._unsafe_view.default:
        return call.args[0]
    returns = call.target._schema.returns
    alias = returns[at if len(returns) > 1 else 0].alias_info if returns else None
    if alias is None or alias.is_write:
        return None
    arguments = zip(call.target._schema.arguments, call.args, strict=False)
    sources = (arg for each, arg in arguments if each.alias_info and each.alias_info.before_set & alias.before_set)
    first: Any = call.args[0]  # of operations that give a list of views (split), schemas do not say which operand's
    return next((arg for arg in sources if isinstance(arg, Node)), first)


def base_of(node: Any) -> Any:
    """The operation that made the memory that a node shows, or was the last to write to it."""
    while isinstance(node, Node) and (source := view_source(node)) is not None:
        node = source
    return node


def readers_of(node: Node) -> Iterator[Node]:
    """Operations that read its numbers, directly or through views."""
    for user in node.users:
        if view_source(user) is not None and base_of(user) is base_of(node):
            yield from readers_of(user)
        else:
            yield user


class Place(NamedTuple):
    """The operation that made the memory, and a tensor without numbers of the shape, strides and offset there."""

    root: Node
    view: Tensor


def places(graph: GraphModule) -> dict[Node, Place]:
    """In which memory each tensor lies. Inputs have the strides that they were recorded with; all other memory is taken
    to be contiguous."""
    known: dict[Node, Place] = {}
    for node in graph.graph.nodes:
        if isinstance(meta := node.meta.get("val"), Tensor):
            strides = meta.stride() if node.op == "placeholder" else torch.empty(meta.shape, device="meta").stride()
            whole = torch.empty_strided(meta.shape, strides, dtype=meta.dtype, device="meta")
            known[node] = _place_of_view(node, known) or Place(node, whole)
    return known


def _place_of_view(node: Node, known: dict[Node, Place]) -> Place | None:
    parent: Any = node.args[0] if node.args else None
    if parent not in known or not (node.target in _VIEWS_BY_SHAPE or node.target is aten.as_strided.default):
        return None
    root, view = known[parent]
    whole = (
        root.op != "placeholder"
        and view.is_contiguous()
        and view.storage_offset() == 0
        and meta_of(parent).is_contiguous()
    )
    if node.target is aten.as_strided.default and not whole:
        return None  # its strides may be those of another layout
    try:
        part: Tensor = node.target(view, *node.args[1:], **node.kwargs)  # pyright: ignore[reportCallIssue]
    except RuntimeError:  # these numbers are not where a view could show them
        return None
    same = part.untyped_storage()._cdata == view.untyped_storage()._cdata
    return Place(root, part) if same else None
