"""Every tensor operation of a program, as a torch.fx graph: what `vmap`, `grad` and modules come down to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten


def taped(program: Callable[..., Any], *inputs: Any) -> GraphModule:
    """A graph from the leaves of `inputs` to the leaves of the result, run once on these inputs.

    RuntimeError where a value decides what is done next. What is changed in place becomes a new value of the same
    name; if another view of it is read afterwards, the graph differs from the program.
    """
    tape = _Tape(pytree.tree_leaves(inputs))
    with tape:
        outputs = program(*inputs)
    tape.graph.output(tuple(tape.node(leaf) for leaf in pytree.tree_leaves(outputs)))
    return GraphModule(tape.constants, tape.graph)


class _Tape(TorchDispatchMode):
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
        inputs = pytree.tree_map_only(Tensor, self.node, (args, kwargs))
        out = func(*args, **kwargs)
        call = self.graph.call_function(_pure(func), *inputs)
        if isinstance(out, Tensor):
            self._keep(out, call)
        else:
            for at, part in enumerate(out):
                if isinstance(part, Tensor):
                    self._keep(part, self.graph.call_function(item, (call, at)))
        return out

    def node(self, value: Tensor) -> Node:
        """Who made it; what nobody made is a constant."""
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value.detach()
            self._keep(value, self.graph.get_attr(name))
        return self._nodes[value]

    def _keep(self, value: Tensor, node: Node) -> None:
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        self._nodes[value] = node


def _pure(func: Any) -> Any:
    """The operation that gives what `func` leaves in its first argument."""
    if not func._schema.is_mutable:
        return func
    name = func._schema.name.removeprefix("aten::")
    if not name.endswith("_") or not hasattr(aten, name[:-1]):
        raise RuntimeError(f"{name} writes to memory that was given")
    return getattr(getattr(aten, name[:-1]), func._overloadname)


def item(several: Any, at: int) -> Tensor:
    return several[at]
