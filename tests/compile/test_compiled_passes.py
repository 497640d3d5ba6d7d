"""Passes that put compiled kernels into a recorded program: the same numbers, in fewer trips over them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from tacit.compile.ir import trace
from tacit.compile.kernels import compiled
from tacit.compile.pipeline import simplify
from tests.compile.test_small_passes import CLIENTS

pytestmark = pytest.mark.skipif(not compiled(), reason="no C compiler that the kernels can be built with")
aten, ours = torch.ops.aten, torch.ops.tacit
ROWS, INPUTS, HIDDEN, STEPS = 6, 4096, 64, 3


def simplified(program: Callable[..., Any], *inputs: Tensor) -> tuple[tuple[Tensor, ...], Counter[Any]]:
    """All that the simplified program gives, and how often it does what."""
    with torch.no_grad():
        graph = simplify(trace(program, *inputs))
        return graph(*inputs), Counter(node.target for node in graph.graph.nodes)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def trained(first: Tensor, second: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Steps of descent on two layers, the second of which is large and sees what the first makes of its rows."""

    def one(first: Tensor, second: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def loss(first: Tensor, second: Tensor, at: int) -> Tensor:
            return (torch.nn.functional.linear((x[at] * first).tanh(), second, bias)).square().mean()

        for step in range(STEPS):
            to_first, to_second = grad(loss, (0, 1))(first, second, step)
            first, second = torch.add(first, to_first, alpha=-0.5), torch.add(second, to_second, alpha=-0.5)
        return first, second

    return vmap(one)(first, second, bias, x)


def test_a_large_matrix_is_read_once_on_the_way_back_and_updated_on_the_same_trip() -> None:
    given = (
        numbers(CLIENTS, INPUTS),
        numbers(CLIENTS, HIDDEN, INPUTS) / 64,
        numbers(CLIENTS, HIDDEN),
        numbers(CLIENTS, STEPS, ROWS, INPUTS),
    )
    (got_first, got_second), calls = simplified(lambda a, b, c, d: trained(a + 0.0, b + 0.0, c, d), *given)
    first, second = trained(*given)
    torch.testing.assert_close(got_first, first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got_second, second, rtol=1e-4, atol=1e-5)
    assert calls[ours.few_rows.default] == STEPS
    assert calls[ours.few_rows_step_.default] == STEPS
    assert not calls[ours.few_rows_back.default]
    assert not calls[ours.few_rows_add_.default]


@pytest.mark.parametrize("through", [lambda w: w, lambda w: w.mT, lambda w: w[:, 1:2]], ids=["whole", "turned", "part"])
def test_a_matrix_that_is_read_after_it_was_gone_back_through_is_not_updated_early(
    through: Callable[[Tensor], Tensor],
) -> None:
    def program(weight: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = weight * 1.5
        view = through(weight)
        back = torch.bmm(y, weight)
        seen = view.sum((1, 2)) + back.sum((1, 2))
        return back, torch.baddbmm(weight, y.mT, x, alpha=-0.1), seen

    given = numbers(CLIENTS, HIDDEN, INPUTS), numbers(CLIENTS, ROWS, HIDDEN), numbers(CLIENTS, ROWS, INPUTS)
    got, _ = simplified(program, *given)
    for mine, expected in zip(got, program(*given), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
