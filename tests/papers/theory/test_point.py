"""The closed forms of point estimation: each against the papers, against a numerical minimum, or against a limit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from papers.fedhdp.theory import multilevel as levels
from papers.fedhdp.theory import point
from papers.fedhdp.theory.multilevel import Group, Menu
from papers.fedhdp.theory.point import OPEN, PRIVATE, Problem
from tacit.errors import TacitError

PRINTED = Problem(clients=5, private=4, alpha2=1.0, tau2=0.01, gamma2=10.0)
MIDDLE = Problem(clients=40, private=36, alpha2=1.0, tau2=0.1, gamma2=0.2)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """At least two clients, and one of each kind."""
    clients = draw(st.integers(2, 60))
    private = draw(st.integers(1, clients - 1))
    alpha2, tau2, gamma2 = (draw(st.floats(0.01, 10)) for _ in range(3))
    return Problem(clients, private, alpha2, tau2, gamma2)


def least_over_pull(problem: Problem, private: bool, ratio: float, knows_noise: bool) -> float:
    """The smallest personal error over a = lambda / (1 + lambda) in [0, 1), found numerically."""

    def error(a: float) -> float:
        strength = a / (1 - a)
        return point.personal_mse(problem, private=private, strength=strength, ratio=ratio, knows_noise=knows_noise)

    found = minimize_scalar(error, bounds=(0, 1 - 1e-9), method="bounded", options={"xatol": 1e-9})
    return float(found.fun)


@given(problems())
@settings(deadline=None, max_examples=60)
def test_the_optimal_ratio_minimises_the_server_variance(problem: Problem) -> None:
    found = minimize_scalar(
        lambda x: point.server_variance(problem, math.exp(x)),
        bounds=(-15, 1),
        method="bounded",
        options={"xatol": 1e-8},
    )
    least = float(found.fun)
    at = point.server_variance(problem, point.optimal_ratio(problem))
    assert at == pytest.approx(point.optimal_variance(problem), rel=1e-12)
    assert at <= least * (1 + 1e-12)
    assert at == pytest.approx(least, rel=1e-6)


@given(problems(), st.booleans(), st.floats(0.01, 1), st.booleans())
@settings(deadline=None, max_examples=80)
def test_the_best_strength_minimises_the_personal_error_at_any_ratio(
    problem: Problem, private: bool, ratio: float, knows_noise: bool
) -> None:
    best = point.best_mse(problem, private=private, ratio=ratio, knows_noise=knows_noise)
    assert best == pytest.approx(least_over_pull(problem, private, ratio, knows_noise), rel=1e-6)


@given(problems())
def test_at_the_optimal_ratio_the_strengths_have_the_closed_forms(problem: Problem) -> None:
    """Eq. 15 is exact; eq. 16 is for a client that knows its noise, and with N - 1 for N for one that does not."""
    assert point.best_strength(problem, private=False) == pytest.approx(point.strength_open(problem), rel=1e-6)
    assert point.best_strength(problem, private=True) == pytest.approx(point.strength_private(problem), rel=1e-6)
    published = point.strength_private_as_published(problem)
    assert point.best_strength(problem, private=True, knows_noise=True) == pytest.approx(published, rel=1e-6)


@given(problems())
def test_fedhdp_reaches_the_bayes_limit_for_open_clients_and_for_private_ones_that_know_their_noise(
    problem: Problem,
) -> None:
    assert point.best_mse(problem, private=False) == pytest.approx(point.bayes_mse(problem, private=False), rel=1e-9)
    limit = point.bayes_mse(problem, private=True)
    assert point.best_mse(problem, private=True, knows_noise=True) == pytest.approx(limit, rel=1e-9)
    assert point.best_mse(problem, private=True) >= limit * (1 - 1e-12)


@given(problems())
def test_open_clients_lean_on_the_shared_estimate_at_least_as_much_as_private_ones(problem: Problem) -> None:
    assert point.strength_open(problem) >= point.strength_private_as_published(problem) * (1 - 1e-12)
    assert point.strength_private_as_published(problem) >= point.strength_private(problem) * (1 - 1e-12)


def test_the_printed_private_strength_is_near_but_not_at_the_minimum() -> None:
    printed, exact = point.strength_private_as_published(PRINTED), point.strength_private(PRINTED)
    assert printed == pytest.approx(1.103, abs=5e-4)
    assert exact == pytest.approx(1.078, abs=5e-4)
    at_printed = point.personal_mse(PRINTED, private=True, strength=printed)
    loss = at_printed / point.personal_mse(PRINTED, private=True, strength=exact) - 1
    assert 0.9e-4 < loss < 1.3e-4


def test_the_printed_example_is_a_percent_above_the_bayes_limit() -> None:
    above = point.best_mse(PRINTED, private=True) / point.bayes_mse(PRINTED, private=True) - 1
    assert above == pytest.approx(0.0112, abs=1e-4)


@pytest.mark.parametrize("hold", ["z", "message", "gamma2"])
def test_the_gaps_are_differences_of_the_variances(hold: point.Hold) -> None:
    problem = MIDDLE.with_private(30, hold)
    best = point.optimal_variance(problem)
    assert point.fedavg_variance(problem) == pytest.approx(point.server_variance(problem, 1.0))
    assert point.fedavg_gap(problem) == pytest.approx(point.fedavg_variance(problem) - best)
    printed = point.dp_fedavg_variance_as_published(problem) - best
    assert point.dp_fedavg_gap_as_published(problem) == pytest.approx(printed)


@given(problems())
def test_dp_fedavg_at_the_same_z_has_the_error_of_fedavg(problem: Problem) -> None:
    """And is what everybody-private gives when z is held; the published form has more noise than z asks for."""
    everybody = problem.with_private(problem.clients, "z")
    assert point.dp_fedavg_variance(problem) == pytest.approx(point.fedavg_variance(problem))
    assert point.dp_fedavg_variance(problem) == pytest.approx(point.server_variance(everybody, 1.0))
    assert point.dp_fedavg_variance(problem) <= point.dp_fedavg_variance_as_published(problem) * (1 + 1e-12)


def test_with_many_clients_and_gamma_held_the_gaps_approach_the_papers_limits() -> None:
    many = Problem(10_000_000, 9_000_000, 1.0, 0.1, 0.2)
    assert point.fedavg_gap(many) == pytest.approx(point.fedavg_gap_limit(many), rel=1e-4)
    assert point.fedavg_gap_limit(many) == pytest.approx(0.81 * 0.2)
    assert point.dp_fedavg_gap_as_published(many) == pytest.approx(0.9 * 0.2, rel=1e-4)
    assert point.dp_fedavg_gap_limit_as_published(many) == pytest.approx(0.9 * 0.2)


def test_with_many_clients_and_z_held_the_relative_gap_vanishes() -> None:
    few, many = (Problem(n, 9 * n // 10, 1.0, 0.1, 259.2 / (0.9 * n) ** 2) for n in (40, 40_000))
    relative = [point.fedavg_gap(each) / point.optimal_variance(each) for each in (few, many)]
    assert relative[0] > 0.5
    assert relative[1] < 1e-5


@pytest.mark.parametrize("private", [0, 40])
def test_the_gaps_vanish_when_all_choose_alike(private: int) -> None:
    alike = replace(MIDDLE, private=private)
    assert point.fedavg_gap(alike) == point.dp_fedavg_gap_as_published(alike) == 0
    assert point.fedavg_gap_limit(replace(MIDDLE, private=40)) == 0


def test_the_gaps_grow_without_bound_with_the_noise() -> None:
    loud = replace(MIDDLE, gamma2=1e9)
    assert point.fedavg_gap(loud) > 1e8
    assert point.dp_fedavg_gap_as_published(loud) > 1e8


def test_corner_homogeneous_data() -> None:
    """tau^2 -> 0: open clients use the shared estimate, private ones (N + G (N - N_p)) / G, exactly with N - 1."""
    same = replace(MIDDLE, tau2=0.0)
    g, n, opted_out = same.capital_gamma, same.clients, same.opted_out
    assert math.isinf(point.strength_open(same))
    assert math.isinf(point.best_strength(same, private=False))
    assert point.strength_private_as_published(same) == pytest.approx((n + g * opted_out) / g)
    assert point.best_strength(same, private=True) == pytest.approx((n - 1 + g * opted_out) / g)


def test_corner_homogeneous_privacy() -> None:
    """N_p -> N: N / (Y N + G), exactly with N - 1."""
    all_private = replace(MIDDLE, private=40)
    y, g, n = all_private.upsilon, all_private.capital_gamma, all_private.clients
    assert point.strength_private_as_published(all_private) == pytest.approx(n / (y * n + g))
    assert point.best_strength(all_private, private=True) == pytest.approx((n - 1) / (y * (n - 1) + g))


def test_corner_homogeneous_data_and_privacy() -> None:
    """Both: N / G, exactly with N - 1."""
    both = replace(MIDDLE, private=40, tau2=0.0)
    assert point.strength_private_as_published(both) == pytest.approx(40 / both.capital_gamma)
    assert point.best_strength(both, private=True) == pytest.approx(39 / both.capital_gamma)


def test_corner_little_noise() -> None:
    """r -> 1: everybody's strength is 1 / Y, as in Ditto with FedAvg."""
    quiet = replace(MIDDLE, gamma2=1e-12)
    assert point.optimal_ratio(quiet) == pytest.approx(1)
    assert point.strength_private_as_published(quiet) == pytest.approx(1 / quiet.upsilon)
    assert point.strength_private(quiet) == pytest.approx(1 / quiet.upsilon)
    assert point.strength_open(quiet) == pytest.approx(1 / quiet.upsilon)


def test_corner_plenty_of_own_data() -> None:
    """alpha^2 -> 0: the best estimate is the client's own."""
    sure = replace(MIDDLE, alpha2=1e-9)
    strengths = [point.strength_open(sure), point.strength_private(sure), point.strength_private_as_published(sure)]
    assert max(strengths) < 1e-7
    assert point.best_mse(sure, private=True) == pytest.approx(sure.alpha2, rel=1e-6)


def test_strength_zero_is_training_alone_and_infinite_strength_is_the_shared_estimate() -> None:
    assert point.personal_mse(MIDDLE, private=True, strength=0.0) == pytest.approx(MIDDLE.alpha2)
    far = point.personal_mse(MIDDLE, private=True, strength=1e9)
    assert point.personal_mse(MIDDLE, private=True, strength=math.inf) == pytest.approx(far)


def test_under_fedavg_private_and_open_clients_have_the_same_error() -> None:
    for strength in (0.1, 1.0, 10.0):
        private, other = (
            point.personal_mse(MIDDLE, private=kind, strength=strength, ratio=1.0) for kind in (True, False)
        )
        assert private == pytest.approx(other)


def test_a_single_private_client_stays_with_its_own_estimate() -> None:
    alone = Problem(1, 1, 1.0, 0.1, 2.0)
    assert point.strength_private(alone) == point.best_strength(alone, private=True) == 0
    assert point.bayes_mse(alone, private=True) == alone.alpha2


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0.01, 100), st.floats(0.01, 100))
@settings(deadline=None)
def test_two_private_levels_have_their_own_ratio(first: int, second: int, noise_1: float, noise_2: float) -> None:
    """r* = (sigma^2 + N_1 gamma_1^2) / (sigma^2 + N_2 gamma_2^2) gives the shares of inverse variance."""
    groups = (Group(first, noise_1 * first**2), Group(second, noise_2 * second**2))
    assert (groups[0].gamma2, groups[1].gamma2) == pytest.approx((noise_1, noise_2))
    both = Menu(1.0, 0.3, groups)
    ratio = point.two_level_ratio(both.sigma2, *groups)
    assert ratio == pytest.approx((1.3 + first * noise_1) / (1.3 + second * noise_2))
    shares = np.array([first, ratio * second]) / (first + ratio * second)
    assert levels.optimal_shares(both) == pytest.approx(shares)


def test_two_levels_of_which_one_is_open_give_the_papers_ratio() -> None:
    private, others = MIDDLE.menu.groups
    assert point.two_level_ratio(MIDDLE.sigma2, others, private) == pytest.approx(point.optimal_ratio(MIDDLE))


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0, 50)), min_size=2, max_size=5), st.randoms())
@settings(deadline=None)
def test_inverse_variance_beats_other_shares_for_any_number_of_levels(
    groups: list[tuple[int, float]], random: np.random.RandomState
) -> None:
    menu = Menu(1.0, 0.2, tuple(Group(*each) for each in groups))
    best = levels.server_variance(menu, levels.optimal_shares(menu))
    raw = [random.random() + 1e-3 for _ in groups]
    assert best <= levels.server_variance(menu, [each / sum(raw) for each in raw]) * (1 + 1e-12)
    assert best <= levels.server_variance(menu, levels.equal_shares(menu)) * (1 + 1e-12)


def test_a_level_without_clients_counts_for_nothing() -> None:
    with_nobody = Menu(1.0, 0.1, (*MIDDLE.menu.groups, Group(0, 5.0)))
    assert levels.optimal_shares(with_nobody)[:2] == pytest.approx(levels.optimal_shares(MIDDLE.menu))
    assert levels.optimal_shares(with_nobody)[2] == 0
    with pytest.raises(TacitError, match="without clients"):
        levels.server_variance(with_nobody, (0.5, 0.4, 0.1))


def test_moving_a_client_keeps_the_noise_of_every_sum() -> None:
    moved = MIDDLE.menu.move(PRIVATE, OPEN)
    assert [group.clients for group in moved.groups] == [35, 5]
    same = MIDDLE.with_private(35, "z").menu
    assert [group.noise for group in moved.groups] == pytest.approx([group.noise for group in same.groups])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"private": 6}, "6 of 5"),
        ({"alpha2": 0.0}, "alpha2"),
        ({"tau2": -1.0}, "tau2"),
        ({"gamma2": math.nan}, "gamma2"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(TacitError, match=named):
        replace(PRINTED, **wrong)


def test_ratio_zero_needs_someone_who_opted_out() -> None:
    assert point.server_variance(MIDDLE, 0.0) == pytest.approx(MIDDLE.sigma2 / MIDDLE.opted_out)
    with pytest.raises(TacitError, match="nobody opted out"):
        point.server_variance(replace(MIDDLE, private=40), 0.0)
