"""Does an upload depend on data other than through private gradients? Found out by running the method.

Two rounds of one client on several data sets, with the same randomness and with private gradients replaced by the same
numbers: if any bit of an upload differs, exact gradients reach the upload, through the state or directly. If any bit
differs of what private gradients are asked for, parameters or loss, exact gradients reach the question: then one record
moves the other records' gradients too, and clipping each of them bounds nothing. The data sets differ in size by orders
of magnitude, so that what hides behind a comparison shows.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tacit import rng, tree
from tacit.core import Batch, Losses, Method, Site, Task, Tree
from tacit.federation.data import Federation
from tacit.privacy.gradient import Exact

_STEPS, _ROWS = 3, 4
_SCALES = (1.0, 0.01, 10.0, 1000.0)


class _Seen(NamedTuple):
    uploads: list[Tree]
    questions: list[Tree]


def interferes(method: Method, task: Task, federation: Federation, start: Tree) -> bool:
    """True if the record plan's guarantee would not hold for this method."""
    return interference(method, task, federation, start) is not None


def interference(
    method: Method, task: Task, federation: Federation, start: Tree
) -> Literal["upload", "question"] | None:
    """Where exact gradients show that must not: in an upload, or in what private gradients are asked for."""
    first, *others = (_seen(method, task, federation, start, scale) for scale in _SCALES)
    if any(_differ(first.uploads, other.uploads) for other in others):
        return "upload"
    return "question" if any(_differ(first.questions, other.questions) for other in others) else None


def _differ(one: list[Tree], other: list[Tree]) -> bool:
    return any(not torch.equal(x[name], y[name]) for x, y in zip(one, other, strict=True) for name in x)


def _seen(method: Method, task: Task, federation: Federation, start: Tree, scale: float) -> _Seen:
    server = method.init(start)
    state = method.join(server.view, start)
    batch = _random_rows(federation, start, scale)
    stub = _Stub(_random_rows(federation, start, _SCALES[0])(0))
    uploads = []
    for round in range(2):
        site = Site(
            task=task,
            steps=_STEPS,
            live=torch.ones(_STEPS, dtype=torch.bool),
            batch=batch,
            grad=Exact(task, batch),
            private_grad=stub,
            round=torch.tensor(round),
        )
        reply = method.client(server.view, state, site)
        uploads.append(tree.join(reply.upload))
        state, server = reply.state, method.server(server, reply.upload, 1.0)
    return _Seen(uploads, stub.questions)


def _random_rows(federation: Federation, start: Tree, scale: float) -> Callable[[int], Batch]:
    dtype = next(iter(start.values())).dtype
    draw = rng.generator(_SCALES.index(scale), "interference rows")
    x = torch.from_numpy(draw.normal(scale=scale, size=(_STEPS, _ROWS, *federation.input_shape))).to(dtype)
    y = torch.from_numpy(draw.integers(federation.classes, size=(_STEPS, _ROWS)))
    return lambda step: Batch(x[step], y[step], torch.ones(_ROWS, dtype=torch.bool))


class _Stub:
    """Stands in for private gradients: the same numbers for everybody. Remembers what it was asked."""

    def __init__(self, rows: Batch) -> None:
        self.questions: list[Tree] = []
        self._rows = rows

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        asked = tree.prefix("at", params)
        if losses is not None:  # a loss may carry personal parameters: it is known by its values on public rows
            asked["loss"] = losses(params, self._rows.x, self._rows.y)
        draw = rng.generator(0, "interference", len(self.questions))
        self.questions.append(asked)

        def numbers(leaf: Tensor) -> Tensor:
            return torch.from_numpy(draw.normal(scale=0.01, size=tuple(leaf.shape))).to(leaf.dtype).reshape(leaf.shape)

        return tree.each(numbers, params)
