"""Regressions from messages: what is sent, what it costs, how good it is; and input that is refused."""

import math
from typing import Any

import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.estimation.messages import Central, Exact, LocalGaussian, Message
from tacit.estimation.regression import LinearRegressions, LogisticRegressions, MixturePriorRegressions
from tacit.estimation.regression_learn import Evidence, Learned, Letters, learn
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.audit import audit
from tests.estimation.test_regression import World


class Overheard(LocalGaussian):
    """A message that remembers what was sent."""

    heard: list[np.ndarray]

    def repeated(self, times: int) -> "Overheard":
        copy = super().repeated(times)
        object.__setattr__(copy, "heard", self.heard)
        return copy

    def send(self, values: Any, domain: Any, source: Any, lift: bool = False) -> Any:
        sent = super().send(values, domain, source, lift)
        self.heard.append(sent)
        return sent


class Careless(Overheard):
    """The bug to catch: every message is calibrated as if it were the only one."""

    def repeated(self, times: int) -> "Careless":
        return self


def overheard(kind: type[Overheard], side: float, seed: int, rounds: int) -> float:
    """One client's messages, summed along the direction in which its two possible data sets differ."""
    message = kind(1.0, 1e-3)
    object.__setattr__(message, "heard", [])

    def expect(mean: np.ndarray, variances: np.ndarray) -> Evidence:
        one, more = np.zeros((1, 3)), np.zeros((1, 1))
        one[0, 0] = side * 1e9
        return Evidence(one, more, more, more)

    learn(expect, Learned(np.zeros(3), np.ones(1)), Letters(message, 1.0, rounds, seed), mean_known=False)
    walked = rounds - rounds // 3
    return float(sum(sent[0, 0] for sent in message.heard[:walked]))


@pytest.mark.parametrize(("kind", "caught"), [(Overheard, False), (Careless, True)])
def test_all_messages_of_a_client_together_keep_the_stated_epsilon(kind: type[Overheard], caught: bool) -> None:
    rounds, tries = 30, 300
    with_a = np.array([overheard(kind, 1.0, seed, rounds) for seed in range(tries)])
    with_b = np.array([overheard(kind, -1.0, seed + tries, rounds) for seed in range(tries)])
    assert audit(with_a, with_b, claim=1.0, delta=1e-3).disproved is caught


def test_the_rounds_compose_to_the_stated_epsilon() -> None:
    message = LocalGaussian(2.0, 1e-5).repeated(12)
    assert epsilon({message.event(): 12}, 1e-5, "replace") == pytest.approx(2.0, rel=1e-3)


def test_the_prior_depends_on_data_through_messages_alone() -> None:
    class Deaf(Exact):
        def send(self, values: Any, domain: Any, source: Any, lift: bool = False) -> Any:
            return np.full_like(values, 0.1)

    found = []
    for seed in (1, 2):
        world = World(np.full(30, 4 + seed), 3, seed=seed)
        linear = world.fit(message=Deaf(), seed=0)
        classes = LogisticRegressions(message=Deaf(), seed=0).fit(world.x, (world.y > 0) * 1.0, groups=world.groups)
        found.append((linear.prior_mean_, linear.prior_variance_, classes.prior_mean_, classes.prior_variance_))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("solver", ["cluster", "discrete"])
@pytest.mark.parametrize("task", ["linear", "logistic"])
def test_a_mixture_depends_on_data_through_messages_alone(task: str, solver: str) -> None:
    class Deaf(Exact):
        def send(self, values: Any, domain: Any, source: Any, lift: bool = False) -> Any:
            return np.random.default_rng(0).normal(size=values.shape)

    found = []
    for seed in (1, 2):
        world = World(np.full(30, 4 + seed), 3, seed=seed)
        y = world.y if task == "linear" else (world.y > 0) * 1.0
        make = MixturePriorRegressions(task=task, solver=solver, message=Deaf(), noise_variance=0.5, rounds=3)
        fitted = make.fit(world.x, y, groups=world.groups)
        found.append((fitted.weights_, fitted.centres_, fitted.variances_, fitted.variance_floor_))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_messages_without_noise_end_where_em_does() -> None:
    world = World(np.full(2000, 6), 5, prior=0.1, seed=1)
    open_, sent = world.fit(), world.fit(message=Exact(), rounds=30, radius=100.0)
    assert sent.prior_variance_ == pytest.approx(open_.prior_variance_, rel=0.03)
    assert sent.noise_variance_ == pytest.approx(open_.noise_variance_, rel=0.03)
    assert sent.prior_mean_ == pytest.approx(open_.prior_mean_, abs=0.01)


@pytest.mark.parametrize("budget", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("kind", [Central, LocalGaussian])
@pytest.mark.parametrize("guess", [(0.05, 0.1), (1.0, 1.0), (5.0, 5.0)])
def test_learning_from_private_messages_does_little_harm(kind: Any, budget: float, guess: tuple[float, float]) -> None:
    world = World(np.full(3000, 6), 8, prior=0.1, seed=2)
    found = world.fit(message=kind(budget, 1e-5), guess=guess, seed=3)
    local = np.square(found.local_ - world.truth).sum(1).mean()
    assert world.error(found) < 1.01 * local


def test_a_trusted_server_loses_little() -> None:
    world = World(np.full(10_000, 6), 8, prior=0.1, seed=4)
    found = world.fit(message=Central(1.0, 1e-5), seed=1)
    assert world.error(found) < 1.1 * world.error(world.fit())
    low, high = found.intervals(0.9)
    assert np.mean((low <= world.truth) & (world.truth <= high)) == pytest.approx(0.9, abs=0.04)


def test_what_is_sent_is_said() -> None:
    world = World(np.full(20, 4), 3)
    assert "no guarantee" in world.fit().privacy_
    assert "nothing is sent" in world.fit(**world.known).privacy_
    told = world.fit(message=LocalGaussian(1.0, 1e-5), rounds=5).privacy_
    assert "5 messages" in told
    assert "epsilon 1 (client-level, local, replace, delta 1e-05)" in told


def test_clusters_that_are_only_noise_are_refused() -> None:
    world = World(np.full(500, 4), 3)
    make = MixturePriorRegressions(solver="cluster", message=LocalGaussian(1.0, 1e-5), noise_variance=0.5, seed=0)
    with pytest.raises(TacitError, match="drowns"):
        make.fit(world.x, world.y, groups=world.groups)


SOME = World([3, 4, 5], 2)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"solver": "newton"}, "solver"),
        ({"prior_variance": -1.0}, "prior_variance"),
        ({"noise_variance": 0.0}, "noise_variance"),
        ({"mean": [1.0]}, "mean"),
        ({"mean": [1.0, np.nan]}, "mean"),
        ({"step": 0.0}, "step"),
        ({"floor": -1.0}, "floor"),
        ({"message": Exact(), "solver": "gradient"}, "message"),
        ({"message": Exact(), "rounds": 0}, "rounds"),
        ({"message": Exact(), "radius": 0.0}, "radius"),
        ({"message": Exact(), "guess": (0.0, 1.0)}, "guess"),
        ({"message": LocalGaussian(1.0, 0.5)}, "delta"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(TacitError, match=word) as caught:
        SOME.fit(**parameters)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y", "where", "word"),
    [
        ([], [], {}, "no clients"),
        ([[[1.0]], [[1.0]]], [[1.0]], {}, "pair"),
        ([[[1.0]], [[1.0, 2.0]]], [[1.0], [1.0]], {}, "features"),
        ([[[1.0]], [[1.0]]], [[1.0], [1.0, 2.0]], {}, "client 1 has 1 rows and 2 targets"),
        ([[[1.0]], [[np.nan]]], [[1.0], [1.0]], {}, "client 1"),
        ([[[1.0]], [[2.0]]], [[1.0], [np.inf]], {}, "client 1"),
        ([[[1.0]], [["a"]]], [[1.0], [1.0]], {}, "numbers"),
        ([[1.0], [1.0]], [1.0, 2.0], {"groups": [1]}, "groups"),
        ([[1.0], [1.0]], [1.0], {"groups": [1, 2]}, "do not match"),
        ([[1.0], [1.0]], [1.0, 2.0], {"offsets": [0, 1]}, "do not match"),
        ([[1.0], [1.0]], [1.0, 2.0], {"offsets": [0, 0, 2]}, "no rows"),
        ([[1.0], [1.0]], [1.0, 2.0], {"offsets": [0.5, 2]}, "offsets"),
        ([[1.0], [1.0]], [1.0, 2.0], {"offsets": [0, 2], "groups": [0, 1]}, "both"),
        ([[1.0], [1.0]], [1.0, 2.0], {"groups": [0, 0]}, "one client"),
        ([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0], {"groups": [0, 1]}, "coefficients open"),
        ([[0.0], [0.0]], [1.0, 2.0], {"groups": [0, 1]}, "coefficients open"),
    ],
)
def test_bad_rows_are_refused_in_one_line(x: Any, y: Any, where: dict[str, Any], word: str) -> None:
    with pytest.raises(TacitError, match=word) as caught:
        LinearRegressions().fit(x, y, **where)
    assert "\n" not in str(caught.value)


def everything(found: Any) -> np.ndarray:
    low, high = found.intervals()
    parts = (low, high, found.estimates_, found.local_, found.expected_mse_, found.local_mse_, found.global_mse_)
    return np.concatenate([np.ravel(part) for part in parts])


@pytest.mark.parametrize("message", [None, LocalGaussian(1.0, 1e-5), Central(1.0, 1e-5)], ids=repr)
@pytest.mark.parametrize("y", ["zero", "exact", "alike", "huge", "tiny"])
def test_degenerate_targets_give_numbers(message: Message | None, y: str) -> None:
    x, groups = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) // 4
    x[:4] = 0.0
    x[4:8, 0] = x[4:8, 1]
    scale = {"huge": 1e30, "tiny": 1e-30}.get(y, 1.0)
    rough = np.random.default_rng(1).normal(size=40)
    targets = {"zero": np.zeros(40), "exact": x @ [1.0, 2.0, 3.0], "alike": np.ones(40)}.get(y, rough) * scale
    solvers = ("em",) if message else ("em", "gradient")
    for solver in solvers:
        found = LinearRegressions(solver=solver, message=message, seed=0).fit(x, targets, groups=groups)
        assert np.isfinite(everything(found)).all()
        if y == "exact" and message is None:
            assert found.estimates_ == pytest.approx(np.tile([1.0, 2.0, 3.0], (10, 1)), abs=1e-6)


def test_a_client_that_says_nothing_gets_the_prior_and_zero_alone() -> None:
    world = World(np.full(10, 4), 3)
    world.x[:4] = 0.0
    found = world.fit(**world.known)
    assert np.array_equal(found.local_[0], np.zeros(3))
    assert found.estimates_[0] == pytest.approx(world.mean)
    assert found.expected_mse_[0] == pytest.approx(3 * 0.3)
    assert math.isclose(found.local_mse_[0], 3 * 0.3 + world.mean @ world.mean)
