"""A dry look at client programs before anything is planned: shapes and private queries, no values."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch

from tacit.core import tree
from tacit.core.contract import Batch, Gradient, Losses, Method, Reply, Site, Task, Tree
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.privacy.accounting.queries import Counts
from tacit.privacy.mechanisms.gradient import Counted, Exact

LONGEST: Final = 1 << 15
"""Steps of a round for which queries are counted: a number of rows that somebody made up must not take forever."""


class Probe(NamedTuple):
    """What one dry client program showed: the shapes of upload and state."""

    upload: Tree
    state: Tree


def probe(method: Method, task: Task, federation: FederatedDataset, start: Tree) -> Probe:
    """Runs the client program once, on two steps of the first client's first row, and looks at shapes."""
    batch = _first_row(federation)
    exact = Exact(task, batch)
    reply = _dry_run(method, task, start, batch, exact, exact, 2)
    return Probe(tree.join(reply.upload), reply.state)


def count_queries(
    method: Method, task: Task, federation: FederatedDataset, start: Tree, lengths: Iterable[int]
) -> Counts:
    """How often the client program asks each of its batches, for every number of steps in `lengths`.

    By running it with gradients of zero: a program that runs for many clients at once cannot depend on values. What it
    asks in a round is compared with this before anything is released.
    """
    lengths = sorted(set(lengths))
    if lengths and lengths[-1] > LONGEST:
        raise TacitError(
            f"a client would take {lengths[-1]:,} steps in a round, and private queries are counted for up to "
            f"{LONGEST:,}: use a larger batch, or fewer epochs"
        )
    batch = _first_row(federation)

    def nothing(params: Tree, step: int, losses: Losses | None = None) -> Tree:
        return tree.zeros(params)

    def counted(steps: int) -> tuple[int, ...]:
        private = Counted(nothing)
        _dry_run(method, task, start, batch, nothing, private, steps)
        return private.by_batch(steps)

    return Counts({steps: counted(steps) for steps in lengths if steps})


def _first_row(federation: FederatedDataset) -> Callable[[int], Batch]:
    """Every batch is the first client's first row."""
    row = torch.full((1,), int(federation.offsets[0]))
    return lambda _: Batch(*federation.take(row), torch.ones(1, dtype=torch.bool))


def _dry_run(
    method: Method,
    task: Task,
    start: Tree,
    batch: Callable[[int], Batch],
    grad: Gradient,
    private_grad: Gradient,
    steps: int,
) -> Reply:
    view = method.init(start).view
    live = torch.ones(steps, dtype=torch.bool)
    site = Site(task=task, steps=steps, live=live, batch=batch, grad=grad, private_grad=private_grad)
    return method.client(view, method.join(view, start), site)
