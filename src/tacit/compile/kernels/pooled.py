"""Convolution and 2 x 2 max-pooling as one: each window of the pool is one place of a wider convolution.

The four places that a window of the pool covers are four shifts of the same filter, so they are four outputs of one
convolution with stride 2 whose filter is one row and one column larger: a patch is cut once for four places instead of
four times, matrix products get four times as many rows, and the pool compares four blocks that lie whole in memory.
It costs (k + 1)^2 / k^2 of the multiplications and, where moving data takes the time, saves more than it costs.

The reference is torch's own max_pool2d(conv2d(x)); a test holds them together.
"""

# pyright: reportIncompatibleMethodOverride=false
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import conv2d as torch_conv2d
from torch.nn.functional import max_pool2d as torch_max_pool2d
from torch.nn.functional import pad

from tacit.compile.kernels import convolve, winograd
from tacit.compile.kernels.batched import Choice, Dims, Return, batched_first
from tacit.compile.kernels.batched_convolution import conv2d

_FEW: Final = 256  # numbers in a filter; for larger ones the multiplications take the time


def conv_max_pool2d_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias), 2)), and never the numbers before the pool, where a kernel suits it."""
    out = convolve(x, weight, bias, pool=True, relu=True)
    return conv_max_pool2d(x, weight, bias).relu() if out is None else out


def conv_max_pool2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max_pool2d(conv2d(x, weight, bias), 2): images [n, channels, height, width], filters [outputs, channels, k, k].

    Filters of even size and places that windows of 2 x 2 do not tile are left to torch. Where places of a window are
    equal but for rounding, any of them may get the gradient.
    """
    if (out := convolve(x, weight, bias, pool=True)) is not None:
        return out
    if winograd.fits(x, weight, (1, 1), (0, 0)):
        return _spread(_Largest.apply(winograd.tiles(x, weight))[0]) + bias.view(-1, 1, 1)
    side = weight.shape[-1]
    tiled = weight.shape[-2] == side and side % 2 == 1 and all((n - side + 1) % 2 == 0 for n in x.shape[-2:])
    wide = conv2d(x, _Shifts.apply(weight), stride=2) if tiled and weight[0].numel() <= _FEW else None
    if wide is None:
        return torch_max_pool2d(torch_conv2d(x, weight, bias), 2)
    return _Largest.apply(wide)[0] + bias.view(-1, 1, 1)


def _spread(quarters: Tensor) -> Tensor:
    """[images, 4 outputs, rows, columns] -> [images, outputs, 2 rows, 2 columns]: what is left of a tile is 2 x 2."""
    split = quarters.movedim(-4, -1).unflatten(-4, (2, 2, -1))  # images last both ways, so that nothing is copied twice
    return split.movedim((-1, -4, -3, -6, -2, -5), tuple(range(-6, 0))).flatten(-2).flatten(-3, -2)


class _Shifts(Function):
    """[outputs, channels, k, k] -> [4 outputs, channels, k + 1, k + 1]: the filter in each corner, zeros around it.

    Written out with a zero before each row, the filter's shifts are windows of the same numbers.
    """

    @staticmethod
    def forward(weight: Tensor) -> Tensor:
        side = weight.shape[-1] + 1
        line = pad(weight, (1, 0, 1, 2)).flatten(-2)
        windows = line.unfold(-1, side * side, 1)[..., : 2 * side, :].unflatten(-2, (2, side))[..., :2, :]
        shifts = windows.movedim((-3, -2), (-5, -4))  # 2, 2, outputs, channels, numbers
        return shifts.reshape(*weight.shape[:-4], 4 * weight.shape[-4], weight.shape[-3], side, side)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        low, high = slice(0, -1), slice(1, None)
        parts = zip(gradient.chunk(4, -4), ((high, high), (high, low), (low, high), (low, low)), strict=True)
        one, two, three, four = (part[..., rows, columns] for part, (rows, columns) in parts)
        return (one + two) + (three + four)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, weight: Tensor) -> tuple[Tensor, int]:
        return _Shifts.apply(batched_first(weight, in_dims[0], info)), 0


class _Largest(Choice):
    """[images, 4 outputs, height, width]: the largest of the four blocks at every place, and which it was.

    The three others say: 1 if the second pair won, and which of either pair did.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        one, two, three, four = x.chunk(4, -3)
        upper, lower = torch.maximum(one, two), torch.maximum(three, four)
        best = torch.maximum(upper, lower)
        return best, torch.sign(best - upper), torch.sign(upper - one), torch.sign(lower - three)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return _Back.apply(gradient, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor) -> Any:
        return _Largest.apply(batched_first(x, in_dims[0], info)), (0, 0, 0, 0)


class _Back(Return):
    """Each number goes back to the block that it came from."""

    @staticmethod
    def forward(gradient: Tensor, second: Tensor, of_first: Tensor, of_second: Tensor) -> Tensor:
        """[..., images, outputs, height, width], made with images last."""
        gradient, second, of_first, of_second = (
            leaf.movedim(-4, -1).contiguous() for leaf in (gradient, second, of_first, of_second)
        )
        lower = gradient * second
        upper = gradient - lower
        two, four = upper * of_first, lower * of_second
        return torch.cat((upper - two, two, lower - four, four), -4).movedim(-1, -4)

    @staticmethod
    def backward(ctx: Any, seen: Tensor) -> Any:
        second, of_first, of_second = ctx.saved_tensors
        one, two, three, four = seen.chunk(4, -3)
        upper = one * (1 - of_first) + two * of_first
        lower = three * (1 - of_second) + four * of_second
        return upper * (1 - second) + lower * second, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Tensor) -> Any:
        return _Back.apply(*(batched_first(leaf, at, info) for leaf, at in zip(given, in_dims, strict=True))), 0
