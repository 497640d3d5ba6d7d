"""Every epsilon is an upper bound, agrees with closed forms where there are any, and names its accountant."""

import math
import subprocess
import sys

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.privacy.accounting import accountant as account
from tacit.privacy.accounting.accountant import Relation, answer, calibrate, curve, epsilon, largest_count
from tacit.privacy.accounting.events import FLOOR, atoms, describe, from_json, to_json
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_multiplier
from tacit.privacy.accounting.rdp import ORDERS, divergences

ALL_RELATIONS: list[Relation] = ["add/remove", "replace-one", "replace", "zero-out"]

few = settings(max_examples=12, deadline=None, derandomize=True)
quick = settings(max_examples=60, deadline=None, derandomize=True)

rates = st.floats(0.001, 0.9)
noises = st.floats(0.4, 20)
deltas = st.sampled_from([1e-10, 1e-6, 1e-4, 1e-2])


def gaussian(z: float) -> dp.DpEvent:
    return dp.GaussianDpEvent(z)


def poisson(rate: float, z: float) -> dp.DpEvent:
    return dp.PoissonSampledDpEvent(rate, gaussian(z))


def fixed_size(size: int, total: int, z: float) -> dp.DpEvent:
    return dp.SampledWithoutReplacementDpEvent(total, size, gaussian(z))


def composed(*events: dp.DpEvent) -> dp.DpEvent:
    return dp.ComposedDpEvent(events)


# The Gaussian mechanism in closed form


@quick
@given(st.floats(0, 1000), st.floats(1e-3, 1e6))
def test_gaussian_delta_is_a_probability_and_falls_with_epsilon_and_noise(eps: float, z: float) -> None:
    delta = gaussian_delta(eps, z)
    assert 0 <= delta <= 1
    assert gaussian_delta(eps * 1.1 + 0.01, z) <= delta
    assert gaussian_delta(eps, z * 1.1) <= delta


def test_gaussian_delta_at_epsilon_zero_is_the_total_variation() -> None:
    for z in (0.1, 1.0, 30.0, 1e5):
        assert gaussian_delta(0, z) == pytest.approx(math.erf(1 / (2 * z) / math.sqrt(2)), rel=1e-9)


@quick
@given(st.floats(0.01, 1000), st.floats(1e-10, 0.1))
def test_multiplier_and_epsilon_invert_delta_on_the_safe_side(eps: float, delta: float) -> None:
    z = gaussian_multiplier(eps, delta)
    assert gaussian_delta(eps, z) <= delta
    assert gaussian_delta(eps, z * (1 - 1e-8)) >= delta * (1 - 1e-4)
    assert gaussian_epsilon(z, delta) == pytest.approx(eps, rel=1e-6)
    assert gaussian_delta(gaussian_epsilon(z, delta), z) <= delta


@quick
@given(st.floats(0.05, 500), deltas)
def test_one_gaussian_costs_what_the_analytic_mechanism_says(z: float, delta: float) -> None:
    assert epsilon({gaussian(z): 1}, delta, "add/remove") == pytest.approx(dp.get_epsilon_gaussian(z, delta), rel=1e-6)


@few
@given(st.floats(0.3, 50), deltas)
def test_the_closed_form_agrees_with_a_discretised_loss_distribution(z: float, delta: float) -> None:
    pld = privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=1 / z / 64)
    exact = epsilon({gaussian(z): 1}, delta, "add/remove")
    assert exact <= pld.get_epsilon_for_delta(delta) <= exact * 1.002 + 1e-9


# Accountants


@quick
@given(st.floats(0.1, 100), deltas, st.integers(1, 1000))
def test_renyi_epsilon_of_gaussians_is_the_formula_at_its_best_order(z: float, delta: float, count: int) -> None:
    orders = np.exp(np.linspace(math.log(1e-3), math.log(1e5), 20_000)) + 1
    costs = count * orders / (2 * z**2) + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    found = epsilon({gaussian(z): count}, delta, "add/remove", "rdp")
    assert found >= max(0, costs.min()) * (1 - 1e-6)  # the best order may lie between two of these
    if 0.02 < costs.min() < 1000:
        assert found <= costs.min() * 1.05


@few
@given(rates, st.floats(0.3, 20))
def test_own_renyi_divergences_are_those_of_the_library_where_that_converges(rate: float, z: float) -> None:
    whole = [2.0, 3.0, 7.0, 16.0, 63.0, 128.0]
    event = poisson(rate, z)
    own = dict(zip(ORDERS.tolist(), divergences(event, "add/remove"), strict=True))
    library = RdpAccountant(whole).compose(event).rdp
    np.testing.assert_allclose([own[order] for order in whole], library, rtol=1e-6, atol=1e-12)


@quick
@given(rates, noises, deltas)
def test_one_sampled_gaussian_costs_what_the_closed_form_says(rate: float, z: float, delta: float) -> None:
    """Removing one client from a Poisson sample: delta(eps) = q delta_Gaussian(log(1 + (e^eps - 1) / q))."""
    exact = 0.0 if delta >= rate else math.log1p(rate * math.expm1(gaussian_epsilon(z, delta / rate)))
    found = epsilon({poisson(rate, z): 1}, delta, "add/remove")
    assert exact * (1 - 1e-6) <= found <= exact * 1.005 + 1e-6


@pytest.mark.parametrize(("rate", "z", "count"), [(0.05, 1.4, 500), (0.5, 3.0, 100), (0.01, 0.5, 50)])
def test_composition_lies_just_above_an_optimistic_estimate(rate: float, z: float, count: int) -> None:
    optimist = privacy_loss_distribution.from_gaussian_mechanism(
        z, pessimistic_estimate=False, value_discretization_interval=1e-4, sampling_prob=rate, use_connect_dots=False
    )
    below = optimist.self_compose(count).get_epsilon_for_delta(1e-5)
    assert below <= epsilon({poisson(rate, z): count}, 1e-5, "add/remove") <= below * 1.03


@few
@given(rates, noises, deltas, st.integers(1, 2000))
def test_pld_is_at_most_rdp_and_both_are_finite(rate: float, z: float, delta: float, count: int) -> None:
    history = {poisson(rate, z): count}
    pld, rdp = answer(history, delta, "add/remove"), answer(history, delta, "add/remove", "rdp")
    assert (pld.accountant, rdp.accountant) == ("pld", "rdp")
    assert 0 <= pld.epsilon <= rdp.epsilon < math.inf


@few
@given(rates, noises, deltas, st.integers(1, 1000), st.integers(1, 1000))
def test_more_rounds_cost_more(rate: float, z: float, delta: float, count: int, more: int) -> None:
    before, after = curve(poisson(rate, z), [count, count + more], delta, "add/remove")
    assert before <= after


@pytest.mark.parametrize(("rate", "z"), [(0.05, 1.4), (0.001, 0.6), (0.3, 0.5)])
def test_cost_never_falls_where_the_grid_or_the_accountant_changes(rate: float, z: float) -> None:
    """Coarser grids for more rounds, and RDP beyond what PLD composes well."""
    counts = [2**k for k in range(0, 18, 3)] + [2**18, 2**18 + 1, 2**30]
    costs = curve(poisson(rate, z), counts, 1e-5, "add/remove")
    assert costs == sorted(costs)
    assert answer({poisson(rate, z): 2**30}, 1e-5, "add/remove").accountant == "rdp"


@few
@given(rates, noises, st.integers(1, 1000), st.floats(1.01, 3))
def test_less_noise_and_a_higher_rate_cost_more(rate: float, z: float, count: int, factor: float) -> None:
    assume(rate * factor < 1)
    cost = epsilon({poisson(rate, z): count}, 1e-5, "add/remove")
    assert epsilon({poisson(rate, z * factor): count}, 1e-5, "add/remove") <= cost * 1.0002
    assert epsilon({poisson(rate * factor, z): count}, 1e-5, "add/remove") >= cost * 0.9998


@few
@given(rates, noises, st.integers(1, 300), st.floats(0.5, 50), st.integers(1, 30))
def test_a_mixture_costs_more_than_its_parts(rate: float, z: float, count: int, other: float, times: int) -> None:
    sampled, plain = {poisson(rate, z): count}, {gaussian(other): times}
    both = epsilon(sampled | plain, 1e-5, "add/remove")
    assert both >= 0.9998 * max(epsilon(sampled, 1e-5, "add/remove"), epsilon(plain, 1e-5, "add/remove"))
    assert both <= epsilon(sampled, 5e-6, "add/remove") + epsilon(plain, 5e-6, "add/remove")


def test_pld_sees_full_sampling_as_no_sampling() -> None:
    almost, full = (epsilon({poisson(rate, 3.0): 50}, 1e-5, "add/remove") for rate in (1 - 1e-9, 1.0))
    assert full == epsilon({gaussian(3.0): 50}, 1e-5, "add/remove")
    assert almost == pytest.approx(full, rel=1e-3)
    assert almost >= full


@pytest.mark.parametrize("relation", ALL_RELATIONS)
def test_a_gaussian_costs_the_same_under_every_relation(relation: Relation) -> None:
    """The relation's sensitivity is in the multiplier: no accountant may double it again."""
    for accountant in ("pld", "rdp"):
        expected = epsilon({gaussian(2.0): 7}, 1e-5, "add/remove", accountant)
        assert epsilon({gaussian(2.0): 7}, 1e-5, relation, accountant) == expected


def test_repeated_randomised_response_is_counted_every_time() -> None:
    event = dp.RandomizedResponseDpEvent(0.5, 2)
    once = math.log(3)
    for relation in ("replace", "replace-one"):
        one, ten = curve(event, [1, 10], 1e-9, relation)
        assert one == pytest.approx(once)
        assert 5 * once < ten <= 10 * once
        assert epsilon({dp.SelfComposedDpEvent(event, 10): 1}, 1e-9, relation) == ten
    with pytest.raises(TacitError, match="add/remove"):
        epsilon({event: 1}, 1e-9, "add/remove")


def test_laplace_alone_costs_at_most_its_pure_epsilon() -> None:
    assert 1.99 < epsilon({dp.LaplaceDpEvent(0.5): 1}, 1e-6, "add/remove") <= 2
    assert 7 < epsilon({dp.LaplaceDpEvent(0.5): 4}, 1e-6, "add/remove") <= 8


def test_fixed_size_cohorts_are_answered_by_rdp_and_say_so() -> None:
    found = answer({fixed_size(100, 2000, 3.0): 500}, 1e-4, "replace-one", "pld")
    assert found.accountant == "rdp"
    library = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    expected = library.compose(fixed_size(100, 2000, 3.0), 500).get_epsilon(1e-4)
    assert found.epsilon == pytest.approx(expected, rel=0.01)


def test_concentrated_noise_is_answered_by_rdp_and_costs_what_the_same_gaussian_does() -> None:
    found = answer({dp.ZCDpEvent(0.5 / 9): 3}, 1e-5, "zero-out")
    assert found == answer({gaussian(3.0): 3}, 1e-5, "zero-out", "rdp")._replace(epsilon=found.epsilon)
    assert found.epsilon == pytest.approx(epsilon({gaussian(3.0): 3}, 1e-5, "zero-out", "rdp"))


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (poisson(0.1, 1.0), "replace-one"),
        (poisson(0.1, 1.0), "replace"),
        (fixed_size(10, 100, 1.0), "add/remove"),
        (dp.PoissonSampledDpEvent(0.1, dp.LaplaceDpEvent(1.0)), "add/remove"),
        (dp.UnsupportedDpEvent(), "add/remove"),
    ],
)
def test_what_no_accountant_models_is_refused(event: dp.DpEvent, relation: Relation) -> None:
    with pytest.raises(TacitError, match="not accounted for"):
        epsilon({event: 1}, 1e-5, relation)


def test_nothing_costs_nothing_and_a_release_without_noise_costs_everything() -> None:
    assert epsilon({}, 1e-5, "add/remove") == 0.0
    assert epsilon({dp.NoOpDpEvent(): 5, poisson(0.0, 1.0): 9}, 1e-5, "add/remove") == 0.0
    for bare in (dp.NonPrivateDpEvent(), gaussian(0.0), poisson(0.1, 0.0), dp.LaplaceDpEvent(0.0)):
        assert epsilon({bare: 1, gaussian(5.0): 3}, 1e-5, "add/remove") == math.inf


def test_extreme_events_give_numbers() -> None:
    for z in (1e-9, 1e-3, 0.0101, 1e6):
        for rate in (1e-6, 0.5, 1 - 1e-12):
            for accountant in ("pld", "rdp"):
                assert 0 <= epsilon({poisson(rate, z): 3}, 1e-6, "add/remove", accountant) < math.inf
    assert answer({poisson(0.1, 2.0): 10}, 1e-15, "add/remove").accountant == "rdp"  # lost in rounding


def test_nested_events_reduce_to_the_same_cost() -> None:
    nested = dp.PoissonSampledDpEvent(0.1, composed(gaussian(2.0), dp.SelfComposedDpEvent(gaussian(4.0), 3)))
    merged = (1 / 4 + 3 / 16) ** -0.5
    assert atoms({dp.SelfComposedDpEvent(nested, 5): 2}) == {poisson(0.1, merged): 10}
    assert atoms({gaussian(2.0): 1, gaussian(4.0): 3}) == {gaussian(merged): 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: epsilon({gaussian(1.0): 1}, 0.0, "add/remove"),
        lambda: epsilon({gaussian(1.0): 1}, math.nan, "add/remove"),
        lambda: epsilon({gaussian(1.0): 1}, 1.0, "add/remove"),
        lambda: epsilon({gaussian(1.0): -1}, 1e-5, "add/remove"),
        lambda: epsilon({gaussian(-1.0): 1}, 1e-5, "add/remove"),
        lambda: epsilon({gaussian(math.nan): 1}, 1e-5, "add/remove"),
        lambda: epsilon({poisson(1.5, 1.0): 1}, 1e-5, "add/remove"),
        lambda: epsilon({}, 1e-5, "neighbours"),  # type: ignore[arg-type]
        lambda: epsilon({}, 1e-5, "add/remove", "moments"),  # type: ignore[arg-type]
        lambda: calibrate(gaussian, 0.0, 1e-5, "add/remove"),
        lambda: calibrate(gaussian, math.nan, 1e-5, "add/remove"),
        lambda: calibrate(gaussian, math.inf, 1e-5, "add/remove"),
        lambda: calibrate(gaussian, 1.0, 1e-5, "add/remove", times=0),
        lambda: calibrate(lambda z: composed(gaussian(z), gaussian(1.0)), 0.1, 1e-5, "add/remove"),
        lambda: largest_count(gaussian(1.0), {}, math.nan, 1e-5, "add/remove"),
        lambda: gaussian_delta(-1, 1),
        lambda: gaussian_multiplier(1, 0),
        lambda: gaussian_epsilon(0, 0.1),
    ],
)
def test_impossible_requests_are_refused_in_one_line(call) -> None:
    with pytest.raises(TacitError) as caught:
        call()
    assert "\n" not in str(caught.value)


# Calibration


@pytest.mark.parametrize(
    ("eps", "rate", "by_pld", "by_rdp"), [(3.6, 0.05, 1.400, 1.502), (0.6, 0.03, 3.49, 3.9), (4.1, 0.03, 0.942, 1.003)]
)
def test_the_papers_noise_is_found_again(eps: float, rate: float, by_pld: float, by_rdp: float) -> None:
    z = calibrate(lambda z: poisson(rate, z), eps, 1e-4, "add/remove", times=500)
    assert z == pytest.approx(by_pld, rel=0.01)
    assert epsilon({poisson(rate, z): 500}, 1e-4, "add/remove") <= eps
    z_rdp = calibrate(lambda z: poisson(rate, z), eps, 1e-4, "add/remove", "rdp", times=500)
    assert z_rdp == pytest.approx(by_rdp, rel=0.02 if eps == 0.6 else 0.01)  # there the table says about 3.9


@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("times", [500, 10_000])
@pytest.mark.parametrize("eps", [0.01, 1000.0])
def test_calibration_keeps_its_promise_at_both_ends(eps: float, times: int, rate: float) -> None:
    z = calibrate(lambda z: poisson(rate, z), eps, 1e-4, "add/remove", times=times)
    found = answer({poisson(rate, z): times}, 1e-4, "add/remove")
    assert found.accountant == "pld"
    assert 0.99 * eps <= found.epsilon <= eps
    assert epsilon({poisson(rate, z * 0.998): times}, 1e-4, "add/remove") > eps
    assert z <= calibrate(lambda z: poisson(rate, z), eps, 1e-4, "add/remove", "rdp", times=times)


def test_one_gaussian_is_calibrated_to_the_analytic_multiplier() -> None:
    for eps, delta in [(0.01, 1e-10), (1.0, 1e-5), (1000.0, 1e-2)]:
        exact = gaussian_multiplier(eps, delta)
        assert exact <= calibrate(gaussian, eps, delta, "replace") <= exact * 1.0002


def test_fixed_size_cohorts_are_calibrated_too() -> None:
    z = calibrate(lambda z: fixed_size(50, 1000, z), 2.0, 1e-4, "replace-one", times=20)
    assert epsilon({fixed_size(50, 1000, z): 20}, 1e-4, "replace-one") <= 2.0
    assert epsilon({fixed_size(50, 1000, z * 0.99): 20}, 1e-4, "replace-one") > 2.0


def test_where_delta_covers_the_sampling_the_floor_is_enough() -> None:
    assert calibrate(lambda z: poisson(1e-4, z), 1.0, 0.01, "add/remove") == FLOOR


# How often still


@pytest.mark.parametrize("times", [1, 7, 500])
def test_what_was_calibrated_for_t_rounds_gets_t_rounds_and_hardly_more(times: int) -> None:
    event = poisson(0.05, calibrate(lambda z: poisson(0.05, z), 2.0, 1e-5, "add/remove", times=times))
    allowed = largest_count(event, {}, 2.0, 1e-5, "add/remove", ceiling=10_000)
    assert times <= allowed <= times * 1.01 + 1
    assert epsilon({event: allowed}, 1e-5, "add/remove") <= 2.0 < epsilon({event: allowed + 1}, 1e-5, "add/remove")
    for done in (0, times // 2, times):
        assert largest_count(event, {event: done}, 2.0, 1e-5, "add/remove", ceiling=10_000) == allowed - done


def test_an_overspent_budget_allows_nothing_and_a_free_event_everything() -> None:
    assert largest_count(gaussian(1.0), {gaussian(0.1): 1}, 1.0, 1e-5, "add/remove", ceiling=50) == 0
    assert largest_count(dp.NonPrivateDpEvent(), {}, 1.0, 1e-5, "add/remove", ceiling=50) == 0
    assert largest_count(dp.NoOpDpEvent(), {gaussian(9.0): 1}, 1.0, 1e-5, "add/remove", ceiling=50) == 50
    assert largest_count(gaussian(1e4), {}, 1.0, 1e-5, "add/remove", ceiling=3) == 3


@few
@given(st.floats(0.5, 50), st.floats(0.1, 20), st.integers(0, 40))
def test_most_is_the_last_count_within_budget(z: float, budget: float, before: int) -> None:
    spent = {gaussian(30.0): before}
    found = largest_count(gaussian(z), spent, budget, 1e-6, "replace", ceiling=10**9)
    assert epsilon(spent | {gaussian(z): found + 1}, 1e-6, "replace") > budget
    assert found == 0 or epsilon(spent | {gaussian(z): found}, 1e-6, "replace") <= budget


# Text


EVENTS = [
    dp.NoOpDpEvent(),
    dp.NonPrivateDpEvent(),
    gaussian(1.4),
    dp.LaplaceDpEvent(0.5),
    dp.RandomizedResponseDpEvent(0.25, 4),
    dp.ZCDpEvent(0.125, 0.5),
    poisson(0.05, 1.4),
    fixed_size(100, 2000, 2.5),
    dp.SelfComposedDpEvent(poisson(0.05, 1.4), 12),
    composed(gaussian(2.0), dp.SelfComposedDpEvent(dp.LaplaceDpEvent(3.0), 2), dp.NoOpDpEvent()),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_a_round_trip_through_json(event: dp.DpEvent) -> None:
    back = from_json(to_json(event))
    assert back == event
    assert hash(back) == hash(event)
    assert to_json(back) == to_json(event)


@quick
@given(st.floats(0, 1e308), st.floats(0, 1))
def test_every_float_survives_a_round_trip(z: float, rate: float) -> None:
    assert from_json(to_json(poisson(rate, z))) == poisson(rate, z)


def test_numpy_numbers_lists_and_integers_give_the_same_text() -> None:
    assert to_json(gaussian(np.float64(2.0))) == to_json(gaussian(2)) == to_json(gaussian(2.0))
    assert to_json(dp.ComposedDpEvent([gaussian(2.0)])) == to_json(composed(gaussian(2.0)))


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"event": "os"}', '{"event": "Gaussian"}', '{"event": "Gaussian", "x": 1}']
)
def test_text_that_is_not_an_event_is_refused(text: str) -> None:
    with pytest.raises(TacitError, match="not a privacy event"):
        from_json(text)


def test_events_that_cannot_be_accounted_for_cannot_be_written() -> None:
    with pytest.raises(TacitError, match="UnsupportedDpEvent"):
        to_json(dp.UnsupportedDpEvent())


def test_events_in_words() -> None:
    assert describe(poisson(0.05, 1.4)) == "Gaussian noise, multiplier 1.400, on a Poisson sample of 5% of the clients"
    assert describe(poisson(0.05, 1.4), "record").endswith("5% of the records")
    assert "100 of 2,000 clients, drawn without replacement" in describe(fixed_size(100, 2000, 1.0))
    assert "no guarantee" in describe(dp.NonPrivateDpEvent())
    assert len({describe(event) for event in EVENTS}) == len(EVENTS)


def test_importing_the_accountant_does_not_import_dp_accounting() -> None:
    modules = "tacit.privacy.accounting.accountant, tacit.privacy.ledger.ledger"
    code = f"import sys, {modules}; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_there() -> None:
    assert all(hasattr(account, name) for name in account.__all__)
