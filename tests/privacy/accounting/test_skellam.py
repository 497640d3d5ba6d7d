"""The stated cost of Skellam noise against its true divergence, and what the distributed plan charges to whom."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ive
from scipy.stats import binom

from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import answer
from tacit.privacy.accounting.events import describe, from_json, to_json
from tacit.privacy.accounting.sampling import Sampler
from tacit.privacy.accounting.skellam import SampledSkellamDpEvent, SkellamDpEvent, divergences
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level, LevelOptions, by_fraction
from tacit.privacy.mechanisms.clipping import Fixed, Quantile
from tacit.privacy.mechanisms.distributed import crowd
from tacit.privacy.mechanisms.integer_coding import Coding
from tacit.privacy.plan import CalibrationContext, Plan
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize, Poisson, Shuffled
from tests.worlds import assembled, run

ORDERS = np.array([1.5, 2, 3, 4.4, 8, 16, 32])
UPLOAD: Tree = {"model/w": torch.zeros(300, device="meta")}
LEVEL = Level("private", epsilon=4.0, delta=1e-4)


def log_pmf(v: float, shift: int, reach: int = 400) -> np.ndarray:
    n = np.abs(np.arange(-reach, reach + 1) - shift)
    return np.log(np.maximum(ive(n, v), 1e-300))


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    logs = order * p + (1 - order) * q
    logs = logs[(p > -600) & (q > -600)]
    return float(np.log(np.exp(logs - logs.max()).sum()) + logs.max()) / (order - 1)


@pytest.mark.parametrize("v", [2.0, 10.0, 80.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_bound_is_above_the_true_divergence_and_close_for_much_noise(v: float, shift: int) -> None:
    bound = divergences(SkellamDpEvent(v, shift, shift), ORDERS)
    true = np.array([renyi(log_pmf(v, shift), log_pmf(v, 0), a) for a in ORDERS])
    assert (bound >= true).all()
    if v == 80.0:
        assert bound[1] == pytest.approx(true[1], rel=0.1)


def test_the_bound_holds_for_a_shift_of_many_coordinates() -> None:
    """Coordinates are independent, so divergences add: l2^2 = 9 + 1 + 1, l1 = 5."""
    v = 20.0
    bound = divergences(SkellamDpEvent(v, math.sqrt(11), 5), ORDERS)
    true = [sum(renyi(log_pmf(v, s), log_pmf(v, 0), a) for s in (3, -1, 1)) for a in ORDERS]
    assert (bound >= true).all()


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("v", [3.0, 30.0])
def test_the_sampled_bound_is_above_the_true_divergence_both_ways(v: float, rate: float) -> None:
    bound = divergences(SampledSkellamDpEvent(rate, 0.0, v, 2.0, 2.0), ORDERS)
    without, inside = log_pmf(v, 0), log_pmf(v, 2)
    mixed = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + inside)
    for a, stated in zip(ORDERS, bound, strict=True):
        assert max(renyi(mixed, without, a), renyi(without, mixed, a)) <= stated
    assert (bound <= divergences(SkellamDpEvent(v, 2.0, 2.0), ORDERS) + 1e-12).all()


def test_the_edge_is_between_amplified_and_not() -> None:
    at = [divergences(SampledSkellamDpEvent(0.1, edge, 9.0, 2.0, 2.0), ORDERS) for edge in (0.0, 1e-3, 0.5, 1.0)]
    assert all((less <= more).all() for less, more in pairwise(at))
    assert (at[-1] <= divergences(SkellamDpEvent(9.0, 2.0, 2.0), ORDERS) + 1e-12).all()


def test_events_survive_the_ledger_and_are_told_in_words() -> None:
    for event in (SkellamDpEvent(100.0, 5.0, 25.0), SampledSkellamDpEvent(0.1, 1e-3, 100.0, 5.0, 25.0)):
        assert from_json(to_json(event)) == event
        assert "Skellam noise" in describe(event)
        assert answer({event: 3}, 1e-5, "zero-out").accountant == "rdp"
        with pytest.raises(TacitError, match="zero-out"):
            answer({event: 3}, 1e-5, "add/remove")
    assert answer({SkellamDpEvent(0.0, 1.0, 1.0): 1}, 1e-5, "zero-out").epsilon == math.inf


def planned(
    request: plans.Distributed, level: Level = LEVEL, sampler: Sampler = Poisson(0.1), clients: int = 500
) -> Plan:
    choices = by_fraction(LevelOptions((level,)), clients, {}, 0, np.zeros((clients, 1)))
    ids = [f"c{k}" for k in range(clients)]
    setting = CalibrationContext(ids, np.full(clients, 10), choices, sampler, Shuffled(10, 1), 50, upload=UPLOAD)
    return request.plan(setting)


def coding(plan: Plan) -> Coding:
    return plan.release.coding  # pyright: ignore[reportAttributeAccessIssue]


def test_against_the_server_each_participation_is_charged_without_amplification() -> None:
    plan = planned(plans.Distributed(participations=10))
    own = plan.client(3)
    assert own is not None
    assert (own.scope, own.relation, own.epsilon) == ("client:c3", "zero-out", 4.0)
    assert isinstance(own.event, SkellamDpEvent)
    assert own.event.variance == pytest.approx(coding(plan).share * coding(plan).least)
    assert 3.9 < answer({own.event: 10}, 1e-4, "zero-out").epsilon <= 4.0
    (beside,) = plan.beside(np.arange(3))
    assert (beside.scope, beside.epsilon) == ("released:private", None)
    assert isinstance(beside.event, SampledSkellamDpEvent)
    assert any("released models" in note for note in plan.notes)


def test_against_readers_every_round_is_charged_with_amplification_and_the_server_beside_it() -> None:
    plan = planned(plans.Distributed(budget="released"))
    (level,) = plan.levels
    assert (level.scope, level.relation, level.epsilon) == ("level:private", "zero-out", 4.0)
    assert 3.9 < answer({level.event: 50}, 1e-4, "zero-out").epsilon <= 4.0
    assert [account.scope for account in plan.beside(np.array([2, 5]))] == ["server:c2", "server:c5"]
    assert plan.client(2) is None
    assert any("against the server" in note for note in plan.notes)


def test_at_the_same_released_figure_the_noise_is_nearly_that_of_a_trusted_server() -> None:
    """RDP instead of PLD makes 8% of the difference; rounding, shares and the edge less than 1%."""
    (said,) = [note for note in planned(plans.Distributed(budget="released")).notes if "trusted server" in note]
    assert float(said.split()[3]) <= 1.1


def test_noise_shares_are_sized_for_fewer_clients_than_are_expected() -> None:
    who = crowd(planned(plans.Distributed()).setting, 0.01)
    draws = np.random.default_rng(0).binomial(500, 0.1, 100_000)
    assert who.least < who.expected < who.most
    assert (draws < who.least).mean() <= 0.011
    assert (draws > who.most).mean() <= 0.011
    assert 0 < who.edge < 0.05


def test_the_edge_holds_however_many_clients_have_spent_their_budgets() -> None:
    """With budgets for fewer participations than come, rounds run short of clients: then one decides on a release."""
    short = planned(plans.Distributed(participations=2))
    (account,) = short.beside(np.array([1]))
    least = coding(short).least
    worst = max(binom.pmf(least - 1, there, 0.1) for there in range(500))
    assert account.event.edge >= worst
    usual = planned(plans.Distributed())
    assert usual.beside(np.array([1]))[0].event.edge < worst
    assert any("no more than 10% of the clients are away or spent" in note for note in usual.notes)
    assert not any("away or spent" in note for note in short.notes)


def test_a_sampler_without_a_model_gets_no_amplification() -> None:
    plan = planned(plans.Distributed(budget="released"), sampler=FixedSize(50))
    assert isinstance(plan.levels[0].event, SkellamDpEvent)
    assert coding(plan).least == 45


def test_what_the_plan_cannot_do_is_refused() -> None:
    with pytest.raises(TacitError, match="fixed clip bound"):
        plans.Distributed(Quantile())
    with pytest.raises(TacitError, match="budget"):
        plans.Distributed(budget="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TacitError, match="too coarse"):
        planned(plans.Distributed(bits=8), Level("private", epsilon=0.05, delta=1e-4))
    with pytest.raises(TacitError, match="one private level"):
        run(FedAvg(), Privacy(plans.Distributed(), (LEVEL, Level("open")), {"open": 0.3}))


def test_a_resumed_run_turns_rounds_and_adds_noise_as_the_uninterrupted_one(tmp_path: Path) -> None:
    privacy = Privacy(plans.Distributed(Fixed(0.5)), (Level("private", delta=1e-3, noise=1.0),))
    parts, ledger = assembled(FedAvg(), privacy), Ledger.open(":memory:")
    part = Run(*parts, ledger=ledger, schedule=Schedule(100, 1), folder=tmp_path)
    part.step()
    again = Run(*parts, ledger=ledger, schedule=Schedule(100, 100), folder=tmp_path)
    again.resume()
    assert int(again.progress.public["turn"]) == 1
    again.go()
    whole = run(FedAvg(), privacy)
    whole.go()
    one, other = (it.progress.server.view.model for it in (again, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_discarded_round_is_charged_and_changes_nothing() -> None:
    privacy = Privacy(plans.Distributed(Fixed(0.5), bits=20), (Level("private", delta=1e-3, noise=1.0),))
    it = run(FedAvg(), privacy, rate=0.5)
    before = it.progress.server.view.model
    it.plan = it.engine.plan
    it.step()
    assert any(not torch.equal(before[name], leaf) for name, leaf in it.progress.server.view.model.items())
    settled = it.progress.server.view.model
    release = it.plan.release
    object.__setattr__(release, "coding", Coding(**{**vars(coding(it.plan)), "least": 10_000}))
    it.step()
    assert all(torch.equal(settled[name], leaf) for name, leaf in it.progress.server.view.model.items())
    assert {entry.round for entry in it.ledger.entries()} == {0, 1}
    assert {entry.scope.split(":")[0] for entry in it.ledger.entries()} == {"client", "released"}
