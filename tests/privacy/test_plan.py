"""Plans: levels and choices, calibration for the whole run, weights, and the figures of the papers' table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.accounting.sampling import Each
from tacit.privacy.levels import Among, Choices, Level, LevelOptions, by_client, by_fraction, read_choices
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.plan import CalibrationContext
from tacit.sampling.cohorts import Poisson, PoissonBatches, Shuffled

MENU = LevelOptions((Level("strict", 1.0, 1e-5), Level("mild", 4.0, 1e-5), Level("open")))
IDS = [f"c{k}" for k in range(1000)]


def setting(choices: Choices, **changes: Any) -> CalibrationContext:
    ids = IDS[: len(choices.level)]
    base = CalibrationContext(ids, np.full(len(ids), 30), choices, Poisson(0.05), Shuffled(10), 100)
    return base._replace(**changes)


def test_a_client_that_chose_nothing_gets_the_most_private_level() -> None:
    choices = by_client(MENU, ["a", "b", "c"], {"b": "open"})
    assert [MENU.names[j] for j in choices.level] == ["strict", "open", "strict"]
    assert by_fraction(MENU, 10, {}, seed=0).counts == [10, 0, 0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares_of_levels_are_honoured(clients: int, mild: float, opened: float, seed: int) -> None:
    scale = max(1.0, mild + opened)
    shares = {"mild": mild / scale, "open": opened / scale}
    counts = by_fraction(MENU, clients, shares, seed).counts
    assert sum(counts) == clients
    assert abs(counts[1] - shares["mild"] * clients) <= 1
    assert abs(counts[2] - shares["open"] * clients) <= 1


def test_choices_can_be_drawn_among_those_who_hold_a_class() -> None:
    held = np.eye(10, dtype=int)[np.arange(1000) % 10]
    choices = by_fraction(MENU, 1000, {"mild": 0.5, "open": Among(0.05, holding=7)}, 0, held)
    assert choices.counts == [450, 500, 50]
    assert (held[choices.level == 2, 7] > 0).all()
    with pytest.raises(TacitError, match="only 100 can"):
        by_fraction(MENU, 1000, {"open": Among(0.2, holding=7)}, 0, held)
    with pytest.raises(TacitError, match="class 12"):
        by_fraction(MENU, 1000, {"open": Among(0.05, holding=12)}, 0, held)


def test_choices_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "choices.csv"
    file.write_text("client,level\nb,open\n")
    assert read_choices(file) == {"b": "open"}
    for text in ("", "client\nb\n", "client,level\nb,open\nb,mild\n"):
        file.write_text(text)
        with pytest.raises(TacitError, match=r"choices\.csv"):
            read_choices(file)


def test_every_level_is_calibrated_to_its_own_budget_for_the_whole_run() -> None:
    choices = by_fraction(MENU, 1000, {"mild": 0.4, "open": 0.1}, seed=0)
    plan = plans.Grouped(Fixed(1.0)).plan(setting(choices))
    assert [account.scope for account in plan.levels] == ["level:strict", "level:mild"]
    for account, level in zip(plan.levels, MENU.levels[:2], strict=True):
        spent = epsilon({account.event: 100}, account.delta, account.relation)
        assert level.epsilon is not None
        assert 0.98 * level.epsilon < spent <= level.epsilon
    strict, mild, opened = plan.multipliers
    assert strict > mild > opened == 0


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, (0.5, 0.4, 0.1)), (0.1, (0.05 / 0.19, 0.04 / 0.19, 0.1 / 0.19))])
def test_the_ratio_weighs_private_clients_against_open_ones(ratio: float, expected: tuple[float, ...]) -> None:
    choices = by_fraction(MENU, 1000, {"mild": 0.4, "open": 0.1}, seed=0)
    release = plans.Grouped(Fixed(1.0), ratio=ratio).plan(setting(choices)).release
    assert release.merge.weights == pytest.approx(expected)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_level_that_nobody_chose_costs_and_weighs_nothing() -> None:
    plan = plans.Grouped(Fixed(1.0)).plan(setting(by_fraction(MENU, 1000, {"open": 0.1}, seed=0)))
    assert [account.scope for account in plan.levels] == ["level:strict"]
    assert plan.release.merge.weights[1] == 0  # pyright: ignore[reportAttributeAccessIssue]


def test_ratio_zero_without_open_clients_is_refused() -> None:
    with pytest.raises(TacitError, match="asks nobody"):
        plans.Grouped(Fixed(1.0), ratio=0.0).plan(setting(by_fraction(MENU, 1000, {}, seed=0)))


def test_central_refuses_several_levels() -> None:
    with pytest.raises(TacitError, match="grouped"):
        plans.Central().plan(setting(by_fraction(MENU, 1000, {"open": 0.1}, seed=0)))


def test_local_noise_is_charged_by_participation_without_amplification() -> None:
    """T = 500, q = .03, z = 1: after 15 participations epsilon is 21.2 against the server, not 3.6."""
    menu = LevelOptions((Level("private", delta=1e-4, noise=1.0),))
    plan = plans.Local().plan(setting(by_fraction(menu, 1000, {}, 0), sampler=Poisson(0.03), rounds=500))
    account = plan.client(0)
    assert account is not None
    assert (account.scope, account.relation) == ("client:c0", "replace")
    assert epsilon({account.event: 15}, 1e-4, "replace") == pytest.approx(21.2, abs=0.1)


def test_local_noise_is_calibrated_for_what_nearly_all_clients_stay_below() -> None:
    menu = LevelOptions((Level("private", 8.0, 1e-5),))
    plan = plans.Local().plan(setting(by_fraction(menu, 1000, {}, 0), sampler=Poisson(0.1), rounds=100))
    account = plan.client(0)
    assert account is not None
    assert epsilon({account.event: 18}, 1e-5, "replace") <= 8.0 < epsilon({account.event: 20}, 1e-5, "replace")


def test_record_counts_every_step_of_every_participation_and_no_client_sampling() -> None:
    menu = LevelOptions((Level("private", 8.0, 1e-3),))
    choices = by_fraction(menu, 2, {}, 0)
    sizes = np.array([40, 300])
    given_ = setting(choices, sizes=sizes, batches=PoissonBatches(20, epochs=2), queries=Each(3), sampler=Poisson(0.5))
    plan = plans.Record(participations=5).plan(given_)
    for k, (steps, rate) in enumerate([(4, 0.5), (30, 20 / 300)]):
        account = plan.client(k)
        assert account is not None
        assert account.count == steps
        assert account.event.event.count == 3
        assert rate <= account.event.sampling_probability <= rate * 2 ** (1 / 16)
        assert 7.8 < epsilon({account.event: 5 * account.count}, 1e-3, "add/remove") <= 8.0


def test_record_refuses_batches_that_no_accountant_models() -> None:
    menu = LevelOptions((Level("private", 8.0, 1e-3),))
    with pytest.raises(TacitError, match="PoissonBatches"):
        plans.Record().plan(setting(by_fraction(menu, 2, {}, 0), sizes=np.array([40, 300])))


@pytest.mark.parametrize(
    ("population", "rate", "target", "z"), [(2000, 0.05, 3.6, 1.40), (3383, 0.03, 0.6, 3.49), (3400, 0.03, 4.1, 0.94)]
)
def test_calibrated_noise_agrees_with_the_papers_settings(
    population: int, rate: float, target: float, z: float
) -> None:
    menu = LevelOptions((Level("private", target, 1e-4),))
    choices = by_fraction(menu, population, {}, 0)
    facts = CalibrationContext(
        [str(k) for k in range(population)], np.ones(population), choices, Poisson(rate), Shuffled(10), 500
    )
    assert plans.Central(Fixed(1.0)).plan(facts).multipliers[0] == pytest.approx(z, rel=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Level("x", epsilon=-1.0, delta=1e-5),
        lambda: Level("x", epsilon=0.0, delta=1e-5),
        lambda: Level("x", epsilon=float("nan"), delta=1e-5),
        lambda: Level("x", epsilon=1.0),
        lambda: Level("x", epsilon=1.0, delta=1.5),
        lambda: Level("x", noise=-2.0, delta=1e-5),
        lambda: LevelOptions(()),
        lambda: LevelOptions((Level("a"), Level("a"))),
        lambda: by_fraction(MENU, 10, {"mlid": 0.1}, 0),
        lambda: by_fraction(MENU, 10, {"mild": 1.1}, 0),
        lambda: by_fraction(MENU, 10, {"mild": 0.7, "open": 0.7}, 0),
        lambda: by_client(MENU, ["a"], {"b": "open"}),
        lambda: by_client(MENU, ["a"], {"a": "opne"}),
        lambda: plans.Grouped(ratio=2.0),
        lambda: plans.Record(bound=0.0),
        lambda: plans.Local(participations=0).plan(setting(by_fraction(MENU, 10, {}, 0))),
    ],
)
def test_impossible_wishes_are_refused(make: Any) -> None:
    with pytest.raises(TacitError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_misspelt_level_suggests_the_nearest() -> None:
    with pytest.raises(TacitError, match="did you mean 'mild'"):
        MENU.index("mlid")
