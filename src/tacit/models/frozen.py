"""Frozen weights (`requires_grad=False`): never trained, sent, clipped, covered with noise, or copied for a client.

What is not among a model's parameters (`functional.params`) reaches no upload, so it has no part in its norm or noise.
Copies of a module share its frozen weights: a large network is in memory once, however many workers there are.
"""

import copy
from collections.abc import Mapping
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad

from tacit.core import tree
from tacit.core.columns import each
from tacit.core.contract import Task, Tree
from tacit.errors import TacitError

Module = TypeVar("Module", bound=nn.Module)
_STEPS: Final = 2  # of an adapter that starts at zero the other factor moves in the second only


def copy_around_frozen(module: Module) -> Module:
    """A copy of everything that may change; frozen parameters are the same objects, and must not be written to."""
    frozen = {id(leaf): leaf for leaf in module.parameters() if not leaf.requires_grad}
    return copy.deepcopy(module, memo=frozen)


def check_only_trainable_move(task: Task, module: nn.Module, start: Tree, x: Tensor, y: Tensor, tokens: int) -> None:
    """Trains a module that has frozen weights for two steps on rows like these, and looks at what moved.

    The rows are made up (indices below `tokens` where there are any): a member of a federation tries the terms on
    zeros, which move nothing.

    Raises:
        TacitError: if a trainable parameter did not move, or anything else in the module did.
    """
    if all(leaf.requires_grad for leaf in module.parameters()):
        return
    x = _made_up(x, tokens)
    before, trained, reached = tree.each(torch.clone, _fixed(module)), start, set[str]()
    for _ in range(_STEPS):
        gradient = grad(lambda leaves: task.losses(leaves, x, y).sum())(trained)
        reached |= {name for name, leaf in gradient.items() if bool(leaf.any())}
        trained = tree.axpy(-1.0, gradient, trained)
    if still := [name for name in start if name not in reached]:
        raise TacitError(
            f"parameter '{still[0]}' is trainable and nothing moves it in {_STEPS} steps, nor {len(still) - 1} others: "
            "use it in forward, or freeze it with requires_grad_(False)"
        )
    if moved := [name for name, leaf in _fixed(module).items() if not torch.equal(leaf, before[name])]:
        raise TacitError(f"'{moved[0]}' is frozen, and forward writes to it: keep it out of forward, or make a copy")


def _made_up(x: Tensor, tokens: int) -> Tensor:
    draw, most = torch.Generator().manual_seed(0), tokens or 2

    def one(leaf: Tensor) -> Tensor:
        if tokens or not leaf.is_floating_point():
            return torch.randint(min(1, most - 1), most, leaf.shape, generator=draw).to(leaf.dtype)
        return torch.randn(leaf.shape, generator=draw, dtype=leaf.dtype)

    return each(one, x)


def _fixed(module: nn.Module) -> Mapping[str, Tensor]:
    """Frozen parameters and buffers, by name."""
    frozen = {name: leaf for name, leaf in module.named_parameters() if not leaf.requires_grad}
    return frozen | dict(module.named_buffers())
