"""Our gradients of examples are Opacus's. Runs where Opacus is: `benchmarks/.peers/opacus` has it."""

import copy
import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tacit.core import tree
from tacit.models import build, initialise
from tacit.models.functional import ModuleTask, params
from tacit.privacy.mechanisms.gradient import ghost, plain

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("opacus") is None,
        reason="opacus is not installed here: run it with PYTHONPATH=src benchmarks/.peers/opacus/bin/python -m pytest",
    ),
    pytest.mark.filterwarnings("ignore:Full backward hook"),  # torch's, of the hooks that Opacus sets
]
ROWS = 16


def world() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    model = initialise(build("mlp", (28, 28), 10, hidden=[60, 20]), 1)
    return model, torch.rand(ROWS, 28, 28, generator=draw), torch.randint(10, (ROWS,), generator=draw)


def by_opacus(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tree.Tree:
    from opacus.grad_sample import GradSampleModule  # pyright: ignore[reportMissingImports]

    wrapped = GradSampleModule(copy.deepcopy(model))  # its hooks stay on what it wraps
    nn.functional.cross_entropy(wrapped(x), y).backward()
    return {name.removeprefix("_module."): leaf.grad_sample for name, leaf in wrapped.named_parameters()}


@pytest.mark.parametrize("clipped_sum", [plain, ghost])
def test_each_examples_gradient_is_that_of_opacus(clipped_sum: Callable[..., tree.Tree]) -> None:
    model, x, y = world()
    theirs, task = by_opacus(model, x, y), ModuleTask(model)
    for row in range(ROWS):
        only = torch.arange(ROWS) == row
        ours = clipped_sum(task.losses, params(model), x, y, only, 1e9)
        assert ours.keys() == theirs.keys()
        for name, leaf in ours.items():
            assert torch.allclose(leaf, theirs[name][row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bound", [0.1, 1.0, 10.0])
def test_the_clipped_sum_is_that_of_opacus(bound: float) -> None:
    model, x, y = world()
    theirs = by_opacus(model, x, y)
    norms = torch.stack([leaf.flatten(1).square().sum(1) for leaf in theirs.values()]).sum(0).sqrt()
    factor = (bound / (norms + 1e-6)).clamp(max=1.0)
    ours = ghost(ModuleTask(model).losses, params(model), x, y, torch.ones(ROWS, dtype=torch.bool), bound)
    for name, leaf in ours.items():
        assert torch.allclose(leaf, torch.tensordot(factor, theirs[name], 1), rtol=1e-4, atol=1e-5)
