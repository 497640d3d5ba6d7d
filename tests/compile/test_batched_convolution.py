"""Convolution and pooling with a weight for each client: torch's own numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from tacit.compile.kernels.batched_convolution import Kernels, conv2d, max_pool2d
from tacit.models import FiveLayerCNN, TwoConvCNN
from tacit.models.functional import ModuleTask, params
from tacit.simulation.kernels import accelerate


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape))


def agree(f: Callable[..., Tensor], *inputs: Tensor) -> None:
    expected = f(*inputs)
    with Kernels():
        assert torch.allclose(f(*inputs), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_every_gradient_of_a_convolution_is_torchs(
    clients: int, images: int, channels: int, kernel: int, stride: int, padding: int
) -> None:
    weight, x, bias = (
        numbers(clients, 4, channels, kernel, kernel),
        numbers(clients, images, channels, 7, 6),
        numbers(4),
    )

    def loss(weight: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride=stride, padding=padding).tanh().square().sum()

    for at in range(3):
        agree(vmap(grad(loss, argnums=at), in_dims=(0, 0, None)), weight, x, bias)
        agree(vmap(grad(loss, argnums=at), in_dims=(None, 0, None)), weight[0], x, bias)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_every_gradient_of_a_pooling_is_torchs(clients: int, images: int, high: int, wide: int) -> None:
    x = numbers(clients, images, 2, 2 * high, 2 * wide)
    agree(vmap(lambda x: F.max_pool2d(x, 2)), x)
    agree(vmap(grad(lambda x: F.max_pool2d(x.tanh(), 2).square().sum())), x)


def test_gradients_by_example_and_second_derivatives_are_torchs() -> None:
    weight, x = numbers(3, 4, 2, 3, 3), numbers(3, 5, 2, 8, 8)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, weight).tanh(), 2).square().sum()

    agree(vmap(vmap(grad(lambda w, x: loss(w, x.unsqueeze(0))), in_dims=(None, 0))), weight, x)
    agree(vmap(grad(lambda w, x: grad(loss)(w, x).square().sum())), weight, x)


@pytest.mark.parametrize("module", [FiveLayerCNN(), TwoConvCNN()], ids=["five layers", "two convolutions"])
def test_a_network_gives_the_same_for_many_clients_as_one_by_one(module: torch.nn.Module) -> None:
    task = ModuleTask(module.double(), kernels=accelerate)
    clients = [{name: leaf + 0.01 * k for name, leaf in params(task.module).items()} for k in range(3)]
    together = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    x, y = numbers(3, 4, 28, 28), torch.arange(12).reshape(3, 4) % 10

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(p, x, y).mean()

    all_at_once = vmap(grad(loss))(together, x, y)
    for k, client in enumerate(clients):
        for name, alone in grad(loss)(client, x[k], y[k]).items():
            assert torch.allclose(all_at_once[name][k], alone, atol=1e-10)


def test_what_the_kernels_do_not_know_is_left_to_torch() -> None:
    x, weight = numbers(2, 4, 8, 8), numbers(4, 2, 3, 3)
    assert conv2d(x, weight, groups=2) is None
    assert conv2d(x, numbers(4, 4, 3, 3), padding="same") is None
    assert conv2d(x, numbers(4, 4, 3, 3), dilation=2) is None
    assert conv2d(x, numbers(4, 4, 15, 15)) is None
    assert max_pool2d(x, 3) is None
    assert max_pool2d(x, 2, padding=1) is None
    assert max_pool2d(numbers(2, 4, 7, 8), 2) is None
    assert max_pool2d(x, 2, return_indices=True) is None
    agree(lambda x: F.max_pool2d(F.conv2d(x, weight, groups=2, dilation=2), 3), x)
