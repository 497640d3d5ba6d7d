"""Rounds: charged before release, stopped before a budget is exceeded, resumed to the same result."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.core import tree
from tacit.errors import TacitError
from tacit.methods import Ditto, FedAvg, LocalOnly
from tacit.methods.optimizers import LocalSgd
from tacit.privacy import mechanisms as plans
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed, Quantile
from tacit.privacy.plan import Mechanism
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule, SimulatedCohort
from tacit.rounds.round import Progress, Replies, Report
from tacit.sampling.cohorts import FixedSize, Poisson
from tests.worlds import (
    CENTRAL,
    GROUPED,
    LOCAL,
    OPEN,
    PLANS,
    PRIVATE,
    RECORD,
    assembled,
    largest_difference,
    net,
    ragged,
    run,
    states,
)


def in_folder(folder: Path, privacy: Privacy = GROUPED, **options: Any) -> Run:
    parts = assembled(Ditto(), privacy, rounds=8, **options)
    ledger = Ledger.open(folder / "ledger.sqlite")
    return Run(*parts, ledger=ledger, schedule=Schedule(100, 3), folder=folder, fingerprint="same")


def rows(ledger: Ledger) -> list[tuple[Any, ...]]:
    return sorted((e.round, e.scope, str(e.event), e.count) for e in ledger.entries())


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path: Path, plan: str) -> None:
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    for folder in (whole, first, second):
        folder.mkdir()
    expected = in_folder(whole, PLANS[plan])
    expected.go()
    for _ in range(4):  # each time two rounds, of which the checkpoint after the third may know less
        part = in_folder(first, PLANS[plan])
        part.resume()
        began = part.progress.round
        part.go(lambda part=part, began=began: part.progress.round >= began + 2)
    again = in_folder(first, PLANS[plan])
    again.resume()
    assert largest_difference(tree.join(again.progress.server.view), tree.join(expected.progress.server.view)) == 0
    assert largest_difference(states(again), states(expected)) == 0
    assert rows(again.ledger) == rows(expected.ledger)


def test_a_run_that_lost_rounds_repeats_them_without_a_second_charge(tmp_path: Path) -> None:
    expected = in_folder(tmp_path)
    for _ in range(5):  # the last checkpoint is of round 3
        expected.step()
    charged = rows(expected.ledger)
    resumed = in_folder(tmp_path)
    resumed.resume()
    assert resumed.progress.round == 3
    for _ in range(2):
        resumed.step()
    assert rows(resumed.ledger) == charged
    assert largest_difference(resumed.progress.server.view.model, expected.progress.server.view.model) == 0


def test_the_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    in_folder(tmp_path).go()
    other = in_folder(tmp_path)
    other._fingerprint = "another"
    with pytest.raises(TacitError, match="another configuration"):
        other.resume()


def test_a_ledger_has_the_rounds_of_one_run() -> None:
    """Another run's rounds have the same numbers: they would be taken for repetitions, and cost nothing."""
    ledger = Ledger.open(":memory:")
    Run(*assembled(FedAvg(), CENTRAL), ledger=ledger).go()
    Run(*assembled(FedAvg(), CENTRAL), ledger=ledger).go()  # the same noise, and so the same release
    for method, privacy in ((Ditto(), CENTRAL), (FedAvg(local=LocalSgd(0.2)), CENTRAL), (FedAvg(), LOCAL)):
        with pytest.raises(TacitError, match="another run"):
            Run(*assembled(method, privacy), ledger=ledger)


class Spy:
    """A ledger's view of a run: what had been charged when each round's release was computed."""

    def __init__(self, it: Run) -> None:
        self.seen: list[tuple[int, int]] = []
        release = it.engine.plan.release
        decode = release.decode

        def spying(state: Any, totals: Any, noise: Any) -> Any:
            self.seen.append((it.progress.round, it.ledger.rounds()))
            return decode(state, totals, noise)

        stub = type("Spied", (), {"start": release.start, "encode": release.encode, "decode": staticmethod(spying)})()
        it.plan = replace(it.plan, release=stub)


def test_every_round_is_charged_before_it_is_released() -> None:
    it = run(FedAvg(), GROUPED)
    spy = Spy(it)
    it.go()
    assert spy.seen == [(round, round) for round in range(5)]


def budget(epsilon: float, noise: float) -> Level:
    return Level("private", epsilon=epsilon, delta=1e-3, noise=noise)


def test_the_round_that_would_exceed_a_budget_does_not_happen() -> None:
    generous = run(FedAvg(), Privacy(plans.Central(Fixed(0.5)), (budget(6.0, 1.0),)), rounds=50)
    outcome = generous.go()
    assert outcome.stopped is not None
    assert "used up" in outcome.stopped
    done = outcome.progress.round
    assert 0 < done < 50
    account = generous.plan.levels[0]
    from tacit.privacy.accounting.accountant import epsilon

    assert epsilon({account.event: done}, 1e-3, account.relation) <= 6.0
    assert epsilon({account.event: done + 1}, 1e-3, account.relation) > 6.0


def test_a_calibrated_run_uses_all_of_its_rounds() -> None:
    level = Level("private", epsilon=4.0, delta=1e-3)
    outcome = run(FedAvg(), Privacy(plans.Central(), (level,)), rounds=20).go()
    assert outcome.stopped is None
    assert outcome.progress.round == 20


@pytest.mark.parametrize("plan", [plans.Local(participations=2), plans.Record(participations=2)])
def test_a_client_whose_budget_is_used_up_is_no_longer_asked(plan: Mechanism) -> None:
    privacy = Privacy(plan, (Level("private", epsilon=4.0, delta=1e-3),), allow_large_delta=True)
    it = run(FedAvg(), privacy, rounds=30, rate=0.5)
    outcome = it.go()
    assert outcome.stopped == "every client has used up its budget"
    taken: dict[str, int] = {}
    for entry in it.ledger.entries():
        taken[entry.scope] = taken.get(entry.scope, 0) + 1
    assert set(taken.values()) == {2}
    assert len(taken) == 20


def test_a_level_is_charged_even_if_nobody_of_it_was_drawn() -> None:
    it = run(FedAvg(), CENTRAL, rate=0.001)
    outcome = it.go()
    assert [report.cohort for report in outcome.reports] == [0] * 5
    assert it.ledger.spent("level:private").total() == 5
    assert largest_difference(it.progress.server.view.model, it.engine.start) > 0, "its noise is added all the same"


def test_opted_out_clients_have_no_account() -> None:
    it = run(FedAvg(), GROUPED)
    it.go()
    assert it.ledger.scopes() == ["level:private"]
    local = run(FedAvg(), replace(LOCAL, levels=(PRIVATE, OPEN), choices={"open": 0.5}))
    local.go()
    private = {f"client:c{k}" for k in np.flatnonzero(local.plan.setting.choices.private)}
    assert set(local.ledger.scopes()) <= private


def test_ratio_zero_neither_asks_nor_charges_private_clients() -> None:
    it = run(FedAvg(), replace(GROUPED, plan=plans.Grouped(Fixed(0.5), ratio=0.0)))
    it.go()
    assert list(it.ledger.entries()) == []
    assert not (it.store.touched & it.plan.setting.choices.private).any()


def test_ratio_one_adds_exactly_the_noise_of_dp_fedavg() -> None:
    """Uniform weights: the private sum's noise enters the mean divided by the expected cohort, as in DP-FedAvg."""
    grouped = run(FedAvg(), GROUPED).plan.release
    noise = grouped.merge.weights[0] * grouped.multipliers[0] / grouped.expected[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert noise == pytest.approx(1.0 / (0.5 * 20))


def test_fixed_size_cohorts_are_accounted_by_rdp_with_replace_one_and_twice_the_sensitivity() -> None:
    training = Training(rounds=3, sampler=FixedSize(5), batch=4)
    level = Level("private", epsilon=20.0, delta=1e-3)
    engine, _ = assemble(ragged(), net(), FedAvg(), Privacy(plans.Central(), (level,)), training)
    assert engine.plan.release.sensitivity == 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert engine.plan.levels[0].relation == "replace-one"


def test_delta_must_be_small_for_its_unit_unless_told_otherwise() -> None:
    sloppy = Level("private", epsilon=4.0, delta=0.05)
    with pytest.raises(TacitError, match="not below 1/20"):
        run(FedAvg(), Privacy(plans.Central(), (sloppy,)))
    run(FedAvg(), Privacy(plans.Central(), (sloppy,), allow_large_delta=True))


def test_batch_normalisation_is_refused_for_single_records_and_kept_local_otherwise() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    training = Training(rounds=3, sampler=Poisson(0.5), batch=4)
    with pytest.raises(TacitError, match="GroupNorm"):
        assemble(ragged(), model, FedAvg(), RECORD, training)
    assemble(ragged(), model, FedAvg(), CENTRAL, training)
    it = Run(*assemble(ragged(), model, LocalOnly(), Privacy(), training), ledger=Ledger.open(":memory:"))
    scores = it.go().scores
    assert scores is not None
    assert np.isfinite(scores.personal).all()


def test_projection_after_every_step_bounds_what_would_be_uploaded() -> None:
    tight = Privacy(plans.Central(Fixed(1e-3), project=True), (PRIVATE,))
    engine, _ = assembled(FedAvg(), tight)
    public = engine.plan.release.start()
    guard = engine._guard(public)
    start = {"w": torch.zeros(4)}
    assert float(tree.norm(guard(start, start, {"w": torch.ones(4)}))) <= 1e-3


def test_threads_change_no_draw_and_hardly_the_result() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            it = run(Ditto(), Privacy(plans.Grouped(Quantile(0.5)), (PRIVATE, OPEN), {"open": 0.3}))
            it.go()
            results.append(it)
    finally:
        torch.set_num_threads(before)
    one, two = results
    assert np.array_equal(one.store.touched, two.store.touched)
    assert largest_difference(tree.join(one.progress.server.view), tree.join(two.progress.server.view)) < 1e-9
    assert largest_difference(states(one), states(two)) < 1e-9


def test_watchers_are_told_after_every_round() -> None:
    seen: list[Report] = []

    class Watcher:
        def after_round(self, report: Report) -> None:
            seen.append(report)

    it = run(FedAvg(), CENTRAL)
    it.watchers = [Watcher()]
    it.go()
    assert [report.round for report in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].scores is not None


def test_record_noise_follows_each_clients_own_number_of_rows() -> None:
    level = Level("private", epsilon=4.0, delta=1e-3)
    it = run(FedAvg(), replace(RECORD, levels=(level,), plan=plans.Record(0.5, participations=3)))
    noise = it.plan.record
    assert noise is not None
    sizes = it.engine.federation.sizes
    assert noise.expected.tolist() == [min(4, n) for n in sizes]
    assert len({(n, z) for n, z in zip(sizes.tolist(), noise.multipliers.tolist(), strict=True)}) == len(
        set(sizes.tolist())
    )


def test_nobody_computes_before_the_round_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    it, charged = run(FedAvg(), CENTRAL), []
    whole = SimulatedCohort.collect

    def collect(self: SimulatedCohort, progress: Progress, cohort: np.ndarray, turn: int) -> Replies:
        charged.append(it.ledger.rounds() == turn)
        return whole(self, progress, cohort, turn)

    monkeypatch.setattr(SimulatedCohort, "collect", collect)
    it.go()
    assert charged
    assert all(charged)
