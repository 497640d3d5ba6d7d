"""The library of compiled kernels, and torch operations made of its functions."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tacit import c_library

HERE: Final = Path(__file__).resolve().parent
SOURCES: Final = (
    "direct.c",
    "winograd.c",
    "first.c",
    "linear.c",
    "each_client.c",
    "rows.c",
    "shuffles.c",
    "room.c",
)
_FLAGS: Final = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-w")


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None: switched off, no compiler, or one that does not understand them."""
    return c_library.load([HERE / name for name in SOURCES], _FLAGS, HERE.glob("*.h"))


def operation(schema: str, function: Callable[..., object]) -> None:
    """A torch operation of this name, so that recorded programs can hold it."""
    _operations.define(schema)
    _operations.impl(schema.partition("(")[0], function, "CPU")


_operations: Final = torch.library.Library("tacit", "FRAGMENT")


def call(function: str, tensors: Sequence[Tensor | None], *numbers: float) -> None:
    """One of the library's functions, on the tensors' memory and these numbers; Python's lock is free meanwhile."""
    found = library()
    assert found is not None, "asked before"
    c_library.call(found, function, tensors, *numbers)
