"""3 x 3 convolutions with a weight for each client by Winograd's method: a quarter of the multiplications.

Each tile of 4 x 4 outputs takes 6 x 6 inputs; both, and the filter, are taken to the values of polynomials at five
points and infinity in each direction (Toom and Cook), where a convolution is one product a point. So everything is a
matrix product: 36 numbers of a tile -> 36 values, for each of the 36 a product of filters and channels, 36 values -> 16
outputs; and backwards the same transposed. The points are those of several that round least: in float32 the outputs'
relative error is 5e-7 where torch's own is 2e-7, and the weight gradient's 1.1e-6 against 1e-6.

The reference is torch's own convolution, which is also what runs where nothing is batched; a test holds them together.
"""

# pyright: reportIncompatibleMethodOverride=false
from functools import cache
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vjp

from tacit.compile.kernels.batched import OPENED, Dims, Pair, batched_first, images_last, padded

aten = torch.ops.aten
SIDE: Final = 4  # outputs along a tile
_WIDE: Final = SIDE + 2  # inputs along a tile
_POINTS: Final = (0.0, 0.625, -0.625, 1.5, -1.5)
_FEWEST_FILTERS: Final = 1024  # channels * outputs; for fewer the transforms cost more than they save
_FEWEST_TILES: Final = 80  # of a client, in all its images
_FEWEST_IMAGES: Final = 4  # they are what lies together in memory
_PLAIN: Final = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)  # stride, padding, dilation, not transposed, one group
_LAST: Final = tuple(range(-8, -1))


def fits(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> bool:
    """Whether this is a convolution for this file, 3 x 3 with stride 1 and whole tiles, and large enough to gain."""
    shaped = tuple(weight.shape[-2:]) == (3, 3) and stride == (1, 1) and x.dtype in (torch.float32, torch.float64)
    high, wide = (n + 2 * p - 2 for n, p in zip(x.shape[-2:], padding, strict=True))
    if not shaped or not x.is_cpu or high % SIDE or wide % SIDE:
        return False
    several = len(x) * (high // SIDE) * (wide // SIDE) >= _FEWEST_TILES and len(x) >= _FEWEST_IMAGES
    return several and weight.shape[0] * weight.shape[1] >= _FEWEST_FILTERS


def conv2d(x: Tensor, weight: Tensor, padding: Pair) -> Tensor:
    """torch's conv2d where it `fits`."""
    return _Winograd.apply(padded(x, padding), weight, False)


def tiles(x: Tensor, weight: Tensor) -> Tensor:
    """The same without padding, as [images, 16 outputs, rows, columns]: a block for each of the places of a tile.

    In the order of (row % 2, column % 2, row // 2, column // 2): a window of 2 x 2 takes one place of each quarter.
    """
    return _Winograd.apply(x, weight, True)


def _cut(whole: Tensor) -> Tensor:
    """[.., images, outputs, height, width] as tiles, made with images last."""
    split = whole.movedim(-4, -1).unflatten(-2, (-1, 2, 2)).unflatten(-5, (-1, 2, 2))
    return split.movedim((-5, -2, -6, -3, -8, -7, -4), _LAST).flatten(-8, -4).movedim(-1, -4)


def _joined(cut: Tensor) -> Tensor:
    """The inverse of `_cut`, made with images last."""
    split = cut.movedim(-4, -1).unflatten(-4, (2, 2, 2, 2, -1))
    return split.movedim((-4, -3, -6, -8, -2, -5, -7), _LAST).flatten(-4, -2).flatten(-5, -3).movedim(-1, -4)


class _Winograd(Function):
    """x [images, channels, height, width] * weight [outputs, channels, 3, 3], whole or as tiles."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, tiled: bool) -> Tensor:
        whole = aten.convolution(x, weight, None, *_PLAIN)
        return _cut(whole) if tiled else whole

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.tiled = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        to_x, to_weight = _WinogradBack.apply(gradient, *ctx.saved_tensors, ctx.tiled, wanted)
        return to_x if wanted[0] else None, to_weight if wanted[1] else None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, x: Tensor, weight: Tensor, tiled: bool) -> tuple[Tensor, int]:
        x, weight = (batched_first(leaf, at, info) for leaf, at in zip((x, weight), in_dims, strict=False))
        if in_dims[1] is None:  # one weight for all: more images
            return _Winograd.apply(x.flatten(0, 1), weight[0], tiled).unflatten(0, x.shape[:2]), 0
        values = torch.bmm(_filters(weight), _inputs(x))
        out = _times(_transforms(x.dtype).outputs, values, len(x))
        cut = out.view(len(x), -1, *_across(x), x.shape[1]).permute(0, 4, 1, 2, 3)
        return cut if tiled else _joined(cut), 0


class _WinogradBack(Function):
    """Gradients of the inputs and of the weight; zeros for what is not wanted."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, tiled: bool, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        whole = _joined(gradient) if tiled else gradient
        to_x, to_weight, _ = aten.convolution_backward(whole, x, weight, None, *_PLAIN, (*wanted, False))
        return x.new_zeros(()) if to_x is None else to_x, x.new_zeros(()) if to_weight is None else to_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.tiled, ctx.wanted = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *second: Tensor) -> Any:
        """Second derivatives as torch has them."""

        def plain(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return _WinogradBack.forward(gradient, x, weight, ctx.tiled, ctx.wanted)

        return *vjp(plain, *ctx.saved_tensors)[1](second), None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Dims,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        tiled: bool,
        wanted: tuple[bool, bool],
    ) -> tuple[tuple[Tensor, Tensor], Pair]:
        gradient, x, weight = (
            batched_first(leaf, at, info) for leaf, at in zip((gradient, x, weight), in_dims, strict=False)
        )
        cut = images_last(gradient if tiled else _cut(gradient))
        values = _times(_transforms(x.dtype).outputs.T, cut, len(x)).view(-1, weight.shape[1], _tiles(x))
        to_x = to_weight = x.new_zeros(len(x))
        if wanted[0]:
            to_x = _to_inputs(torch.bmm(_filters(weight).transpose(1, 2), values), x)
        if wanted[1]:
            to_weight = _to_filters(torch.bmm(values, _inputs(x).transpose(1, 2)), weight)
        return (to_x, to_weight), (0, 0)


class _Transforms(NamedTuple):
    inputs: Tensor  # 36 x 36
    filters: Tensor  # 36 x 9
    outputs: Tensor  # 16 x 36


@cache
def _transforms(dtype: torch.dtype) -> _Transforms:
    """y = A'[(G w) * (B' x)] in one direction, in both with Kronecker products; outputs in the order of tiles."""
    points = np.array(_POINTS)
    others = [np.delete(points, at) for at in range(len(points))]
    scale = [np.prod(point - other) for point, other in zip(points, others, strict=True)]
    inputs = np.array([[*np.poly(other)[::-1], 0] for other in others] + [np.poly(points)[::-1]])
    filters = np.vstack([np.vander(points, 3, increasing=True) / np.reshape(scale, (-1, 1)), [0, 0, 1]])
    outputs = np.vstack([np.vander(points, SIDE, increasing=True), [0] * (SIDE - 1) + [1]]).T
    both = np.kron(outputs, outputs).reshape(2, 2, 2, 2, -1).transpose(1, 3, 0, 2, 4).reshape(SIDE * SIDE, -1)
    matrices = (np.kron(inputs, inputs), np.kron(filters, filters), both)
    return _Transforms(*(torch.from_numpy(matrix).to(dtype) for matrix in matrices))


def _times(matrix: Tensor, several: Tensor, clients: int) -> Tensor:
    """The matrix times [clients, its columns, ..], however the rest is cut."""
    return torch.bmm(matrix.expand(clients, *matrix.shape), several.reshape(clients, matrix.shape[1], -1))


def _across(x: Tensor) -> Pair:
    """Tiles along each side."""
    return (x.shape[-2] - 2) // SIDE, (x.shape[-1] - 2) // SIDE


def _tiles(x: Tensor) -> int:
    """Tiles of all images of a client [.., images, channels, height, width]."""
    rows, columns = _across(x)
    return rows * columns * x.shape[-4]


def _filters(weight: Tensor) -> Tensor:
    """[clients, outputs, channels, 3, 3] -> [clients * 36, outputs, channels]."""
    flat = weight.reshape(len(weight), -1, 9).transpose(1, 2)
    matrix = _transforms(weight.dtype).filters
    return torch.bmm(matrix.expand(len(weight), *matrix.shape), flat).view(-1, *weight.shape[1:3])


def _to_filters(values: Tensor, weight: Tensor) -> Tensor:
    """The transpose of `_filters`."""
    flat = _times(_transforms(weight.dtype).filters.T, values, len(weight))
    return flat.transpose(1, 2).reshape(weight.shape)


def _inputs(x: Tensor) -> Tensor:
    """[clients, images, channels, height, width] -> [clients * 36, channels, tiles * images]."""
    windows = images_last(x).unfold(2, _WIDE, SIDE).unfold(3, _WIDE, SIDE)
    places = windows.permute(0, 5, 6, 1, 2, 3, 4)
    return _times(_transforms(x.dtype).inputs, places, len(x)).view(-1, x.shape[2], _tiles(x))


def _to_inputs(values: Tensor, x: Tensor) -> Tensor:
    """The transpose of `_inputs`: tiles give back to where they were cut from, and add up where they overlap."""
    spread = _times(_transforms(x.dtype).inputs.T, values, len(x))
    whole = _overlay(spread.view(len(x), _WIDE, _WIDE, x.shape[2], *_across(x), x.shape[1]))
    return whole.permute(0, 4, 1, 2, 3)[..., :-2, :-2]


def _overlaid(spread: Tensor) -> Tensor:
    """[clients, 6, 6, channels, rows, columns, images] -> [clients, channels, height + 2, width + 2, images].

    Added up by the remainder of rows and columns, where a row of tiles is one run of memory.
    """
    clients, _, _, channels, rows, columns, images = spread.shape
    whole = spread.new_zeros(clients, SIDE, SIDE, channels, rows + 1, columns + 1, images)
    for i, j in product(range(2), range(2)):
        part = spread[:, SIDE * i : SIDE * (i + 1), SIDE * j : SIDE * (j + 1)]
        whole[:, : part.shape[1], : part.shape[2], :, i : i + rows, j : j + columns] += part
    return whole.permute(0, 3, 4, 1, 5, 2, 6).flatten(4, 5).flatten(2, 3)


def _overlay_vmap(info: Any, in_dims: Dims, spread: Tensor) -> tuple[Tensor, int]:
    several = spread.movedim(in_dims[0] or 0, 0)
    return _overlay(several.flatten(0, 1)).unflatten(0, several.shape[:2]), 0


_overlay = torch.library.custom_op("tacit::overlay_tiles", _overlaid, mutates_args=())
_overlay.register_vmap(_overlay_vmap)
OPENED[torch.ops.tacit.overlay_tiles.default] = _overlaid
