"""The networks of the papers: softmax regression, perceptrons, convolutions. Inputs may come flat or as images.

`conv_relu` and `conv_max_pool2d_relu` are layers in one call, which an accelerator may do as one operation. Each is
plain torch by itself. A `TorchFunctionMode` sees the call as it sees torch's own functions.
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
from tacit.errors import TacitError

Pair = tuple[int, int]


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """relu(conv2d(x, weight, bias)) with stride 1."""
    tensors = (x, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(conv_relu, tensors, *tensors, padding)
    return conv2d(x, weight, bias, padding=padding).relu()


def conv_max_pool2d_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias), 2))."""
    tensors = (x, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(conv_max_pool2d_relu, tensors, *tensors)
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


def _positive(size: int, model: str, side: int, least: int) -> int:
    if size < 1:
        raise TacitError(f"images of side {side} are too small for {model}: use a side of {least} or more, or 'mlp'")
    return size


def _pooled(conv: nn.Conv2d, x: Tensor) -> Tensor:
    assert conv.bias is not None
    return conv_max_pool2d_relu(x, conv.weight, conv.bias)


def _rectified(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """ReLU of a convolution with stride 1."""
    assert not isinstance(conv.padding, str)
    return conv_relu(x, conv.weight, conv.bias, (conv.padding[0], conv.padding[1]))


@checked
class FiveLayerCNN(nn.Module):
    """conv 5x5x6, pool, conv 5x5x16, pool, three linear layers (256-120-84-10 at 28x28); ReLU. Sides from 16."""

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        last = _positive(((side - 4) // 2 - 4) // 2, "FiveLayerCNN", side, 16)
        self.image = (channels, side, side)
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.linear1 = nn.Linear(16 * last * last, 120)
        self.linear2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], *self.image)
        x = _pooled(self.conv2, _pooled(self.conv1, x))  # the pool before ReLU: the same, on a quarter of the numbers
        x = self.linear1(x.flatten(1).contiguous()).relu()
        return self.head(self.linear2(x).relu())


@checked
class TwoConvCNN(nn.Module):
    """conv 3x3x32, conv 3x3x64, pool, two linear layers: 1,206,590 parameters at 28x28 with 62 classes. Sides from 6.

    `hidden`: channels of both convolutions and width of the first linear layer, where others are wanted.
    The published model has dropout after the pool and before the head. It is left out, and the results
    of this project are without it.
    """

    def __init__(
        self, channels: int = 1, side: int = 28, classes: int = 62, hidden: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        if len(hidden) != 3:
            raise TacitError(f"TwoConvCNN has three hidden layers, not {len(hidden)}: give hidden=[32, 64, 128]")
        first, second, third = check_widths(hidden)
        last = _positive((side - 4) // 2, "TwoConvCNN", side, 6)
        self.image = (channels, side, side)
        self.conv1 = nn.Conv2d(channels, first, 3)
        self.conv2 = nn.Conv2d(first, second, 3)
        self.linear = nn.Linear(second * last * last, third)
        self.head = nn.Linear(third, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], *self.image)
        x = _pooled(self.conv2, _rectified(self.conv1, x))
        return self.head(self.linear(x.flatten(1).contiguous()).relu())


@checked
class AlexNet(nn.Module):
    """Five 3x3 convolutions, three pools, three linear layers: AlexNet, cut to images of side 32. Sides from 16.

    `hidden`: channels of the convolutions and widths of both linear layers, where others are wanted: the published ones
    make 23 million parameters, whose noise drowns a hundred clients. Dropout is left out, as in `TwoConvCNN`.
    """

    def __init__(
        self,
        channels: int = 3,
        side: int = 32,
        classes: int = 10,
        hidden: Sequence[int] = (64, 192, 384, 256, 256, 4096, 4096),
    ) -> None:
        super().__init__()
        if len(hidden) != 7:
            raise TacitError(f"AlexNet has seven hidden layers, not {len(hidden)}: give five convolutions, two widths")
        *wide, sixth, seventh = check_widths(hidden)
        last = _positive(((side + 1) // 2) // 8, "AlexNet", side, 16)
        self.image = (channels, side, side)
        self.conv1 = nn.Conv2d(channels, wide[0], 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(wide[0], wide[1], 3, padding=1)
        self.conv3 = nn.Conv2d(wide[1], wide[2], 3, padding=1)
        self.conv4 = nn.Conv2d(wide[2], wide[3], 3, padding=1)
        self.conv5 = nn.Conv2d(wide[3], wide[4], 3, padding=1)
        self.linear1 = nn.Linear(wide[4] * last * last, sixth)
        self.linear2 = nn.Linear(sixth, seventh)
        self.head = nn.Linear(seventh, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], *self.image)
        x = max_pool2d(self.conv1(x), 2).relu()
        x = max_pool2d(self.conv2(x), 2).relu()
        x = _rectified(self.conv4, _rectified(self.conv3, x))
        x = max_pool2d(self.conv5(x), 2).relu()
        x = self.linear2(self.linear1(x.flatten(1)).relu()).relu()
        return self.head(x)
