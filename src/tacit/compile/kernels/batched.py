"""What the kernels for many clients have in common: pairs of sizes, batched dimensions, choices and their way back."""

# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

Pair = tuple[int, int]
Dims = tuple[int | None, ...]
OPENED: dict[Any, Callable[..., Tensor]] = {}
"""Operations of this room, and the functions they are made of: a recorded program takes these, and needs no Python."""


def pair(value: Any) -> Pair:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def padded(x: Tensor, padding: Pair) -> Tensor:
    return pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x


def batched_first(leaf: Tensor, at: int | None, info: Any) -> Tensor:
    """With the batched dimension in front; what is not batched is repeated as a view."""
    return leaf.expand(info.batch_size, *leaf.shape) if at is None else leaf.movedim(at, 0)


def images_last(x: Tensor) -> Tensor:
    """[clients, images, channels, height, width] as [clients, channels, height, width, images], unbroken."""
    return x.permute(0, 2, 3, 4, 1).contiguous()


class Choice(Function):
    """Its first output has numbers of its input, the others say which they were."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])


class Return(Function):
    """Gives the numbers of its first input, a gradient, back to where a `Choice` took them from, by its other ones."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])
