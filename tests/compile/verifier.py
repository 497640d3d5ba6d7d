"""What every pass must keep of a recorded program, checked after each of them in the tests of this room.

A checker, not a proof: it knows shapes, types and who writes to which memory, not what is computed. Whether the numbers
are right is for `acceptance.py` to say. README.md has the list of what is checked, and what is not.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile.acceptance import Refused
from tacit.compile.handover import products
from tacit.compile.ir import base_of, readers_of, view_source
from tacit.compile.kernels import convolution, each_client
from tacit.compile.passes import skinny_gemm

aten, ours = torch.ops.aten, torch.ops.tacit
_DEFINING = convolution, each_client, skinny_gemm  # this room's operators


class Malformed(Refused):
    """What a pass left of a program is none: which node, and what is wrong with it."""


class Signature(NamedTuple):
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Contract:
    """What a program takes and gives, and operators it had before any pass; `meta` is what operations were seen to
    give, by what they were given, so that each is asked for once."""

    inputs: tuple[Signature, ...]
    results: tuple[Signature, ...]
    operators: frozenset[Any]
    meta: dict[str, Any] = field(default_factory=dict, compare=False)


def contract_of(graph: GraphModule) -> Contract:
    """Of a program as it was traced."""
    targets = frozenset(node.target for node in graph.graph.nodes if node.op == "call_function")
    return Contract(_inputs(graph), _results(graph), targets)


def verify(graph: GraphModule, contract: Contract | None = None) -> None:
    """Raises `Malformed` unless the graph is a program and, where one is given, keeps the contract."""
    contract = contract or contract_of(graph)
    try:
        graph.graph.lint()
    except RuntimeError as error:
        raise Malformed(" ".join(str(error).split())[:200]) from error
    for node in graph.graph.nodes:
        _check_node(graph, node, contract)
    _check_writes(graph)
    if _inputs(graph) != contract.inputs:
        raise Malformed("the program takes other inputs than before")
    _check_results(_results(graph), contract.results)


def _inputs(graph: GraphModule) -> tuple[Signature, ...]:
    return tuple(_signature(node) for node in graph.graph.nodes if node.op == "placeholder")


def _signature(node: Any) -> Signature:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor):
        raise Malformed(f"{node} does not say what its result is like")
    return Signature(tuple(value.shape), value.dtype)


def _results(graph: GraphModule) -> tuple[Signature, ...]:
    """Of what the program gives, with products in the places of what they stand for (`handover.py`)."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    given: Any = end.args[0]
    outputs, places = [_signature(node) for node in given], products(graph)
    results = outputs[: len(outputs) - len(places)]
    for at, (right, shape) in places.items():
        left, other = results[at], outputs[right]
        (clients, rows, high), (others, again, wide) = left.shape, other.shape
        fits = (clients, rows, left.dtype) == (others, again, other.dtype) and len(shape) > 0 and shape[0] == clients
        if not fits or torch.Size(shape).numel() != clients * high * wide:
            raise Malformed(f"result {at} is no product of a shape {shape}")
        results[at] = Signature(shape, left.dtype)
    return tuple(results)


def _check_results(now: tuple[Signature, ...], before: tuple[Signature, ...]) -> None:
    if len(now) != len(before):
        raise Malformed(f"the program gives {len(now)} results, and gave {len(before)}")
    for at, (new, old) in enumerate(zip(now, before, strict=True)):
        if new != old:
            raise Malformed(f"result {at} was {list(old.shape)} {old.dtype}, and is {list(new.shape)} {new.dtype}")


def _check_node(graph: GraphModule, node: Node, contract: Contract) -> None:
    if node.op == "get_attr":
        value: Any = getattr(graph, str(node.target), None)
        if not isinstance(value, Tensor) or Signature(tuple(value.shape), value.dtype) != _signature(node):
            raise Malformed(f"{node} is not like the constant that it names")
    elif node.op == "call_function":
        if not _known(node.target, contract):
            raise Malformed(f"{node} is an operation that programs do not have: {node.target}")
        _check_call(node, contract)
    elif node.op not in ("placeholder", "output"):
        raise Malformed(f"{node} is a {node.op}: programs have none")


def _known(target: Any, contract: Contract) -> bool:
    """ATen's, this room's own, and whatever a model brought with it."""
    if target in contract.operators or target is operator.getitem or target in OPERATORS:
        return True
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


def _check_call(node: Node, contract: Contract) -> None:
    """Whether it says of its result what follows from what it is given."""
    if node.target is operator.getitem:
        call, at = node.args
        results = _expected(call, contract)
        expected = None if results is None else results[at]
    elif _gives_one(node.target):
        expected = _expected(node, contract)
    else:
        return  # what is taken of its results says what they are like
    stated = _signature(node)
    if expected is not None and expected != stated:
        raise Malformed(
            f"{node} ({node.target}) gives {list(expected.shape)} {expected.dtype}, and says {list(stated.shape)}"
            f" {stated.dtype}"
        )


def _gives_one(target: Any) -> bool:
    returns = target._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _expected(node: Any, contract: Contract) -> Any:
    """What an operation gives of what its inputs say they are; None where nobody knows without running it."""
    if node.target is aten.as_strided.default and view_source(node.args[0]) is not None:
        return Signature(tuple(node.args[1]), _signature(node.args[0]).dtype)  # of more memory than its input shows
    key = f"{node.target} {torch.fx.map_arg((node.args, node.kwargs), _describe)}"
    if key not in contract.meta:
        try:
            contract.meta[key] = _signatures(_run(node, *torch.fx.map_arg((node.args, node.kwargs), _blank)))
        except NotImplementedError:
            contract.meta[key] = None
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise Malformed(f"{node} ({node.target}): {' '.join(str(error).split())[:120]}") from error
    return contract.meta[key]


def _describe(node: Node) -> Any:
    value = node.meta.get("val")
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else str(node)


def _blank(node: Node) -> Any:
    """A tensor without numbers."""
    _signature(node)
    value: Tensor = node.meta["val"]
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    target: Any = node.target
    if target in OPERATORS:
        return OPERATORS[target](*args, **kwargs)
    if target.namespace != "aten":
        raise NotImplementedError
    if any(argument.name == "device" for argument in target._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    return target(*args, **kwargs)


def _signatures(result: Any) -> Any:
    if isinstance(result, Tensor):
        return Signature(tuple(result.shape), result.dtype)
    return [None if each is None else Signature(tuple(each.shape), each.dtype) for each in result]


def _convolved(x: Tensor, weight: Tensor, bias: Tensor, pool: bool, relu: bool, name: str) -> tuple[Tensor, Tensor]:
    sides = [(n - weight.shape[-1] + 1) // (2 if pool else 1) for n in x.shape[-2:]]
    y = x.new_empty(*x.shape[:2], weight.shape[1], *sides)
    return y, y.new_empty(y.shape if pool or relu else (len(x),), dtype=torch.uint8)


OPERATORS: dict[Any, Callable[..., Any]] = {
    ours.take_rows.default: lambda source, indices: source.new_empty(*indices.shape, source.shape[2]),
    ours.add_rows.default: lambda old, indices, rows, count, beta, alpha: rows.new_empty(
        len(rows), count, rows.shape[2]
    ),
    ours.each_client.default: lambda placeholders, inputs, widths, numbers, factors, sizes, clients, scratch: [
        factors.new_empty(clients, size) for size in sizes
    ],
    ours.few_rows.default: lambda x, weight, bias: x.new_empty(*x.shape[:2], weight.shape[1]),
    ours.few_rows_back.default: lambda y, weight: y.new_empty(*y.shape[:2], weight.shape[2]),
    ours.few_rows_add_.default: lambda weight, y, x, factor: weight,
    ours.few_rows_step_.default: lambda weight, y, x, factor: (x, weight),
    ours.convolve.default: _convolved,
    ours.convolve_back.default: lambda gradient, which, x, weight, pool, relu, to_inputs, name: (
        x if to_inputs else x.new_empty(len(x)),
        weight,
        weight.new_empty(weight.shape[:2]),
    ),
}
"""What this room's own operators give, by tensors without numbers."""


def _check_writes(graph: GraphModule) -> None:
    """What is written over is the program's own, and nobody reads afterwards what was there before."""
    order = {node: at for at, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        for written in _written(node):
            version = base_of(written)
            if version.op != "call_function":
                raise Malformed(f"{node} writes to {version}, which is not the program's own")
            if sum(base_of(each) is version for each in _operands(node)) > 1:
                raise Malformed(f"{node} reads {version} while it writes there")
            late = next((reader for reader in readers_of(version) if order[reader] > order[node]), None)
            if late is not None:
                raise Malformed(f"{late} reads {version} after {node} has written over it")


def _written(node: Node) -> list[Node]:
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    written = (arg for each, arg in arguments if each.alias_info is not None and each.alias_info.is_write)
    return [arg for arg in written if isinstance(arg, Node)]


def _operands(node: Node) -> list[Node]:
    operands: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), operands.append)
    return operands


Passes = Iterable[tuple[str, Callable[[GraphModule], None]]]


def verified(passes: Passes) -> tuple[tuple[str, Callable[[GraphModule], None]], ...]:
    """The same passes; one that leaves no program raises `Malformed`, with its name."""
    contracts: WeakKeyDictionary[GraphModule, Contract] = WeakKeyDictionary()

    def check(name: str, rewrite: Callable[[GraphModule], None], graph: GraphModule) -> None:
        if graph not in contracts:
            contracts[graph] = contract_of(graph)
        rewrite(graph)
        try:
            verify(graph, contracts[graph])
        except Malformed as error:
            raise Malformed(f"the pass {name} left no program: {error}") from error

    return tuple((name, partial(check, name, rewrite)) for name, rewrite in passes)
