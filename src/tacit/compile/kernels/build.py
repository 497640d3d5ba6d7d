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
    "room.c",
)


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None, and a line in the log: switched off, no compiler, or one that does not understand them."""
    return c_library.load([HERE / name for name in SOURCES], HERE.glob("*.h"))


def name() -> str:
    """Of the library that is used: equal names are equal kernels."""
    return "none" if library() is None else c_library.name(HERE.glob("*.[ch]"))


def operation(schema: str, function: Callable[..., object]) -> None:
    """A torch operation of this name, so that recorded programs can hold it."""
    _operations.define(schema)
    _operations.impl(schema.partition("(")[0], function, "CPU")


_operations: Final = torch.library.Library("tacit", "FRAGMENT")


def call(function: str, tensors: Sequence[Tensor | None], *numbers: float) -> int:
    """One of the library's functions, on the tensors' memory and these numbers; Python's lock is free meanwhile.

    What it returns, where it returns something.
    """
    found = library()
    assert found is not None, "asked before"
    return c_library.call(found, function, tensors, *numbers)
