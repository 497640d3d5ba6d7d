"""Memory is kept between tensors, and not littered by what a recording leaves between them."""

import subprocess
import sys

import pytest

_RECORDING = """
import resource, sys, torch
from contextlib import nullcontext
from tacit.engine import allocator

allocator.keep_memory()
small = []
with allocator.apart() if sys.argv[1] == "apart" else nullcontext():
    for step in range(150):
        large = torch.ones(2**21)
        del large
        small.append(bytearray(60_000))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def _peak(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _RECORDING, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_small_things_that_stay_do_not_cost_the_place_of_large_ones() -> None:
    assert _peak("apart") < _peak("kept") - 500
