"""Several inputs of a model as one: whatever is done to their leading dimension is done to all of them.

A model with one input gets a tensor, as ever. One with several (`input_ids` and `attention_mask`, an image and a table)
gets `Columns`: tensors with the same number of rows, by name or in order. It is indexed, cut and moved as a tensor is,
and it is a pytree, so that `vmap` goes through it; nothing else needs to know that there are several.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.core.tensors import split_rows
from tacit.errors import TacitError


class Columns:
    """Tensors of one leading dimension. `names` is None where they are given to the model in order.

    >>> both = Columns.of({"ids": torch.arange(6).reshape(3, 2), "mask": torch.ones(3, 2)})
    >>> len(both), both[1:].tensors[0].tolist()
    (3, [[2, 3], [4, 5]])
    """

    def __init__(self, names: tuple[str, ...] | None, tensors: Sequence[Tensor]) -> None:
        self.names, self.tensors = names, tuple(tensors)

    @classmethod
    def of(cls, parts: Mapping[str, Tensor] | Sequence[Tensor]) -> "Columns":
        """From a dict of tensors, or from several in order."""
        named = isinstance(parts, Mapping)
        columns = cls(tuple(parts) if named else None, [*parts.values()] if named else [*parts])
        if not columns.tensors:
            raise TacitError("there are no inputs: give at least one tensor")
        sizes = [len(each) for each in columns.tensors]
        if len(set(sizes)) > 1:
            raise TacitError(f"inputs have {sizes[0]} and {next(n for n in sizes if n != sizes[0])} rows: give each "
                             "one row for each example")  # fmt: skip
        return columns

    def each(self, f: Callable[[Tensor], Tensor]) -> "Columns":
        return Columns(self.names, [f(tensor) for tensor in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __iter__(self) -> Iterator["Columns"]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> "Columns":
        return self.each(lambda tensor: tensor[index])

    def __repr__(self) -> str:
        return f"Columns({', '.join(f'{name} {dtype} {shape}' for name, dtype, shape in self.described)})"

    @property
    def described(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, type and shape of a row of each."""
        names = self.names or [str(at) for at in range(len(self.tensors))]
        return [(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
                for name, tensor in zip(names, self.tensors, strict=True)]  # fmt: skip

    @property
    def shape(self) -> tuple[Any, ...]:
        """Rows, then the shape of a row of each input."""
        return (len(self), *(shape for _, _, shape in self.described))

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def dtype(self) -> tuple[torch.dtype, ...]:
        return tuple(tensor.dtype for tensor in self.tensors)

    def split(self, rows: int) -> list["Columns"]:
        return [
            Columns(self.names, parts) for parts in zip(*(split_rows(each, rows) for each in self.tensors), strict=True)
        ]

    def unsqueeze(self, dim: int) -> "Columns":
        return self.each(lambda tensor: tensor.unsqueeze(dim))

    def to(self, device: Any) -> "Columns":
        return self.each(lambda tensor: tensor.to(device))


pytree.register_pytree_node(
    Columns,
    lambda columns: (list(columns.tensors), columns.names),
    lambda leaves, names: Columns(names, [*leaves]),
    serialized_type_name="tacit.Columns",
    to_dumpable_context=lambda names: None if names is None else list(names),
    from_dumpable_context=lambda names: None if names is None else tuple(names),
)

if TYPE_CHECKING:
    Rows = Tensor  # in its leading dimension the other is like one
else:
    Rows = Tensor | Columns


def each(f: Callable[[Tensor], Tensor], x: Rows) -> Rows:
    """`f` of the tensor, or of each of several."""
    moved: Any = x.each(f) if isinstance(x, Columns) else f(x)
    return moved


def leaves(x: Rows) -> list[Tensor]:
    return [*x.tensors] if isinstance(x, Columns) else [x]


def concatenate(parts: Sequence[Rows]) -> Rows:
    """One below the other; all have the same inputs."""
    first: Any = parts[0]
    if not isinstance(first, Columns):
        return torch.cat([*parts])
    pieces: Any = parts
    return Columns(first.names, [torch.cat(each) for each in zip(*(part.tensors for part in pieces), strict=True)])  # pyright: ignore[reportReturnType]


def arguments(x: Rows) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """How a module is called with it: named inputs by keyword."""
    if not isinstance(x, Columns):
        return (x,), {}
    return ((), dict(zip(x.names, x.tensors, strict=True))) if x.names else (x.tensors, {})


def call(module: nn.Module, x: Rows) -> Any:
    positional, named = arguments(x)
    return module(*positional, **named)
