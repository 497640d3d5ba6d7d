"""Models without convolutions. Inputs may come flat or as images."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class SoftmaxRegression(nn.Module):
    """One linear layer; its outputs are the logits."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(x.shape[0], self.inputs))


class MLP(nn.Module):
    """Linear layers with ReLU between them; no hidden layer makes it a softmax regression."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (100,)) -> None:
        super().__init__()
        self.inputs = inputs
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.inputs)
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(x)
