"""Optimizers as values: the client's inside its program, the server's after the release (free of privacy cost)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Gradient, Site, Tree
from tacit.errors import TacitError

Pull = Callable[[Tree, Tree], Tree]
"""(gradient, params) -> gradient with a further term, for example Ditto's proximal one."""


def no_pull(gradient: Tree, params: Tree) -> Tree:
    return gradient


@checked
@dataclass(frozen=True)
class LocalSgd:
    """SGD on one client, with momentum, weight decay and a rate that falls by `decay` each round.

    Args:
        lr: the rate, above 0.
        momentum: from 0 to below 1; it starts at zero in every round.
        weight_decay: L2, 0 or more.
        decay: the rate of round t is lr * decay^t; above 0.

    Raises:
        TacitError: a number outside its range.

    Example:
        >>> import tacit
        >>> tacit.FedAvg(tacit.LocalSgd(lr=0.05, momentum=0.9)).local.momentum
        0.9
    """

    lr: float = 0.3  # chosen on ten federations: docs/decisions
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        check("lr", self.lr, positive=True)
        check("weight_decay", self.weight_decay)
        check("momentum", self.momentum, below=1.0)
        check("decay", self.decay, positive=True)

    def rate(self, round: Tensor) -> float | Tensor:
        return self.lr if self.decay == 1 else self.lr * self.decay ** round.double()

    def run(self, start: Tree, site: Site, gradient: Gradient, pull: Pull = no_pull, guarded: bool = False) -> Tree:
        """The parameters after every live step of the round; with no live step, `start`.

        `guarded`: what has moved so far goes through the plan's guard after each step, because it will be uploaded.
        """
        params, speed = start, tree.zeros(start) if self.momentum else None
        for step in range(site.steps):
            g = pull(gradient(params, step), params)
            if self.weight_decay:
                g = tree.axpy(self.weight_decay, params, g)
            if speed is not None:
                g = tree.axpy(self.momentum, speed, g)
                speed = site.advance(step, g, speed)
            moved = tree.axpy(-self.rate(site.round), g, params)
            if guarded:
                moved = site.guard(start, params, moved)
            params = site.advance(step, moved, params)
        return params

    def step(self, params: Tree, gradient: Tree, round: Tensor) -> Tree:
        """One step without momentum, for methods that take turns between several models."""
        g = tree.axpy(self.weight_decay, params, gradient) if self.weight_decay else gradient
        return tree.axpy(-self.rate(round), g, params)


def plain(name: str, *optimizers: LocalSgd) -> None:
    """Refuses momentum where a method's steps have none."""
    for each in optimizers:
        if each.momentum:
            raise TacitError(f"{name} takes plain steps: leave out momentum, which is {each.momentum}")


@runtime_checkable
class ServerOptimizer(Protocol):
    def start(self, model: Tree) -> Tree: ...

    def step(self, memory: Tree, mean: Tree) -> tuple[Tree, Tree]:
        """What to add to the model, and the next memory."""
        ...


@checked
@dataclass(frozen=True)
class ServerSgd:
    """model + lr * mean, with heavy-ball momentum. The default is the plain mean.

    Args:
        lr: what the mean update is multiplied with, above 0.
        momentum: from 0 to below 1.

    Raises:
        TacitError: a number outside its range.

    Example:
        >>> import tacit
        >>> tacit.FedAvg(optimizer=tacit.ServerSgd(momentum=0.9)).optimizer.momentum
        0.9
    """

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check("server lr", self.lr, positive=True)
        check("server momentum", self.momentum, below=1.0)

    def start(self, model: Tree) -> Tree:
        return tree.prefix("speed", tree.zeros(model)) if self.momentum else {}

    def step(self, memory: Tree, mean: Tree) -> tuple[Tree, Tree]:
        if not self.momentum:
            return tree.scale(mean, self.lr), memory
        speed = tree.axpy(self.momentum, tree.strip("speed", memory), mean)
        return tree.scale(speed, self.lr), tree.prefix("speed", speed)


@checked
@dataclass(frozen=True)
class ServerAdam:
    """Adam on the mean update (FedAdam), with bias correction.

    Args:
        lr: the rate, above 0.
        beta1: of the first moment, from 0 to below 1.
        beta2: of the second moment, from 0 to below 1.
        epsilon: added to the root of the second moment. Nothing to do with privacy.

    Raises:
        TacitError: a number outside its range.

    Example:
        >>> import tacit
        >>> tacit.FedAvg(optimizer=tacit.ServerAdam(lr=0.1)).optimizer.lr
        0.1
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check("server lr", self.lr, positive=True)
        check("server beta1", self.beta1, below=1.0)
        check("server beta2", self.beta2, below=1.0)

    def start(self, model: Tree) -> Tree:
        zeros = tree.zeros(model)
        return (
            tree.prefix("first", zeros) | tree.prefix("second", zeros) | {"steps": torch.zeros((), dtype=torch.float64)}
        )

    def step(self, memory: Tree, mean: Tree) -> tuple[Tree, Tree]:
        steps = memory["steps"] + 1
        first = tree.axpy(1 - self.beta1, mean, tree.scale(tree.strip("first", memory), self.beta1))
        squares = tree.each(torch.square, mean)
        second = tree.axpy(1 - self.beta2, squares, tree.scale(tree.strip("second", memory), self.beta2))
        bias1, bias2 = 1 - self.beta1**steps, 1 - self.beta2**steps
        move = tree.each(
            lambda m, v: self.lr * (m / bias1.to(m.dtype)) / ((v / bias2.to(v.dtype)).sqrt() + self.epsilon),
            first,
            second,
        )
        return move, tree.prefix("first", first) | tree.prefix("second", second) | {"steps": steps}


def check(name: str, value: float, *, positive: bool = False, below: float = math.inf, most: float = math.inf) -> None:
    """A hyper-parameter in [0, below) that is no more than `most`, or a clear error."""
    if math.isfinite(value) and 0 <= value < below and value <= most and not (positive and value == 0):
        return
    least = "above 0" if positive else "at least 0"
    ceiling = f" and below {below:g}" if below < math.inf else f" and at most {most:g}" if most < math.inf else ""
    raise TacitError(f"{name} must be {least}{ceiling}, not {value}")
