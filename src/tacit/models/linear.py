"""Models without convolutions. Inputs may come flat or as images.

Layers in one call that an accelerator may do as one operation: `torch.overrides` lets a mode take their place.

Each is plain torch by itself. A `TorchFunctionMode` sees the call as it sees torch's own functions.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d
from torch.overrides import handle_torch_function, has_torch_function

from tacit.core.checked import checked
from tacit.data.validate import at_least

Pair = tuple[int, int]


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """relu(conv2d(x, weight, bias)) with stride 1."""
    given = (x, weight, bias)
    if has_torch_function(given):
        return handle_torch_function(conv_relu, given, *given, padding)
    return conv2d(x, weight, bias, padding=padding).relu()


def conv_max_pool2d_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias), 2))."""
    given = (x, weight, bias)
    if has_torch_function(given):
        return handle_torch_function(conv_max_pool2d_relu, given, *given)
    return max_pool2d(conv2d(x, weight, bias), 2).relu()


_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


@checked
class SoftmaxRegression(nn.Module):
    """One linear layer; its outputs are the logits."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        check_widths((inputs, classes))
        self.inputs = inputs
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(x.shape[0], self.inputs))


def check_widths(hidden: Sequence[int]) -> Sequence[int]:
    """The widths of hidden layers, or a `TacitError`: torch would make a layer of none, which learns nothing."""
    for width in hidden:
        at_least(width, 1, "the width of a hidden layer")
    return hidden


@checked
class MLP(nn.Module):
    """Linear layers with ReLU (or Tanh) between them; no hidden layer makes it a softmax regression.

    `norm` normalises before them: "batch" for FedBN, "group" for FedGN; kept local by `KeepLocal(("norm",), ...)`.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        hidden: Sequence[int] = (100,),
        norm: Literal["batch", "group"] | None = None,
        activation: Literal["relu", "tanh"] = "relu",
    ) -> None:
        super().__init__()
        self.inputs, self.activation = inputs, activation
        widths = [inputs, *check_widths(hidden)]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(_norm(norm, width) for width in widths[1:])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.inputs)
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = _ACTIVATIONS[self.activation](norm(layer(x)))
        return self.head(x)


def _norm(kind: str | None, width: int) -> nn.Module:
    if kind is None:
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm1d(width)
    return nn.GroupNorm(next((groups for groups in (8, 4, 2) if width % (2 * groups) == 0), 1), width)
