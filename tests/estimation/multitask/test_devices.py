"""Devices that drop out or do less, under every method."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.core import tree
from tacit.core.contract import Method
from tacit.errors import TacitError
from tacit.estimation.multitask import objective
from tacit.experiments.build import build_training
from tacit.experiments.config import parse
from tacit.experiments.train import train
from tacit.methods import Ditto, FedAvg, LocalOnly, Multitask, Scaffold
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.distributed import crowd
from tacit.rounds.assemble import Performance, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson
from tests.estimation.multitask.problems import tasks, trained
from tests.worlds import LOCAL, PLANS, largest_difference, model_for, ragged, states

ROUGH = Availability(drop=0.4, variability=0.8)


def run(
    method: Method, devices: Availability, privacy: Privacy = Privacy(), chunk: int | None = None, rounds: int = 6
) -> Run:
    training = Training(rounds, Poisson(0.8), 4, 3, seed=5, dtype=torch.float64, devices=devices)
    performance = Performance(chunk=chunk)
    made = assemble(ragged(), model_for(method), method, privacy, training, performance=performance)
    return Run(*made, Ledger.open(":memory:"), Schedule(evaluate_every=100))


@pytest.mark.parametrize(
    "method", [FedAvg(), Ditto(), Scaffold(), LocalOnly(), Multitask("smooth-hinge")], ids=lambda m: type(m).__name__
)
def test_draws_are_the_same_for_any_chunk_size_and_every_method_runs(method: Method) -> None:
    first, second = (run(method, ROUGH, chunk=chunk) for chunk in (1, 20))
    for each in (first, second):
        each.go()
    assert largest_difference(tree.join(first.progress.server.view), tree.join(second.progress.server.view)) < 1e-9
    assert largest_difference(states(first), states(second)) < 1e-9


def test_draws_depend_on_seed_round_and_device_alone() -> None:
    everybody, some = np.arange(1000), np.array([3, 500, 999])
    steps = np.full(1000, 40)
    dropped = np.setdiff1d(everybody, ROUGH.present(1, 2, everybody, 1000))
    assert set(ROUGH.present(1, 2, some, 1000)) == set(some) - set(dropped)
    assert (ROUGH.work(1, 2, everybody, steps)[some] == ROUGH.work(1, 2, some, steps)).all()
    assert len(dropped) == pytest.approx(400, abs=60)
    assert not np.array_equal(ROUGH.work(1, 2, everybody, steps), ROUGH.work(1, 3, everybody, steps))


def test_work_is_uniform_between_its_share_and_all_of_it() -> None:
    work = Availability(variability=0.5).work(0, 0, np.arange(20_000), np.full(20_000, 10))
    counts = np.bincount(work, minlength=11)
    assert counts[:5].sum() == 0
    assert counts[5:] / 20_000 == pytest.approx(np.full(6, 1 / 6), abs=0.01)
    even = Availability(variability=1.0, even_work=True).work(0, 0, np.arange(3), np.array([4, 10, 100]))
    assert even.max() <= 4


def test_no_heterogeneity_changes_nothing() -> None:
    plain, given = run(FedAvg(), Availability()), run(FedAvg(), Availability(variability=0.0))
    for each in (plain, given):
        each.go()
    assert largest_difference(plain.progress.server.view.model, given.progress.server.view.model) == 0


def test_a_dropped_device_sends_nothing_spends_nothing_and_rejoins() -> None:
    it = run(FedAvg(), Availability(drop=0.5), LOCAL, rounds=12)
    reports = it.go().reports
    charged: dict[int, int] = {}
    for entry in it.ledger.entries():
        charged[entry.round] = charged.get(entry.round, 0) + 1
    assert [charged.get(report.round - 1, 0) for report in reports] == [report.cohort for report in reports]
    assert sum(report.asked - report.cohort for report in reports) > 0
    scopes = [(entry.scope, entry.round) for entry in it.ledger.entries()]
    by_client = {scope: sorted(round for s, round in scopes if s == scope) for scope, _ in scopes}
    assert any(np.diff(rounds).max(initial=0) > 1 for rounds in by_client.values())  # came back after an absence


def test_under_a_central_plan_the_level_is_charged_whoever_drops_out() -> None:
    it = run(FedAvg(), Availability(drop=0.9), PLANS["central"])
    it.go()
    assert len(list(it.ledger.entries())) == 6


def test_the_noise_of_a_local_plan_is_calibrated_to_what_devices_really_send() -> None:
    from tacit.privacy import mechanisms as plans
    from tacit.privacy.levels import Level

    privacy = Privacy(plans.Local(), (Level("private", epsilon=8, delta=1e-3),))
    noise = [run(FedAvg(), Availability(drop=drop), privacy, rounds=40).plan.multipliers[0] for drop in (0.0, 0.8)]
    assert noise[1] < 0.7 * noise[0]


def test_shares_of_noise_are_sized_for_those_who_stay_and_no_sampling_is_credited() -> None:
    all_stay, half = (
        crowd(run(FedAvg(), Availability(drop=drop), PLANS["distributed"]).plan.setting, 0.01) for drop in (0.0, 0.5)
    )
    assert half.least < all_stay.least
    assert all_stay.rate is not None
    assert half.rate is None


def test_a_drop_of_one_is_an_error_that_says_so() -> None:
    with pytest.raises(TacitError, match="every device would be dropped"):
        Availability(drop=1.0)
    with pytest.raises(TacitError, match="drop"):
        build_training(parse({"devices": {"drop": 1.0}}))
    with pytest.raises(TacitError, match=r"variability is 1\.5"):
        Availability(variability=1.5)


def test_multitask_converges_though_nine_of_ten_drop_out() -> None:
    run = trained(tasks(), Multitask("smooth-hinge", 1.0, "mean", 0.5), rounds=500, devices=Availability(drop=0.9))
    run.go()
    assert objective(run).relative_gap < 1e-4


def test_a_device_that_never_takes_part_has_the_mean_of_the_others_and_is_counted() -> None:
    data = tasks(groups=(6,), rows=20)
    method = Multitask("smooth-hinge", 1.0, inner=3)
    run = trained(data, method, rounds=9)
    run.engine = replace(run.engine, devices=_Without(0))
    scores = run.go().scores
    assert scores is not None
    assert scores.strangers == 1
    assert scores.personal[0] > 0.8
    assert float(run.progress.server.view.extra["sums"][0].abs().sum()) == 0


class _Without(Availability):
    """One device is never there."""

    def __init__(self, who: int) -> None:
        super().__init__()
        object.__setattr__(self, "who", who)

    def present(self, seed: int, round: int, clients: np.ndarray, population: int) -> np.ndarray:
        return clients[clients != self.who]  # pyright: ignore[reportAttributeAccessIssue]


def test_the_report_tells_what_became_of_the_devices() -> None:
    training = Training(8, Poisson(0.8), 4, 3, dtype=torch.float64, devices=Availability(drop=0.5, variability=0.5))
    result = train(ragged(), model_for(FedAvg()), FedAvg(), training=training, progress=False)
    told = result.findings.devices
    assert told is not None
    assert "dropped out" in told
    assert "of their local steps" in told
    assert "Devices:" in str(result)


def test_one_clients_rows_do_not_decide_how_much_others_train_under_client_level_privacy() -> None:
    """With `even_work` they would: a client less, and all other uploads are others, which no clip bounds."""
    even = Availability(even_work=True)
    for plan in ("central", "local", "distributed"):
        with pytest.raises(TacitError, match="even_work"):
            run(FedAvg(), even, PLANS[plan])
    run(FedAvg(), even, PLANS["record"])  # there numbers of rows are public, and it is said
    run(FedAvg(), even, PLANS["open"])
