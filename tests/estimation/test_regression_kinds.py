"""Logistic regressions, and priors of several components: recovery, comparison, and what cannot be told."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone

from tacit.errors import TacitError
from tacit.estimation.clustering import cluster, shares_at, toward_prior
from tacit.estimation.messages import Central, LocalGaussian
from tacit.estimation.regression import LogisticRegressions, MixturePriorRegressions
from tacit.estimation.regression_learn import model_of
from tacit.estimation.regression_linear import Prior, read_rows
from tacit.estimation.regression_logistic import beliefs, prepare
from tests.estimation.test_regression import World

DRAW = np.random.default_rng(0)
SIZES = DRAW.integers(3, 16, 300)


class Kinds:
    """Two kinds of clients, one of them rarer."""

    def __init__(self, m: int = 400, d: int = 5, apart: float = 1.0, spread: float = 0.3, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        sizes = draw.integers(3, 16, m)
        self.groups = np.repeat(np.arange(m), sizes)
        self.kind = (draw.random(m) < 0.3).astype(int)
        self.centres = apart * np.array([np.ones(d), -np.ones(d)])
        self.truth = self.centres[self.kind] + spread * draw.normal(size=(m, d))
        self.x = draw.normal(size=(len(self.groups), d))
        scores = np.einsum("nd,nd->n", self.x, self.truth[self.groups])
        self.y = {
            "linear": scores + draw.normal(size=len(scores)),
            "logistic": (draw.random(len(scores)) < expit(scores)).astype(float),
        }

    def fit(self, task: str, **parameters: Any) -> MixturePriorRegressions:
        return MixturePriorRegressions(task=task, **parameters).fit(self.x, self.y[task], groups=self.groups)

    def error(self, values: np.ndarray) -> float:
        return float(np.square(values - self.truth).sum(1).mean())


def classes(seed: int = 0, prior: float = 0.5) -> tuple[World, np.ndarray]:
    world = World(SIZES, 4, prior=prior, seed=seed)
    chance = expit(np.einsum("nd,nd->n", world.x, world.truth[world.groups]))
    return world, (np.random.default_rng(seed).random(len(chance)) < chance).astype(float)


def surely_positive(values: np.ndarray) -> bool:
    """The mean is above 0 by more than three standard errors."""
    return float(values.mean()) > 3 * values.std(ddof=1) / math.sqrt(len(values))


def by_chance(values: np.ndarray) -> bool:
    """The mean is 0 within three standard errors."""
    return not surely_positive(values) and not surely_positive(-values)


def test_under_a_known_prior_the_expected_error_is_the_measured_one() -> None:
    excess, inside = [], []
    for seed in range(4):
        world, y = classes(seed)
        found = LogisticRegressions(mean=world.mean, prior_variance=0.5).fit(world.x, y, groups=world.groups)
        excess.append(np.square(found.estimates_ - world.truth).sum(1) - found.expected_mse_)
        low, high = found.intervals(0.9)
        inside.append(((low <= world.truth) & (world.truth <= high)).mean(axis=1) - 0.9)
    assert by_chance(np.concatenate(excess))
    assert by_chance(np.concatenate(inside))


def test_logistic_regressions_beat_local_and_global_at_the_expected_error() -> None:
    """The learned variance is off by a fifth or so in each world of 300 clients, in either direction."""
    told, cost = [], []
    for seed in range(8):
        world, y = classes(seed)
        found = LogisticRegressions().fit(world.x, y, groups=world.groups)
        known = LogisticRegressions(mean=world.mean, prior_variance=0.5).fit(world.x, y, groups=world.groups)
        estimates = (found.estimates_, known.estimates_, found.local_, found.global_)
        personal, best, local, everyone = (np.square(each - world.truth).sum(1) for each in estimates)
        assert surely_positive(local - personal)
        assert surely_positive(everyone - personal)
        told.append(found.expected_mse_.mean() / personal.mean() - 1)
        cost.append(personal.mean() / best.mean() - 1)
    assert by_chance(np.array(told))
    assert np.mean(cost) < 0.05


def test_new_rows_are_told_apart_better_by_personal_coefficients() -> None:
    world, y = classes(1, prior=1.0)
    found = LogisticRegressions().fit(world.x, y, groups=world.groups)
    x = np.random.default_rng(5).normal(size=(5000, 4))
    groups = np.random.default_rng(6).integers(0, len(SIZES), 5000)
    truth = expit(np.einsum("nd,nd->n", x, world.truth[groups]))
    scores = {
        "personal": found.predict_proba(x, groups),
        "local": expit(np.einsum("nd,nd->n", x, found.local_[groups])),
        "global": expit(x @ found.global_[0]),
    }
    loss = {name: -np.mean(truth * np.log(p) + (1 - truth) * np.log1p(-p)) for name, p in scores.items()}
    assert loss["personal"] < min(loss["local"], loss["global"])
    assert np.array_equal(found.predict(x, groups), (scores["personal"] >= 0.5) * 1.0)


def test_a_belief_is_the_posterior_integrated_numerically() -> None:
    """One coefficient: mean, variance and evidence against a fine grid."""
    world = World([3, 8, 20], 1, seed=2)
    y = (world.y > 0) * 1.0
    found = beliefs(prepare(read_rows(world.x, y, world.groups, None)), np.array([0.4]), 0.7)
    grid = np.linspace(-8, 8, 20_001)
    for i in range(3):
        x, sign = world.x[world.groups == i, 0], 2 * y[world.groups == i] - 1
        log = -np.logaddexp(0, -sign * np.outer(grid, x)).sum(1) - (grid - 0.4) ** 2 / 1.4
        log -= 0.5 * math.log(2 * math.pi * 0.7)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        evidence = math.log(np.exp(log).sum() * (grid[1] - grid[0]))
        mean = weight @ grid
        basis = math.copysign(1.0, found.shift[i]) * abs(found.shift[i])
        assert abs(abs(basis) - abs(mean - 0.4)) < 0.02
        assert found.variance[i] == pytest.approx(weight @ (grid - mean) ** 2, rel=0.06)
        assert evidence - 0.01 < found.evidence[i] <= evidence + 1e-6


def test_with_one_node_a_belief_is_scikit_learns_penalised_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    world, y = classes(3)
    make = LogisticRegressions(mean=world.mean, prior_variance=0.5, local_variance=2.0)
    found = make.fit(world.x, y, groups=world.groups)
    for i in np.flatnonzero(SIZES > 12)[:5]:
        rows = world.groups == i
        if 0 < y[rows].mean() < 1:
            other = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(world.x[rows], y[rows])
            assert found.local_[i] == pytest.approx(other.coef_[0], abs=1e-3)


def test_algorithm_3_pulls_toward_the_mean() -> None:
    """With a known prior its end is the peak of the posterior; the printed sign would push away from the mean."""
    world, y = classes(4)
    given: dict[str, Any] = {"mean": world.mean, "step": 1.0, "steps": 2000, "solver": "gradient"}
    found = LogisticRegressions(**given, floor=1.0, tolerance=1e-6).fit(world.x, y, groups=world.groups)
    data = prepare(read_rows(world.x, y, world.groups, None))
    peak = beliefs(data, world.mean, found.prior_variance_, nodes=1)
    ends = np.square(found.estimates_ - world.mean).sum(1)
    peaks = np.add.reduceat(peak.shift**2, data.directions.starts[:-1])
    assert ends == pytest.approx(peaks, abs=1e-3)
    assert found.prior_variance_ == found.variance_floor_


def test_the_bound_of_logistic_em_never_falls() -> None:
    world, y = classes(5)
    heights = LogisticRegressions().fit(world.x, y, groups=world.groups).log_likelihoods_
    assert np.all(np.diff(heights) > -1e-3)
    mixture = Kinds(80).fit("logistic", restarts=1, steps=60)
    assert np.all(np.diff(mixture.log_likelihoods_) > -1e-3)


def test_logistic_messages_to_a_trusted_server_lose_little() -> None:
    world, y = classes(6)
    open_ = LogisticRegressions().fit(world.x, y, groups=world.groups)
    found = LogisticRegressions(message=Central(4.0, 1e-5), seed=0).fit(world.x, y, groups=world.groups)
    errors = [np.square(each.estimates_ - world.truth).sum(1).mean() for each in (found, open_)]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize("y", [np.zeros(40), np.ones(40), (np.arange(40) % 4 < 2) * 1.0])
def test_classes_that_can_be_told_apart_give_numbers(y: np.ndarray) -> None:
    x, groups = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) // 4
    x[:, 0], x[:4] = 2 * y - 1, 0.0
    for make in (
        LogisticRegressions(),
        LogisticRegressions(solver="gradient", steps=50),
        LogisticRegressions(message=LocalGaussian(1.0, 1e-5), seed=0),
        MixturePriorRegressions(task="logistic", restarts=1, steps=30),
        MixturePriorRegressions(task="logistic", solver="cluster"),
        MixturePriorRegressions(task="logistic", solver="discrete"),
    ):
        found: Any = make.fit(x, y, groups=groups)
        low, high = found.intervals()
        for values in (low, high, found.estimates_, found.local_, found.expected_mse_, found.local_mse_):
            assert np.isfinite(values).all()


def test_targets_that_are_no_classes_are_refused() -> None:
    with pytest.raises(TacitError, match="classes 0 and 1"):
        LogisticRegressions().fit([[[1.0]], [[2.0]]], [[1.0], [2.0]])


@pytest.mark.parametrize("task", ["linear", "logistic"])
def test_em_finds_two_planted_groups(task: str) -> None:
    world = Kinds()
    found = world.fit(task, restarts=1)
    assert found.weights_ == pytest.approx([0.7, 0.3], abs=0.06)
    assert found.centres_ == pytest.approx(world.centres, abs=0.2)
    assert np.mean(found.shares_.argmax(1) == world.kind) > 0.95
    assert world.error(found.estimates_) < 0.3 * min(world.error(found.local_), world.error(found.global_))


@pytest.mark.parametrize("task", ["linear", "logistic"])
def test_under_the_true_mixture_the_posteriors_variance_is_the_error(task: str) -> None:
    excess = []
    for seed in range(3):
        kinds = Kinds(2000, seed=seed)
        world = model_of(task, read_rows(kinds.x, kinds.y[task], kinds.groups, None), 1.0)
        mixed = world.mix(Prior(np.array([0.7, 0.3]), kinds.centres, np.full(2, 0.09), 1.0))
        excess.append(np.square(mixed.estimates - kinds.truth).sum(1) - mixed.variance.sum(1))
    assert by_chance(np.concatenate(excess))


def test_a_linear_mixture_that_was_learned_expects_the_error_that_it_has() -> None:
    for seed in range(3):
        world = Kinds(seed=seed)
        found = world.fit("linear", restarts=1)
        assert by_chance(np.square(found.estimates_ - world.truth).sum(1) - found.expected_mse_)


@pytest.mark.parametrize("solver", ["cluster", "discrete"])
@pytest.mark.parametrize("task", ["linear", "logistic"])
def test_algorithms_4_and_7_find_two_planted_groups(task: str, solver: str) -> None:
    world = Kinds()
    found = world.fit(task, solver=solver)
    assert np.mean(found.shares_.argmax(1) == world.kind) > 0.95
    assert world.error(found.estimates_) < min(world.error(found.local_), world.error(found.global_))
    assert found.variance_floor_ > 0


def test_algorithm_7_as_printed_loses_a_group_that_one_gradient_step_keeps() -> None:
    world = Kinds()
    printed, mended = (world.fit("logistic", solver="discrete", step=step) for step in (0.0, 0.5))
    apart = [np.linalg.norm(found.centres_[0] - found.centres_[1]) for found in (printed, mended)]
    assert apart[0] < 0.1 < 1 < apart[1]


def test_a_mixture_is_found_from_messages() -> None:
    world = Kinds(3000, d=3, apart=2.0)
    given: dict[str, Any] = {"solver": "cluster", "noise_variance": 1.0, "radius": 4.0, "rounds": 2}
    found = world.fit("linear", message=LocalGaussian(60.0, 1e-5), seed=0, **given)
    assert found.centres_ == pytest.approx(world.centres, abs=0.7)
    assert "above 10, this promises little" in found.privacy_
    with pytest.raises(TacitError, match="drowns 3,000 clients"):
        world.fit("linear", message=Central(0.01, 1e-5), seed=0, **given)


def test_one_component_is_the_single_prior() -> None:
    world = World(SIZES[:100], 3)
    one = MixturePriorRegressions(k=1, tolerance=1e-9).fit(world.x, world.y, groups=world.groups)
    assert one.estimates_ == pytest.approx(world.fit().estimates_, abs=1e-3)


def test_the_priors_pull_is_the_gradient_of_minus_the_log_of_its_density() -> None:
    prior = Prior(np.array([0.6, 0.4]), np.array([[1.0, 0.0], [-1.0, 2.0]]), np.array([0.5, 0.2]), 1.0)

    def log_density(theta: np.ndarray) -> float:
        far = np.square(theta - prior.means).sum(1)
        return math.log(prior.weights @ (np.exp(-far / (2 * prior.variances)) / (2 * np.pi * prior.variances)))

    theta = np.array([0.1, 0.8])
    steps = 1e-6 * np.eye(2)
    by_hand = [(log_density(theta + h) - log_density(theta - h)) / 2e-6 for h in steps]
    assert toward_prior(theta[None], prior)[0] == pytest.approx(by_hand, rel=1e-5)
    assert np.isfinite(shares_at(np.full((1, 2), 1e100), prior)).all()


def test_clusters_without_the_noise_of_messages() -> None:
    draw = np.random.default_rng(0)
    points = np.repeat([[0.0] * 4, [9.0] * 4], 500, axis=0) + draw.normal(size=(1000, 4)) * math.sqrt(0.3 + 1.0)
    found = cluster(points, 2, None, 0, added=1.0, floor=1e-9)
    assert found.variances == pytest.approx([0.3, 0.3], abs=0.15)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"k": 0}, "k"),
        ({"k": 7}, "components"),
        ({"task": "other"}, "task"),
        ({"solver": "other"}, "solver"),
        ({"variance_floor": 0.0}, "variance_floor"),
        ({"message": LocalGaussian(1.0, 1e-5)}, "sends no messages"),
        ({"message": LocalGaussian(1.0, 1e-5), "solver": "cluster"}, "noise_variance"),
        ({"solver": "cluster", "step": 0.0}, "step"),
    ],
)
def test_bad_parameters_of_mixtures_are_refused(parameters: dict[str, Any], word: str) -> None:
    world = World([3, 4, 5], 2)
    make: Any = clone(MixturePriorRegressions(**parameters))
    with pytest.raises(TacitError, match=word):
        make.fit(world.x, world.y, groups=world.groups)
