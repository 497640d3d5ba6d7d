"""Layers in one call that an accelerator may do as one operation: `torch.overrides` lets a mode take their place.

Each is plain torch by itself. A `TorchFunctionMode` sees the call as it sees torch's own functions.
"""

from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d
from torch.overrides import handle_torch_function, has_torch_function

Pair = tuple[int, int]


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """relu(conv2d(x, weight, bias)) with stride 1."""
    given = (x, weight, bias)
    if has_torch_function(given):
        return handle_torch_function(conv_relu, given, *given, padding)
    return conv2d(x, weight, bias, padding=padding).relu()


def conv_max_pool2d_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias), 2))."""
    given = (x, weight, bias)
    if has_torch_function(given):
        return handle_torch_function(conv_max_pool2d_relu, given, *given)
    return max_pool2d(conv2d(x, weight, bias), 2).relu()
