"""glibc gives a large tensor's memory back as soon as it is freed and maps it anew for the next: most of a round."""

import ctypes
import sys
from functools import cache

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h


@cache
def keep_memory(limit: int = 2**30) -> bool:
    """Keeps freed memory for reuse in this process. True if the C library took the advice (glibc only)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP, limit)) and bool(mallopt(_TRIM, 2**31 - 1))
