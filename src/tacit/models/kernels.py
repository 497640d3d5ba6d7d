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

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vjp
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from tacit.models.batched import Choice, Dims, Pair, Return, batched_first, pair

aten = torch.ops.aten
_WIDE: Final = 512  # numbers in one filter; larger convolutions are in good hands with torch


class Kernels(TorchFunctionMode):
    """While active, a module's plain 2-d convolutions and poolings take the kernels of this file."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
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
    if not plain or not x.is_cpu or weight[0].numel() > _WIDE:
        return None
    out: Tensor = _Convolution.apply(x, weight, pair(stride), pair(padding))
    return out if bias is None else out + bias.view(-1, 1, 1)


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


class _Convolution(Function):
    """x [images, channels, height, width] * weight [outputs, channels, *kernel]."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        return aten.convolution(x, weight, None, stride, padding, (1, 1), False, (0, 0), 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        to_x, to_weight = _ConvolutionBack.apply(gradient, x, weight, ctx.stride, ctx.padding, wanted)
        return to_x if wanted[0] else None, to_weight if wanted[1] else None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, int]:
        x, weight = (batched_first(leaf, at, info) for leaf, at in zip((x, weight), in_dims, strict=False))
        if in_dims[1] is None:  # one weight for all: more images
            return _Convolution.apply(x.flatten(0, 1), weight[0], stride, padding).unflatten(0, x.shape[:2]), 0
        patches, places = _patches(x, weight, stride, padding)
        out = torch.bmm(weight.flatten(2), patches)
        return out.view(*weight.shape[:2], *places, x.shape[1]).permute(0, 4, 1, 2, 3), 0


class _ConvolutionBack(Function):
    """Gradients of the inputs and of the weight; zeros for what is not wanted."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        to_x, to_weight, _ = aten.convolution_backward(
            gradient, x, weight, None, stride, padding, (1, 1), False, (0, 0), 1, (*wanted, False)
        )
        return x.new_zeros(()) if to_x is None else to_x, x.new_zeros(()) if to_weight is None else to_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        gradient, x, weight, ctx.stride, ctx.padding, ctx.wanted = inputs
        ctx.save_for_backward(gradient, x, weight)

    @staticmethod
    def backward(ctx: Any, *second: Tensor) -> Any:
        """Second derivatives as torch has them."""

        def plain(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return _ConvolutionBack.forward(gradient, x, weight, ctx.stride, ctx.padding, ctx.wanted)

        return *vjp(plain, *ctx.saved_tensors)[1](second), None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Dims,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        stride: Pair,
        padding: Pair,
        wanted: tuple[bool, bool],
    ) -> tuple[tuple[Tensor, Tensor], Any]:
        gradient, x, weight = (
            batched_first(leaf, at, info) for leaf, at in zip((gradient, x, weight), in_dims, strict=False)
        )
        flat = _images_last(gradient).flatten(2)
        to_x = to_weight = x.new_zeros(len(x))
        if wanted[0]:
            spread = torch.bmm(weight.flatten(2).transpose(1, 2), flat)
            to_x = _unpatched(spread, x, weight, stride, padding)
        if wanted[1]:
            patches, _ = _patches(x, weight, stride, padding)
            to_weight = torch.bmm(flat, patches.transpose(1, 2)).view(weight.shape)
        return (to_x, to_weight), (0, 0)


def _images_last(x: Tensor) -> Tensor:
    """[clients, images, channels, height, width] as [clients, channels, height, width, images], unbroken."""
    return x.permute(0, 2, 3, 4, 1).contiguous()


def _patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Pair]:
    """[clients, channels * kernel, places * images], and how many places there are along each side."""
    padded = pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    windows = _windows(_images_last(padded), (weight.shape[-2], weight.shape[-1]), stride)
    return windows.reshape(len(x), weight[0, 0].numel(), -1), (windows.shape[-3], windows.shape[-2])


def _windows(whole: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """[.., *size, images] -> [.., *kernel, *places, images], each side of the kernel as (n / stride, stride).

    Rows and columns are sorted by their remainder first: then neighbouring places of a window are one run of memory.
    """
    if not _divides(stride, (whole.shape[-3], whole.shape[-2]), kernel):
        return whole.unfold(-3, kernel[0], stride[0]).unfold(-3, kernel[1], stride[1]).movedim((-2, -1), (-5, -4))
    split = whole.unflatten(-2, (-1, stride[1])).unflatten(-4, (-1, stride[0]))
    by_remainder = split.movedim((-4, -2), (-5, -4)).contiguous()
    cut = by_remainder.unfold(-3, kernel[0] // stride[0], 1).unfold(-3, kernel[1] // stride[1], 1)
    return cut.movedim((-2, -1), (-7, -5))


def _divides(stride: Sequence[int], *sizes: Sequence[int]) -> bool:
    return all(n % s == 0 for size in sizes for n, s in zip(size, stride, strict=True))


def _unpatched(spread: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The transpose of `_patches`: every place gives back to where it was cut from."""
    clients, images, channels, height, width = x.shape
    kernel = weight.shape[-2:]
    size = [height + 2 * padding[0], width + 2 * padding[1]]
    places = [(whole - k) // s + 1 for whole, k, s in zip(size, kernel, stride, strict=True)]
    whole = _overlay(spread.view(-1, *kernel, *places, images), size, list(stride))
    whole = whole.view(clients, channels, *size, images).permute(0, 4, 1, 2, 3)
    return whole[..., padding[0] : padding[0] + height, padding[1] : padding[1] + width]


@torch.library.custom_op("tacit::overlay", mutates_args=())
def _overlay(spread: Tensor, size: list[int], stride: list[int]) -> Tensor:
    """[planes, high, wide, rows, columns, images] added up where patches overlap: [planes, *size, images]."""
    planes, high, wide, rows, columns, images = spread.shape
    if not _divides(stride, size, (high, wide)):
        return _overlay_any(spread, size, stride)
    parts = spread.view(planes, -1, stride[0], wide // stride[1], stride[1], rows, columns, images)
    whole = spread.new_zeros(planes, *stride, size[0] // stride[0], size[1] // stride[1], images)  # by remainder
    for i, j in product(range(parts.shape[1]), range(parts.shape[3])):
        whole[:, :, :, i : i + rows, j : j + columns] += parts[:, i, :, j]
    return whole.permute(0, 3, 1, 4, 2, 5).reshape(planes, *size, images)


def _overlay_any(spread: Tensor, size: list[int], stride: list[int]) -> Tensor:
    planes, high, wide, rows, columns, images = spread.shape
    whole = spread.new_zeros(planes, *size, images)
    ends = stride[0] * (rows - 1) + 1, stride[1] * (columns - 1) + 1
    for i, j in product(range(high), range(wide)):
        whole[:, i : i + ends[0] : stride[0], j : j + ends[1] : stride[1]] += spread[:, i, j]
    return whole


def _overlay_vmap(info: Any, in_dims: Dims, spread: Tensor, size: list[int], stride: list[int]) -> tuple[Tensor, int]:
    several = spread.movedim(in_dims[0] or 0, 0)
    return _overlay(several.flatten(0, 1), size, stride).unflatten(0, several.shape[:2]), 0


_overlay.register_vmap(_overlay_vmap)


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
