"""What a client gains by opting out, and who gains from it instead."""

import numpy as np
import pytest
from hypothesis import given, settings

from papers.fedhdp.theory import incentive
from papers.fedhdp.theory import multilevel as levels
from papers.fedhdp.theory.figures import DEFAULT
from papers.fedhdp.theory.multilevel import Group, Menu
from papers.fedhdp.theory.point import OPEN, PRIVATE, Hold, Problem
from tacit.errors import TacitError
from tests.papers.theory.test_point import problems


@pytest.mark.parametrize(("ratio", "gain"), [(1.0, 0.024), (None, 0.012)])
def test_with_gamma_held_the_default_problem_has_the_gains_that_feo2_prints(ratio: float | None, gain: float) -> None:
    assert incentive.offer(DEFAULT, ratio=ratio, hold="gamma2").gain == pytest.approx(gain, abs=5e-4)


def test_the_optimal_ratio_is_worth_almost_a_fifth_to_every_client_as_feo2_prints() -> None:
    fedavg, best = (incentive.offer(DEFAULT, ratio=ratio, hold="gamma2") for ratio in (1.0, None))
    assert 1 - best.leaves / fedavg.leaves == pytest.approx(0.18, abs=0.01)


@given(problems().filter(lambda problem: problem.private > 1))
@settings(deadline=None)
def test_at_the_same_z_nobody_gains_from_an_opt_out_under_fedavg(problem: Problem) -> None:
    found = incentive.offer(problem, ratio=1.0, hold="z")
    assert (found.gain, found.gift, found.server_gain) == pytest.approx((0, 0, 0), abs=1e-9)


@given(problems().filter(lambda problem: problem.private > 1))
@settings(deadline=None)
def test_a_client_that_knows_its_noise_gains_nothing_while_the_others_messages_stay(problem: Problem) -> None:
    """And at the same z it loses, since the others must then carry its part of the noise."""
    assert incentive.offer(problem, hold="message", knows_noise=True).gain == pytest.approx(0, abs=1e-9)
    assert incentive.offer(problem, hold="z", knows_noise=True).gain <= 1e-9


@given(problems().filter(lambda problem: problem.private > 1))
@settings(deadline=None)
def test_at_the_optimal_ratio_an_opt_out_helps_the_server_and_the_others(problem: Problem) -> None:
    found = incentive.offer(problem)
    assert found.server_gain > 0
    assert found.gift >= -1e-9


def test_the_gift_is_hundreds_of_times_the_gain() -> None:
    found = incentive.offer(DEFAULT)
    assert found.gift == pytest.approx(0.038, abs=1e-3)
    assert 0 < found.gain < 1e-4


def test_in_the_same_federation_private_clients_are_better_off_where_few_opted_out() -> None:
    """An open client has one clean message fewer than a private one; under FedAvg both have the same error."""
    assert incentive.price(DEFAULT) == pytest.approx(-0.042, abs=1e-3)
    assert incentive.price(DEFAULT, ratio=1.0) == pytest.approx(0)


@pytest.mark.parametrize("hold", ["z", "message", "gamma2"])
def test_holding_changes_gamma_as_it_says(hold: Hold) -> None:
    after = DEFAULT.with_private(18, hold)
    kept = {
        "z": (DEFAULT.private**2 * DEFAULT.gamma2, after.private**2 * after.gamma2),
        "message": (DEFAULT.message_noise, after.message_noise),
        "gamma2": (DEFAULT.gamma2, after.gamma2),
    }
    assert kept[hold][0] == pytest.approx(kept[hold][1])


def test_moves_between_levels_contain_the_opt_out() -> None:
    gains = incentive.moves(DEFAULT.menu)
    assert gains[PRIVATE, OPEN] == pytest.approx(incentive.offer(DEFAULT).gain)
    assert np.diag(gains) == pytest.approx(0)


def test_moves_into_an_empty_level_are_told_and_out_of_it_are_not() -> None:
    menu = Menu(1.0, 0.1, (Group(8, 90.0), Group(0, 30.0), Group(4)))
    gains = incentive.moves(menu, levels.optimal_shares)
    assert np.isnan(gains[1]).all()
    assert np.isfinite(gains[[0, 2]]).all()


def test_the_last_private_client_has_no_offer() -> None:
    with pytest.raises(TacitError, match="give 2 or more"):
        incentive.offer(Problem(3, 1, 1.0, 0.1, 1.0))


def test_percentages_have_no_negative_zero() -> None:
    assert incentive.percent(-1e-9) == "0.00%"
    assert incentive.percent(-0.0124) == "-1.24%"
