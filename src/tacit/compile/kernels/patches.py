"""Convolution with a weight for each client as batched matrix products over patches of the images.

Any kernel, stride and padding. Under `vmap` over the weights; torch's own convolution where nothing is batched.
"""

# pyright: reportIncompatibleMethodOverride=false
# (the signatures of an autograd function are its own)

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vjp

from tacit.compile.kernels.batched import OPENED, Dims, Pair, batched_first, images_last, padded

aten = torch.ops.aten


class Convolution(Function):
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
        to_x, to_weight = ConvolutionBack.apply(gradient, x, weight, ctx.stride, ctx.padding, wanted)
        return to_x if wanted[0] else None, to_weight if wanted[1] else None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, int]:
        x, weight = (batched_first(leaf, at, info) for leaf, at in zip((x, weight), in_dims, strict=False))
        if in_dims[1] is None:  # one weight for all: more images
            return Convolution.apply(x.flatten(0, 1), weight[0], stride, padding).unflatten(0, x.shape[:2]), 0
        patches, places = _patches(x, weight, stride, padding)
        out = torch.bmm(weight.flatten(2), patches)
        return out.view(*weight.shape[:2], *places, x.shape[1]).permute(0, 4, 1, 2, 3), 0


class ConvolutionBack(Function):
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
            return ConvolutionBack.forward(gradient, x, weight, ctx.stride, ctx.padding, ctx.wanted)

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
        flat = images_last(gradient).flatten(2)
        to_x = to_weight = x.new_zeros(len(x))
        if wanted[0]:
            spread = torch.bmm(weight.flatten(2).transpose(1, 2), flat)
            to_x = _unpatched(spread, x, weight, stride, padding)
        if wanted[1]:
            patches, _ = _patches(x, weight, stride, padding)
            to_weight = torch.bmm(flat, patches.transpose(1, 2)).view(weight.shape)
        return (to_x, to_weight), (0, 0)


def _patches(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Pair]:
    """[clients, channels * kernel, places * images], and how many places there are along each side."""
    windows = _windows(images_last(padded(x, padding)), (weight.shape[-2], weight.shape[-1]), stride)
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


def _overlaid(spread: Tensor, size: list[int], stride: list[int]) -> Tensor:
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


_overlay = torch.library.custom_op("tacit::overlay", _overlaid, mutates_args=())
_overlay.register_vmap(_overlay_vmap)
OPENED[torch.ops.tacit.overlay.default] = _overlaid
