"""Checks before a run.

A dry look at client programs before anything is planned: shapes and private queries, no values.

Does an upload depend on data other than through private gradients? Found out by running the method.

Two rounds of one client on several data sets, with the same randomness and with private gradients replaced by gradients
on rows that are the same for all: if any bit of an upload differs, exact gradients reach the upload, through the state
or directly, or they reach the parameters or the loss of which a private gradient was asked. (Clipping bounds what one
record does to its own term of the sum; it bounds nothing if the record also changes the loss of all the others.) The
data sets differ in size by orders of magnitude, so that what hides behind a comparison shows, and in how many rows a
step has and which. Between the rounds the client trains alone, if the method lets it: nobody pays for what it asks.

The same question for plans that add their noise in the guard: is every number of an upload made of guarded steps?
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import count
from typing import Final, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import rng, tree
from tacit.core.columns import each
from tacit.core.contract import (
    Batch,
    Gradient,
    Losses,
    Method,
    Minimum,
    ProximalProblem,
    Reply,
    Shared,
    Site,
    Task,
    Tree,
)
from tacit.core.dropout import Key
from tacit.core.tensors import from_array
from tacit.data.dataset import WHOLE, FederatedDataset
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask
from tacit.privacy.accounting.sampling import Counts
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.gradient import Counted, Exact

LONGEST: Final = 1 << 15
"""Steps of a round for which queries are counted: a number of rows that somebody made up must not take forever."""


class Probe(NamedTuple):
    """What one dry client program showed: the shapes of upload and state."""

    upload: Tree
    state: Tree


def probe(method: Method, task: Task, federation: FederatedDataset, start: Tree, level: int = 0) -> Probe:
    """Runs both programs of a method once, on two steps of the first client's first row, and looks at shapes.

    As the engine runs them, under `vmap`, and at a privacy level: a method that knows the last one knows all. Whatever
    a method raises is told as its own, before anything is charged.
    """
    row = _first_row(federation)(0)
    with _told_as(method, "init"):
        server = method.init(start)
        joined = method.join(server.view, start)

    def client(x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        def batch(step: int) -> Batch:
            return Batch(x, y, row.mask)

        exact = Exact(task, batch)
        reply = cast(object, method.client(server.view, joined, _site(task, batch, exact, exact, 2, level)))
        if not isinstance(reply, Reply):
            raise TacitError(
                f"{type(method).__name__}.client gives a {type(reply).__name__}: give Reply(upload, state)"
            )
        return tree.join(reply.upload), reply.state

    with _told_as(method, "client"):
        upload, state = (tree.each(lambda leaf: leaf[0], part) for part in vmap(client)(row.x[None], row.y[None]))
    if not method.gather:
        with _told_as(method, "server"):
            method.server(server, tree.split(upload), 1.0)
    return Probe(upload, state)


@contextmanager
def _told_as(method: Method, program: str) -> Generator[None]:
    """Of code that a user may have written, anything may come."""
    try:
        yield
    except TacitError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise TacitError(
            f"{type(method).__name__}.{program} fails for a trial row ({reason}): it must work under torch.func.vmap, "
            "draw nothing and return the leaves that it was given"
        ) from error


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

    def counted(steps: int) -> tuple[int, ...]:
        private = Counted(_nothing)
        view = method.init(start).view
        site = _site(task, batch, _nothing, private, steps)
        site = site._replace(private_minimum=private.counting(_no_solution))
        method.client(view, method.join(view, start), site)
        return private.by_batch(steps)

    return Counts({steps: counted(steps) for steps in lengths if steps})


def _nothing(params: Tree, step: int, losses: Losses | None = None) -> Tree:
    return tree.zeros(params)


def _no_solution(problem: ProximalProblem, of: int | Batch) -> Minimum:
    """Shapes of a solution, all zero."""
    return Minimum(torch.zeros_like(problem.centre), torch.zeros_like(problem.start))


def count_guarded(method: Method, task: Task, federation: FederatedDataset, start: Tree, steps: int) -> int:
    """How many steps the client program guards in a round of so many, with gradients of zero."""
    calls = count()

    def guard(start: Tree, before: Tree, now: Tree) -> Tree:
        next(calls)
        return now

    view = method.init(start).view
    site = _site(task, _first_row(federation), _nothing, _nothing, steps)
    method.client(view, method.join(view, start), site._replace(guard=guard))
    return next(calls)


def _first_row(federation: FederatedDataset) -> Callable[[int], Batch]:
    """Every batch is the first client's first row."""
    row = torch.full((1,), int(federation.offsets[0]))
    return lambda _: Batch(*federation.take(row), torch.ones(1, dtype=torch.bool))


def _site(
    task: Task, batch: Callable[[int], Batch], grad: Gradient, private_grad: Gradient, steps: int, level: int = 0
) -> Site:
    live = torch.ones(steps, dtype=torch.bool)
    site = Site(task, steps, live, batch, grad, private_grad, level=torch.tensor(level))
    return site._replace(own=lambda: batch(0), minimum=_no_solution, private_minimum=_no_solution)


_STEPS, _ROWS = 3, 4
_DATA = ((1.0, _ROWS), (0.01, _ROWS), (10.0, _ROWS), (1000.0, _ROWS), (1.0, 1))  # scale, and how many rows are real


Channel = Literal["private_grad", "guard"]
"""Where a plan adds its noise: the only way by which data may reach an upload."""


def interferes(
    method: Method, task: ModuleTask, federation: FederatedDataset, start: Tree, door: Channel = "private_grad"
) -> bool:
    """True if data reach the upload by another way than the door, so that the plan's guarantee would not hold."""
    try:
        first, *others = (_uploads(method, task, federation, start, which, door) for which in range(len(_DATA)))
    except (RuntimeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TacitError(
            f"{type(task.module).__name__} fails in a trial on rows that are made up ({reason}): let it take any "
            "numbers, or look integers up in nn.Embedding alone"
        ) from error
    if not all(bool(leaf.isfinite().all()) for upload in first for leaf in upload.values()):
        raise TacitError(
            f"{type(method).__name__} diverged in a trial on random rows, so that nobody can tell what its uploads "
            "depend on: lower its learning rate"
        )
    return any(not torch.equal(x[name], y[name]) for o in others for x, y in zip(first, o, strict=True) for name in x)


def _uploads(
    method: Method, task: ModuleTask, federation: FederatedDataset, start: Tree, which: int, door: Channel
) -> list[Tree]:
    server = method.init(start)
    state = method.join(server.view, start)
    batch = _random_rows(federation, start, which, task.tokens)
    public = _random_rows(federation, start, 0, task.tokens) if door == "private_grad" else batch
    guard = _same_step() if door == "guard" else _no_guard
    uploads: list[Tree] = []

    def rows(step: int) -> Tensor:
        return (torch.arange(_ROWS) + which) % federation.sizes.max()

    def private_minimum(problem: ProximalProblem, step: int) -> Minimum:
        return _stand_in(problem, batch(step))

    for round in range(2):
        site = Site(
            task=task,
            steps=_STEPS,
            live=torch.ones(_STEPS, dtype=torch.bool),
            batch=batch,
            grad=Exact(task, batch, _key),
            round=torch.tensor(round),
            rows=rows,
            private_grad=_clipped(Exact(task, public, _key)),
            guard=guard,
            own=lambda: batch(0),
            minimum=_exact_stand_in,
            private_minimum=private_minimum,
        )
        reply = method.client(server.view, state, site)
        uploads.append(tree.join(reply.upload))
        state, server = reply.state, method.server(server, _received(method, reply.upload, federation), 1.0)
        if method.idles:
            state = method.idle(state, site._replace(private_grad=site.grad))
    return uploads


def _key(step: int) -> Key:
    """Of dropout: the same masks whatever the data, as in a run."""
    return Key(torch.arange(_ROWS).unsqueeze(-1), step=step)


def _stand_in(problem: ProximalProblem, rows: Batch) -> Minimum:
    """A solution whose sums tell of everything that must be public, and of nothing else; whose duals tell of rows."""
    public = problem.centre * problem.curvature + problem.instead + problem.curvature + problem.slack
    seen = rows.x.flatten(1).sum(1, keepdim=True).to(problem.start.dtype)
    return Minimum(public + problem.intercept, problem.start + torch.where(rows.mask.unsqueeze(1), seen, 0.0))


def _exact_stand_in(problem: ProximalProblem, rows: Batch) -> Minimum:
    """As an exact solution: all of it tells of rows."""
    found = _stand_in(problem, rows)
    return found._replace(sums=found.sums + found.duals.sum())


def _clipped(exact: Exact) -> Callable[..., Tree]:
    """Private gradients are bounded, and a method may count on it."""
    return lambda *asked: clip(exact(*asked), 1.0)[0]


def _received(method: Method, upload: Shared, federation: FederatedDataset) -> Shared:
    """As the server would get it, if the first client alone had sent something."""
    if not method.gather:
        return upload
    alone = torch.arange(federation.clients) == 0
    return Shared(*(tree.each(lambda leaf: alone.view(-1, *[1] * leaf.dim()) * leaf, part) for part in upload))


def _random_rows(federation: FederatedDataset, start: Tree, which: int, tokens: int) -> Callable[[int], Batch]:
    """`tokens`: how many there are, where rows are indices."""
    dtype, (scale, real) = next(iter(start.values())).dtype, _DATA[which]
    draw = rng.generator(which, "interference rows")

    def numbers(leaf: Tensor) -> Tensor:
        shape = (_STEPS, _ROWS, *leaf.shape[1:])
        if leaf.dtype not in WHOLE:
            drawn = draw.integers(tokens, size=shape) if tokens else draw.normal(scale=scale, size=shape)
            return from_array(drawn).to(dtype)
        drawn = from_array(draw.integers(tokens or 2, size=shape))
        drawn[(..., *[0] * (leaf.dim() - 1))] = min(1, (tokens or 2) - 1)  # a mask of zeros alone would leave nothing
        return drawn.to(leaf.dtype)

    x = each(numbers, federation.x)
    y = _random_targets(federation, draw)
    return lambda step: Batch(x[step], y[step], torch.arange(_ROWS) < real)


def _random_targets(federation: FederatedDataset, draw: np.random.Generator) -> Tensor:
    targets, shape = federation.y, (_STEPS, _ROWS, *federation.y.shape[1:])
    if targets.is_floating_point():
        return from_array(draw.normal(size=shape)).to(targets.dtype)
    classes = 2 if targets.dtype == torch.bool else federation.classes
    return from_array(draw.integers(classes, size=shape)).to(targets.dtype)


def _same_step() -> Callable[[Tree, Tree, Tree], Tree]:
    """A guard that takes the same step wherever the method wanted to go."""
    calls = count()

    def guard(start: Tree, before: Tree, now: Tree) -> Tree:
        draw = rng.generator(0, "interference", next(calls))

        def numbers(leaf: Tensor) -> Tensor:
            return torch.as_tensor(draw.normal(scale=0.01, size=tuple(leaf.shape))).to(leaf.dtype).reshape(leaf.shape)

        return tree.add(before, tree.each(numbers, before))

    return guard


def _no_guard(start: Tree, before: Tree, now: Tree) -> Tree:
    return now
