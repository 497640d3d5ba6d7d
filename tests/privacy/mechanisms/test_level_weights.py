"""Merging levels: the papers' r*, the rule for training, and what it does at its ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms.level_weights import Known, Optimal, Released, best_weights, euclidean

positive = st.floats(1e-3, 1e3)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two(gap: float) -> Tensor:
    return torch.tensor([[0.0, gap], [gap, 0.0]], dtype=torch.float64)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0, 1e4), positive, positive)
def test_with_two_levels_it_is_the_closed_form(rho: float, gap: float, v_open: float, v_private: float) -> None:
    weights = best_weights(numbers(rho, 1 - rho), two(gap), numbers(v_open, v_private))
    assert float(weights[0]) == pytest.approx((rho * gap + v_private) / (gap + v_open + v_private), rel=1e-6)


def test_without_distance_it_is_the_papers_optimal_ratio() -> None:
    """r* = sigma_c^2 / (sigma_c^2 + N_p gamma^2): inverse variance of the groups' means."""
    sigma2, gamma2, opened, private = 2.0, 0.3, 50, 950
    weights = best_weights(
        numbers(0.05, 0.95), two(0.0), numbers(sigma2 / opened, (sigma2 + private * gamma2) / private)
    )
    ratio = (weights[1] / private) / (weights[0] / opened)
    assert float(ratio) == pytest.approx(sigma2 / (sigma2 + private * gamma2))


def test_far_apart_it_is_the_shares() -> None:
    weights = best_weights(numbers(0.05, 0.95), two(1e12), numbers(1.0, 9.0))
    assert weights.tolist() == pytest.approx([0.05, 0.95], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(positive, min_size=3, max_size=3), st.lists(st.floats(-10, 10), min_size=6, max_size=6))
def test_three_levels_no_other_weights_are_better(variance: list[float], places: list[float]) -> None:
    shares, points = numbers(0.6, 0.3, 0.1), torch.tensor(places, dtype=torch.float64).reshape(3, 2)
    gaps = torch.cdist(points, points).square()
    spread = numbers(*variance)

    def cost(w: Tensor) -> float:
        bias = (w - shares) @ points
        return float(bias.square().sum() + (w.square() * spread).sum())

    found = best_weights(shares, gaps, spread)
    assert float(found.sum()) == pytest.approx(1.0)
    assert bool((found >= 0).all())
    grid = [numbers(a / 20, b / 20, 1 - (a + b) / 20) for a in range(21) for b in range(21 - a)]
    assert cost(found) <= min(map(cost, grid)) * (1 + 1e-6) + 1e-9


def test_estimated_distances_become_distances_of_real_points() -> None:
    points = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gaps = torch.cdist(points, points).square()
    assert torch.allclose(euclidean(gaps), gaps, atol=1e-9)
    noisy = two(-3.0)
    assert float(euclidean(noisy).abs().max()) == 0


def released(centre: float, noise: float, expected: float, power: float, draw: torch.Generator) -> Released:
    """A mean of `expected` clients around `centre`, with the sampling and noise variance it claims."""
    d = 1000
    std = ((power / expected + noise) / d) ** 0.5
    return Released({"w": centre + std * torch.randn(d, generator=draw, dtype=torch.float64)}, noise, expected)


def weighed(rule: Optimal, rounds: int, gap: float) -> tuple[Tensor, Tree]:
    """Open and private levels whose true means are `gap` apart, squared; uploads' power 3, noise .4 on the private."""
    draw = torch.Generator().manual_seed(0)
    state, weights = rule.start(2), torch.zeros(2)
    for _ in range(rounds):
        levels = [released((gap / 1000) ** 0.5, 0.0, 5, 3.0, draw), released(0.0, 0.4, 95, 3.0, draw)]
        weights, state = rule.weigh(state, levels, torch.tensor(3.0))
    return weights, state


V_OPEN, V_PRIVATE = 3.0 / 5, 3.0 / 95 + 0.4
BY_CHANCE = 3.0 * (1 / 100 + 1 / 1900)


@pytest.mark.parametrize("gap", [0.0, 0.5, 5.0])
def test_weights_are_those_of_the_true_distance_but_never_nearer_than_chance(gap: float) -> None:
    weights, _ = weighed(Optimal((100, 1900)), 400, gap)
    cost = 100 * max(gap, BY_CHANCE)
    assert float(weights[0]) == pytest.approx((0.05 * cost + V_PRIVATE) / (cost + V_OPEN + V_PRIVATE), abs=0.02)


@pytest.mark.parametrize("gap", [0.0, 0.5, 5.0])
def test_the_distance_between_levels_is_estimated_without_bias(gap: float) -> None:
    """With little error: noise is averaged over the rounds before it is squared, so it falls with their number."""
    _, state = weighed(Optimal((100, 1900), memory=0.99), 800, gap)
    known = Known(*(state[name] for name in ("means", "seen", "spread", "power")))
    effective = (1 + 0.99) / (1 - 0.99)
    variance = (V_OPEN + V_PRIVATE) / effective
    error = (2 * variance**2 / 1000 + 4 * variance / 1000 * gap) ** 0.5
    assert float(known.gaps()[0, 1]) == pytest.approx(gap, abs=4 * error)


def test_over_a_horizon_no_other_weight_leaves_the_model_nearer_to_where_all_clients_would_take_it() -> None:
    """T rounds of drift: squared distance T^2 bias^2 + T variance."""
    rounds, gap, rho = 200, 0.05, 0.05
    cost = {w / 1000: rounds**2 * (w / 1000 - rho) ** 2 * gap + rounds * _spread(w / 1000) for w in range(1001)}
    found = best_weights(numbers(rho, 1 - rho), two(gap) * rounds, numbers(V_OPEN, V_PRIVATE))
    assert float(found[0]) == pytest.approx(min(cost, key=cost.__getitem__), abs=1e-3)


def _spread(w: float) -> float:
    return w**2 * V_OPEN + (1 - w) ** 2 * V_PRIVATE


def test_clients_that_are_all_the_same_are_as_near_as_their_means() -> None:
    """Uploads that do not differ leave nothing to chance: the plain inverse variance."""
    rule, draw = Optimal((100, 1900)), torch.Generator().manual_seed(0)
    state, weights = rule.start(2), torch.zeros(2)
    for _ in range(50):
        same = {"w": torch.full((1000,), (3.0 / 1000) ** 0.5, dtype=torch.float64)}
        noisy = {"w": same["w"] + (0.4 / 1000) ** 0.5 * torch.randn(1000, generator=draw, dtype=torch.float64)}
        levels = [Released(same, 0.0, 5), Released(noisy, 0.4, 95)]
        weights, state = rule.weigh(state, levels, torch.tensor(3.0))
    assert float(weights[0]) == pytest.approx(V_PRIVATE / (V_OPEN + V_PRIVATE), abs=0.02)


def test_a_level_that_released_nothing_has_no_weight() -> None:
    rule, draw = Optimal((20, 0, 80)), torch.Generator().manual_seed(0)
    levels = [released(0.0, 0.0, 5, 1.0, draw), None, released(0.0, 0.4, 95, 1.0, draw)]
    weights, _ = rule.weigh(rule.start(3), levels, torch.tensor(1.0))
    assert float(weights[1]) == 0
    assert not rule.asks(1)


@pytest.mark.parametrize("options", [{"horizon": 0.0}, {"horizon": -1.0}, {"memory": 1.0}])
def test_impossible_rules_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(TacitError):
        Optimal((1, 1), **options)
