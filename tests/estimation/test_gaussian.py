"""Gaussian means: Theorems 1 and 2, unequal sizes, and no harm done."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from papers.generative.bounds import gaussian_mse, van_trees_gaussian
from tacit.errors import TacitError
from tacit.estimation import GaussianMeans, suggest_radius
from tacit.estimation.base import normal_intervals
from tacit.estimation.collect import SURE, Learned, Model, Moment, solve
from tacit.estimation.messages import Central, LocalGaussian, Message, Quantized, RandomisedResponse

Made = tuple[np.ndarray, np.ndarray]


def clients(m: int, d: int, t: float, noise: float, sizes: np.ndarray | int, seed: int, mean: float = 0.3) -> Made:
    draw = np.random.default_rng(seed)
    truth = mean + math.sqrt(t) * draw.normal(size=(m, d))
    return truth, truth + np.sqrt(noise / np.broadcast_to(sizes, m))[:, None] * draw.normal(size=(m, d))


def measured(make: GaussianMeans, m: int, d: int, t: float, noise: float, sizes: np.ndarray | int, reps: int) -> Made:
    """Squared error of each client, over repetitions: mean and standard error."""
    errors = []
    for seed in range(reps):
        truth, x = clients(m, d, t, noise, sizes, seed)
        found = make.set_params(seed=seed).fit(x, sizes=sizes)
        errors.append(np.square(found.estimates_ - truth).sum(1))
    return np.mean(errors, 0), np.std(errors, 0, ddof=1) / math.sqrt(reps)


@pytest.mark.parametrize("m", [2, 5, 40])
@pytest.mark.parametrize(("t", "n"), [(0.0, 3), (0.01, 15), (1.0, 4), (50.0, 2)])
def test_theorem_1_is_an_equality(m: int, t: float, n: int) -> None:
    d, noise, reps = 40, 0.25, 150
    make = GaussianMeans(prior_variance=t, noise_variance=noise)
    errors = [e.mean() for e in _rep_errors(make, m, d, t, noise, n, reps)]
    expected = gaussian_mse(t, noise, n, m, d)
    assert abs(np.mean(errors) - expected) <= 3 * np.std(errors, ddof=1) / math.sqrt(reps)
    assert make.expected_mse_.mean() == pytest.approx(expected)


def _rep_errors(make: GaussianMeans, m: int, d: int, t: float, noise: float, n: int, reps: int) -> list[np.ndarray]:
    found = []
    for seed in range(reps):
        truth, x = clients(m, d, t, noise, n, seed)
        found.append(np.square(make.set_params(seed=seed).fit(x, sizes=n).estimates_ - truth).sum(1))
    return found


@pytest.mark.parametrize("m", [3, 30])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_theorem_2_is_an_equality_for_gaussian_messages(m: int, epsilon: float) -> None:
    d, t, noise, n, reps = 20, 0.04, 0.25, 5, 200
    message = LocalGaussian(epsilon, 1e-5)
    make = GaussianMeans(prior_variance=t, noise_variance=noise, message=message, radius=10.0)
    errors = [e.mean() for e in _rep_errors(make, m, d, t, noise, n, reps)]
    added = (message.multiplier * 20.0) ** 2
    expected = gaussian_mse(t, noise, n, m, d, added)
    assert abs(np.mean(errors) - expected) <= 3 * np.std(errors, ddof=1) / math.sqrt(reps)
    assert make.expected_mse_.mean() == pytest.approx(expected)


@pytest.mark.parametrize("message", [Quantized(1), Quantized(3), RandomisedResponse(1.0)], ids=repr)
def test_theorem_2_bounds_messages_whose_variance_depends_on_the_value(message: Message) -> None:
    t, noise, n, m, reps = 0.04, 0.25, 5, 50, 100
    make = GaussianMeans(prior_variance=t, noise_variance=noise, message=message, radius=2.0)
    errors = [e.mean() for e in _rep_errors(make, m, 1, t, noise, n, reps)]
    assert np.mean(errors) - 3 * np.std(errors) / math.sqrt(reps) <= make.expected_mse_.mean()
    assert make.expected_mse_.mean() < noise / n


def test_central_privacy_costs_what_is_stated() -> None:
    t, noise, n, m, reps = 0.04, 0.25, 5, 60, 300
    make = GaussianMeans(prior_variance=t, noise_variance=noise, message=Central(1.0, 1e-4), radius=6.0)
    errors = [e.mean() for e in _rep_errors(make, m, 10, t, noise, n, reps)]
    assert abs(np.mean(errors) - make.expected_mse_.mean()) <= 3 * np.std(errors, ddof=1) / math.sqrt(reps)


def test_the_expected_error_of_unequal_clients_is_each_ones_own() -> None:
    sizes = np.array([1, 1, 2, 4, 8, 50])
    make = GaussianMeans(prior_variance=0.1, noise_variance=0.5)
    error, se = measured(make, 6, 30, 0.1, 0.5, sizes, 300)
    assert np.all(np.abs(error - make.expected_mse_) <= 3 * se)
    assert make.expected_mse_ == pytest.approx(van_trees_gaussian(0.1, 0.5, sizes, 30))


def test_equal_sizes_given_one_by_one_are_the_papers_formula() -> None:
    _, x = clients(200, 3, 0.1, 0.5, 7, 0)
    scalar = GaussianMeans(prior_variance=0.1, noise_variance=0.5).fit(x, sizes=7)
    listed = GaussianMeans(prior_variance=0.1, noise_variance=0.5).fit(x, sizes=[7] * 200)
    a = 0.1 / (0.1 + 0.5 / 7)
    assert scalar.estimates_ == pytest.approx(a * x + (1 - a) * x.mean(0))
    assert np.array_equal(scalar.estimates_, listed.estimates_)


@pytest.mark.parametrize("n", [1, 4, 100])
@pytest.mark.parametrize("t", [0.001, 0.1, 10.0])
def test_the_estimator_touches_van_trees_bound(t: float, n: int) -> None:
    assert gaussian_mse(t, 0.5, n, 30, 4) == pytest.approx(van_trees_gaussian(t, 0.5, [n] * 30, 4)[0])


@pytest.mark.parametrize("unequal", [False, True])
def test_a_prior_that_is_learned_costs_almost_nothing_with_many_clients(unequal: bool) -> None:
    sizes = np.random.default_rng(0).integers(1, 60, 4000) if unequal else 10
    truth, x = clients(4000, 5, 0.02, 0.3, sizes, 1)
    known = GaussianMeans(prior_variance=0.02, noise_variance=0.3).fit(x, sizes=sizes).compare(truth)
    learned = GaussianMeans(noise_variance=0.3).fit(x, sizes=sizes)
    best = known["personal"].measured_mse
    assert best is not None
    assert learned.compare(truth)["personal"].measured_mse == pytest.approx(best, rel=0.002)
    assert learned.prior_variance_ == pytest.approx(0.02, rel=0.06)


def test_samples_of_named_clients_teach_the_noise_as_well() -> None:
    draw = np.random.default_rng(2)
    truth = draw.normal(5.0, 0.2, 3000)
    groups = np.repeat(np.arange(3000), draw.integers(1, 9, 3000))
    x = truth[groups] + draw.normal(0, 0.5, len(groups))
    found = GaussianMeans().fit(x, groups=groups)
    assert found.noise_variance_ == pytest.approx(0.25, rel=0.05)
    assert found.prior_variance_ == pytest.approx(0.04, rel=0.15)
    assert found.compare(truth)["personal"].measured_gain == pytest.approx(found.compare().gain, abs=0.03)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("m", [2, 3, 4, 6, 12])
def test_few_clients_are_never_worse_off_than_alone(m: int, ratio: float) -> None:
    """James and Stein: with the prior learned, the mean error is at most the local one; 2 and 3 clients stay local."""
    reps = 400
    excess = []
    for seed in range(reps):
        truth, x = clients(m, 1, ratio, 1.0, 1, seed)
        found = GaussianMeans(noise_variance=1.0).fit(x)
        excess.append(np.mean(np.square(found.estimates_ - truth)) - np.mean(np.square(x - truth)))
    assert np.mean(excess) <= 3 * np.std(excess) / math.sqrt(reps) + 1e-12
    if m <= 3:
        assert np.allclose(excess, 0)


def true_gain(found: GaussianMeans, t: float, own: float, mean: float = 0.3) -> float:
    """Expected over clients, given what was learned: pulled by b toward c, (1 - b)^2 v + b^2 (t + (c - mean)^2)."""
    pull, away = found.pull_, np.square(found.centre_[0] - mean)
    return 1 - float(np.mean(np.square(1 - pull) * own + np.square(pull) * (t + away))) / own


@pytest.mark.parametrize("m", [200, 2000])
@pytest.mark.parametrize(
    "message",
    [LocalGaussian(1.0, 1e-5), RandomisedResponse(1.0), Quantized(1), Quantized(4), Central(1.0, 1e-5)],
    ids=repr,
)
def test_a_prior_learned_from_constrained_messages_does_no_harm(message: Message, m: int) -> None:
    """Harm needs a prior variance above its upper limit: less than one draw in 700; and then it is within 1%."""
    gains, own = [], 0.25 / 10
    for t in (0.0, 0.001, 0.02, 0.2, 1.0):
        radius = suggest_radius(0.5, t, 0.25, 10, m)
        for seed in range(30):
            _, x = clients(m, 1, t, 0.25, 10, seed)
            found = GaussianMeans(noise_variance=0.25, message=message, radius=radius, seed=seed).fit(x, sizes=10)
            gains.append(true_gain(found, t, own))
    rare = norm.sf(SURE)
    assert np.mean(np.array(gains) < 0) <= rare + 3 * math.sqrt(rare / len(gains))
    assert min(gains) > -0.01


def test_a_low_draw_of_the_variance_cannot_pull_farther_than_its_upper_limit_allows() -> None:
    """Of 0 counted answers, one each standing for 1: Wilson's limit is 9 steps, and no pull is above 2 v / (9 + v)."""
    found = solve(Moment(0.5, 1.0, 1e-150, 1.0), Model(0.5))
    assert found.most == pytest.approx(SURE**2)
    learned = Learned(np.zeros(1), found.taken, found.most, 0.5, 0.0, 0.0, 0.0, 0.0, False, True)
    pull = learned.pull(np.ones(1), np.zeros(1))
    assert pull == pytest.approx(2 * 0.5 / (9 + 0.5))
    for t in (0.0, 3.0, 9.0):
        at = replace(learned, prior_variance=t)
        assert at.error(np.ones(1), np.zeros(1), pull) <= at.error(np.ones(1), np.zeros(1), 0.0) + 1e-12


def test_intervals_cover_as_often_as_they_say() -> None:
    truth, x = clients(20_000, 2, 0.05, 0.3, 5, 3)
    found = GaussianMeans(noise_variance=0.3).fit(x, sizes=5)
    for level in (0.5, 0.95):
        low, high = found.intervals(level)
        assert np.mean((low <= truth) & (truth <= high)) == pytest.approx(level, abs=0.01)


def test_when_clients_differ_widely_the_comparison_says_so() -> None:
    _, x = clients(500, 1, 1000.0, 1.0, 1, 4)
    told = GaussianMeans(noise_variance=1.0).fit(x).compare()
    assert not told.helps
    assert "does not help" in told.verdict
    assert "local" in str(told)
    assert set(told.to_frame().index) == {"local", "global", "personal"}


def test_new_clients_are_answered_from_what_was_learned() -> None:
    _, x = clients(500, 2, 0.1, 0.5, 5, 5)
    found = GaussianMeans(noise_variance=0.5).fit(x, sizes=5)
    assert found.predict(found.centre_[None], sizes=5) == pytest.approx(found.centre_[None])
    assert found.predict(x[:3], sizes=5) == pytest.approx(found.estimates_[:3], abs=0.01)


def test_as_published_moves_less_than_debiased() -> None:
    _, x = clients(2000, 1, 0.01, 0.25, 15, 6)
    debiased, printed = (
        GaussianMeans(noise_variance=0.25, moments=how).fit(x, sizes=15) for how in ("debiased", "as-published")
    )
    assert printed.prior_variance_ == pytest.approx(debiased.prior_variance_ + 0.25 / 15, rel=0.01)
    assert printed.pull_.mean() < debiased.pull_.mean()


def test_a_known_prior_sends_nothing() -> None:
    found = GaussianMeans(prior_mean=0.0, prior_variance=1.0, noise_variance=1.0).fit([[2.0]])
    assert found.estimates_ == pytest.approx(np.array([[1.0]]))
    assert "nothing is sent" in found.privacy_


def test_a_suggested_radius_holds_every_client() -> None:
    for d in (1, 10):
        radius = suggest_radius(0.3 * math.sqrt(d), 0.1, 0.5, 5, 20_000, d)
        _, x = clients(20_000, d, 0.1, 0.5, 5, 7)
        assert np.linalg.norm(x, axis=1).max() < radius


def test_delta_that_gives_a_client_away_is_refused() -> None:
    with pytest.raises(TacitError, match="delta"):
        GaussianMeans(prior_variance=1.0, noise_variance=1.0, message=LocalGaussian(1, 0.1), radius=1.0).fit(
            np.zeros((20, 1))
        )


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_intervals_of_few_clients_know_how_little_is_known_of_their_spread(kind: str) -> None:
    """60 clients that differ by less than their own errors: with the variance plugged in, 86% are covered."""
    inside, plugged = [], []
    for at in range(120):
        draw = np.random.default_rng(at)
        sizes, shape = draw.integers(4, 61, 60), draw.normal(size=60) if kind == "normal" else draw.exponential(size=60)
        truth = 0.7 * shape
        found = GaussianMeans(noise_variance=64.0).fit(draw.normal(truth, 8 / np.sqrt(sizes)), sizes=sizes)
        low, high = found.intervals()
        inside.append(np.mean((low <= truth) & (truth <= high)))
        low, high = normal_intervals(found.estimates_, found.expected_mse_, 0.95)
        plugged.append(np.mean((low <= truth) & (truth <= high)))
    assert 0.92 < np.mean(inside) < 0.98
    assert np.mean(plugged) < 0.9


def test_with_many_clients_the_spread_is_known_and_intervals_are_the_theorems() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=50_000) + draw.normal(size=50_000)
    found = GaussianMeans(noise_variance=1.0).fit(x)
    assert found.interval_mse_ == pytest.approx(found.expected_mse_, rel=2e-3)
    low, high = found.prior_variance_interval_
    assert low < 1 < high < 1.1
    assert low > 0.9
