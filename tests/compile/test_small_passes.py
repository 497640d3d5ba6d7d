"""Passes over a recorded program's end and its losses: the same numbers, in fewer trips over them."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from tests.compile.test_hoist_steps import simplified

aten = torch.ops.aten
CLIENTS, LEVELS, STEPS = 5, 2, 4


def descended(x: Tensor, y: Tensor) -> Tensor:
    """Steps along the gradient of a cross-entropy in its logits."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        for step in range(STEPS):
            x = x - 3.0 * grad(lambda logits, at=step: cross_entropy(logits, y[at]))(x)
        return x

    return vmap(one)(x, y)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_gradients_of_few_classes_need_no_logarithm(scale: float) -> None:
    x = scale * torch.randn(CLIENTS, 6, 7, dtype=torch.float64)
    y = torch.randint(0, 7, (CLIENTS, STEPS, 6))
    got, calls = simplified(descended, x, y)
    torch.testing.assert_close(got, descended(x, y))
    assert not calls[aten._log_softmax.default]


def test_gradients_of_many_classes_stay_as_they_are() -> None:
    x, y = torch.randn(CLIENTS, 6, 62), torch.randint(0, 62, (CLIENTS, STEPS, 6))
    got, calls = simplified(descended, x, y)
    torch.testing.assert_close(got, descended(x, y))
    assert calls[aten._log_softmax.default] == STEPS


def test_a_loss_that_is_asked_for_is_still_a_logarithm() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        def loss(logits: Tensor) -> tuple[Tensor, Tensor]:
            value = cross_entropy(logits, y)
            return value, value.detach()

        slope, value = grad(loss, has_aux=True)(x)
        return slope + value

    x, y = torch.randn(6, 7), torch.randint(0, 7, (6,))
    got, _ = simplified(program, x, y)
    torch.testing.assert_close(got, program(x, y))


def test_views_of_one_part_of_a_split_start_where_the_part_does() -> None:
    def program(x: Tensor) -> Tensor:
        first, second = (x * 2.0).split([2, 4], 1)
        return second.reshape(-1, 2, 2).mT.sin() + first.sum()

    x = torch.randn(3, 6, dtype=torch.float64)
    got, _ = simplified(program, x)
    torch.testing.assert_close(got, program(x))
