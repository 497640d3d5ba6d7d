"""Convolutions of clients with weights of their own: kernels in C as torch operations, differentiable, under `vmap`.

One client's convolution is torch's own. Under `vmap` the clients become a dimension in front, and that is what the
kernels take: tensors of shape [clients, images, channels, height, width], each kernel with its own order in memory.
"""

# pyright: reportIncompatibleMethodOverride=false
# (the signatures of an autograd function are its own)

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Size, Tensor
from torch.autograd import Function
from torch.func import vjp, vmap
from torch.nn.functional import max_pool2d, pad
from torch.overrides import TorchFunctionMode

from tacit.compile.kernels import call, library, operation

aten = torch.ops.aten
Pair = tuple[int, int]
Dims = tuple[int | None, ...]
_LANES: Final = 16  # channels that the widest vector holds; a multiple of every other width
_TILE: Final = 4  # of Winograd's method
_FEW_INPUTS: Final = 3
_FEWEST_PLACES: Final = 6  # along a row, for the kernel of first layers
_MOST_IMAGES: Final = 1024  # of a client; their memory is kept for the next call
_LARGE: Final = 512  # numbers of a filter; for larger ones the direct way is not faster than torch
_IMAGES_FIRST: Final = (0, 1, 2, 3, 4)
_LAYOUTS: Final = {"direct": (0, 2, 3, 4, 1), "winograd": (0, 1, 3, 4, 2), "first": (0, 1, 3, 4, 2)}
"""Each kernel's order of those dimensions in memory."""
_PLAIN: Final = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)  # stride, padding, dilation, not transposed, one group
_NOWHERE: Final = 4  # as in vectors.h


class Kernels(TorchFunctionMode):
    """While active, a module's plain 2-d convolutions take the kernels of this room.

    `layers`: further functions that torch lets a mode replace, and what does them here.
    """

    def __init__(self, layers: Mapping[Any, Callable[..., Tensor | None]] = MappingProxyType({})) -> None:
        super().__init__()
        self._functions = {torch.conv2d: conv2d, torch.nn.functional.conv2d: conv2d, **layers}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = self._functions.get(func)
        result = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is None else result


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """torch's conv2d, or None where no kernel suits it."""
    if isinstance(padding, str) or (_pair(stride), _pair(dilation), groups) != ((1, 1), (1, 1), 1):
        return None
    return convolve(x, weight, bias, padding=_pair(padding))


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """relu(conv2d(x, weight, bias)) with stride 1, without the numbers between where a kernel suits it."""
    out = convolve(x, weight, bias, padding=padding, relu=True)
    return torch.conv2d(x, weight, bias, padding=padding).relu() if out is None else out


def conv_max_pool2d_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias), 2)), and never the numbers before the pool, where a kernel suits it."""
    out = convolve(x, weight, bias, pool=True, relu=True)
    return max_pool2d(torch.conv2d(x, weight, bias), 2).relu() if out is None else out


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    padding: Pair = (0, 0),
    pool: bool = False,
    relu: bool = False,
) -> Tensor | None:
    """conv2d, then max_pool2d over windows of 2 x 2 with `pool`, then ReLU with `relu`; None where no kernel suits it.

    Where places of a window are equal but for rounding, any of them may get the gradient.
    """
    if not x.is_cpu or x.dtype != torch.float32 or weight.dtype != torch.float32 or x.dim() != 4:
        return None
    size = torch.Size([*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[-2:], padding, strict=True))])
    if kernel(size, weight.shape, pool) is None:
        return None
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return _Convolve.apply(_padded(x, padding), weight, bias, pool, relu)[0]


def _name(x: Tensor, weight: Tensor, pool: bool, to_inputs: bool = False) -> str:
    chosen = kernel(x.shape[1:], weight.shape[1:], pool)
    assert chosen is not None, "asked before"
    return "direct" if chosen == "first" and to_inputs else chosen


class _Convolve(Function):
    """x [images, channels, high, wide] * weight [outputs, channels, side, side]: the places, and where the gradient of
    each goes; for rows clients with a dimension for them in front of everything."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, pool: bool, relu: bool) -> tuple[Tensor, Tensor]:
        if x.dim() == 5:
            return torch.ops.tacit.convolve(x, weight, bias, pool, relu, _name(x, weight, pool))
        return _one(x, weight, bias, pool, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, *ctx.how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        x, weight, which = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        to_x, to_weight, to_bias = _Back.apply(gradient, which, x, weight, *ctx.how, wanted)
        return to_x if wanted else None, to_weight, to_bias, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> Any:
        *tensors, pool, relu = args
        x, weight, bias = (_batched_first(leaf, at, info) for leaf, at in zip(tensors, in_dims, strict=False))
        if x.dim() == 5:
            return _Convolve.apply(x, weight, bias, pool, relu), (0, 0)
        folded = _Convolve.apply(x.flatten(0, 1), weight.flatten(0, 1), bias.flatten(0, 1), pool, relu)
        return tuple(leaf.unflatten(0, x.shape[:2]) for leaf in folded), (0, 0)


class _Back(Function):
    """Gradients of the inputs (nothing to look at if they are not wanted), of the weight and of the bias."""

    @staticmethod
    def forward(
        gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor, pool: bool, relu: bool, to_inputs: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if x.dim() == 4:
            return _one_back(gradient, which, x, weight, pool, relu, to_inputs)
        name = _name(x, weight, pool, to_inputs)
        return torch.ops.tacit.convolve_back(gradient, which, x, weight, pool, relu, to_inputs, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.pool, ctx.relu, ctx.to_inputs = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *second: Tensor) -> Any:
        """Second derivatives as torch has them."""
        gradient, which, x, weight = ctx.saved_tensors

        def one(gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return _one_back(gradient, which, x, weight, ctx.pool, ctx.relu, ctx.to_inputs)

        def plain(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return (one if x.dim() == 4 else vmap(one))(gradient, which, x, weight)

        to_gradient, to_x, to_weight = vjp(plain, gradient, x, weight)[1](second)
        return to_gradient, None, to_x, to_weight, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> Any:
        *tensors, pool, relu, to_inputs = args
        tensors = [_batched_first(leaf, at, info) for leaf, at in zip(tensors, in_dims, strict=False)]
        clients = tensors[2].shape[:-4]
        if len(clients) == 1:
            return _Back.apply(*tensors, pool, relu, to_inputs), (0, 0, 0)
        folded = _Back.apply(*(leaf.flatten(0, 1) for leaf in tensors), pool, relu, to_inputs)
        return tuple(leaf.unflatten(0, clients) for leaf in folded), (0, 0, 0)


def _one(x: Tensor, weight: Tensor, bias: Tensor, pool: bool, relu: bool) -> tuple[Tensor, Tensor]:
    """One client's, by torch."""
    out, which = aten.convolution(x, weight, bias, *_PLAIN), x.new_zeros((), dtype=torch.uint8)
    if pool:
        windows = out.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).transpose(-3, -2).flatten(-2)
        out, which = windows.max(-1)
        which = which.to(torch.uint8)
    if relu:
        which, out = torch.where(out <= 0, _NOWHERE, which).to(torch.uint8), out.relu()
    return out, which


def _one_back(
    gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor, pool: bool, relu: bool, to_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One client's gradients, by torch."""
    passed = torch.where(which == _NOWHERE, 0.0, gradient) if relu else gradient
    whole = _spread(passed, which) if pool else passed
    to_x, to_weight, _ = aten.convolution_backward(whole, x, weight, None, *_PLAIN, (to_inputs, True, False))
    return to_x if to_inputs else x.new_zeros(()), to_weight, passed.sum((-1, -2, -4))


def _spread(gradient: Tensor, which: Tensor) -> Tensor:
    """Each window's gradient to one of its four places."""
    windows = torch.where(which.unsqueeze(-1) == torch.arange(4, dtype=torch.uint8), gradient.unsqueeze(-1), 0.0)
    return windows.unflatten(-1, (2, 2)).transpose(-3, -2).flatten(-2).flatten(-3, -2)


def _pair(value: Any) -> Pair:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _padded(x: Tensor, padding: Pair) -> Tensor:
    return pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x


def _batched_first(leaf: Tensor, at: int | None, info: Any) -> Tensor:
    """With the batched dimension in front; what is not batched is repeated as a view."""
    return leaf.expand(info.batch_size, *leaf.shape) if at is None else leaf.movedim(at, 0)


def kernel(x: Size, weight: Size, pool: bool) -> str | None:
    """The fastest for images and filters of these shapes (of one client, padded), stride 1; None if there is none."""
    high, wide = x[-2] - weight[-2] + 1, x[-1] - weight[-1] + 1
    if weight[-1] != weight[-2] or weight[-1] not in (3, 5) or min(high, wide) < 1 or (pool and (high % 2 or wide % 2)):
        return None
    if not 0 < x[0] <= _MOST_IMAGES or library() is None:
        return None
    many_outputs = weight[0] % _LANES == 0 and weight[-1] == 3
    if many_outputs and weight[1] % _LANES == 0 and high % _TILE == 0 and wide % _TILE == 0:
        return "winograd"
    if many_outputs and weight[1] <= _FEW_INPUTS and not pool and wide >= _FEWEST_PLACES:
        return "first"
    return "direct" if weight[1:].numel() <= _LARGE else None


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, pool: bool, relu: bool, name: str) -> tuple[Tensor, Tensor]:
    """The places, and where each one's gradient goes: see `NOWHERE` in vectors.h; nothing without `pool` and `relu`."""
    weight, bias, transposed = _contiguous_rows(weight), _contiguous_rows(bias), name == "direct" and x.is_contiguous()
    sizes, flags = _sizes(x, weight, name), (pool, relu)
    y = _empty(x, _places(x, weight, pool), _IMAGES_FIRST if pool and name == "winograd" else _LAYOUTS[name])
    which = _empty(x, y.shape if pool or relu else (len(x),), _LAYOUTS[name], torch.uint8)
    images, steps = x if transposed else _laid(x, _LAYOUTS[name]), [weight.stride(0), bias.stride(0)]
    if name == "first":
        call("first_forward", (images, weight, bias, y, which), *steps, *sizes, relu)
    else:
        transposed = pool if name == "winograd" else transposed
        call(f"{name}_forward", (images, weight, bias, y, which), *steps, *sizes, *flags, transposed)
    return y, which


def _convolve_back(
    gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor, pool: bool, relu: bool, to_inputs: bool, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs (nothing to look at where they are not wanted), of the weight and of the bias."""
    layout, weight, transposed = _LAYOUTS[name], _contiguous_rows(weight), name != "first" and gradient.is_contiguous()
    to_x = _empty(x, x.shape if to_inputs else (len(x),), layout)
    to_weight, to_bias = (torch.empty(shape, dtype=weight.dtype) for shape in (weight.shape, weight.shape[:2]))
    slopes, images = gradient if transposed else _laid(gradient, layout), _laid(x, layout)
    which = _laid(which, layout) if pool or relu else which
    sizes, flags = _sizes(x, weight, name), (pool, relu)
    if name == "first":
        call("first_backward", (slopes, which, images, to_weight, to_bias), *sizes, relu)
    else:
        tensors = (slopes, which, images, weight, to_x if to_inputs else None, to_weight, to_bias)
        call(f"{name}_backward", tensors, weight.stride(0), *sizes, *flags, transposed)
    return to_x, to_weight, to_bias


def _contiguous_rows(rows: Tensor) -> Tensor:
    """A row for each client, unbroken; a row that stands for all stays one."""
    unbroken = len(rows) > 0 and rows[0].is_contiguous() and rows.stride(0) in (0, rows[0].numel())
    return rows if unbroken else rows.contiguous()


def _laid(x: Tensor, layout: Sequence[int]) -> Tensor:
    return x.permute(*layout).contiguous()


def _empty(template: Tensor, shape: Sequence[int], layout: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Of this shape, with memory in the order of the layout."""
    if len(shape) != len(layout):
        return torch.empty(shape, dtype=dtype or template.dtype)
    memory = torch.empty([shape[at] for at in layout], dtype=dtype or template.dtype)
    return memory.permute([layout.index(at) for at in range(len(layout))])


def _places(x: Tensor, weight: Tensor, pool: bool) -> list[int]:
    sides = [(n - weight.shape[-1] + 1) // (2 if pool else 1) for n in x.shape[-2:]]
    return [len(x), x.shape[1], weight.shape[1], *sides]


def _sizes(x: Tensor, weight: Tensor, name: str) -> list[int]:
    """What C is told of the shapes."""
    clients, images, inputs, high, wide = x.shape
    outputs, side = weight.shape[1], weight.shape[-1]
    if name == "direct":
        return [clients, images, inputs, high, wide, outputs, side]
    return [clients, images, high, wide, inputs, outputs]


operation(
    "convolve(Tensor x, Tensor weight, Tensor bias, bool pool, bool relu, str name) -> (Tensor, Tensor)", _convolve
)
operation(
    "convolve_back(Tensor gradient, Tensor which, Tensor x, Tensor weight, bool pool, bool relu, bool to_inputs,"
    " str name) -> (Tensor, Tensor, Tensor)",
    _convolve_back,
)
