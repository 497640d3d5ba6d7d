"""The rota: nobody is asked more often than it says, and its accounts are those of the participations."""

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level, LevelOptions, by_fraction
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan
from tacit.sampling.cohorts import LimitedParticipation, Shuffled

LEVEL = Level("private", 4.0, 1e-3)


def everyone(n: int) -> np.ndarray:
    return np.ones(n, bool)


def setting(
    rota: LimitedParticipation, rounds: int, clients: int = 100, *levels: Level, opened: float = 0.0
) -> CalibrationContext:
    menu = LevelOptions(levels or (LEVEL,))
    ids = [f"c{k}" for k in range(clients)]
    upload = {"w": torch.zeros(40)}
    choices = by_fraction(menu, clients, {"open": opened} if opened else {}, 0)
    return CalibrationContext(ids, np.full(clients, 30), choices, rota, Shuffled(10), rounds, upload=upload)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    size=st.integers(1, 60),
    times=st.integers(1, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_nobody_is_ever_asked_more_often_than_the_rota_says(
    n: int, size: int, times: int, seed: int, data: st.DataObject
) -> None:
    size = min(size, n)
    rota, asked = LimitedParticipation(size, times), np.zeros(n, int)
    for round in range(n // size * times + 5):  # a few rounds more than there are cohorts
        eligible = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        cohort = rota.draw(seed, round, eligible)
        assert eligible[cohort].all()
        asked[cohort] += 1
    assert asked.max() <= times


def test_everybody_is_asked_equally_often_in_another_order_each_time() -> None:
    cohorts = [LimitedParticipation(10, 2).draw(3, round, everyone(100)) for round in range(20)]
    assert (np.bincount(np.concatenate(cohorts)) == 2).all()
    assert {len(cohort) for cohort in cohorts} == {10}
    assert [c.tolist() for c in cohorts[:10]] != [c.tolist() for c in cohorts[10:]]


def test_more_rounds_than_cohorts_are_refused_before_anything_is_drawn() -> None:
    assert LimitedParticipation(10, 2).most(100, 20) == 2
    assert LimitedParticipation(10, 2).most(100, 10) == 1
    with pytest.raises(TacitError, match="at most 20 rounds"):
        LimitedParticipation(10, 2).most(100, 21)
    with pytest.raises(TacitError, match="at most 20 rounds"):
        plans.Central(Fixed(1.0)).plan(setting(LimitedParticipation(10, 2), 21))


@pytest.mark.parametrize(
    "request_", [plans.Central(Fixed(1.0)), plans.Grouped(Fixed(1.0)), plans.Distributed(Fixed(1.0))]
)
@pytest.mark.parametrize("times", [1, 2])
def test_each_participation_is_charged_to_the_client_without_amplification(request_: Mechanism, times: int) -> None:
    plan = request_.plan(setting(LimitedParticipation(10, times), 10 * times))
    account = plan.client(7)
    assert account is not None
    assert (plan.levels, account.scope, account.relation, account.count) == ((), "client:c7", "zero-out", 1)
    assert not list(plan.beside(np.arange(10)))
    spent = epsilon({account.event: times}, 1e-3, "zero-out")
    assert 0.97 * 4.0 < spent <= 4.0
    assert any(f"at most {times} times" in note or "never asked more often" in note for note in plan.notes)


def test_the_noise_of_one_participation_is_that_of_one_gaussian_however_many_rounds_there_are() -> None:
    once = plans.Central(Fixed(1.0)).plan(setting(LimitedParticipation(10), 10))
    many = plans.Central(Fixed(1.0)).plan(setting(LimitedParticipation(1), 100))
    assert once.multipliers == many.multipliers
    assert once.client(0).event == dp_accounting.GaussianDpEvent(once.multipliers[0])  # pyright: ignore[reportOptionalMemberAccess]


def test_the_purse_stops_asking_a_client_even_if_the_draw_would_not() -> None:
    plan = plans.Central(Fixed(1.0)).plan(setting(LimitedParticipation(10, 2), 20))
    with Ledger.open(":memory:") as ledger:
        purse = BudgetTracker(plan, ledger)
        for round in (0, 1):
            assert purse.eligible()[:10].all()
            purse.charge(round, plan.accounts(np.arange(10)))
        assert not purse.eligible()[:10].any()
        assert purse.eligible()[10:].all()
        assert purse.exhausted() is None


def test_who_opted_out_is_not_charged_and_limited_all_the_same() -> None:
    plan: Plan = plans.Grouped(Fixed(1.0)).plan(
        setting(LimitedParticipation(10), 10, 100, LEVEL, Level("open"), opened=0.5)
    )
    level = plan.setting.choices.level
    assert [plan.client(k) is None for k in range(100)] == (level == 1).tolist()


def test_the_distributed_plan_has_one_figure_with_a_rota() -> None:
    with pytest.raises(TacitError, match="use budget 'server'"):
        plans.Distributed(Fixed(1.0), budget="released").plan(setting(LimitedParticipation(10), 10))
