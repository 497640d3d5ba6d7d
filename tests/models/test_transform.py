"""The personal transform: the identity at the start, as free as was asked for, on the client alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.core import tree
from tacit.errors import TacitError
from tacit.experiments.build import build as build_parts
from tacit.experiments.config import parse
from tacit.methods import Ditto, FedAvg, KeepLocal, LocalOnly, Method, Scaffold
from tacit.models import MLP, MODELS, SoftmaxRegression, build, initialise, params, transformed
from tacit.models.input_transform import Convolution, Transform, Transformed
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.preflight import interferes
from tacit.sampling.cohorts import Poisson
from tests.worlds import PLANS, largest_difference, net, ragged, states

BUILT = [name for name in MODELS if name != "pretrained"]  # which needs a folder of weights

FREE = ("none", "one", "channel", "pixel", "each")
SIZES = {(3, 4, 4): (0, 1, 3, 16, 48), (4, 4): (0, 1, 1, 16, 16), (6,): (0, 1, 1, 6, 6)}


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("scale", range(5))
@pytest.mark.parametrize("shift", range(5))
def test_every_choice_of_dimensions_starts_as_the_identity(shape: tuple[int, ...], scale: int, shift: int) -> None:
    if scale == shift == 0:
        return
    layer = Transform(shape, scale=FREE[scale], shift=FREE[shift])
    x = torch.randn(2, *shape)
    assert torch.equal(layer(x), x)
    assert tree.size(params(layer)) == SIZES[shape][scale] + SIZES[shape][shift]


@settings(max_examples=20, deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.sampled_from(["linear", "sigmoid", "tanh", "relu", "square"]))
def test_every_function_is_the_papers(alpha: float, beta: float, function: str) -> None:
    layer = Transform((2, 3, 3), function, alpha=alpha, beta=beta)  # pyright: ignore[reportArgumentType]
    x = torch.randn(4, 2, 3, 3)
    line = alpha * (x.square() if function == "square" else x) + beta
    expected = {"sigmoid": line.sigmoid(), "tanh": line.tanh(), "relu": line.relu()}.get(function, line)
    assert torch.allclose(layer(x), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8)])
def test_the_convolution_starts_as_the_identity_with_seven_by_seven_weights(shape: Sequence[int]) -> None:
    layer, x = initialise(Convolution(shape), 1), torch.randn(2, *shape)
    assert torch.allclose(layer(x), x)
    assert layer.weight.shape[2:] == (7, 7)


@pytest.mark.parametrize("name", BUILT)
def test_a_model_behind_a_transform_starts_as_the_model_alone(name: str) -> None:
    alone = initialise(build(name, (16, 16), 4), 5)
    for function in ("linear", "conv"):
        behind = initialise(build(name, (16, 16), 4, transform={"function": function}), 5)
        x = torch.rand(3, 16, 16)
        assert torch.allclose(behind(x), alone(x), atol=1e-6)


def test_what_cannot_be_transformed_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"function": "cube"}, "cube"),
        ({"scale": "row"}, "row"),
        ({"scale": "none", "shift": "none"}, "nothing to learn"),
        ({"function": "conv", "alpha": 1.0}, "takes no alpha"),
        ({"function": "conv"}, "are not images"),
    ]
    for wrong, match in refused:
        with pytest.raises(TacitError, match=match):
            transformed(MLP(6, 3), (6,), **wrong)
    with pytest.raises(TacitError, match="already"):
        transformed(transformed(MLP(6, 3), (6,)), (6,))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("base", [FedAvg(), Scaffold(), Ditto()], ids=["fedavg", "scaffold", "ditto"])
def test_a_kept_transform_is_trained_and_never_leaves_under_every_plan(plan: str, base: Method) -> None:
    method, federation = KeepLocal(("transform",), base), ragged(10)
    model = Transformed(Transform((6,), scale="each"), net())
    training = Training(rounds=3, sampler=Poisson(0.9), batch=4, seed=3, dtype=torch.float64)
    parts = assemble(federation, model, method, PLANS[plan], training)
    assert not any("transform" in name for name in parts.shapes.upload)
    assert not interferes(method, parts.engine.task, federation, parts.engine.start)
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
    run.go()
    alpha = states(run)["kept/model/transform.alpha"]
    assert alpha.shape[0] == 10
    moved = (alpha - 1).flatten(1).abs().sum(1) > 0
    assert moved.tolist() == run.store.touched.tolist()


def test_a_transform_that_nothing_moves_changes_nothing() -> None:
    """With a transform frozen at the identity the run is that of the model alone."""
    views = []
    for model in (SoftmaxRegression(6, 3), transformed(SoftmaxRegression(6, 3), (6,))):
        for name, leaf in initialise(model, 0).named_parameters():
            leaf.requires_grad_("transform" not in name)
        training = Training(rounds=2, sampler=Poisson(0.5), batch=4, dtype=torch.float64)
        engine, shapes = assemble(ragged(8), model, FedAvg(), PLANS["central"], training)
        by_seed = replace(engine, identity="", programs={})  # another model is another run, with noise of its own
        run = Run(by_seed, shapes, ledger=Ledger.open(":memory:"))
        run.go()
        views.append({name.removeprefix("model."): leaf for name, leaf in run.progress.server.view.model.items()})
    assert largest_difference(*views) < 1e-12


def test_a_file_asks_for_a_transform_and_it_is_kept_local() -> None:
    content = {"data": {"clients": 10}, "model": {"name": "softmax", "transform": {"scale": "one", "shift": "channel"}}}
    parts = build_parts(parse(content))
    assert parts.method == KeepLocal(("transform",), FedAvg())
    assert tree.size(tree.pick(params(parts.model), ["transform.alpha", "transform.beta"])) == 2
    for method, expected in (
        ({"name": "scaffold", "keep": ["linear.bias"]}, KeepLocal(("linear.bias", "transform"), Scaffold())),
        ({"name": "local-only"}, LocalOnly()),
    ):
        assert build_parts(parse(content | {"method": method})).method == expected
