"""Where clients compute: on any torch device. Every draw, the server, the store and checkpoints stay on the CPU.

glibc gives a large tensor's memory back as soon as it is freed and maps it anew for the next: most of a round.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.errors import TacitError

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX of malloc.h
_KEPT: list[int] = []  # the limit, once it is set


@cache
def keep_memory(limit: int = 2**30) -> bool:
    """Keeps freed memory for reuse in this process. True if the C library took the advice (glibc only)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # one arena for all threads: those of other threads are small heaps that are given back all the same
    _KEPT.append(limit)
    return all(bool(mallopt(*advice)) for advice in ((_MMAP, limit), (_TRIM, 2**31 - 1), (_ARENAS, 1)))


@contextmanager
def apart(size: int = 2**20) -> Iterator[None]:
    """While this lasts, blocks above `size` bytes come from the system and go back to it, as without `keep_memory`.

    For work that makes many small things that stay between large ones that go: they would settle in the large ones'
    places, and each next large one would need a new place.
    """
    if not _KEPT:
        yield
        return
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    mallopt(_MMAP, size)
    try:
        yield
    finally:
        mallopt(_MMAP, _KEPT[-1])


def give_back() -> None:
    """Memory that earlier runs freed goes back to the system; what `keep_memory` keeps would otherwise add up."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


CPU: Final = torch.device("cpu")
Values = TypeVar("Values")


def device_of(name: str) -> torch.device:
    """The device of that name; a `TacitError` where torch knows none, or it cannot compute here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TacitError(f"device is '{name}', which torch does not know: use 'cpu', 'cuda' or 'cuda:1'") from None
    try:
        float(torch.ones(1, dtype=torch.float64, device=device))  # bounds and noise are reckoned in float64
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise TacitError(f"device is '{name}', which cannot compute here ({reason}): use 'cpu'") from None
    return device


def on(device: torch.device, values: Values) -> Values:
    """`values`, however nested, with every tensor on the device."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), values)


def within(device: torch.device) -> AbstractContextManager[object]:
    """Within, a tensor that is made without naming a device is made on this one: methods need not know of devices."""
    return nullcontext() if device == CPU else device
