"""A prior of any shape: Bayes' own estimate where it is right, and a count that is as private as it says."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.estimation import BernoulliRates, CountResponse, NonparametricRates
from tacit.estimation.messages import Source, source
from tacit.estimation.nonparametric import RatePrior, likeliest_prior, log_binomial
from tacit.privacy.accounting.accountant import answer

Array = NDArray[np.float64]
TRIALS = 14


def three_spikes(clients: int, seed: int = 0) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    rates = draw.choice([0.25, 0.5, 0.75], clients)
    return rates, draw.binomial(TRIALS, rates).astype(float)


@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_where_rates_cluster_it_passes_the_best_linear_estimate(epsilon: float | None) -> None:
    rates, won = three_spikes(10_000)
    message = None if epsilon is None else CountResponse(epsilon)
    found = NonparametricRates(message=message, seed=1).fit(won, trials=TRIALS)
    linear = BernoulliRates().fit(won, trials=TRIALS).compare(rates)["personal"].measured_gain
    gain = found.compare(rates)["personal"].measured_gain
    assert gain is not None
    assert linear is not None
    assert gain > 0.30 > linear
    assert found.compare(rates)["personal"].expected_mse == pytest.approx(
        float(np.square(found.estimates_ - rates).mean()), rel=0.05
    )


def test_the_posterior_of_a_known_prior_is_bayes() -> None:
    prior = RatePrior(np.array([0.25, 0.75]), np.array([0.5, 0.5]))
    odds = (0.75 / 0.25) ** (2 * 10.0 - TRIALS)
    assert prior.posterior(np.array([10.0]), np.array([14.0]))[0, 1] == pytest.approx(odds / (1 + odds))
    whole = np.exp(log_binomial(np.arange(15.0), np.full(15, 14.0), np.array([0.0, 0.3, 1.0])))
    assert whole.sum(0) == pytest.approx(1)


def test_the_prior_that_is_found_is_the_likeliest() -> None:
    """At the optimum no direction has a positive derivative, and shares that are not 0 have derivative 0."""
    _, won = three_spikes(3_000)
    prior = likeliest_prior(won, np.full(len(won), float(TRIALS)), None, 41)
    counts = np.bincount(won.astype(int), minlength=15) / len(won)
    chance = np.exp(log_binomial(np.arange(15.0), np.full(15, 14.0), prior.rates))
    slope = (counts / (chance @ prior.shares)) @ chance - 1
    assert slope.max() < 1e-3
    assert abs(slope @ prior.shares) < 1e-9


def test_unequal_trials_and_new_clients_are_answered() -> None:
    draw = np.random.default_rng(0)
    trials = draw.integers(1, 30, 500)
    won = draw.binomial(trials, draw.beta(4, 4, 500))
    found = NonparametricRates(message=CountResponse(2.0), seed=0).fit(won, trials=trials)
    assert np.allclose(found.predict(won, trials=trials), found.estimates_)
    low, high = found.intervals(0.9)
    assert (low <= found.estimates_ + 0.01).all()
    assert (high >= found.estimates_ - 0.01).all()


# what a client's message may tell of its data


def worst_ratio(message: CountResponse, trials: int, draws: int = 400_000) -> tuple[float, float]:
    """Log of the largest ratio of chances over answers and pairs of counts: as stated, and as drawn."""
    stated = message.channel(trials)
    sent = [
        message.send(np.full(draws, float(count)), np.full(draws, float(trials)), source(count, "attack"))
        for count in (0, trials // 2, trials)
    ]
    drawn = np.array([np.bincount(each.astype(int), minlength=trials + 1) / draws for each in sent])
    assert drawn.shape[1] == trials + 1
    worst = max(float(np.log(drawn[:, at].max() / drawn[:, at].min())) for at in range(trials + 1))
    return float(np.log((stated.max(1) / stated.min(1)).max())), worst


@pytest.mark.parametrize(("epsilon", "trials"), [(1.0, 1), (1.0, 14), (3.0, 5)])
def test_no_answer_is_more_than_e_to_the_epsilon_times_as_likely(epsilon: float, trials: int) -> None:
    stated, drawn = worst_ratio(CountResponse(epsilon), trials)
    assert stated == pytest.approx(epsilon)
    assert drawn == pytest.approx(epsilon, abs=0.06)


@dataclass(frozen=True)
class KeepsTooOften(CountResponse):
    """The planted bug: the chance to tell the truth as for two answers, whatever the number of trials."""

    def send(self, counts: Array, trials: Array, source: Source) -> Array:
        kept = source.random(len(counts)) < 1 / (1 + math.exp(-self.epsilon))
        other = np.floor(source.random(len(counts)) * trials)
        return np.where(kept, counts, other + (other >= counts))


def test_the_attack_finds_a_response_that_keeps_the_truth_too_often() -> None:
    assert worst_ratio(KeepsTooOften(1.0), 14)[1] > 2


def test_the_event_that_is_charged_costs_the_stated_epsilon() -> None:
    for epsilon in (0.5, 2.0):
        assert answer({CountResponse(epsilon).event(): 1}, 1e-12, "replace-one").epsilon == pytest.approx(
            epsilon, rel=1e-3
        )


def test_bad_calls_are_one_line() -> None:
    for call in (
        lambda: NonparametricRates().fit([1, 2]),
        lambda: NonparametricRates(message=3.0).fit([1, 2], trials=4),  # type: ignore[arg-type]
        lambda: CountResponse(0.0),
        lambda: NonparametricRates(grid=1).fit([1, 2], trials=4),
        lambda: NonparametricRates().fit([5], trials=9),
    ):
        with pytest.raises(TacitError):
            call()
