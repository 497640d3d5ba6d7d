"""Classes and targets as columns of a linear model: one for two classes or a real target, else one a class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core.contract import Tree
from tacit.errors import TacitError


def with_intercept(x: Tensor, scale: float = 1.0) -> Tensor:
    """Rows with a constant last feature, whose weight makes the intercept and is penalised like the others."""
    flat = x.flatten(1)
    return torch.cat([flat, flat.new_full((flat.shape[0], 1), scale)], 1)


def targets(y: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """[rows, columns]: real targets as they are, two classes as -1 and 1, several as one against the rest."""
    if y.is_floating_point():
        return y.unsqueeze(-1).to(dtype)
    if columns == 1:
        return (2 * y - 1).unsqueeze(-1).to(dtype)
    return 2 * (y.unsqueeze(-1) == torch.arange(columns)).to(dtype) - 1


@dataclass(frozen=True, eq=False)
class Columns:
    """A linear layer's leaves as one block [columns, features + 1], and back; `scale` is that of the constant."""

    weight: str
    bias: str | None
    classes: int
    zeros: Tensor
    scale: float

    @classmethod
    def of(cls, params: Tree, scale: float = 1.0) -> "Columns":
        matrices = [name for name, leaf in params.items() if leaf.dim() == 2]
        vectors = [name for name, leaf in params.items() if leaf.dim() != 2]
        if len(matrices) != 1 or len(vectors) > 1:
            raise TacitError(
                f"Multitask learns linear models, and this one has {', '.join(params)}: use model 'softmax'"
            )
        leaf = params[matrices[0]]
        classes, features = leaf.shape
        zeros = leaf.new_zeros(classes if classes > 2 else 1, features + 1)
        return cls(matrices[0], vectors[0] if vectors else None, classes, zeros, scale)

    def leaves(self, block: Tensor) -> Tree:
        whole = torch.cat([-block / 2, block / 2]) if self.classes == 2 else block
        return {self.weight: whole[:, :-1]} | ({self.bias: whole[:, -1] * self.scale} if self.bias else {})

    def block(self, leaves: Tree) -> Tensor:
        bias = leaves[self.bias] if self.bias else leaves[self.weight].new_zeros(self.classes)
        whole = torch.cat([leaves[self.weight], bias.unsqueeze(1) / self.scale], 1)
        return whole[1:] - whole[:1] if self.classes == 2 else whole

    def outputs(self, scores: Tensor) -> Tensor:
        """One number a class."""
        return torch.cat([-scores / 2, scores / 2], 1) if self.classes == 2 else scores
