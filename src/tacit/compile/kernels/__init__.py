"""Kernels in C for clients with weights of their own, where a compiler is found; without one nothing is lost but time.

`direct.c`, `winograd.c` and `first.c` are convolutions, `linear.c` has linear layers on few rows, `each_client.c` runs
of small operations. `build.py` compiles them when they are first needed; `native.py`, `native_linear.py` and
`native_client_loop.py` make them torch operations, so that recorded programs can hold them; `native_convolution.py`
makes convolutions differentiable and takes clients together. The reference of each is torch's own operation, which is
also what runs where nothing is batched; tests hold them together.
"""

from tacit.compile.kernels.build import library
from tacit.compile.kernels.native_convolution import convolve

__all__ = ["compiled", "convolve"]


def compiled() -> bool:
    """Whether there are kernels: a compiler was found, and it understood them."""
    return library() is not None
