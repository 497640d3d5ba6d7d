"""Compiled code keeps to its memory: lists of operations that would leave it are refused before anything is done."""

import shutil
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit import c_library
from tacit.compile import kernels
from tacit.compile.kernels import compiled
from tacit.compile.kernels.each_client import NOTHING, OWN, Kind, Operand, Operation, encode
from tacit.privacy.mechanisms import clipped_upload_sum
from tacit.simulation import client_states, draws

OTHERS = (clipped_upload_sum.SOURCE, client_states.SOURCE, draws.SOURCE)

needs_a_compiler = pytest.mark.skipif(not compiled(), reason="no C compiler that the kernels can be built with")
CLIENTS, ROWS, WIDE = 3, 4, 5
SIZE = ROWS * WIDE


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_compiler_has_nothing_to_complain_of(compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    sources = [*(str(kernels.HERE / name) for name in kernels.SOURCES), *map(str, OTHERS)]
    command = [compiler, "-march=native", "-fsyntax-only", *c_library.WARNINGS, "-Werror", *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def do(*operations: Operation, inputs: tuple[Tensor, ...] = (), own: int = SIZE) -> Tensor:
    numbers, factors = encode(operations)
    widths = [each.itemsize for each in inputs]
    return torch.ops.tacit.each_client([], list(inputs), widths, numbers, factors, [SIZE], CLIENTS, own)[0]


def at(memory: int, strides: tuple[int, ...] = (0, WIDE, 1), step: int = SIZE, offset: int = 0) -> Operand:
    return Operand(memory, offset, 0 if memory == OWN else step, strides)


BOX = (1, ROWS, WIDE)
FLOATS = tuple(torch.rand(CLIENTS, SIZE) for _ in range(3))
NUMBERS = torch.zeros(CLIENTS, ROWS, dtype=torch.int64)
MASK = torch.ones(CLIENTS, SIZE, dtype=torch.bool)
MATRIX, TO = (WIDE, 1), (WIDE, 1)
RIGHT: dict[Kind, tuple[Operation, tuple[Tensor, ...]]] = {
    **{
        kind: (Operation(kind, BOX, at(3), (at(1), at(2))), FLOATS[:2])
        for kind in (Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.GATED)
    },
    **{
        kind: (Operation(kind, BOX, at(2), (at(1),)), FLOATS[:1])
        for kind in (Kind.MULTIPLE, Kind.RECTIFIED, Kind.EXPONENTIAL)
    },
    Kind.ADDED_PRODUCT: (Operation(Kind.ADDED_PRODUCT, BOX, at(4), (at(1), at(2), at(3))), FLOATS),
    Kind.FILLED: (Operation(Kind.FILLED, BOX, at(3), (at(1), at(2))), (FLOATS[0], MASK)),
    Kind.CHOSEN: (Operation(Kind.CHOSEN, BOX, at(4), (at(1), at(2), at(3))), (MASK, *FLOATS[:2])),
    Kind.TOTAL: (Operation(Kind.TOTAL, (ROWS, WIDE, 1), at(2, (1, 0, 1)), (at(1, (WIDE, 1, 1)),)), FLOATS[:1]),
    Kind.LARGEST: (Operation(Kind.LARGEST, (1, ROWS, WIDE), at(2, (WIDE, 0, 1)), (at(1),)), FLOATS[:1]),
    Kind.MATRIX: (
        Operation(Kind.MATRIX, (ROWS, WIDE), at(4, TO), (at(1, (4, 1)), at(2, MATRIX), at(3, MATRIX)), 4, 1.0, 1.0),
        FLOATS,
    ),
    Kind.TAKE_ROWS: (
        Operation(Kind.TAKE_ROWS, BOX, at(3), (at(1), at(2, (0, 1, 1), step=ROWS)), depth=ROWS),
        (FLOATS[0], NUMBERS),
    ),
    Kind.ADD_ROWS: (
        Operation(
            Kind.ADD_ROWS,
            (ROWS, WIDE),
            at(4, TO),
            (at(1, (1,), step=ROWS), at(2, MATRIX), at(3, MATRIX)),
            ROWS,
            1.0,
            1.0,
        ),
        (NUMBERS, *FLOATS[:2]),
    ),
}


def further(operand: Operand) -> list[Operand]:
    """What begins, or goes on for the next client, or in the last memory there is not, a little too far."""
    far = (SIZE * CLIENTS) if operand.step else SIZE
    changed = [operand._replace(offset=operand.offset + far), operand._replace(offset=-1), operand._replace(memory=9)]
    return [*changed, operand._replace(step=operand.step + far), operand._replace(memory=-2)]


@needs_a_compiler
@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.name)
def test_an_operation_that_leaves_its_memory_is_refused_whichever_operand_does(kind: Kind) -> None:
    operation, inputs = RIGHT[kind]
    do(operation, inputs=inputs)
    for place, operand in enumerate((operation.to, *operation.operands)):
        for wrong in further(operand):
            operands = list(operation.operands)
            if place:
                operands[place - 1] = wrong
            changed = operation._replace(operands=tuple(operands), to=operation.to if place else wrong)
            with pytest.raises(RuntimeError, match="operation 2 of a list would leave its memory"):
                do(operation, changed, inputs=inputs)
    with pytest.raises(RuntimeError, match="leave its memory"):
        do(operation._replace(unless=Operand(1, SIZE * CLIENTS * 8, 0, ())), inputs=inputs)


@needs_a_compiler
def test_what_a_list_is_given_is_not_written_to() -> None:
    with pytest.raises(RuntimeError, match="leave its memory"):
        do(Operation(Kind.MULTIPLE, BOX, at(1), (at(1),)), inputs=FLOATS[:1])


@needs_a_compiler
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(RIGHT)),
    st.tuples(*[st.integers(0, 6)] * 3),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 70), st.integers(0, 30)), min_size=4, max_size=4),
    st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=4, max_size=4),
)
def test_a_list_of_any_numbers_is_done_within_its_memory_or_not_at_all(
    kind: Kind, sizes: tuple[int, ...], depth: int, places: list[tuple[int, int, int]], strides: list[tuple[int, ...]]
) -> None:
    """Under the sanitizers (`make sanitize`) an access beyond it would end the process."""
    _, inputs = RIGHT[kind]
    to, *operands = (Operand(*place, stride) for place, stride in zip(places, strides, strict=True))
    operation = Operation(kind, sizes, to, tuple(operands), depth)
    with suppress(RuntimeError):
        do(operation, inputs=tuple(each.clone() for each in inputs))


@needs_a_compiler
def test_numbers_that_are_no_operations_are_refused() -> None:
    numbers, factors = encode([RIGHT[Kind.SUM][0]])
    with pytest.raises(RuntimeError, match="not those of operations"):
        torch.ops.tacit.each_client([], list(FLOATS[:2]), [4, 4], numbers[:, :-1], factors, [SIZE], CLIENTS, SIZE)
    assert Operation(Kind.SUM, BOX, at(3), (at(1),)).numbers[-6:] == NOTHING.numbers


@needs_a_compiler
def test_shuffled_rows_that_have_no_place_are_refused() -> None:
    keys, sizes, firsts = np.zeros((2, 2), np.uint64), np.array([3, 9]), np.array([0, 3])
    assert draws.shuffle_rows(keys, sizes, firsts, 1, 4, 3) is not None
    with pytest.raises(ValueError, match="2 steps are too few for 9 rows"):
        draws.shuffle_rows(keys, sizes, firsts, 1, 4, 2)


@needs_a_compiler
def test_too_many_pieces_of_memory_end_with_a_message() -> None:
    code = (
        "import ctypes; from tacit.compile.kernels import library; room = library().room;"
        "room.restype = ctypes.c_void_p; [room(8) for _ in range(17)]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "more than 16 pieces of memory at a time" in done.stderr
