"""Passes over a recorded program's end and its losses: the same numbers, in fewer trips over them."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from tacit.privacy.clip import clip
from tests.engine.test_at_once import simplified

aten = torch.ops.aten
CLIENTS, LEVELS, STEPS = 5, 2, 4


def summed(uploads: Tensor, belongs: Tensor) -> Tensor:
    """The sum of clipped uploads by level, as the engine writes it."""
    clipped = vmap(lambda one: clip({"w": one}, 1.0)[0]["w"])(uploads)
    return belongs @ clipped.reshape(CLIENTS, -1)


def uploads(spoiled: float) -> Tensor:
    """One too long, one short, one zero, one that is not finite in one place, one too long."""
    drawn = torch.randn(CLIENTS, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn[1] *= 1e-3
    drawn[2] = 0.0
    drawn[3, 1, 2] = spoiled
    return drawn * 2.0


@pytest.mark.parametrize("spoiled", [1.0, torch.nan, torch.inf, -torch.inf, 1e200])
def test_a_sum_of_clipped_uploads_is_made_without_them_and_what_is_not_finite_adds_nothing(spoiled: float) -> None:
    belongs = torch.tensor([[1.0, 0, 1, 1, 0], [0, 1, 0, 0, 1]], dtype=torch.float64)
    given = uploads(spoiled)
    got, calls = simplified(lambda u, b: summed(u + 0.0, b), given, belongs)
    torch.testing.assert_close(got, summed(given, belongs))
    assert calls[aten.where.self] <= 2  # of one number a client
    assert calls[aten.nan_to_num_.default] == 1


def test_what_was_given_is_not_cleared_in_its_place() -> None:
    belongs, given = torch.ones(1, CLIENTS, dtype=torch.float64), uploads(torch.nan)
    simplified(summed, given, belongs)
    assert given.isnan().any()


def test_clipped_uploads_that_somebody_else_reads_are_still_made() -> None:
    def program(given: Tensor, belongs: Tensor) -> Tensor:
        clipped = vmap(lambda one: clip({"w": one}, 1.0)[0]["w"])(given).reshape(CLIENTS, -1)
        return belongs @ clipped + clipped.square().sum()

    belongs, given = torch.ones(1, CLIENTS, dtype=torch.float64), uploads(torch.nan)
    got, calls = simplified(program, given, belongs)
    torch.testing.assert_close(got, program(given, belongs))
    assert not calls[aten.nan_to_num_.default]


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
