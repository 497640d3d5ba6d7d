"""Kernels for many clients with weights of their own, for torch's functions and for the layers of `models`."""

from functools import partial
from typing import Final

from tacit.compile.kernels.convolution import Kernels, conv_max_pool2d_relu, conv_relu
from tacit.models import networks

accelerate: Final = partial(
    Kernels, {networks.conv_relu: conv_relu, networks.conv_max_pool2d_relu: conv_max_pool2d_relu}
)
"""A mode to run a module in: the same numbers up to rounding, sooner."""
