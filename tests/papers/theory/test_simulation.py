"""Monte Carlo and formulas agree, and the training programs themselves give the closed form (Lemma 7)."""

from itertools import product

import numpy as np
import pytest

from papers.fedhdp.theory import linear, point, simulate
from papers.fedhdp.theory import multilevel as levels
from papers.fedhdp.theory.algorithm import train
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.multilevel import Group, Menu
from papers.fedhdp.theory.point import OPEN, PRIVATE, Problem
from tacit.errors import TacitError

GRID = [
    Problem(clients, private, alpha2, tau2, gamma2)
    for (clients, private), (alpha2, tau2), gamma2 in product(
        [(5, 4), (12, 6), (40, 36)], [(1.0, 0.01), (0.5, 1.0)], [0.05, 10.0]
    )
]
REGRESSION = Regression(clients=12, private=9, dim=3, samples=8, beta2=4.0, tau2=0.3, gamma2=0.5)


@pytest.mark.parametrize("problem", GRID, ids=str)
def test_point_estimation_agrees_within_three_standard_errors(problem: Problem) -> None:
    draws = simulate.point_draws(problem.menu, repetitions=4_000, seed=11)
    for ratio in (point.optimal_ratio(problem), 1.0, 0.2):
        shares = point.shares(problem, ratio)
        assert simulate.server(draws, shares).agrees(point.server_variance(problem, ratio))
        for private, strength, knows in product((True, False), (0.3, 3.0, np.inf), (False, True)):
            level = PRIVATE if private else OPEN
            found = simulate.personal(draws, shares, level, strength, knows_noise=knows)
            expected = point.personal_mse(problem, private=private, strength=strength, ratio=ratio, knows_noise=knows)
            assert found.agrees(expected), (ratio, private, strength, knows, found, expected)


@pytest.mark.parametrize("ratio", [None, 1.0, 0.05])
def test_linear_regression_from_raw_rows_agrees_within_three_standard_errors(ratio: float | None) -> None:
    draws = simulate.regression_draws(REGRESSION, repetitions=3_000, seed=5)
    r = linear.optimal_ratio(REGRESSION) if ratio is None else ratio
    shares = point.shares(REGRESSION.coordinate, r)
    assert simulate.server(draws, shares).agrees(linear.server_error(REGRESSION, ratio))
    for private, strength in product((True, False), (0.5, 5.0)):
        found = simulate.personal(draws, shares, PRIVATE if private else OPEN, strength)
        assert found.agrees(linear.personal_error(REGRESSION, private=private, strength=strength, ratio=ratio))


def test_three_levels_agree_within_three_standard_errors() -> None:
    menu = Menu(1.0, 0.2, (Group(6, 40.0), Group(10, 5.0), Group(3)))
    shares = levels.optimal_shares(menu)
    draws = simulate.point_draws(menu, repetitions=8_000, seed=2)
    assert simulate.server(draws, shares).agrees(levels.server_variance(menu, shares))
    for level in range(3):
        best = levels.best_strength(menu, shares, level)
        assert simulate.personal(draws, shares, level, best).agrees(levels.best_mse(menu, shares, level))


def test_a_formula_that_forgot_the_clients_own_weight_would_not_agree() -> None:
    """The comparison can fail: without the term 2 w tau^2 it is off by many standard errors."""
    problem = Problem(5, 3, 1.0, 1.0, 0.1)
    draws = simulate.point_draws(problem.menu, repetitions=4_000, seed=1)
    shares = point.shares(problem, 1.0)
    wrong = point.server_variance(problem, 1.0) + problem.tau2
    assert not simulate.personal(draws, shares, OPEN, np.inf).agrees(wrong, errors=6)


def test_draws_depend_on_the_seed_and_on_nothing_else() -> None:
    problem = GRID[0]
    first, again, other = (simulate.point_draws(problem.menu, 10, seed).messages for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_designs_have_orthogonal_columns() -> None:
    for design in simulate.orthogonal_designs(REGRESSION):
        assert design.T @ design == pytest.approx(REGRESSION.samples * np.eye(REGRESSION.dim))


@pytest.mark.parametrize("strength", [0.0, 0.7, 20.0])
@pytest.mark.parametrize("ratio", [None, 1.0, 0.0])
def test_lemma_7_two_rounds_of_ditto_over_fedavg_are_the_closed_form(strength: float, ratio: float | None) -> None:
    end = train(REGRESSION, strength, ratio=ratio)
    closed = end.weights @ end.messages
    assert end.shared == pytest.approx(closed, abs=1e-12)
    assert end.personal == pytest.approx((end.estimates + strength * closed) / (1 + strength), abs=1e-12)


def test_lemma_7_further_rounds_change_nothing_while_the_noise_is_the_same() -> None:
    assert train(REGRESSION, 0.7, rounds=5).personal == pytest.approx(train(REGRESSION, 0.7).personal, abs=1e-12)


def test_with_fresh_noise_the_shared_estimate_is_drawn_anew_and_the_personal_one_follows_what_it_received() -> None:
    end = train(REGRESSION, 0.7, rounds=3, fresh_noise=True)
    assert np.abs(end.shared - end.received).max() > 1e-3
    assert end.shared == pytest.approx(end.weights @ end.messages, abs=1e-12)
    assert end.personal == pytest.approx((end.estimates + 0.7 * end.received) / 1.7, abs=1e-12)


def test_after_one_round_the_personal_estimate_still_leans_on_the_start() -> None:
    """The lemma needs two: in the first round clients have received zeros."""
    end = train(REGRESSION, 0.7, rounds=1)
    assert end.personal == pytest.approx(end.estimates / 1.7, abs=1e-12)


def test_each_coordinate_of_a_regression_is_a_point_estimation() -> None:
    one = REGRESSION.coordinate
    assert one.alpha2 == REGRESSION.beta2 / REGRESSION.samples
    assert linear.server_error(REGRESSION) == pytest.approx(3 * point.optimal_variance(one))
    assert linear.best_error(REGRESSION, private=True) == pytest.approx(3 * point.best_mse(one, private=True))
    assert linear.best_strength(REGRESSION, private=True) == pytest.approx(point.strength_private(one))
    assert Regression.of(one, dim=3, samples=8) == REGRESSION


@pytest.mark.parametrize("private", [True, False])
def test_the_bayes_limit_is_eq_36_of_feo2(private: bool) -> None:
    one = REGRESSION.coordinate
    c, p, tau2 = one.sigma2, one.sigma2 + one.message_noise, one.tau2
    n, m = (one.private - 1, one.opted_out) if private else (one.private, one.opted_out - 1)
    printed = (c - tau2) * (c * p + tau2 * (n * c + m * p)) / (c * (n * c + (m + 1) * p))
    assert linear.bayes_error(REGRESSION, private=private) == pytest.approx(3 * printed)


def message_covariances(designs: np.ndarray) -> list[np.ndarray]:
    """Of the regression's clients, the private ones first."""
    one = REGRESSION.coordinate
    noises = [one.message_noise] * one.private + [0.0] * one.opted_out
    return [
        linear.message_covariance(design, REGRESSION.beta2, REGRESSION.tau2, noise)
        for design, noise in zip(designs, noises, strict=True)
    ]


def test_with_orthogonal_designs_the_bayes_covariance_is_eq_23_of_feo2() -> None:
    found = linear.bayes_covariance(message_covariances(simulate.orthogonal_designs(REGRESSION)))
    assert found == pytest.approx(point.optimal_variance(REGRESSION.coordinate) * np.eye(3))


def test_with_other_designs_no_ratio_reaches_the_bayes_covariance() -> None:
    designs = np.random.default_rng(0).normal(size=(12, 8, 3)) * np.array([0.3, 1.0, 3.0])
    covariances = message_covariances(designs)
    limit = np.trace(linear.bayes_covariance(covariances))
    for ratio in np.geomspace(1e-3, 1, 50):
        shares = point.shares(REGRESSION.coordinate, float(ratio))
        weights = [shares[PRIVATE] / 9] * 9 + [shares[OPEN] / 3] * 3
        assert np.trace(linear.weighted_covariance(covariances, weights)) > 1.01 * limit


def test_fewer_rows_than_coefficients_are_refused() -> None:
    with pytest.raises(TacitError, match="samples must be at least dim"):
        Regression.of(GRID[0], dim=4, samples=3)
    with pytest.raises(TacitError, match="add up to 1"):
        linear.weighted_covariance([np.eye(2)], [0.5])
