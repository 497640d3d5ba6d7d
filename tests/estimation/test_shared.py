"""Conventions that every estimator of the room keeps, and bad input that none of them accepts."""

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from tacit.errors import TacitError
from tacit.estimation import (
    BernoulliRates,
    GaussianMeans,
    LinearRegressions,
    LogisticRegressions,
    MixtureMeans,
    MixturePriorRegressions,
)
from tacit.estimation.collect import BLOCK, Sums, likely
from tacit.estimation.messages import Central, LocalGaussian, Quantized, RandomisedResponse

Fit = Callable[[Any, Any], Any]
DRAW = np.random.default_rng(0)
VALUES = DRAW.normal(size=(60, 2)) * 0.3
COUNTS = DRAW.binomial(8, DRAW.beta(3, 3, 60)).astype(float)

# 20 clients of 1 to 9 rows: fewer rows than coefficients, and more
OWNER = np.repeat(np.arange(20), DRAW.integers(1, 10, 20))
ROWS = DRAW.normal(size=(len(OWNER), 3))
TARGETS = np.einsum("nd,nd->n", ROWS, (1 + 0.3 * DRAW.normal(size=(20, 3)))[OWNER]) + 0.5 * DRAW.normal(size=len(OWNER))


def regress(estimator: Any, x: Any) -> Any:
    return estimator.fit(x, TARGETS, groups=OWNER)


def classify(estimator: Any, x: Any) -> Any:
    return estimator.fit(x, (TARGETS > 0) * 1.0, groups=OWNER)


REGRESSIONS: list[tuple[Any, Fit, Any]] = [
    (LinearRegressions(), regress, ROWS),
    (LinearRegressions(solver="gradient", steps=50), regress, ROWS),
    (LinearRegressions(mean=np.ones(3), prior_variance=0.1, noise_variance=0.2), regress, ROWS),
    (LinearRegressions(message=LocalGaussian(2.0, 1e-5), rounds=4, seed=1), regress, ROWS),
    (LogisticRegressions(steps=20), classify, ROWS),
    (LogisticRegressions(solver="gradient", steps=50), classify, ROWS),
    (LogisticRegressions(message=Central(2.0, 1e-5), rounds=4, seed=1), classify, ROWS),
    (MixturePriorRegressions(restarts=1, steps=20, seed=1), regress, ROWS),
    (MixturePriorRegressions(task="logistic", solver="cluster", rounds=3, seed=1), classify, ROWS),
    (MixturePriorRegressions(task="logistic", solver="discrete", rounds=3, seed=1), classify, ROWS),
]
MAKERS: list[tuple[Any, Fit, Any]] = [
    (GaussianMeans(noise_variance=0.2), lambda e, x: e.fit(x, sizes=4), VALUES),
    (
        GaussianMeans(noise_variance=0.2, message=LocalGaussian(2, 1e-5), radius=2.0, seed=1),
        lambda e, x: e.fit(x, sizes=4),
        VALUES,
    ),
    (GaussianMeans(), lambda e, x: e.fit(x, groups=np.arange(60) // 4), VALUES),
    (BernoulliRates(), lambda e, x: e.fit(x, trials=8), COUNTS),
    (BernoulliRates(message=RandomisedResponse(1.0), seed=1), lambda e, x: e.fit(x, trials=8), COUNTS),
    (BernoulliRates(moments="as-published"), lambda e, x: e.fit(x, trials=8), COUNTS),
    (MixtureMeans(noise_variance=0.1, seed=1), lambda e, x: e.fit(x, sizes=4), VALUES),
]
MAKERS += REGRESSIONS
EACH = pytest.mark.parametrize(("make", "fit", "x"), MAKERS, ids=[repr(m[0]) for m in MAKERS])
EACH_REGRESSION = pytest.mark.parametrize(("make", "fit", "x"), REGRESSIONS, ids=[repr(m[0]) for m in REGRESSIONS])


@EACH
def test_an_estimator_can_be_cloned_and_keeps_its_parameters(make: Any, fit: Fit, x: Any) -> None:
    copy: Any = clone(make)
    assert repr(copy.get_params()) == repr(make.get_params())
    assert fit(copy, x) is copy
    assert repr(copy.get_params()) == repr(make.get_params())
    assert copy.set_params(**make.get_params()) is copy


@EACH
def test_parameters_are_keywords_that_can_be_read_and_set(make: Any, fit: Fit, x: Any) -> None:
    kind, given = type(make), make.get_params()
    assert set(given) == set(inspect.signature(kind).parameters)
    assert kind().set_params(**given).get_params() == given
    with pytest.raises(TypeError):
        kind(0.5)
    with pytest.raises(ValueError, match="nonsense"):
        make.set_params(nonsense=1)


@EACH
def test_only_a_fit_leaves_learned_attributes(make: Any, fit: Fit, x: Any) -> None:
    fresh: Any = clone(make)
    learned = [name for name in vars(fresh) if name.endswith("_")]
    assert learned == []
    found = fit(fresh, x)
    kept = {name for name in vars(found) if not name.startswith("_")} - set(make.get_params())
    assert kept
    assert all(name.endswith("_") for name in kept)


@EACH
def test_fitting_again_gives_the_same_and_leaves_the_input_alone(make: Any, fit: Fit, x: Any) -> None:
    before = x.copy()
    first = fit(clone(make), x)
    again = fit(fit(clone(make), x), x)
    assert np.array_equal(first.estimates_, again.estimates_)
    assert np.array_equal(x, before)


@EACH
def test_what_was_learned_has_its_shape_and_is_finite(make: Any, fit: Fit, x: Any) -> None:
    found = fit(clone(make), x)
    low, high = found.intervals(0.8)
    assert low.shape == high.shape == found.estimates_.shape == found.local_.shape
    assert found.expected_mse_.shape == found.local_mse_.shape == found.global_mse_.shape == (found.n_clients_,)
    for values in (low, high, found.estimates_, found.expected_mse_, found.global_, found.global_mse_):
        assert np.isfinite(values).all()
    assert np.all(low <= high)
    assert isinstance(found.privacy_, str)
    told = found.compare(found.estimates_)
    assert told["personal"].measured_mse == 0


@EACH
def test_a_fitted_estimator_survives_pickling(make: Any, fit: Fit, x: Any) -> None:
    found = fit(clone(make), x)
    assert np.array_equal(pickle.loads(pickle.dumps(found)).estimates_, found.estimates_)


@EACH
def test_an_estimator_that_learned_nothing_says_so(make: Any, fit: Fit, x: Any) -> None:
    for ask in (lambda e: e.intervals(), lambda e: e.compare()):
        with pytest.raises(NotFittedError):
            ask(clone(make))


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_numbers_are_refused(make: Any, fit: Fit, x: Any, bad: float) -> None:
    broken = x.copy()
    broken[3] = bad
    with pytest.raises(TacitError, match=f"client {OWNER[3] if x is ROWS else 3}"):
        fit(clone(make), broken)


@EACH_REGRESSION
def test_rows_of_a_client_are_its_own_wherever_they_stand(make: Any, fit: Fit, x: Any) -> None:
    """Clients of unequal size; a row order that mixes them all."""
    mixed = np.random.default_rng(1).permutation(len(OWNER))
    y = TARGETS if fit is regress else (TARGETS > 0) * 1.0
    again: Any = clone(make)
    other = again.fit(x[mixed], y[mixed], groups=OWNER[mixed])
    assert other.estimates_ == pytest.approx(fit(clone(make), x).estimates_, abs=1e-6)
    assert other.n_clients_ == 20


@EACH_REGRESSION
def test_one_client_alone_learns_no_prior_but_uses_a_known_one(make: Any, fit: Fit, x: Any) -> None:
    y = TARGETS if fit is regress else (TARGETS > 0) * 1.0
    one: Any = clone(make)
    if "mean" in one.get_params() and one.mean is not None:
        assert np.isfinite(one.fit(x[:5], y[:5], groups=np.zeros(5)).estimates_).all()
        return
    with pytest.raises(TacitError, match="client"):
        one.fit(x[:5], y[:5], groups=np.zeros(5))


@EACH_REGRESSION
@pytest.mark.parametrize("flaw", ["constant targets", "one column is another", "a client's rows are all 0"])
def test_no_variance_and_singular_designs_never_give_nan(make: Any, fit: Fit, x: Any, flaw: str) -> None:
    design, y = x.copy(), TARGETS if fit is regress else (TARGETS > 0) * 1.0
    if flaw == "constant targets":
        y = np.ones(len(y))
    elif flaw == "one column is another":
        design[:, 2] = design[:, 1]
    else:
        design[OWNER == 4] = 0.0
    flawed: Any = clone(make)
    try:
        found = flawed.fit(design, y, groups=OWNER)
    except TacitError as refused:
        if flaw != "one column is another" or "coefficients open" not in str(refused):
            raise
        return
    low, high = found.intervals()
    for values in (low, high, found.estimates_, found.local_, found.expected_mse_, found.local_mse_):
        assert np.isfinite(values).all()


@pytest.mark.parametrize("x", [np.zeros((0, 2)), np.zeros((2, 2, 2)), [["a", "b"]], 3.0])
def test_what_is_not_a_table_is_refused(x: Any) -> None:
    with pytest.raises(TacitError):
        GaussianMeans(noise_variance=1.0).fit(x)


def test_bad_parameters_are_refused_in_one_line() -> None:
    x = np.zeros((9, 1))
    for make, word in (
        (GaussianMeans(), "noise_variance"),
        (GaussianMeans(noise_variance=-1.0), "noise_variance"),
        (GaussianMeans(noise_variance=1.0, prior_variance=-1.0), "prior_variance"),
        (GaussianMeans(noise_variance=1.0, moments="other"), "as-published"),  # pyright: ignore[reportArgumentType]
        (GaussianMeans(noise_variance=1.0, message=LocalGaussian(1.0, 1e-5)), "radius"),
        (GaussianMeans(noise_variance=1.0, message=Quantized(2), radius=-1.0), "radius"),
        (GaussianMeans(prior_mean=np.nan, prior_variance=1.0, noise_variance=1.0), "prior_mean"),
    ):
        with pytest.raises(TacitError, match=word) as caught:
            make.fit(x)
        assert "\n" not in str(caught.value)
    for sizes in (0, 1.5, [1, 2], -3):
        with pytest.raises(TacitError):
            GaussianMeans(noise_variance=1.0).fit(x, sizes=sizes)
    with pytest.raises(TacitError, match="level"):
        GaussianMeans(noise_variance=1.0).fit(x).intervals(1.0)


def test_one_client_cannot_learn_a_prior() -> None:
    for make in (GaussianMeans(noise_variance=1.0), MixtureMeans(noise_variance=1.0)):
        with pytest.raises(TacitError, match="client"):
            make.fit([[1.0]])
    with pytest.raises(TacitError, match="one client"):
        BernoulliRates().fit([3], trials=5)


def test_noise_cannot_be_learned_behind_a_private_message() -> None:
    make = GaussianMeans(message=LocalGaussian(1.0, 1e-5), radius=1.0)
    with pytest.raises(TacitError, match="second message"):
        make.fit(np.zeros((8, 1)), groups=[0, 0, 1, 1, 2, 2, 3, 3])


def test_no_variance_at_all_gives_the_common_value() -> None:
    found = GaussianMeans().fit(np.full((8, 1), 3.0), groups=[0, 0, 1, 1, 2, 2, 3, 3])
    assert np.array_equal(found.estimates_, np.full((4, 1), 3.0))
    assert np.isfinite(found.expected_mse_).all()
    exact = GaussianMeans(noise_variance=0.0).fit([[1.0], [2.0], [3.0], [4.0]])
    assert np.array_equal(exact.estimates_, exact.local_)


@pytest.mark.parametrize("message", [None, RandomisedResponse(1.0), LocalGaussian(1.0, 1e-6), Central(1.0, 1e-6)])
def test_a_table_in_chunks_gives_what_it_gives_whole(message: Any) -> None:
    m = BLOCK + 1234
    draw = np.random.default_rng(3)
    trials = draw.integers(2, 9, m)
    won = draw.binomial(trials, draw.beta(3, 3, m))
    whole = BernoulliRates(message=message, seed=5).fit(won, trials=trials)
    parts = BernoulliRates(message=message, seed=5)
    rates = (won / trials)[:, None]
    for part in (slice(0, BLOCK), slice(BLOCK, m)):
        parts.observe(rates[part], trials[part].astype(float))
    parts.learn()
    last = parts.answer(rates[BLOCK:], trials[BLOCK:].astype(float), first=BLOCK)
    assert np.allclose(last.estimates[:, 0], whole.estimates_[BLOCK:], rtol=1e-12)
    with pytest.raises(TacitError, match="already used"):
        parts.observe(rates[:10], trials[:10].astype(float))


def test_sums_of_parts_are_the_sums_of_the_whole() -> None:
    values, sizes = 1e6 + DRAW.normal(size=(999, 3)), DRAW.integers(1, 5, 999).astype(float)
    whole = Sums.of(values, sizes)
    parts = Sums.of(values[:400], sizes[:400]) + Sums.of(values[400:], sizes[400:])
    assert np.allclose(parts.spread, whole.spread, rtol=1e-8)
    assert np.allclose(parts.means, whole.means, rtol=1e-14)
    assert whole.moment()[0] == pytest.approx(values.var(0, ddof=1).mean(), rel=1e-8)


def test_a_likely_variance_is_the_mean_of_a_normal_cut_at_its_ends() -> None:
    from scipy.stats import truncnorm

    for estimate in (-5.0, -1.0, 0.0, 0.4, 2.0, 9.0):
        for std in (0.1, 1.0, 20.0):
            exact: Any = truncnorm.mean(-estimate / std, (1 - estimate) / std, loc=estimate, scale=std)
            assert likely(estimate, std, 1.0) == pytest.approx(float(exact), rel=0.02, abs=2e-3)
    assert likely(0.3, 1e-9) == pytest.approx(0.3)


def worlds() -> list[np.ndarray]:
    """Two tables of clients with the same sum and the same sum of squares around .5, otherwise different."""
    one, other = np.array([1.0, 1.0, -1.0, -1.0]), np.array([2**0.5, -(2**0.5), 0.0, 0.0])
    return [0.5 + 0.3 * np.tile(each, 15)[:, None] for each in (one, other)]


@pytest.mark.parametrize("make", [GaussianMeans(noise_variance=0.1, radius=2.0), BernoulliRates()], ids=repr)
def test_what_a_trusted_server_tells_depends_on_the_noisy_sums_alone(make: Any) -> None:
    told = []
    for values in worlds():
        found: Any = clone(make)
        found.set_params(message=Central(1.0, 1e-3), seed=4)
        found.noise_variance_ = 0.1
        told.append(found.observe(values, np.full(60, 5.0)).learn().learned_)
    assert told[0].centre == pytest.approx(told[1].centre, rel=1e-9)
    for name in ("prior_variance", "noise", "centre_variance", "share"):
        assert getattr(told[0], name) == pytest.approx(getattr(told[1], name), rel=1e-9)


@pytest.mark.parametrize("message", [LocalGaussian(1.0, 1e-3), RandomisedResponse(1.0), Quantized(2)], ids=repr)
@pytest.mark.parametrize("make", [GaussianMeans(noise_variance=0.1, radius=2.0), BernoulliRates()], ids=repr)
def test_what_is_learned_depends_on_the_messages_alone(
    make: Any, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: Any, values: Any, domain: Any, source: Any, lift: bool = False) -> Any:
        return domain.centre + source.standard_normal((len(values), values.shape[1] + lift))

    monkeypatch.setattr(type(message), "send", send)
    told = []
    for values in (*worlds(), np.linspace(0, 1, 60)[:, None]):
        found: Any = clone(make)
        found.set_params(message=message, seed=4)
        found.noise_variance_ = 0.1
        told.append(found.observe(values, np.full(60, 5.0)).learn().learned_)
    assert repr(told[0]) == repr(told[1]) == repr(told[2])


def test_the_printed_moments_are_refused_where_only_sums_are_released() -> None:
    central = Central(1.0, 1e-3)
    with pytest.raises(TacitError, match="as-published"):
        BernoulliRates(message=central, moments="as-published").fit(COUNTS, trials=8)
    with pytest.raises(TacitError, match="as-published"):
        GaussianMeans(noise_variance=1.0, message=central, radius=1.0, moments="as-published").fit(VALUES)


@EACH
def test_a_parameter_by_place_or_by_a_wrong_name_is_one_line(make: Any, fit: Fit, x: Any) -> None:
    with pytest.raises(TacitError, match="name each argument"):
        type(make)(0.5)
    with pytest.raises(TacitError, match=r"use one of|did you mean"):
        type(make)(nois_variance=0.5)


def shops() -> pd.DataFrame:
    draw = np.random.default_rng(3)
    return pd.DataFrame(draw.normal(size=(40, 2)), columns=["tea", "cake"], index=[f"s{at}" for at in range(40)])


def test_estimates_keep_the_names_of_rows_and_columns() -> None:
    table = shops()
    found = GaussianMeans(noise_variance=1.0).fit(table)
    assert [*found.feature_names_in_] == ["tea", "cake"]
    frame = found.to_frame()
    assert frame.index.equals(table.index)
    assert np.array_equal(frame["tea_personal"], found.estimates_[:, 0])
    assert np.all(frame["cake_low"].to_numpy() < frame["cake_high"].to_numpy())
    named = GaussianMeans().fit(np.arange(6.0), groups=["b", "a", "b", "a", "c", "c"])
    assert [*named.to_frame().index] == ["a", "b", "c"]
    assert not hasattr(found.fit([1.0, 2.0, 4.0]), "feature_names_in_")


def test_transform_gives_frames_where_frames_are_asked_for() -> None:
    table = shops()
    found = GaussianMeans(noise_variance=1.0).set_output(transform="pandas")
    for frame in (found.fit_transform(table), found.transform(table)):
        assert isinstance(frame, pd.DataFrame)
        assert [*frame.columns] == ["tea", "cake"]
        assert frame.index.equals(table.index)


def test_the_score_lets_a_grid_search_choose_the_true_variance() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(size=400)
    search = GridSearchCV(
        GaussianMeans(prior_mean=0.0, noise_variance=4.0), {"prior_variance": [0.01, 1.0, 100.0]}, cv=4
    ).fit((truth + 2 * draw.normal(size=400))[:, None], truth[:, None])
    assert search.best_params_ == {"prior_variance": 1.0}


def test_successes_and_trials_may_stand_side_by_side() -> None:
    won, n = np.array([1, 5, 3, 9]), np.array([9, 9, 8, 10])
    assert np.array_equal(BernoulliRates().fit(won, n).estimates_, BernoulliRates().fit(won, trials=n).estimates_)
    for call in (lambda: BernoulliRates().fit(won), lambda: BernoulliRates().fit(won, n, trials=n)):
        with pytest.raises(TacitError, match="give trials, once"):
            call()
