"""Private gradients: clipped by example, noisy, divided by a public number, also when the batch is empty."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Batch
from tacit.privacy.mechanisms.gradient import Exact
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.record import Private


class Squares:
    """loss = (w.x - y)^2 / 2: the gradient of one example is (w.x - y) x."""

    def apply(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x @ params["w"]

    def losses(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.apply(params, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square() / 2


X = torch.tensor([[1.0, 0.0], [0.0, 30.0], [2.0, 2.0], [7.0, 7.0]])
Y = torch.tensor([1.0, 1.0, 0.0, 9.0])
W = {"w": torch.zeros(2)}


def private(mask: Tensor, z: float = 0.0, expected: float = 4.0, bound: float = 1.0, x: Tensor = X) -> Private:
    batch = Batch(x, Y, mask)
    return Private(Squares(), lambda _: batch, bound, torch.tensor(z), torch.tensor(expected), Seeded.of(0, "g"))


def test_the_exact_gradient_is_the_mean_over_real_rows() -> None:
    mask = torch.tensor([True, True, False, False])
    gradient = Exact(Squares(), lambda _: Batch(X, Y, mask))(W, 0)
    assert torch.allclose(gradient["w"], torch.tensor([-0.5, -15.0]))


def test_without_noise_a_private_gradient_is_the_sum_of_clipped_ones_over_the_expected_size() -> None:
    gradient = private(torch.tensor([True, True, False, False]))(W, 0)
    assert torch.allclose(gradient["w"], torch.tensor([-1.0, -1.0]) / 4, atol=1e-4)


def test_adding_one_row_moves_the_sum_by_at_most_the_bound() -> None:
    for row in range(4):
        rest = torch.tensor([i != row for i in range(4)])
        everything, without = (private(mask, expected=1.0)(W, 0) for mask in (torch.ones(4, dtype=torch.bool), rest))
        assert float(tree.norm(tree.sub(everything, without))) <= 1.0 + 1e-6


def test_a_row_that_is_not_finite_counts_as_zero() -> None:
    broken = X.clone()
    broken[1] = float("nan")
    gradient = private(torch.tensor([True, True, False, False]), x=broken)(W, 0)
    assert torch.allclose(gradient["w"], torch.tensor([-0.25, 0.0]), atol=1e-4)


def test_noise_std_matches_the_event_also_for_an_empty_batch() -> None:
    wide = {"w": torch.zeros(2), "unused": torch.zeros(20_000)}
    for mask in (torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)):
        gradient = private(mask, z=1.5, expected=5.0, bound=0.4)(wide, 0)
        assert gradient["unused"].std().item() == pytest.approx(1.5 * 0.4 / 5, rel=0.02)


def test_two_queries_have_independent_noise() -> None:
    query = private(torch.zeros(4, dtype=torch.bool), z=1.0)
    wide = {"w": torch.zeros(2), "unused": torch.zeros(20_000)}
    first, second = query(wide, 0)["unused"], query(wide, 1)["unused"]
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03
