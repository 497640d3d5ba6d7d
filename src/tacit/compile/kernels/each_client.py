"""Lists of small operations that are done for one client after another (`each_client.c`), as one torch operation.

A list is two tensors, so that a recorded program can hold it: numbers of each operation (kind, three sizes, depth, five
operands) and its two factors. A pass over recorded programs (`tacit.compile.passes.client_loop`) writes them.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tacit.compile.kernels import call, operation

OWN: Final = 0
"""The memory that a list works in; inputs follow, then outputs."""
DIMENSIONS: Final = 3
_NUMBERS: Final = 2 + DIMENSIONS + 5 * (3 + DIMENSIONS)  # of an operation


class Kind(IntEnum):
    """What an operation gives, in the order of `each_client.c`."""

    SUM = 0  # beta a + alpha b
    PRODUCT = auto()
    QUOTIENT = auto()
    MULTIPLE = auto()  # alpha a
    RECTIFIED = auto()
    GATED = auto()  # a where b is larger than alpha, else 0
    EXPONENTIAL = auto()
    ADDED_PRODUCT = auto()  # a + alpha b c
    FILLED = auto()  # a, or alpha where b, bytes, says so
    CHOSEN = auto()  # b where a, bytes, says so, else c
    TOTAL = auto()  # of a along the second of three dimensions
    LARGEST = auto()
    MATRIX = auto()  # beta c + alpha a b; a [rows, depth], b [depth, columns]
    TAKE_ROWS = auto()  # rows of a, by numbers in b; `depth` rows there are
    ADD_ROWS = auto()  # beta c + alpha b, each of its `depth` rows where a, numbers, says


class Operand(NamedTuple):
    """Where a client's numbers lie: memory, the first one's place, and how far it is to the next client and along each
    dimension."""

    memory: int
    offset: int
    step: int
    strides: tuple[int, ...]

    @property
    def numbers(self) -> list[int]:
        return [self.memory, self.offset, self.step, *self.strides, *[0] * (DIMENSIONS - len(self.strides))]


NOTHING: Final = Operand(-1, 0, 0, ())


class Operation(NamedTuple):
    kind: Kind
    sizes: tuple[int, ...]
    to: Operand
    operands: tuple[Operand, ...]
    depth: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    unless: Operand = NOTHING  # a client whose byte there is true passes it over

    @property
    def numbers(self) -> list[int]:
        sizes = [*self.sizes, *[1] * (DIMENSIONS - len(self.sizes))]
        operands = [self.to, *self.operands, *[NOTHING] * (DIMENSIONS - len(self.operands)), self.unless]
        return [int(self.kind), *sizes, self.depth, *(n for each in operands for n in each.numbers)]


def encode(operations: Sequence[Operation]) -> tuple[Tensor, Tensor]:
    """A list's numbers and factors."""
    return torch.tensor([each.numbers for each in operations]), torch.tensor([[e.alpha, e.beta] for e in operations])


def _each_client(
    placeholders: list[Tensor],
    inputs: list[Tensor],
    widths: list[int],
    numbers: Tensor,
    factors: Tensor,
    sizes: list[int],
    clients: int,
    scratch: int,
) -> list[Tensor]:
    """Does a list on what lies as the list says, then on inputs that are to be unbroken, of `widths` bytes a number.

    `sizes` are a client's numbers of each output, `scratch` those it works in.
    """
    sources = [*placeholders, *(each.contiguous() for each in inputs)]
    if [each.itemsize for each in sources] != widths:
        raise RuntimeError("a list was written for numbers of other types")
    if numbers.shape != (len(factors), _NUMBERS) or numbers.dtype != torch.int64 or factors.dtype != torch.float32:
        raise RuntimeError("a list's numbers are not those of operations")
    outputs = [torch.empty(clients, size) for size in sizes]
    every = [*sources, *outputs]
    memory = torch.tensor([0, *(each.data_ptr() for each in every)])
    reach = torch.tensor([0, *(_reach(each) for each in every)])
    lists = (numbers.contiguous(), factors.contiguous(), memory, reach)
    ends = len(numbers), clients, scratch, len(every) + 1, len(sources) + 1
    if at := call("each_client", lists, *ends):
        raise RuntimeError(f"operation {at} of a list would leave its memory")
    return outputs


def _reach(each: Tensor) -> int:
    """Bytes from its first number to the end of its memory."""
    return each.untyped_storage().nbytes() - int(each.storage_offset()) * each.itemsize


def _take_rows(source: Tensor, indices: Tensor) -> Tensor:
    """Each client's own rows of [clients, n, numbers], by their numbers [clients, count]."""
    return source.gather(1, indices.unsqueeze(-1).expand(-1, -1, source.shape[-1]))


def _add_rows(old: Tensor | None, indices: Tensor, rows: Tensor, count: int, beta: float, alpha: float) -> Tensor:
    """beta old + alpha rows, each added to the row of its number; [clients, count, numbers]."""
    total = rows.new_zeros(len(rows), count, rows.shape[-1]) if old is None else beta * old
    return total.scatter_add(1, indices.unsqueeze(-1).expand_as(rows), alpha * rows)


_ANYWHERE: Final = "CompositeExplicitAutograd"  # without numbers, too
operation("take_rows(Tensor source, Tensor indices) -> Tensor", _take_rows, _ANYWHERE)
operation(
    "add_rows(Tensor? old, Tensor indices, Tensor rows, int count, float beta, float alpha) -> Tensor",
    _add_rows,
    _ANYWHERE,
)
operation(
    "each_client(Tensor[] placeholders, Tensor[] inputs, int[] widths, Tensor numbers, Tensor factors, int[] sizes,"
    " int clients, int scratch) -> Tensor[]",
    _each_client,
)
