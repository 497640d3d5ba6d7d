"""How many numbers a network makes of a batch: by shapes alone, for the size of a chunk."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.core.contract import Task, Tree
from tacit.data.dataset import FederatedDataset


def outputs(task: Task, params: Tree, federation: FederatedDataset, rows: int) -> int:
    """How many numbers a network makes of so many rows, on the way and at its end: by shapes alone."""
    x, _ = federation.take(torch.full((rows,), int(federation.offsets[0])))
    with torch.no_grad(), _Counting() as counting:
        task.apply(params, x)
    return counting.numbers


class _Counting(TorchDispatchMode):
    """Counts what operations make; views make nothing."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out
