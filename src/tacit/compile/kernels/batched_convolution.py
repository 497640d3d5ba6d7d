"""Convolution and pooling for many clients with weights of their own, out of matrix products and plain vector work.

Under `vmap` torch turns a convolution with one weight a client into one with a group a client, and pools image by
image: both far from the machine's speed. Here `vmap` over the weights gives batched matrix products instead. The
reference of each kernel is torch's own operation, which is also what runs where nothing is batched; a test holds them
together.

What the kernels make lies in memory as [clients, channels, height, width, images]: images last, so that neighbouring
places of a row are one long run, whatever a kernel does with rows and columns.
"""

# pyright: reportIncompatibleMethodOverride=false
# (the signatures of an autograd function are its own)

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.compile.kernels import convolve, winograd
from tacit.compile.kernels.batched import Choice, Dims, Pair, Return, batched_first, pair
from tacit.compile.kernels.patches import Convolution

_WIDE: Final = 512  # numbers in one filter; larger convolutions are in good hands with torch


class Kernels(TorchFunctionMode):
    """While active, a module's plain 2-d convolutions and poolings take the kernels of this room.

    `more`: further functions that torch lets a mode replace, and what does them here.
    """

    def __init__(self, more: Mapping[Any, Callable[..., Tensor | None]] = MappingProxyType({})) -> None:
        super().__init__()
        self._more = more

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func) or self._more.get(func)
        done = None if ours is None else ours(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if done is None else done


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """torch's conv2d, or None where it is not plain (strings, dilation, groups, one image without a batch).

    None off the CPU, too: other devices have convolutions of their own.
    """
    plain = not isinstance(padding, str) and pair(dilation) == (1, 1) and groups == 1 and x.dim() == 4
    if not plain or not x.is_cpu:
        return None
    if pair(stride) == (1, 1) and (out := convolve(x, weight, bias, padding=pair(padding))) is not None:
        return out
    if weight[0].numel() > _WIDE:
        return None
    if winograd.fits(x, weight, pair(stride), pair(padding)):
        out = winograd.conv2d(x, weight, pair(padding))
    else:
        out = Convolution.apply(x, weight, pair(stride), pair(padding))
    return out if bias is None else out + bias.view(-1, 1, 1)


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """relu(conv2d(x, weight, bias)) with stride 1, without the numbers between where a kernel suits it."""
    if (out := convolve(x, weight, bias, padding=padding, relu=True)) is not None:
        return out
    plain = conv2d(x, weight, bias, padding=padding)
    return (torch.conv2d(x, weight, bias, padding=padding) if plain is None else plain).relu()


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """torch's max_pool2d over windows of 2 x 2 that tile the image, on the CPU, or None."""
    window, step = pair(kernel_size), pair(kernel_size if stride is None else stride)
    tiled = window == step == (2, 2) and x.dim() == 4 and x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
    if not tiled or not x.is_cpu or pair(padding) != (0, 0) or pair(dilation) != (1, 1) or return_indices:
        return None
    return _Pool.apply(x)[0]


_OURS: Final[dict[Any, Callable[..., Tensor | None]]] = {
    torch.conv2d: conv2d,
    torch.nn.functional.conv2d: conv2d,
    torch.max_pool2d: max_pool2d,
    torch.nn.functional.max_pool2d: max_pool2d,
}


class _Pool(Choice):
    """The largest of each window of 2 x 2, and where it was: 1 for the lower row, 1 for the right column."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        upper, lower = x[..., ::2, :], x[..., 1::2, :]
        rows = torch.maximum(upper, lower)
        left, right = rows[..., ::2], rows[..., 1::2]
        best = torch.maximum(left, right)
        return best, torch.sign(rows - upper), torch.sign(best - left)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return _Unpool.apply(gradient, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor) -> Any:
        return _Pool.apply(batched_first(x, in_dims[0], info)), (0, 0, 0)


class _Unpool(Return):
    """Each number goes back to the place it came from."""

    @staticmethod
    def forward(gradient: Tensor, lower: Tensor, right: Tensor) -> Tensor:
        """[..., images, channels, height, width], made with images last."""
        gradient, lower, right = (leaf.movedim(-4, -1) for leaf in (gradient, lower, right))
        rows = _split(gradient, right, -2)
        return _split(rows, lower, -3).movedim(-1, -4)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Any:
        lower, right = ctx.saved_tensors
        rows = second[..., ::2, :] * (1 - lower) + second[..., 1::2, :] * lower
        return rows[..., ::2] * (1 - right) + rows[..., 1::2] * right, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Tensor) -> Any:
        return _Unpool.apply(*(batched_first(leaf, at, info) for leaf, at in zip(given, in_dims, strict=True))), 0


def _split(values: Tensor, second: Tensor, dim: int) -> Tensor:
    """Twice as long along `dim`: each value in the second place of its pair where `second` is 1, else in the first."""
    other = values * second
    return torch.stack((values - other, other), dim).flatten(dim - 1, dim)
