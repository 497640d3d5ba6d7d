"""The papers' models have the published shapes, take flat rows or images, and start from a seed alone."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from tacit.core import tree
from tacit.errors import TacitError
from tacit.models import MLP, MODELS, FiveLayerCNN, SoftmaxRegression, TwoConvCNN, build, initialise, params

BUILT = [name for name in MODELS if name != "pretrained"]  # which needs a folder of weights


@pytest.mark.parametrize("name", BUILT)
def test_every_model_gives_one_logit_a_class_for_flat_rows_and_for_images(name: str) -> None:
    model = build(name, (28, 28), 7)
    x = torch.rand(3, 28, 28)
    assert model(x).shape == (3, 7)
    assert torch.equal(model(x), model(x.flatten(1)))
    assert model(x[:0]).shape == (0, 7)


@pytest.mark.parametrize("name", BUILT)
def test_every_model_runs_for_several_clients_in_one_call(name: str) -> None:
    model = build(name, (3, 16, 16), 4)
    own = [params(initialise(model, seed)) for seed in (0, 1)]
    x = torch.rand(2, 3, 3, 16, 16)
    together = vmap(lambda leaves, rows: functional_call(model, leaves, (rows,)))(
        tree.each(lambda a, b: torch.stack([a, b]), own[0], own[1]), x
    )
    for client in (0, 1):
        torch.testing.assert_close(together[client], functional_call(model, own[client], (x[client],)))


def test_the_femnist_network_has_1_206_590_parameters() -> None:
    assert tree.size(params(TwoConvCNN())) == 1_206_590


def test_the_five_layer_network_has_256_inputs_after_its_convolutions_at_28() -> None:
    assert FiveLayerCNN().linear1.in_features == 256
    assert FiveLayerCNN(channels=3, side=32).linear1.in_features == 400


def test_alexnet_is_cut_to_the_side_and_takes_other_widths() -> None:
    assert tree.size(params(build("alexnet", (3, 32, 32), 10))) == 23_272_266
    small = build("alexnet", (3, 32, 32), 8, hidden=[4, 4, 4, 4, 4, 6, 5])
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 8)
    assert build("alexnet", (1, 28, 28), 8, hidden=[4, 4, 4, 4, 4, 6, 5])(torch.zeros(2, 784)).shape == (2, 8)
    with pytest.raises(TacitError, match="seven hidden layers, not 3"):
        build("alexnet", (3, 32, 32), 8, hidden=[4, 4, 4])


def test_an_mlp_without_hidden_layers_has_the_parameters_of_softmax_regression() -> None:
    assert tree.size(params(MLP(64, 10, hidden=()))) == tree.size(params(SoftmaxRegression(64, 10))) == 650


@pytest.mark.parametrize("name", ["five-layer-cnn", "two-conv-cnn", "alexnet"])
def test_images_too_small_for_a_network_are_refused(name: str) -> None:
    with pytest.raises(TacitError, match="too small"):
        build(name, (5, 5), 10)


def test_inputs_that_are_no_images_are_refused_by_a_convolution() -> None:
    with pytest.raises(TacitError, match="not square images"):
        build("five-layer-cnn", (561,), 6)


def test_a_misspelt_model_gets_a_suggestion_and_a_wrong_option_an_error() -> None:
    with pytest.raises(TacitError, match="did you mean 'softmax'"):
        build("sofmax", (4,), 2)
    with pytest.raises(TacitError, match="hiden"):
        build("mlp", (4,), 2, hiden=(3,))


def test_initialise_depends_on_the_seed_alone_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = params(initialise(MLP(4, 3), 1))
    torch.set_rng_state(before)
    torch.rand(3)
    state = torch.get_rng_state()
    module = MLP(4, 3)
    torch.set_rng_state(state)
    again = params(initialise(module, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = params(initialise(module, 2))
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_initialise_reaches_attention() -> None:
    one, two = (initialise(nn.MultiheadAttention(4, 2), 3).in_proj_weight for _ in range(2))
    assert torch.equal(one, two)


def test_tanh_takes_the_place_of_relu() -> None:
    relu, tanh = (initialise(build("mlp", (4,), 2, hidden=[3], activation=name), 0) for name in ("relu", "tanh"))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    hidden = relu.hidden[0](x)  # pyright: ignore
    assert torch.allclose(tanh(x), relu.head(hidden.tanh()))  # pyright: ignore
    with pytest.raises(TacitError, match=r"MLP\(activation='gelu'\): did you mean 'relu'"):
        build("mlp", (4,), 2, activation="gelu")
