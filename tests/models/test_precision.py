"""Products in bfloat16: masters, gradients, clipping, noise and sums stay in float32."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

import tacit
from tacit.core import tree
from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.models import MLP, ModuleTask, TwoConvCNN, check, initialise, params
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.gradient import ghost, plain
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.worlds import PLANS, largest_difference, net, ragged

DATA = ragged(10).astype(torch.float32)


def run(precision: str, plan: str = "central", chunk: int | None = None) -> Run:
    training = Training(3, Poisson(0.9), 4, seed=3, precision=precision)  # pyright: ignore[reportArgumentType]
    parts = assemble(DATA, net(), FedAvg(), PLANS[plan], training, performance=Performance(chunk, compile="off"))
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
    it.go()
    return it


@pytest.mark.parametrize("model", [lambda: MLP(64, 3, hidden=(8,)), lambda: TwoConvCNN(1, 28, 3)], ids=["mlp", "cnn"])
def test_outputs_are_those_of_the_module_in_bfloat16_up_to_its_rounding(model: object) -> None:
    module: nn.Module = initialise(model(), 0)  # pyright: ignore
    x = torch.randn(5, *((64,) if isinstance(module, MLP) else (1, 28, 28)), generator=torch.Generator().manual_seed(0))
    low, full = ModuleTask(module, precision=torch.bfloat16), ModuleTask(module)
    found, exact = low.apply(params(module), x), full.apply(params(module), x)
    assert found.dtype == torch.float32
    assert 0 < float((found - exact).abs().max()) < 0.05 * float(exact.abs().max())
    rounded = module.to(torch.bfloat16)(x.to(torch.bfloat16)).float().detach()
    assert float((found - rounded).abs().max()) < 0.05 * float(exact.abs().max())


def test_gradients_of_many_clients_come_back_in_single_precision() -> None:
    task = check(net(), DATA, precision=torch.bfloat16)
    (x, y), start = DATA.take(torch.arange(4)), params(task.module)
    several = tree.each(lambda leaf: torch.stack([leaf, leaf]), start)
    found = vmap(grad(lambda leaves: task.losses(leaves, x, y).sum()))(several)
    exact = grad(lambda leaves: check(net(), DATA).losses(leaves, x, y).sum())(start)
    assert {leaf.dtype for leaf in found.values()} == {torch.float32}
    first = tree.each(lambda leaf: leaf[0], found)
    assert 0 < float(tree.norm(tree.sub(first, exact))) < 0.05 * float(tree.norm(exact))


@pytest.mark.parametrize("of", [plain, ghost])
def test_what_is_released_of_an_example_is_within_the_bound_in_single_precision(of: object) -> None:
    """Norms are of the numbers that are released, so that rounding before them moves no bound."""
    task, bound = check(net(), DATA, precision=torch.bfloat16), 0.01
    (x, y), start = DATA.take(torch.arange(6)), params(task.module)
    for row in range(6):
        found: Tree = of(task.losses, start, x, y, torch.arange(6) == row, bound)  # pyright: ignore
        assert {leaf.dtype for leaf in found.values()} == {torch.float32}
        assert bound * (1 - 1e-4) < float(tree.norm(found)) <= bound  # it is clipped, and no further than that


@pytest.mark.parametrize("plan", ["open", "central", "record", "distributed"])
def test_masters_and_sums_are_in_single_precision_under_every_plan(plan: str) -> None:
    low, full = run("bfloat16", plan).progress.server.view.model, run("full", plan).progress.server.view.model
    assert {leaf.dtype for leaf in low.values()} == {torch.float32}
    assert all(bool(leaf.isfinite().all()) for leaf in low.values())
    assert any(not torch.equal(leaf, leaf.bfloat16().float()) for leaf in low.values())  # a master is not rounded
    if plan == "open":  # elsewhere noise is that of another run
        assert 0 < largest_difference(low, full) < 0.05


def test_the_chunk_size_matters_no_more_than_in_single_precision() -> None:
    views = [run("bfloat16", chunk=chunk).progress.server.view.model for chunk in (1, 100)]
    assert largest_difference(*views) < 1e-3


def test_a_run_in_bfloat16_is_another_run_with_noise_of_its_own() -> None:
    """Else the difference of two runs would show what rounding did to the uploads, without any noise."""
    assert run("bfloat16").engine.identity != run("full").engine.identity


def test_what_does_not_fit_bfloat16_is_refused() -> None:
    with pytest.raises(TacitError, match="masters are float32"):
        Training(precision="bfloat16", dtype=torch.float64)
    training = Training(1, precision="bfloat16")
    with pytest.raises(TacitError, match="not recorded"):
        tacit.train(DATA, net(), FedAvg(), training=training, performance=Performance(compile="require"))
