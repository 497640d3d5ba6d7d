"""Operations of torch whose types torch leaves open, with types: the same operations, and nothing more."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor


def from_array(array: np.ndarray) -> Tensor:
    """A tensor on the memory of `array`."""
    return cast(Any, torch).from_numpy(array)


def to_list(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor with dimensions, nested as they are."""
    return cast(Any, tensor).tolist()


def split_rows(rows: Tensor, size: int) -> Sequence[Tensor]:
    """Pieces of at most `size` rows."""
    return cast(Any, rows).split(size)


def register_vmap(operation: Any, rule: Callable[..., Any]) -> None:
    """`rule` is what `vmap` does in the place of `operation`."""
    operation.register_vmap(rule)


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Of `rows`, over their first dimension."""
    return cast(Any, torch).tensordot(weights, rows, 1)


def eigenvectors(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues, from the smallest to the largest, and the eigenvectors as columns."""
    return cast(Any, torch.linalg).eigh(symmetric)


def least_squares(system: Tensor, right: Tensor) -> Tensor:
    """The x that makes system @ x closest to `right`."""
    return cast(Any, torch.linalg).lstsq(system, right).solution


def norm_of(values: Tensor) -> Tensor:
    """The Euclidean norm of all numbers."""
    return cast(Any, values).norm()
