"""Linear regressions: the closed form, its errors, EM, Algorithm 2, messages, and bad input."""

import math
import pickle
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tacit.estimation.messages import LocalGaussian
from tacit.estimation.regression import LinearRegressions
from tacit.estimation.regression_learn import KnownPrior, LinearModel, floor_under, learn_em
from tacit.estimation.regression_linear import Prior, decompose, posterior, read_rows


class World:
    """Clients of the paper's model; sizes may differ."""

    def __init__(
        self,
        sizes: Any,
        d: int,
        prior: float = 0.3,
        noise: float = 0.5,
        seed: int = 0,
        power: float = 1.0,
        mu: float = 1.0,
    ) -> None:
        draw = np.random.default_rng(seed)
        self.sizes = np.asarray(sizes)
        self.mean = mu * draw.normal(size=d)
        self.truth = self.mean + math.sqrt(prior) * draw.normal(size=(len(self.sizes), d))
        self.groups = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.x = math.sqrt(power) * draw.normal(size=(len(self.groups), d))
        clean = np.einsum("nd,nd->n", self.x, self.truth[self.groups])
        self.y = clean + math.sqrt(noise) * draw.normal(size=len(clean))
        self.known: dict[str, Any] = {"mean": self.mean, "prior_variance": prior, "noise_variance": noise}

    def fit(self, **parameters: Any) -> LinearRegressions:
        return LinearRegressions(**parameters).fit(self.x, self.y, groups=self.groups)

    def error(self, found: LinearRegressions) -> float:
        return float(np.square(found.estimates_ - self.truth).sum(1).mean())


MIXED = np.random.default_rng(0).integers(1, 12, 400)


def paper(d: int, m: int = 10_000) -> World:
    return World(np.full(m, 10), d, prior=0.01, noise=0.05, seed=d, power=0.05, mu=0.1)


def test_the_estimate_is_equation_15_and_its_error_equation_16() -> None:
    world = World(MIXED, 5)
    found = world.fit(**world.known)
    for i in (0, 7, 399):
        x, y = world.x[world.groups == i], world.y[world.groups == i]
        inverse = np.linalg.inv(np.eye(5) / 0.3 + x.T @ x / 0.5)
        assert found.estimates_[i] == pytest.approx(inverse @ (x.T @ y / 0.5 + world.mean / 0.3))
        assert found.expected_mse_[i] == pytest.approx(np.trace(inverse))
        assert found.coefficient_variance_[i] == pytest.approx(np.diag(inverse))


@pytest.mark.parametrize("d", [1, 4, 9])
@pytest.mark.parametrize("prior", [0.01, 0.3, 5.0])
def test_expected_errors_of_all_three_are_the_measured_ones(d: int, prior: float) -> None:
    ratios: list[list[np.ndarray]] = [[], [], []]
    for seed in range(5):
        world = World(np.tile([2, 5, 14], 4000), d, prior=prior, seed=100 * d + seed)
        found = world.fit(**world.known)
        estimates = (found.estimates_, found.global_, found.local_)
        expected = (found.expected_mse_, found.global_mse_, found.local_mse_)
        for into, values, mse in zip(ratios, estimates, expected, strict=True):
            into.append(np.square(values - world.truth).sum(1) / mse)
    for ratio in map(np.concatenate, ratios):
        assert abs(ratio.mean() - 1) <= 3 * ratio.std() / math.sqrt(len(ratio))


def test_a_mean_that_is_learned_costs_what_is_said() -> None:
    """Six clients only: what is not known of the mean is a large part of the error."""
    expected, measured, everyone, everyone_measured = [], [], [], []
    for seed in range(200):
        world = World([3, 3, 4, 5, 6, 8], 3, seed=seed)
        found = world.fit(prior_variance=0.3, noise_variance=0.5, tolerance=1e-7)
        expected.append(found.expected_mse_.mean())
        measured.append(world.error(found))
        everyone.append(found.global_mse_.mean())
        everyone_measured.append(np.square(found.global_ - world.truth).sum(1).mean())
        if seed == 0:
            total = found.coefficient_variance_.sum(1)
            assert total == pytest.approx(found.expected_mse_)
    for theory, seen in ((expected, measured), (everyone, everyone_measured)):
        excess = np.array(seen) - np.array(theory)
        assert abs(excess.mean()) <= 3 * excess.std() / math.sqrt(len(excess))


@pytest.mark.parametrize(("d", "limit"), [(50, 6.3), (100, 4.9)])
def test_the_papers_setting_reaches_the_bayes_limit(d: int, limit: float) -> None:
    world = paper(d)
    known = world.fit(**world.known)
    assert world.error(known) == pytest.approx(known.expected_mse_.mean(), rel=0.01)
    start = time.perf_counter()
    learned = world.fit()
    assert time.perf_counter() - start < 30
    assert world.error(learned) == pytest.approx(world.error(known), rel=0.01)
    everyone = float(np.square(world.mean - world.truth).sum(1).mean())
    for found in (known, learned):
        assert 100 * (1 - world.error(found) / everyone) == pytest.approx(limit, abs=0.5)
    assert learned.compare(world.truth).gain > 0.4


def test_the_likelihood_never_falls_and_is_that_of_the_targets() -> None:
    for seed in range(5):
        world = World(MIXED[:60], 4, seed=seed, prior=10.0 ** (seed - 3))
        found = world.fit()
        assert np.all(np.diff(found.log_likelihoods_) >= -1e-9 * abs(found.log_likelihoods_[0]))
    world = World(MIXED[:60], 4)
    data = decompose(read_rows(world.x, world.y, world.groups, None))
    prior = Prior(np.ones(1), world.mean[None], np.array([0.3]), 0.5)
    x, y = world.x[world.groups == 0], world.y[world.groups == 0]
    covariance = 0.3 * x @ x.T + 0.5 * np.eye(len(x))
    left = y - x @ world.mean
    by_hand = -0.5 * (left @ np.linalg.solve(covariance, left) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert posterior(data, prior).log_likelihood[0] == pytest.approx(by_hand)


def test_em_ends_where_no_other_prior_is_likelier() -> None:
    world = World(MIXED, 3, seed=3)
    data = decompose(read_rows(world.x, world.y, world.groups, None))
    start = LinearModel(data).start(KnownPrior())
    end = learn_em(LinearModel(data), KnownPrior(), start, floor_under(start, 1e-10), 1e-12, 2000)
    found = world.fit(tolerance=1e-12)
    best = Prior(np.ones(1), found.prior_mean_[None], np.array([found.prior_variance_]), found.noise_variance_)
    top = posterior(data, best).log_likelihood.sum()
    assert top == pytest.approx(end.heights[-1])
    for factor in (0.97, 1.03):
        others = (
            best._replace(variances=best.variances * factor),
            best._replace(noise=best.noise * factor),
            best._replace(means=best.means + 0.03 * (factor - 1)),
        )
        assert all(posterior(data, other).log_likelihood.sum() < top for other in others)


def test_algorithm_2_with_a_floor_agrees_with_em_where_clients_know_enough() -> None:
    world = World(np.full(300, 60), 4, seed=4)
    em, gradient = world.fit(), world.fit(solver="gradient", steps=300)
    assert gradient.prior_variance_ == pytest.approx(em.prior_variance_, rel=0.1)
    assert gradient.noise_variance_ == pytest.approx(em.noise_variance_, rel=0.1)
    assert gradient.estimates_ == pytest.approx(em.estimates_, abs=0.05)


def test_algorithm_2_falls_to_its_floor_where_clients_know_little_and_em_does_not() -> None:
    world = World(np.full(1000, 3), 8, seed=5)
    gradient = world.fit(solver="gradient", steps=300)
    assert gradient.prior_variance_ == gradient.variance_floor_[0] > 0
    assert world.fit().prior_variance_ == pytest.approx(0.3, rel=0.2)
    assert np.isfinite(gradient.estimates_).all()


def test_algorithm_2_as_printed_takes_the_same_way_in_small_steps() -> None:
    world = World(np.full(50, 20), 2, seed=6)
    printed = world.fit(solver="gradient", scaled=False, step=2e-3, steps=3000)
    scaled = world.fit(solver="gradient", steps=400)
    assert printed.estimates_ == pytest.approx(scaled.estimates_, abs=0.02)
    assert printed.prior_variance_ == pytest.approx(scaled.prior_variance_, rel=0.05)


def test_intervals_cover() -> None:
    world = World(np.tile([2, 6, 20], 2000), 5, seed=7)
    for found in (world.fit(**world.known), world.fit()):
        low, high = found.intervals(0.9)
        assert np.mean((low <= world.truth) & (world.truth <= high)) == pytest.approx(0.9, abs=0.01)


def test_lists_names_and_offsets_are_the_same_clients() -> None:
    world = World(MIXED[:40], 3)
    starts = np.concatenate([[0], np.cumsum(world.sizes)])
    parts = [slice(a, b) for a, b in pairwise(starts)]
    shuffled = np.random.default_rng(1).permutation(len(world.y))
    named = np.array([f"c{i:03}" for i in world.groups])
    first = world.fit()
    for other in (
        LinearRegressions().fit([world.x[p] for p in parts], [world.y[p] for p in parts]),
        LinearRegressions().fit(world.x, world.y, offsets=starts),
        LinearRegressions().fit(world.x[shuffled], world.y[shuffled], groups=named[shuffled]),
    ):
        assert other.estimates_ == pytest.approx(first.estimates_)
    assert other.predict(world.x, named) == pytest.approx(first.predict(world.x, world.groups))
    stranger = first.predict(world.x[:2], np.array([999, 0]))
    assert stranger == pytest.approx([world.x[0] @ first.prior_mean_, world.x[1] @ first.estimates_[0]])


def test_parameters_are_kept_and_a_fit_survives_pickling() -> None:
    world = World(MIXED[:40], 3)
    make = LinearRegressions(message=LocalGaussian(2.0, 1e-5), seed=1, guess=(0.5, 0.5))
    copy: Any = clone(make)
    assert repr(copy.get_params()) == repr(make.get_params())
    found = copy.fit(world.x, world.y, groups=world.groups)
    assert np.array_equal(pickle.loads(pickle.dumps(found)).estimates_, found.estimates_)
    again: Any = clone(make)
    assert np.array_equal(again.fit(world.x, world.y, groups=world.groups).estimates_, found.estimates_)


def test_cost_is_linear_in_clients() -> None:
    def seconds(m: int) -> float:
        world, start = paper(20, m), time.perf_counter()
        world.fit()
        return time.perf_counter() - start

    seconds(1000)
    assert min(seconds(6000) for _ in range(2)) < 4 * 4 * max(min(seconds(1500) for _ in range(2)), 0.02)
