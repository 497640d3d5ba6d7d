"""Bernoulli rates: the paper's table, debiased and as printed, private and not."""

import math

import numpy as np
import pytest

from papers.generative.bounds import bernoulli_bound, bernoulli_mse, van_trees_bernoulli
from tacit.errors import TacitError
from tacit.estimation import BernoulliRates, beta_moments
from tacit.estimation.messages import Central, LocalGaussian, Message, Quantized, RandomisedResponse


def counts(alpha: float, beta: float, n: np.ndarray | int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    rates = draw.beta(alpha, beta, m)
    return rates, draw.binomial(n, rates)


def gain(make: BernoulliRates, rates: np.ndarray, won: np.ndarray, n: np.ndarray | int) -> float:
    found = make.fit(won, trials=n).compare(rates)["personal"].measured_gain
    assert found is not None
    return found


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize(("alpha", "beta"), [(4.0, 4.0), (1.0, 1.0), (0.5, 3.0), (30.0, 10.0)])
def test_the_posterior_mean_has_the_papers_error(alpha: float, beta: float, n: int) -> None:
    rates, won = counts(alpha, beta, n, 100_000, 0)
    mean, variance = beta_moments(alpha, beta)
    found = BernoulliRates(prior_mean=mean, prior_variance=variance).fit(won, trials=n)
    assert np.allclose(found.estimates_, (won + alpha) / (n + alpha + beta))
    squares = np.square(found.estimates_ - rates)
    expected = bernoulli_mse(alpha, beta, n)
    assert abs(squares.mean() - expected) <= 3 * squares.std() / math.sqrt(len(rates))
    assert found.expected_mse_.mean() == pytest.approx(expected)


def test_the_posterior_mean_is_above_van_trees_bound() -> None:
    for alpha, beta, n in ((4, 4, 14), (30, 10, 5), (3, 8, 100)):
        assert van_trees_bernoulli(alpha, beta, n) <= bernoulli_mse(alpha, beta, n)
    assert van_trees_bernoulli(30, 30, 100) == pytest.approx(bernoulli_mse(30, 30, 100), rel=0.05)


@pytest.mark.parametrize("epsilon", [None, 1.0, 4.0])
@pytest.mark.parametrize(("alpha", "beta"), [(4.0, 4.0), (2.0, 6.0)])
def test_theorems_3_and_4_bound_the_error(alpha: float, beta: float, epsilon: float | None) -> None:
    message = None if epsilon is None else RandomisedResponse(epsilon)
    for moments in ("as-published", "debiased"):
        rates, won = counts(alpha, beta, 14, 2000, 1)
        found = BernoulliRates(message=message, moments=moments, seed=1).fit(won, trials=14)
        error = np.square(found.estimates_ - rates)
        bound = bernoulli_bound(1 - found.pull_, alpha, beta, 14, 2000, epsilon)
        assert error.mean() - 3 * error.std() / math.sqrt(2000) <= bound


def test_leave_one_out_is_what_the_paper_prints() -> None:
    _, won = counts(4.0, 4.0, 6, 9, 2)
    x = won / 6
    means = [np.delete(x, i).mean() for i in range(9)]
    for i in range(9):
        variance = sum((x[j] - means[j]) ** 2 for j in range(9) if j != i) / 7
        a = 6 / (means[i] * (1 - means[i]) / variance - 1 + 6)
        found = BernoulliRates(moments="as-published").fit(won, trials=6)
        assert found.estimates_[i] == pytest.approx(a * x[i] + (1 - a) * means[i])


def test_debiasing_finds_the_priors_variance_and_the_printed_form_does_not() -> None:
    _, won = counts(4.0, 4.0, 14, 200_000, 3)
    _, variance = beta_moments(4, 4)
    debiased = BernoulliRates().fit(won, trials=14)
    printed = BernoulliRates(moments="as-published").fit(won, trials=14)
    assert debiased.prior_variance_ == pytest.approx(variance, rel=0.02)
    assert printed.prior_variance_ == pytest.approx(variance + 0.2222 / 14, rel=0.02)


def test_unequal_trials_are_used_well() -> None:
    trials = np.random.default_rng(4).integers(1, 100, 30_000)
    rates, won = counts(4.0, 6.0, trials, 30_000, 4)
    mean, variance = beta_moments(4, 6)
    best = gain(BernoulliRates(prior_mean=mean, prior_variance=variance), rates, won, trials)
    assert gain(BernoulliRates(), rates, won, trials) == pytest.approx(best, abs=0.002)
    assert gain(BernoulliRates(message=RandomisedResponse(2.0), seed=0), rates, won, trials) > best - 0.03


PRIVATE = [RandomisedResponse(1.0), LocalGaussian(1.0, 1e-5), Central(1.0, 1e-5), Quantized(1), Quantized(4)]


@pytest.mark.parametrize("message", PRIVATE, ids=repr)
@pytest.mark.parametrize("shape", [(0.3, 0.3), (1.0, 1.0), (4.0, 4.0), (200.0, 200.0), (2.0, 40.0)])
def test_a_prior_learned_from_constrained_messages_does_no_harm(message: Message, shape: tuple[float, float]) -> None:
    gains = []
    for seed in range(8):
        rates, won = counts(*shape, 14, 10_000, seed)
        gains.append(gain(BernoulliRates(message=message, seed=seed), rates, won, 14))
    assert min(gains) > -0.01


@pytest.mark.parametrize("m", [3, 4, 8, 30])
@pytest.mark.parametrize("shape", [(0.2, 0.2), (1.0, 1.0), (50.0, 50.0)])
def test_few_clients_are_hardly_ever_worse_off(m: int, shape: tuple[float, float]) -> None:
    """The worst case of the open form, over repetitions: at most 1% above local, beyond chance."""
    excess, local = [], []
    for seed in range(400):
        rates, won = counts(*shape, 10, m, seed)
        alone = np.mean(np.square(won / 10 - rates))
        excess.append(np.mean(np.square(BernoulliRates().fit(won, trials=10).estimates_ - rates)) - alone)
        local.append(alone)
    assert np.mean(excess) <= 0.01 * np.mean(local) + 3 * np.std(excess) / math.sqrt(400)


def test_two_values_say_nothing_of_the_variance_so_the_printed_private_form_gains_next_to_nothing() -> None:
    rates, won = counts(4.0, 4.0, 14, 10_000, 5)
    printed = gain(BernoulliRates(message=RandomisedResponse(1.0), moments="as-published", seed=0), rates, won, 14)
    split = gain(BernoulliRates(message=RandomisedResponse(1.0), seed=0), rates, won, 14)
    assert printed < 0.05 < 0.3 < split


def test_intervals_lie_in_the_unit_and_cover() -> None:
    rates, won = counts(2.0, 5.0, 12, 40_000, 6)
    low, high = BernoulliRates().fit(won, trials=12).intervals(0.9)
    assert low.min() >= 0
    assert high.max() <= 1
    assert np.mean((low <= rates) & (rates <= high)) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("won", [[0, 0, 0, 0], [5, 5, 5, 5], [2, 2, 2, 2]])
def test_clients_that_are_all_alike_give_numbers(won: list[int]) -> None:
    found = BernoulliRates().fit(won, trials=5)
    assert found.estimates_ == pytest.approx(np.array(won) / 5)
    low, high = found.intervals()
    assert np.isfinite(np.concatenate([low, high, found.expected_mse_, found.pull_])).all()
    assert np.all(low < high)


def test_impossible_counts_are_refused_with_the_client_named() -> None:
    for won, trials, word in (
        ([1, -1, 2], 3, "at least 0"),
        ([1, 4, 2], 3, "more successes"),
        ([1, np.nan, 2], 3, "client 1"),
        ([1, 0.5, 2], 3, "whole"),
        ([0, 0, 0], [1, 0, 1], "at least 1 trial"),
        ([1, 1, 0], 1, "one trial"),
    ):
        with pytest.raises(TacitError, match=word):
            BernoulliRates().fit(won, trials=trials)


def test_an_impossible_prior_is_refused() -> None:
    with pytest.raises(TacitError, match="impossible"):
        BernoulliRates(prior_mean=0.1, prior_variance=0.2).fit([1, 2], trials=3)
