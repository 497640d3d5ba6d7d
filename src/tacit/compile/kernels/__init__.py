"""Kernels in C for clients with weights of their own, where a compiler is found; without one nothing is lost but time.

`library.py` compiles them when they are first needed. Beside each C file is a module that makes torch operations of its
functions, so that recorded programs can hold them. The reference of each is torch's own operation, which is also what
runs where nothing is batched; tests hold them together.
"""

from tacit.compile.kernels.convolution import convolve
from tacit.compile.kernels.library import compiled

__all__ = ["compiled", "convolve"]
