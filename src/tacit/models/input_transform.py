"""PrivateFL's layer zero: a personal transformation of the inputs, kept on the client and trained with the model.

T(x) = alpha x + beta with alpha and beta free in as many dimensions as wished (Section 4.2), or one of the other
functions of Table 1. Keep it local with `KeepLocal(("transform",), base)`; then it adds to any method.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from tacit.core.checked import checked
from tacit.errors import TacitError

Free = Literal["none", "one", "channel", "pixel", "each"]
"""What alpha or beta may differ by: nothing (it stays as it is), nothing (one number), channel, pixel, or both.

Of vectors a feature is a pixel of one channel: "channel" has one number in all, "pixel" and "each" one a feature.
"""
Function = Literal["linear", "sigmoid", "tanh", "relu", "square", "conv"]
NAME: Final = "transform"
_KERNEL: Final = 7

_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


@checked
class Transform(nn.Module):
    """f(alpha x + beta) of one input, in the shape it came in; the square is alpha x^2 + beta.

    As built, `linear` is the identity, whatever is free. The non-linear functions start with alpha = 1 and beta = 0
    inside; they are not the identity, as in Table 1. `alpha` and `beta` set other starting values (Figure 4).
    """

    def __init__(
        self,
        shape: Sequence[int],
        function: Function = "linear",
        scale: Free = "channel",
        shift: Free = "each",
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape, self.function = image(shape), function
        self._check(function, scale, shift)
        self.start = alpha, beta
        self.alpha = _parameter(self.shape, scale)
        self.beta = _parameter(self.shape, shift)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The starting values: always the same, so that every client starts alike."""
        for leaf, value in zip((self.alpha, self.beta), self.start, strict=True):
            leaf.data.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.reshape(x.shape[0], *self.shape)
        if self.function == "square":
            pixels = self.alpha * pixels.square() + self.beta
        else:
            pixels = _FUNCTIONS[self.function](self.alpha * pixels + self.beta)
        return pixels.reshape(x.shape)

    def _check(self, function: str, scale: str, shift: str) -> None:
        known = [*_FUNCTIONS, "square"]
        if function not in known:
            raise TacitError(f"there is no transform '{function}': use one of {', '.join([*known, 'conv'])}")
        if scale == shift == "none":
            raise TacitError("a transform with neither scale nor shift has nothing to learn: free one of them")


class Convolution(nn.Conv2d):
    """A 7x7 convolution of each image into as many channels; at the start the identity."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.image = channels, rows, _ = image(shape)
        if rows == 1:
            raise TacitError(f"inputs of shape {tuple(shape)} are not images: the 'conv' transform needs some")
        super().__init__(channels, channels, _KERNEL, padding=_KERNEL // 2)

    def reset_parameters(self) -> None:
        """Always the same, so that every client starts alike."""
        nn.init.dirac_(self.weight)
        nn.init.zeros_(self.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(input.shape[0], *self.image)).reshape(input.shape)


class Transformed(nn.Module):
    """Any model behind a transform, named so that `KeepLocal(("transform",), ...)` finds it and nothing else."""

    def __init__(self, transform: nn.Module, model: nn.Module) -> None:
        super().__init__()
        if any(NAME in name for name, _ in model.named_parameters()):
            raise TacitError(f"the model has parameters called '{NAME}' already: rename them, or transform once")
        self.transform, self.model = transform, model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.transform(x))


def transformed(model: nn.Module, shape: Sequence[int], function: Function = "linear", **options: Any) -> Transformed:
    """`model` behind a personal transform of inputs of this shape; `options` are those of `Transform`."""
    if function == "conv":
        if options:
            raise TacitError(f"the 'conv' transform takes no {', '.join(options)}: leave it out")
        return Transformed(Convolution(shape), model)
    return Transformed(Transform(shape, function, **options), model)


def image(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, rows, columns. A vector is one channel of one row; a grey image has one channel."""
    padded = (1,) * (3 - len(shape)) + tuple(shape)
    if len(padded) != 3:
        raise TacitError(f"inputs of shape {tuple(shape)} are neither vectors nor images: a transform needs those")
    return padded


def _parameter(shape: tuple[int, int, int], free: Free) -> nn.Parameter:
    channels, rows, columns = shape
    sizes = {
        "none": (1, 1, 1),
        "one": (1, 1, 1),
        "channel": (channels, 1, 1),
        "pixel": (1, rows, columns),
        "each": shape,
    }
    return nn.Parameter(torch.zeros(sizes[free]), requires_grad=free != "none")
