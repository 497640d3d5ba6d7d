"""Memory of large tensors is kept for the next, but not while a program is recorded."""

import subprocess
import sys

import pytest

_LEFT = """
import sys, torch
from contextlib import nullcontext
from tacit.simulation import device

def now():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def left(size=2**24):
    before, large, small = now(), torch.ones(size), bytearray(60_000)  # the small one is what the large one lies below
    del large
    return now() - before > 2 * size

assert device.keep_memory()
found = [left()]
with device.apart():
    found.append(left())
print(*found, left(2**25))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_large_blocks_are_kept_except_while_things_are_apart() -> None:
    done = subprocess.run([sys.executable, "-c", _LEFT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"]
