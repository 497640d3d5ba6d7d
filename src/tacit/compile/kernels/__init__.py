"""Kernels in C for clients with weights of their own, where a compiler is found; without one nothing is lost but time.

They are compiled when they are first needed. Torch operations are made of their functions, so that recorded programs
can hold them. The reference of each is torch's own operation; tests hold them together.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tacit import c_library

HERE: Final = Path(__file__).resolve().parent
SOURCES: Final = ("direct.c", "winograd.c", "first.c", "linear.c", "each_client.c", "room.c")


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None, and a line in the log: switched off, no compiler, or one that does not understand them."""
    return c_library.load([HERE / name for name in SOURCES], HERE.glob("*.h"))


def compiled() -> bool:
    """Whether there are kernels: a compiler was found, and it understood them."""
    return library() is not None


def name() -> str:
    """Of the library that is used: equal names are equal kernels."""
    return "none" if library() is None else c_library.name(HERE.glob("*.[ch]"))


def operation(schema: str, function: Callable[..., object], device: str = "CPU") -> None:
    """A torch operation of this name, so that recorded programs can hold it."""
    _operations.define(schema)
    _operations.impl(schema.partition("(")[0], function, device)


_operations: Final = torch.library.Library("tacit", "FRAGMENT")


def call(function: str, tensors: Sequence[Tensor | None], *numbers: float) -> int:
    """One of the library's functions, on the tensors' memory and these numbers; Python's lock is free meanwhile.

    What it returns, where it returns something.
    """
    kernels = library()
    assert kernels is not None, "asked before"
    return c_library.call(kernels, function, tensors, *numbers)
