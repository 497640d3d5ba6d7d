"""The contract between a method, a client and the server.

A method is a pure program for one client and one for the server. Only `Reply.upload` leaves the client,
and it leaves through a release of the privacy room. This module imports nothing of ours.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Losses = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
"""(params, x, y) -> one loss for each example."""


class Shared(NamedTuple):
    """What the server broadcasts; uploads and their mean have the same shape."""

    model: Tree
    extra: Tree = {}  # SCAFFOLD's control, AdaPeD's psi


class Server(NamedTuple):
    """The server between rounds. Only `view` is broadcast; `memory` (optimizer moments) stays."""

    view: Shared
    memory: Tree = {}


class Batch(NamedTuple):
    """One step's examples. `mask` says which rows are real; the others are padding."""

    x: Tensor
    y: Tensor
    mask: Tensor


class Task(Protocol):
    """A model and its loss as pure functions of the parameters."""

    def apply(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor: ...

    def losses(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor: ...

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """(outputs, y) -> one loss for each example, for where the outputs are at hand."""
        ...


class Gradient(Protocol):
    """Gradient of the mean loss over the batch of one step, at `params`."""

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree: ...


class ProximalProblem(NamedTuple):
    """min over Z of sum_i loss(Z x_i, y_i) + |Z - centre|^2 / (2 curvature): a linear model near a centre.

    A convex loss of `core.dual_losses`, by name; x_i has `intercept` as its last feature. Of the dual variables alpha
    the solution is Z = centre + curvature (X alpha). `start` may be private: it is where a solver begins, and what is
    released is certified, however it was found. Everything else must be public.
    """

    loss: str
    centre: Tensor  # [columns, features + 1]
    curvature: Tensor  # 0-d
    intercept: float
    slack: float  # how far from the exact solution a private one may be: twice that far is this share of a record
    instead: Tensor  # like `centre`: what is released where no certificate is found
    start: Tensor  # [rows, columns], of the rows that are asked


class Minimum(NamedTuple):
    """The solution of a `ProximalProblem`: X alpha, like the centre, and alpha [rows, columns].

    Of a private one, `sums` may reach `Reply.upload`; `duals` are exact and may reach `Reply.state` only.
    """

    sums: Tensor
    duals: Tensor


def _no_minimum(problem: ProximalProblem, of: Any) -> Minimum:
    raise RuntimeError("this site solves no problems")


def _no_rows() -> Batch:
    raise RuntimeError("this site does not know all of its client's rows")


class Site(NamedTuple):
    """One client in one round: its data, and the only ways to look at it.

    `live[step]` is public: a step that is not live must leave everything the client carries untouched.
    A live step whose batch came out empty is still a step: a private gradient adds its noise there.
    """

    task: Task
    steps: int
    live: Tensor  # [steps], bool
    batch: Callable[[int], Batch]
    grad: Gradient  # exact: what comes of it may reach `Reply.state` only
    private_grad: Gradient  # what comes of it may reach `Reply.upload`; each call is one query
    guard: Callable[[Tree, Tree, Tree], Tree] = lambda start, before, now: now  # the plan's rule for a step to be sent
    advance: Callable[[int, Tree, Tree], Tree] = lambda step, new, old: new  # new if the step is live, else old
    level: Tensor = torch.zeros((), dtype=torch.int64)  # index of the client's privacy level
    round: Tensor = torch.zeros((), dtype=torch.int64)
    client: Tensor = torch.zeros((), dtype=torch.int64)  # the client's place in the federation
    rows: Callable[[int], Tensor] = lambda step: torch.zeros(1, dtype=torch.int64)  # its own numbers of a step's rows
    own: Callable[[], Batch] = _no_rows  # all rows of the client; what comes of them may reach `Reply.state` only
    minimum: Callable[[ProximalProblem, Batch], Minimum] = _no_minimum  # exact: may reach `Reply.state` only
    private_minimum: Callable[[ProximalProblem, int], Minimum] = _no_minimum  # of a step's rows; each call is one query


class Reply(NamedTuple):
    upload: Shared  # leaves, through the release
    state: Tree  # the client's own: never leaves, never logged


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass: its fields are hyper-parameters and nothing else.

    All of it is pure and works under `torch.func.vmap`. A method names no mechanism and adds no noise.
    With `gather` the server program gets every client's own message instead of their mean: each leaf has a leading
    dimension of all clients, zero where nothing came. Such a method runs only where nobody sees a message before noise.

    Example:
        >>> from dataclasses import dataclass
        >>> import tacit
        >>> @dataclass(frozen=True)
        ... class HalfSteps(tacit.FedAvg):
        ...     def server(self, server, mean, rate):
        ...         half = {name: leaf / 2 for name, leaf in mean.model.items()}
        ...         return super().server(server, mean._replace(model=half), rate)
        >>> isinstance(HalfSteps(), tacit.Method)
        True
    """

    gather: ClassVar[bool] = False

    def sized(self, sizes: Sequence[int]) -> Self:
        """The method for a federation whose clients have so many training rows; asked once, before everything else."""
        return self

    def init(self, params: Tree) -> Server: ...

    def join(self, view: Shared, start: Tree) -> Tree:
        """The state of a client that has not taken part yet, from the broadcast and the model's common start."""
        return {}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply: ...

    @property
    def levels(self) -> int | None:
        """For how many privacy levels it has settings, one each; None: for any number of them."""
        return None

    @property
    def idles(self) -> bool:
        """Whether clients that were not asked go on training alone; it costs the time of the whole population."""
        return False

    def idle(self, state: Tree, site: Site) -> Tree:
        """The round of a client that was not asked: it receives nothing, and nothing leaves it."""
        return state

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        """`rate`: the public expected share of clients in a round."""
        ...

    @property
    def adapt_epochs(self) -> int:
        """How often the steps that `adapt` is given go over the client's rows; 0: they are those of one round."""
        return 0

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        """On the client, with its own training data, before `predict`; never uploaded."""
        return state

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        """This client's personal prediction."""
        ...


class Event(Protocol):
    """A differential privacy event of `dp_accounting`."""

    def to_named_tuple(self) -> Any: ...
