"""glibc gives a large tensor's memory back as soon as it is freed and maps it anew for the next: most of a round."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

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
