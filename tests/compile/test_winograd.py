"""Winograd's convolution with a weight for each client: torch's own numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from tacit.compile.kernels import winograd
from tacit.compile.kernels.batched_convolution import conv2d
from tacit.compile.kernels.pooled import conv_max_pool2d

Op = Callable[..., Tensor]


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape)).to(dtype)


def ours(x: Tensor, weight: Tensor, padding: int = 0) -> Tensor:
    assert winograd.fits(x, weight, (1, 1), (padding, padding))
    out = conv2d(x, weight, padding=padding)
    assert out is not None
    return out


def torchs(x: Tensor, weight: Tensor, padding: int = 0) -> Tensor:
    return F.conv2d(x, weight, padding=padding)


def pooled(x: Tensor, weight: Tensor) -> Tensor:
    return conv_max_pool2d(x, weight, weight[:, 0, 0, 0])


def torchs_pooled(x: Tensor, weight: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x, weight, weight[:, 0, 0, 0]), 2)


def loss(of: Op) -> Op:
    return lambda *given: of(*given).tanh().square().sum()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's method also where it gains nothing."""
    for name in ("_FEWEST_FILTERS", "_FEWEST_TILES", "_FEWEST_IMAGES"):
        monkeypatch.setattr(winograd, name, 1)


BATCHED = [(0, 0), (None, 0), (0, None)]
PAIRS = [(ours, torchs), (pooled, torchs_pooled)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("in_dims", BATCHED, ids=["both", "weight", "images"])
@pytest.mark.parametrize(("mine", "reference"), PAIRS, ids=["whole", "pooled"])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (10, 14), (18, 6)])
def test_values_and_both_gradients_are_torchs(
    mine: Op, reference: Op, in_dims: tuple[int | None, int | None], height: int, width: int
) -> None:
    x, weight = numbers(3, 5, 8, height, width), numbers(3, 12, 8, 3, 3)
    given = [leaf if at == 0 else leaf[0] for leaf, at in zip((x, weight), in_dims, strict=True)]
    assert torch.allclose(vmap(mine, in_dims)(*given), vmap(reference, in_dims)(*given))
    for at in range(2):
        got, expected = (vmap(grad(loss(f), argnums=at), in_dims)(*given) for f in (mine, reference))
        assert torch.allclose(got, expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("side", "padding"), [(8, 1), (6, 2)])
def test_padding_is_torchs(side: int, padding: int) -> None:
    x, weight = numbers(2, 4, 8, side, side), numbers(2, 8, 8, 3, 3)
    for at in range(2):
        got, expected = (
            vmap(grad(loss(lambda x, w, f=f: f(x, w, padding)), argnums=at))(x, weight) for f in (ours, torchs)
        )
        assert torch.allclose(got, expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("mine", "reference"), PAIRS, ids=["whole", "pooled"])
def test_second_derivatives_and_clients_of_clients_are_torchs(mine: Op, reference: Op) -> None:
    x, weight = numbers(2, 3, 4, 8, 6, 6), numbers(2, 3, 8, 8, 3, 3)

    def second(f: Op) -> Tensor:
        first = grad(loss(f), argnums=1)
        return vmap(grad(lambda x, w: first(x, w).square().sum()))(x[0], weight[0])

    assert torch.allclose(second(mine), second(reference))
    for in_dims in BATCHED:
        given = [leaf if at == 0 else leaf[:, 0] for leaf, at in zip((x, weight), in_dims, strict=True)]
        got, expected = (vmap(vmap(grad(loss(f), argnums=1), in_dims))(*given) for f in (mine, reference))
        assert torch.allclose(got, expected)


def test_in_float32_it_rounds_little_more_than_torch() -> None:
    """With the channels of the two-convolution network, on what comes out of a ReLU."""
    exact = numbers(1, 10, 32, 26, 26).relu(), numbers(1, 64, 32, 3, 3) / 17
    single = [leaf.float() for leaf in exact]
    for of in (lambda f: f, lambda f: grad(loss(f), argnums=0), lambda f: grad(loss(f), argnums=1)):
        expected = vmap(of(torchs))(*exact)
        assert distance(vmap(of(ours))(*single), expected) < 2e-6
        assert distance(vmap(of(ours))(*exact), expected) < 1e-14


@pytest.mark.usefixtures("small")
def test_where_images_are_flat_each_window_gives_its_gradient_once() -> None:
    x, weight = torch.ones(2, 4, 8, 10, 10), numbers(2, 8, 8, 3, 3, dtype=torch.float32)
    to_weight = vmap(grad(lambda w, x: conv_max_pool2d(x, w, torch.zeros(8)).sum()))(weight, x)
    assert torch.allclose(to_weight, torch.full_like(to_weight, 4 * 4 * 4))  # images x windows


@pytest.mark.parametrize(
    ("x", "weight", "stride", "padding"),
    [
        ((8, 32, 19, 18), (32, 32, 3, 3), 1, 0),
        ((8, 32, 18, 17), (32, 32, 3, 3), 1, 0),
        ((8, 32, 18, 18), (32, 32, 3, 3), 1, 1),
        ((8, 32, 18, 18), (32, 32, 3, 3), 2, 0),
        ((8, 16, 18, 18), (32, 16, 5, 5), 1, 0),
        ((8, 3, 18, 18), (32, 3, 3, 3), 1, 0),
        ((8, 32, 6, 6), (32, 32, 3, 3), 1, 0),
        ((1, 32, 42, 42), (32, 32, 3, 3), 1, 0),
    ],
    ids=["odd height", "odd width", "padding", "stride", "kernel", "few channels", "few tiles", "one image"],
)
def test_other_convolutions_are_left_to_patches(
    x: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int
) -> None:
    images, filters = numbers(2, *x), numbers(2, *weight)
    assert winograd.fits(numbers(8, 32, 18, 18), numbers(32, 32, 3, 3), (1, 1), (0, 0))
    assert not winograd.fits(images[0], filters[0], (stride, stride), (padding, padding))

    def both(f: Op) -> Tensor:
        return vmap(lambda x, w: f(x, w, stride=stride, padding=padding))(images, filters)

    assert torch.allclose(both(conv2d), both(F.conv2d))  # pyright: ignore[reportArgumentType]
