"""A convolution, pooled, rectified or neither: differentiable, and for clients with weights of their own together.

One client's is torch's own. Under `vmap` the clients become a dimension in front, and that is what the compiled kernels
take.
"""

# pyright: reportIncompatibleMethodOverride=false
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import vjp, vmap

from tacit.compile.kernels.batched import Dims, Pair, batched_first, padded
from tacit.compile.kernels.native import kernel

aten = torch.ops.aten
_PLAIN: Final = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)  # stride, padding, dilation, not transposed, one group
_NOWHERE: Final = 4  # as in vectors.h


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
    return _Convolve.apply(padded(x, padding), weight, bias, pool, relu)[0]


def _name(x: Tensor, weight: Tensor, pool: bool, to_inputs: bool = False) -> str:
    found = kernel(x.shape[1:], weight.shape[1:], pool)
    assert found is not None, "asked before"
    return "direct" if found == "first" and to_inputs else found


class _Convolve(Function):
    """x [images, channels, high, wide] * weight [outputs, channels, side, side]: the places, and where the gradient of
    each goes; for several clients with a dimension for them in front of everything."""

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
    def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:
        *tensors, pool, relu = given
        x, weight, bias = (batched_first(leaf, at, info) for leaf, at in zip(tensors, in_dims, strict=False))
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
    def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:
        *tensors, pool, relu, to_inputs = given
        tensors = [batched_first(leaf, at, info) for leaf, at in zip(tensors, in_dims, strict=False)]
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
