"""Models without convolutions. Inputs may come flat or as images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.errors import TacitError

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class SoftmaxRegression(nn.Module):
    """One linear layer; its outputs are the logits."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(x.shape[0], self.inputs))


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
        if activation not in _ACTIVATIONS:
            raise TacitError(f"activation is '{activation}': use 'relu' or 'tanh'")
        self.inputs, self.activation = inputs, activation
        widths = [inputs, *hidden]
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
    if kind == "group":
        return nn.GroupNorm(next((groups for groups in (8, 4, 2) if width % (2 * groups) == 0), 1), width)
    raise TacitError(f"norm is '{kind}': use 'batch' or 'group'")
