"""The rate that is proposed for a federation: the least that gives up little to noise."""

import math
from itertools import pairwise

import pytest

from tacit.errors import TacitError
from tacit.report.rates import noise_of_mean, propose_rate


def test_the_proposed_rate_is_the_smallest_within_the_excess() -> None:
    found = propose_rate(3.6, 1e-4, 500, 2000)
    assert found.noise <= 1.1 * found.least
    assert noise_of_mean(0.95 * found.rate, 3.6, 1e-4, 500, 2000) > 1.1 * found.least
    assert found.least == pytest.approx(noise_of_mean(1.0, 3.6, 1e-4, 500, 2000))


def test_more_devices_in_a_round_never_have_more_noise_in_their_mean() -> None:
    for epsilon, rounds in ((0.5, 50), (8.0, 20)):
        noises = [noise_of_mean(rate, epsilon, 1e-4, rounds, 1000) for rate in (0.003, 0.02, 0.2, 1.0)]
        assert all(a >= b * (1 - 1e-3) for a, b in pairwise(noises))


def test_more_rounds_ask_for_smaller_cohorts_because_their_noise_averages_out_sooner() -> None:
    rates = [propose_rate(3.6, 1e-4, rounds, 2000).rate for rounds in (20, 500)]
    assert rates == sorted(rates, reverse=True)


def test_the_rate_does_not_depend_on_how_many_devices_there_are() -> None:
    few, many = (propose_rate(2.0, 1e-5, 100, n) for n in (1000, 100_000))
    assert few.rate == pytest.approx(many.rate, rel=0.05)
    assert few.noise == pytest.approx(100 * many.noise, rel=0.05)


def test_the_least_cohort_is_kept_and_named() -> None:
    free = propose_rate(3.6, 1e-4, 500, 2000)
    held = propose_rate(3.6, 1e-4, 500, 2000, least_cohort=400)
    assert held.rate == pytest.approx(0.2)
    assert held.rate > free.rate
    assert "least cohort" in held.words
    assert "least cohort" not in free.words


@pytest.mark.parametrize(
    "wrong", [{"devices": 0}, {"excess": 0.0}, {"excess": math.inf}, {"least_cohort": 0}, {"least_cohort": 11}]
)
def test_impossible_wishes_are_refused_in_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(TacitError, match=r"^[^\n]+$"):
        propose_rate(**{"epsilon": 1.0, "delta": 1e-4, "rounds": 10, "devices": 10, **wrong})
