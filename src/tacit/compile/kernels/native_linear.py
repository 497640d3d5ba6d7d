"""Products of a large matrix with few rows, for each client its own: linear layers on small batches.

torch's own read such a matrix at a fraction of its memory's speed. A pass over recorded programs
(`tacit.compile.passes.skinny_gemm`) puts these in their place.
"""

from typing import Final

import torch
from torch import Tensor

from tacit.compile.kernels.build import call, library, operation

_FEW: Final = 64  # rows
_LARGE: Final = 2**18  # numbers of a matrix; smaller ones stay in a core's cache, and torch is as fast


def suits(clients: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """Whether these are faster than torch's own."""
    sized = clients > 0 and 0 < rows <= _FEW and inputs * outputs >= _LARGE and inputs % 16 == 0 and outputs % 4 == 0
    return sized and dtype == torch.float32 and library() is not None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[clients, rows, inputs] by [clients, outputs, inputs], with a bias [clients, outputs] or none."""
    x, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
    clients, outputs, inputs = weight.shape
    y = x.new_empty(clients, x.shape[1], outputs)
    call("linear_forward", (x, weight, bias, y), outputs * inputs, outputs, clients, x.shape[1], inputs, outputs)
    return y


def _back(y: Tensor, weight: Tensor) -> Tensor:
    """[clients, rows, outputs] by [clients, outputs, inputs]."""
    y, weight = y.contiguous(), weight.contiguous()
    clients, outputs, inputs = weight.shape
    x = y.new_empty(clients, y.shape[1], inputs)
    call("linear_back", (y, weight, x), outputs * inputs, clients, y.shape[1], inputs, outputs)
    return x


def _add(weight: Tensor, y: Tensor, x: Tensor, factor: float) -> Tensor:
    """weight += factor y' x, in place."""
    y, x = y.contiguous(), x.contiguous()
    clients, outputs, inputs = weight.shape
    call("linear_add", (weight, y, x), float(factor), clients, y.shape[1], inputs, outputs)
    return weight


def _step(weight: Tensor, y: Tensor, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """What `_back` gives, and then `_add`."""
    y, x = y.contiguous(), x.contiguous()
    clients, outputs, inputs = weight.shape
    to_x = x.new_empty(x.shape)
    call("linear_step", (weight, y, x, to_x), float(factor), clients, y.shape[1], inputs, outputs)
    return to_x, weight


operation("few_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward)
operation("few_rows_back(Tensor y, Tensor weight) -> Tensor", _back)
operation("few_rows_add_(Tensor(a!) weight, Tensor y, Tensor x, float factor) -> Tensor(a!)", _add)
operation("few_rows_step_(Tensor(a!) weight, Tensor y, Tensor x, float factor) -> (Tensor, Tensor(a!))", _step)
