"""A dry look at a client program before anything is planned: shapes and queries, no values."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tacit import tree
from tacit.core import Batch, Method, Site, Task, Tree
from tacit.federation.data import Federation
from tacit.privacy.gradient import Counted, Exact


class Probe(NamedTuple):
    """What one dry client program showed: the shapes of upload and state, and private queries in a step."""

    upload: Tree
    state: Tree
    queries: int


def probe(method: Method, task: Task, federation: Federation, start: Tree) -> Probe:
    """Runs the client program once, on two steps of the first client's first row, and looks at shapes and calls."""
    view = method.init(start).view
    row = torch.full((2, 1), int(federation.offsets[0]))

    def batch(step: int) -> Batch:
        return Batch(*federation.take(row[step]), torch.ones(1, dtype=torch.bool))

    exact = Exact(task, batch)
    private = Counted(exact)
    site = Site(
        task=task,
        steps=2,
        live=torch.ones(2, dtype=torch.bool),
        batch=batch,
        grad=exact,
        private_grad=private,
    )
    reply = method.client(view, method.join(view, start), site)
    return Probe(tree.join(reply.upload), reply.state, max(private.calls.count(step) for step in range(2)))


def outputs(task: Task, params: Tree, federation: Federation, rows: int) -> int:
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
