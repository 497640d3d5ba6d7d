"""The compiled kernels as torch operations, so that recorded programs can hold them, and which of them suits what.

Operations take and give tensors seen as [clients, images, channels, high, wide], however they lie in memory.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Size, Tensor

from tacit.compile.kernels.build import call, library, operation

_LANES: Final = 16  # channels that the widest vector holds; a multiple of every other width
_TILE: Final = 4  # of Winograd's method
_FEW_INPUTS: Final = 3
_FEWEST_PLACES: Final = 6  # along a row, for the kernel of first layers
_MOST_IMAGES: Final = 1024  # of a client; their memory is kept for the next call
_LARGE: Final = 512  # numbers of a filter; for larger ones the direct way is not faster than torch
_IMAGES_FIRST: Final = (0, 1, 2, 3, 4)
_LAYOUTS: Final = {"direct": (0, 2, 3, 4, 1), "winograd": (0, 1, 3, 4, 2), "first": (0, 1, 3, 4, 2)}
"""Each kernel's order of those dimensions in memory."""


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
    weight, bias, turned = _own(weight), _own(bias), name == "direct" and x.is_contiguous()
    sizes, flags = _sizes(x, weight, name), (pool, relu)
    y = _empty(x, _places(x, weight, pool), _IMAGES_FIRST if pool and name == "winograd" else _LAYOUTS[name])
    which = _empty(x, y.shape if pool or relu else (len(x),), _LAYOUTS[name], torch.uint8)
    laid, steps = x if turned else _laid(x, _LAYOUTS[name]), [weight.stride(0), bias.stride(0)]
    if name == "first":
        call("first_forward", (laid, weight, bias, y, which), *steps, *sizes, relu)
    else:
        turned = pool if name == "winograd" else turned
        call(f"{name}_forward", (laid, weight, bias, y, which), *steps, *sizes, *flags, turned)
    return y, which


def _convolve_back(
    gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor, pool: bool, relu: bool, to_inputs: bool, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs (nothing to look at where they are not wanted), of the weight and of the bias."""
    layout, weight, turned = _LAYOUTS[name], _own(weight), name != "first" and gradient.is_contiguous()
    to_x = _empty(x, x.shape if to_inputs else (len(x),), layout)
    to_weight, to_bias = (torch.empty(shape, dtype=weight.dtype) for shape in (weight.shape, weight.shape[:2]))
    given, laid = gradient if turned else _laid(gradient, layout), _laid(x, layout)
    which = _laid(which, layout) if pool or relu else which
    sizes, flags = _sizes(x, weight, name), (pool, relu)
    if name == "first":
        call("first_backward", (given, which, laid, to_weight, to_bias), *sizes, relu)
    else:
        tensors = (given, which, laid, weight, to_x if to_inputs else None, to_weight, to_bias)
        call(f"{name}_backward", tensors, weight.stride(0), *sizes, *flags, turned)
    return to_x, to_weight, to_bias


def _convolve_over(
    gradient: Tensor, which: Tensor, x: Tensor, weight: Tensor, pool: bool, relu: bool, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """`_convolve_back` by Winograd's method, the gradient of the inputs in their place: an image is read before."""
    laid, weight, turned = x.permute(*_LAYOUTS[name]), _own(weight), gradient.is_contiguous()
    to_weight, to_bias = (torch.empty(shape, dtype=weight.dtype) for shape in (weight.shape, weight.shape[:2]))
    given = gradient if turned else _laid(gradient, _LAYOUTS[name])
    which = _laid(which, _LAYOUTS[name]) if pool or relu else which
    tensors = (given, which, laid, weight, laid, to_weight, to_bias)
    call("winograd_backward", tensors, weight.stride(0), *_sizes(x, weight, name), pool, relu, turned)
    return x, to_weight, to_bias


def can_be_written_over(x: Tensor, name: str) -> bool:
    """Whether inputs that lie in memory like this can be."""
    return name == "winograd" and x.permute(*_LAYOUTS[name]).is_contiguous()


def _own(several: Tensor) -> Tensor:
    """A row for each client, unbroken; a row that stands for all stays one."""
    unbroken = len(several) > 0 and several[0].is_contiguous() and several.stride(0) in (0, several[0].numel())
    return several if unbroken else several.contiguous()


def _laid(x: Tensor, layout: Sequence[int]) -> Tensor:
    return x.permute(*layout).contiguous()


def _empty(like: Tensor, shape: Sequence[int], layout: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Of this shape, with memory in the order of the layout."""
    if len(shape) != len(layout):
        return torch.empty(shape, dtype=dtype or like.dtype)
    made = torch.empty([shape[at] for at in layout], dtype=dtype or like.dtype)
    return made.permute([layout.index(at) for at in range(len(layout))])


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
operation(
    "convolve_over(Tensor gradient, Tensor which, Tensor(a!) x, Tensor weight, bool pool, bool relu, str name)"
    " -> (Tensor(a!), Tensor, Tensor)",
    _convolve_over,
)
