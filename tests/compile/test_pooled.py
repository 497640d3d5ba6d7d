"""Convolution and pooling as one: torch's own numbers, also where images have flat regions."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import conv2d, max_pool2d

from tacit.compile.kernels.pooled import conv_max_pool2d


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape))


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias), 2)


@pytest.mark.parametrize(("side", "kernel"), [(6, 3), (12, 5), (11, 5), (7, 4), (6, 1)])
def test_values_and_every_gradient_are_torchs(side: int, kernel: int) -> None:
    x, weight, bias = numbers(3, 4, 2, side, side), numbers(3, 6, 2, kernel, kernel), numbers(3, 6)

    def gradients(of: object) -> tuple[Tensor, ...]:
        return vmap(grad(lambda *given: of(*given).tanh().square().sum(), (0, 1, 2)))(x, weight, bias)  # pyright: ignore[reportCallIssue]

    assert torch.allclose(vmap(conv_max_pool2d)(x, weight, bias), vmap(plain)(x, weight, bias))
    for ours, torchs in zip(gradients(conv_max_pool2d), gradients(plain), strict=True):
        assert torch.allclose(ours, torchs)


def test_gradients_by_example_and_second_derivatives_are_torchs() -> None:
    x, weight, bias = numbers(3, 4, 2, 8, 8), numbers(3, 6, 2, 3, 3), numbers(3, 6)

    def by_example(of: object) -> Tensor:
        one = grad(lambda w, x, b: of(x.unsqueeze(0), w, b).tanh().square().sum())  # pyright: ignore[reportCallIssue]
        return vmap(vmap(one, in_dims=(None, 0, None)))(weight, x, bias)

    def second(of: object) -> Tensor:
        first = grad(lambda w, x, b: of(x, w, b).tanh().square().sum())  # pyright: ignore[reportCallIssue]
        return vmap(grad(lambda w, x, b: first(w, x, b).square().sum()))(weight, x, bias)

    assert torch.allclose(by_example(conv_max_pool2d), by_example(plain))
    assert torch.allclose(second(conv_max_pool2d), second(plain))


def test_where_four_places_are_equal_one_of_them_gets_the_gradient() -> None:
    x, weight, bias = torch.ones(2, 3, 1, 8, 8), torch.rand(2, 4, 1, 3, 3), torch.zeros(2, 4)
    to_weight = vmap(grad(lambda w, x, b: conv_max_pool2d(x, w, b).sum()))(weight, x, bias)
    assert torch.allclose(to_weight, torch.full_like(to_weight, 3 * 3 * 3))  # images x windows, each once
