"""Matrix products and convolutions in bfloat16; parameters, sums over examples, norms and all else as they were.

Masters stay in float32: a parameter is rounded where it is used, and its gradient comes back in float32. So what is
clipped, covered with noise and summed is float32, whatever the network computed in, and a bound holds as before.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tacit.models.linear import conv_max_pool2d_relu, conv_relu

_PRODUCTS: Final = frozenset(
    {
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch.einsum,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.mm,
        Tensor.bmm,
        conv_relu,
        conv_max_pool2d_relu,
    }
)


class LowPrecision(TorchFunctionMode):
    """While active, products round what goes in to `dtype`; what comes out has the type that it would have had."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _PRODUCTS:
            return func(*args, **(kwargs or {}))
        numbers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_float(leaf)]
        args, kwargs = pytree.tree_map(self._round, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return out.to(numbers[0].dtype) if numbers else out

    def _round(self, leaf: Any) -> Any:
        return leaf.to(self._dtype) if _is_float(leaf) else leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
