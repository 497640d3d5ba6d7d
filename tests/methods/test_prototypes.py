"""Class means in one message: closed forms, noise, and a personal transform on top."""

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.core import tree
from tacit.core.contract import Batch, Shared
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.experiments.build import build
from tacit.experiments.config import parse
from tacit.methods import FineTuned, LocalSgd, Prototypes
from tacit.models import ModuleTask, SoftmaxRegression, params
from tacit.privacy.mechanisms.gradient import Exact
from tests.methods.test_closed_forms import START, STEPS, TASK, site
from tests.worlds import net


def test_the_message_is_the_mean_of_the_last_layers_inputs_in_the_lines_of_their_classes() -> None:
    here = site()
    upload = Prototypes(scale=3.0).client(Shared(START), {}, here).upload.model
    body = nn.Sequential(*list(net().double().children())[:3])
    expected = torch.zeros(3, 8, dtype=torch.float64)
    for step in range(STEPS):
        x, y, _ = here.batch(step)
        expected.index_add_(0, y, body(x).detach() * (3.0 / (STEPS * len(y))))
    assert list(upload) == ["head.weight"]
    assert torch.allclose(upload["head.weight"], expected)


def test_the_nearest_class_mean_predicts() -> None:
    """Classes of equal size, one step: what the server makes of the message is scikit-learn's nearest centroid."""
    from sklearn.neighbors import NearestCentroid

    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 20)
    x = draw.normal(size=(60, 6)) + y[:, None] * draw.normal(size=6)
    data = from_clients({"all": (x, y, x, y)}, classes=3)
    result = tacit.train(
        data, SoftmaxRegression(6, 3), Prototypes(), training=tacit.Training(1, tacit.Poisson(1.0), 60)
    )
    ours = result.model()(torch.as_tensor(x, dtype=torch.float32)).argmax(1).numpy()
    assert np.array_equal(ours, NearestCentroid().fit(x, y).predict(x))


def test_further_rounds_are_averaged_and_nothing_but_the_last_layer_moves() -> None:
    method = Prototypes(scale=2.0, offset=0.5, sharpness=4.0)
    server = method.init(START)
    messages = [torch.randn(3, 8, dtype=torch.float64) for _ in range(3)]
    for each in messages:
        server = method.server(server, Shared({"head.weight": each}), 1.0)
    means = torch.stack(messages).mean(0) * 3 / 2.0
    assert torch.allclose(server.view.model["head.weight"], 4 * means)
    assert torch.allclose(server.view.model["head.bias"], -0.25 * 4 * means.square().sum(1))
    lower = tree.drop(START, ["head.weight", "head.bias"])
    assert all(torch.equal(server.view.model[name], leaf) for name, leaf in lower.items())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"scale": 0.0}, "scale"), ({"offset": 1.5}, "offset"), ({"sharpness": -1.0}, "sharpness")],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(TacitError, match=told):
        Prototypes(**wrong)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(TacitError, match="ends in a linear layer"):
        Prototypes().init({"conv": torch.zeros(2, 2, 3, 3)})


def test_labels_that_are_numbers_are_refused() -> None:
    here = site()

    def batch(step: int) -> Batch:
        x, y, mask = here.batch(step)
        return Batch(x, y.double(), mask)

    with pytest.raises(TacitError, match="means of classes"):
        Prototypes().client(Shared(START), {}, here._replace(private_grad=Exact(TASK, batch)))


def test_tuning_of_some_parameters_leaves_the_others_alone() -> None:
    method = FineTuned(tuning=LocalSgd(0.5), only=("norm",))
    view = method.init(START).view
    tuned = tree.strip("tuned", method.adapt(view, {}, site()))
    moved = {name for name, leaf in tuned.items() if not torch.equal(leaf, START[name])}
    assert moved == {"norm.weight", "norm.bias"}
    twice = tree.strip("tuned", FineTuned(tuning=LocalSgd(0.5), passes=2).adapt(view, {}, site()))
    again = tree.strip("tuned", FineTuned(tuning=LocalSgd(0.5)).adapt(view, {}, site()))
    again = tree.strip("tuned", FineTuned(tuning=LocalSgd(0.5)).adapt(Shared(again), {}, site()))
    assert all(torch.equal(leaf, again[name]) for name, leaf in twice.items())
    with pytest.raises(TacitError, match="no parameter has 'transform'"):
        FineTuned(only=("transform",)).join(view, START)


def test_a_file_asks_for_prototypes_on_few_numbers_with_a_transform_that_is_tuned_on_the_client() -> None:
    content = {
        "rounds": 1,
        "rate": 1.0,
        "data": {"source": "digits", "clients": 20, "normalise": {"public_rows": 200, "project": 12}},
        "model": {"name": "softmax", "transform": {"scale": "channel", "shift": "each"}},
        "method": {
            "name": "fine-tuned",
            "base": "prototypes",
            "only": ["transform"],
            "personal_lr": 1.0,
            "sharpness": 5.0,
        },
        "privacy": {"plan": "central", "clip": 0.5},
        "levels": {"private": {"epsilon": 8.0, "delta": 1e-3}},
    }
    parts = build(parse(content))
    assert isinstance(parts.method, FineTuned)
    assert parts.method.base == Prototypes(sharpness=5.0)
    assert params(parts.model)["model.linear.weight"].shape == (10, 12)
    assert ModuleTask(parts.model).apply(params(parts.model), parts.federation.x[:3]).shape == (3, 10)
