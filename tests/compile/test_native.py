"""Compiled kernels: torch's own numbers, for every client; and nothing but time is lost without a compiler."""

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from tacit.compile import kernels
from tacit.compile.kernels import compiled, convolution
from tacit.compile.kernels.convolution import convolve
from tacit.compile.passes import skinny_gemm
from tacit.models import FiveLayerCNN, TwoConvCNN
from tacit.models.functional import ModuleTask, params
from tacit.simulation.kernels import accelerate

Op = Callable[..., Tensor]
ours = torch.ops.tacit
needs_a_compiler = pytest.mark.skipif(not compiled(), reason="no C compiler that the kernels can be built with")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convolution, skinny_gemm):
        monkeypatch.setattr(module, "library", lambda: None)


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape)).float()


def near(a: Tensor, b: Tensor, within: float = 1e-5) -> bool:
    return a.shape == b.shape and float((a.double() - b.double()).norm()) <= within * max(
        1e-6, float(b.double().norm())
    )


def torchs(x: Tensor, weight: Tensor, bias: Tensor, padding: int, pool: bool, relu: bool) -> Tensor:
    out = F.conv2d(x, weight, bias, padding=padding)
    out = F.max_pool2d(out, 2) if pool else out
    return out.relu() if relu else out


def mine(x: Tensor, weight: Tensor, bias: Tensor, padding: int, pool: bool, relu: bool) -> Tensor:
    out = convolve(x, weight, bias, padding=(padding, padding), pool=pool, relu=relu)
    assert out is not None
    return out


def loss(of: Op, *how: object) -> Op:
    return lambda *given: of(*given, *how).sin().sum()


def same_gradients(x: Tensor, weight: Tensor, bias: Tensor, *how: object) -> None:
    """Against torch in double precision, where it was the same places that were largest."""
    exact = [leaf.double() for leaf in (x, weight, bias)]

    def apply(of: Op, *given: Tensor) -> Tensor:
        return of(*given, *how)

    assert near(vmap(partial(apply, mine))(x, weight, bias), vmap(partial(apply, torchs))(*exact))
    for at in ((0, 1, 2), (1, 2)):  # with and without the inputs'
        got, expected = vmap(grad(loss(mine, *how), at))(x, weight, bias), vmap(grad(loss(torchs, *how), at))(*exact)
        assert all(near(a, b) for a, b in zip(got, expected, strict=True))


@needs_a_compiler
@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 3),
    images=st.sampled_from([1, 3, 10, 16, 17, 33]),
    channels=st.integers(1, 4),
    outputs=st.integers(1, 14),
    side=st.sampled_from([3, 5]),
    padding=st.integers(0, 2),
    places=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pool=st.booleans(),
    relu=st.booleans(),
)
def test_small_convolutions_are_torchs(
    clients: int,
    images: int,
    channels: int,
    outputs: int,
    side: int,
    padding: int,
    places: tuple[int, int],
    pool: bool,
    relu: bool,
) -> None:
    high, wide = (2 * n + side - 1 - 2 * padding for n in places)
    if min(high, wide) < 1:
        return
    x, weight = numbers(clients, images, channels, high, wide), numbers(clients, outputs, channels, side, side)
    same_gradients(x, weight / 5, numbers(clients, outputs), padding, pool, relu)


LARGE = [  # channels, outputs, high, wide, padding, pool
    (1, 32, 28, 28, 0, False),
    (3, 16, 9, 11, 1, False),
    (2, 48, 8, 8, 0, False),
    (32, 64, 26, 26, 0, True),
    (16, 16, 6, 10, 0, True),
    (32, 48, 16, 8, 1, False),
    (16, 32, 6, 6, 0, False),
]


@needs_a_compiler
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "high", "wide", "padding", "pool"), LARGE)
def test_convolutions_with_many_outputs_are_torchs(
    channels: int, outputs: int, high: int, wide: int, padding: int, pool: bool, relu: bool
) -> None:
    x, weight = numbers(2, 4, channels, high, wide), numbers(2, outputs, channels, 3, 3) / math.sqrt(9 * channels)
    same_gradients(x, weight, numbers(2, outputs), padding, pool, relu)


SHAPES = [(1, 6, 28, 5, True), (6, 16, 12, 5, True), (1, 32, 28, 3, False), (32, 64, 14, 3, True)]


@needs_a_compiler
@pytest.mark.parametrize(("channels", "outputs", "size", "side", "pool"), SHAPES)
def test_shared_weights_rows_second_derivatives_and_clients_of_clients_are_torchs(
    channels: int, outputs: int, size: int, side: int, pool: bool
) -> None:
    x, weight, bias = (
        numbers(2, 3, channels, size, size),
        numbers(2, outputs, channels, side, side) / 9,
        numbers(2, outputs),
    )

    def each(of: Op) -> list[Tensor]:
        f = loss(of, 0, pool, True)
        first = grad(f, 1)
        return [
            vmap(grad(f, 1), (0, None, None))(x, weight[0], bias[0]),
            vmap(vmap(grad(lambda x, w, b: f(x[None], w, b), 1), (0, None, None)))(x, weight, bias),
            vmap(grad(lambda x, w, b: first(x, w, b).square().sum(), 1))(x, weight, bias),
            grad(lambda w: vmap(f)(x, w, bias).sum())(weight),
        ]

    assert all(near(a, b, 1e-4) for a, b in zip(each(mine), each(torchs), strict=True))


@needs_a_compiler
@pytest.mark.parametrize(("channels", "outputs", "size", "side", "pool"), SHAPES)
def test_what_is_not_a_number_stays_seen_and_stays_with_its_client(
    channels: int, outputs: int, size: int, side: int, pool: bool
) -> None:
    x, weight = numbers(3, 2, channels, size, size), numbers(3, outputs, channels, side, side)
    x[1, 0] = math.nan
    out = vmap(lambda x, w: mine(x, w, torch.zeros(outputs), 0, pool, True))(x, weight)
    assert out[1, 0].isnan().all()
    assert out[0].isfinite().all()
    assert out[2].isfinite().all()
    assert out[1, 1].isfinite().all()


@needs_a_compiler
def test_where_a_window_is_flat_or_off_its_gradient_goes_to_one_place_or_nowhere() -> None:
    x, weight = torch.ones(2, 3, 1, 10, 10), torch.ones(2, 2, 1, 3, 3)
    weight[:, 1] = -1
    to_bias, to_weight = vmap(grad(lambda b, w, x: mine(x, w, b, 0, True, True).sum(), (0, 1)))(
        torch.zeros(2, 2), weight, x
    )
    assert to_bias.tolist() == [[3 * 16, 0]] * 2  # images x windows
    assert torch.equal(to_weight[:, 0], torch.full((2, 1, 3, 3), 48.0))
    assert torch.equal(to_weight[:, 1], torch.zeros(2, 1, 3, 3))


@pytest.mark.parametrize("module", [FiveLayerCNN(), TwoConvCNN()], ids=["five layers", "two convolutions"])
def test_without_a_compiler_networks_are_the_same(module: torch.nn.Module, request: pytest.FixtureRequest) -> None:
    task = ModuleTask(module, kernels=accelerate)
    # fixed weights: now and then a rounding decides which of two places is the larger, whoever computes it
    start = {name: numbers(*leaf.shape) / leaf[0].numel() ** 0.5 for name, leaf in params(task.module).items()}
    each = {name: torch.stack([leaf, leaf * 1.01]) for name, leaf in start.items()}
    x, y = numbers(2, 4, 28, 28), torch.arange(8).reshape(2, 4)

    def gradients() -> dict[str, Tensor]:
        return vmap(grad(lambda p, x, y: task.losses(p, x, y).mean()))(each, x, y)

    with_kernels = gradients()
    request.getfixturevalue("no_kernels")
    without = gradients()
    assert all(near(with_kernels[name], leaf, 1e-4) for name, leaf in without.items())


@needs_a_compiler
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(10, 2048, 128), (1, 272, 4), (7, 1040, 36), (23, 4096, 64)])
def test_products_with_few_rows_are_torchs(rows: int, inputs: int, outputs: int) -> None:
    x, weight, y = numbers(3, rows, inputs), numbers(3, outputs, inputs), numbers(3, rows, outputs)
    bias = numbers(3, outputs)
    assert near(ours.few_rows(x, weight, bias), torch.baddbmm(bias.unsqueeze(1), x, weight.mT))
    assert near(ours.few_rows(x, weight, None), x @ weight.mT)
    assert near(ours.few_rows_back(y, weight), y @ weight)
    grown, expected = weight.clone(), torch.baddbmm(weight, y.mT, x, alpha=-0.3)
    assert ours.few_rows_add_(grown, y, x, -0.3).data_ptr() == grown.data_ptr()
    assert near(grown, expected)
    stepped = weight.clone()
    to_x, _ = ours.few_rows_step_(stepped, y, x, -0.3)
    assert near(to_x, y @ weight)
    assert torch.equal(stepped, grown)


@needs_a_compiler
def test_a_shared_row_of_weights_stays_one() -> None:
    weight = numbers(1, 6, 1, 5, 5).expand(1000, -1, -1, -1, -1)
    assert convolution._contiguous_rows(weight).data_ptr() == weight.data_ptr()
    assert convolution._contiguous_rows(weight.contiguous().mT).is_contiguous()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a process that has not built anything; of one small source: how it is built and kept is tested here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "SOURCES", ("room.c",))
    kernels.library.cache_clear()
    yield tmp_path
    kernels.library.cache_clear()


@needs_a_compiler
def test_a_library_is_built_once_and_kept(fresh: Path) -> None:
    assert kernels.library() is not None
    (file,) = (fresh / "tacit" / "native").iterdir()
    built = file.stat().st_mtime_ns
    kernels.library.cache_clear()
    assert kernels.library() is not None
    assert file.stat().st_mtime_ns == built
    assert (fresh / "tacit" / "native").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("name", "value"), [("TACIT_NATIVE", "0"), ("CC", "no-such-compiler"), ("CC", "false"), ("CC", "cc -no-such-flag")]
)
def test_without_a_compiler_there_is_no_library_and_no_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert kernels.library() is None


@needs_a_compiler
@pytest.mark.skipif(os.name != "posix", reason="folders have owners on POSIX")
def test_a_folder_that_is_not_the_users_own_is_not_trusted(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert kernels.library() is not None
    assert not list((fresh / "tacit" / "native").iterdir())
