"""Changing one's level between rounds: public, effective at the next draw, never refunded."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.core import tree
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import Ditto, FedAvg, LocalOnly
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import moved
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.membership import Change, accounts
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run, Schedule
from tests.worlds import CENTRAL, OPEN, assembled, largest_difference, ragged, run, states

PRIVATE = Level("private", epsilon=60.0, delta=1e-3, noise=1.0)
STRICT = Level("strict", epsilon=8.0, delta=1e-3, noise=2.0)
LEVELS = (PRIVATE, STRICT, OPEN)
CHOICES = {f"c{k}": "open" if k >= 16 else "strict" if k >= 12 else "private" for k in range(20)}
GROUPED = Privacy(plans.Grouped(Fixed(0.5)), LEVELS, CHOICES)
PERSONAL = Ditto(strength=(0.1, 0.2, 0.3))


def started(privacy: Privacy = GROUPED, steps: int = 0, **options: Any) -> Run:
    it = run(PERSONAL, privacy, rounds=8, **options)
    step(it, steps)
    return it


def step(it: Run, steps: int) -> None:
    for _ in range(steps):
        it.step()


def events(it: Run) -> dict[str, Any]:
    """One round's event of each level that is asked."""
    return {account.scope.removeprefix("level:"): account.event for account in it.plan.levels}


def account(it: Run, client: str) -> Counter:
    return accounts(it.ledger, it.ledger.level_periods())[client]


def test_an_account_is_the_composition_of_both_levels_events() -> None:
    it = started(steps=3)
    it.change("c1", "strict")
    step(it, 2)
    both = {events(it)["private"]: 3, events(it)["strict"]: 2}
    assert account(it, "c1") == both
    (line,) = moved(it.ledger)
    assert line.line.epsilon == epsilon(both, 1e-3, "add/remove")
    assert line.line.budget == STRICT.epsilon
    assert it.ledger.spent("level:private")[events(it)["private"]] == 5, "those that stayed pay for every round"


def test_opting_out_and_back_refunds_nothing() -> None:
    it = started(steps=3)
    for level, steps in (("open", 2), ("private", 1)):
        it.change("c1", level)
        step(it, steps)
    assert account(it, "c1") == {events(it)["private"]: 4}


def test_a_change_takes_effect_at_the_next_draw_and_not_before() -> None:
    it = started(steps=2)
    it.change(["c1", "c2"], "open")
    assert it.plan.setting.choices.of(1).name == "private"
    step(it, 1)
    assert it.plan.setting.choices.of(1).name == "open"
    assert it.plan.setting.choices.counts == [10, 4, 6]
    assert [stay.round for stay in it.ledger.level_periods()["c1"]] == [0, 2]


def test_a_client_that_has_spent_more_than_its_new_level_allows_is_no_longer_asked() -> None:
    it = started(steps=5, rate=1.0)
    spent = epsilon({events(it)["private"]: 5}, 1e-3, "add/remove")
    assert spent > 8.0
    it.change("c1", "strict")
    step(it, 2)
    assert not it.budget.eligible()[1]
    assert it.budget.eligible()[[2, 12, 16]].all()
    assert account(it, "c1") == {events(it)["private"]: 5}
    assert not it.ledger.level_periods()["c1"][-1].asked
    it.change("c1", "private")
    step(it, 1)
    assert it.plan.eligible[1], "the level it came from can pay for more"
    assert account(it, "c1") == {events(it)["private"]: 6}


def test_a_client_is_asked_for_as_long_as_its_new_level_can_pay() -> None:
    it = started(steps=4, rate=1.0)
    it.change("c1", "strict")
    asked = []
    while it.progress.round < 8:
        it.step()
        asked.append(bool(it.plan.eligible[1]))
    event = {account.scope: account.event for account in it._first.levels}
    loose, tight = event["level:private"], event["level:strict"]
    assert asked == [epsilon({loose: 4, tight: n}, 1e-3, "add/remove") <= 8.0 for n in range(1, 5)]
    assert asked == [True, False, False, False]


def test_divisors_and_weights_follow_the_members_that_are_asked() -> None:
    it = started(steps=5, rate=1.0)
    it.change(["c1", "c2", "c3"], "strict")  # none of them can pay
    it.change("c4", "open")
    step(it, 1)
    release: Any = it.plan.release
    assert release.expected == (8.0, 4.0, 5.0)
    assert release.merge.weights == pytest.approx((8 / 17, 4 / 17, 5 / 17))


def test_a_level_without_anybody_to_ask_has_no_weight_and_is_not_charged() -> None:
    alone = {name: "open" if level == "strict" else level for name, level in CHOICES.items()}
    it = started(replace(GROUPED, choices=alone), steps=5, rate=1.0)
    it.change("c1", "strict")
    step(it, 1)
    release: Any = it.plan.release
    assert release.merge.weights[1] == 0
    assert release.multipliers[1] == 0
    assert it.ledger.spent("level:strict") == {}
    assert it.go().stopped is None


def with_other_rows(of: FederatedDataset, client: int) -> FederatedDataset:
    """The same federation, but for what one client trains on."""
    data = {}
    for k, name in enumerate(of.ids):
        rows, test = of.rows(k), slice(int(of.test_offsets[k]), int(of.test_offsets[k + 1]))
        x = of.x[rows.start : rows.stop] * (-5.0 if k == client else 1.0)
        data[name] = (x.numpy(), of.y[rows.start : rows.stop].numpy(), of.test_x[test].numpy(), of.test_y[test].numpy())
    return from_clients(data, classes=3, dtype=torch.float64)


def test_what_a_client_holds_that_is_no_longer_asked_changes_nothing() -> None:
    tiny = Level("tiny", epsilon=0.1, delta=1e-3, noise=1.0)
    models = []
    for data in (ragged(), with_other_rows(ragged(), 1)):
        it = run(FedAvg(), replace(GROUPED, levels=(*LEVELS, tiny)), data, rounds=4, rate=1.0)
        it.engine = replace(it.engine, identity="the same noise")
        it.change("c1", "tiny")
        it.go()
        models.append(it.progress.server.view.model)
    assert largest_difference(*models) == 0


def test_nobody_changing_leaves_run_and_ledger_as_they_were() -> None:
    plain, asked = started(), started()
    asked.change(["c1", "c2"], "private")  # where they are
    for it in (plain, asked):
        it.go()
    assert largest_difference(tree.join(plain.progress.server.view), tree.join(asked.progress.server.view)) == 0
    assert largest_difference(states(plain), states(asked)) == 0
    for it in (plain, asked):
        assert it.ledger.level_periods() == {}
        assert it.plan is it._first


def test_those_that_stayed_still_end_the_run_when_their_level_is_used_up() -> None:
    level = Level("private", epsilon=6.0, delta=1e-3, noise=1.0)
    it = run(FedAvg(), replace(GROUPED, levels=(level, STRICT, OPEN)), rounds=30)
    plain = run(FedAvg(), replace(GROUPED, levels=(level, STRICT, OPEN)), rounds=30)
    it.change("c1", "open")
    assert it.go().stopped == plain.go().stopped == "the budget of level:private is used up"
    assert it.progress.round == plain.progress.round


# Ratios


def test_with_ratio_zero_those_that_opt_out_are_asked_and_those_that_come_back_are_not() -> None:
    it = started(replace(GROUPED, plan=plans.Grouped(Fixed(0.5), ratio=0.0)), steps=1, rate=1.0)
    it.change("c1", "open")
    it.change("c16", "private")
    step(it, 1)
    assert it.budget.eligible()[1]
    assert not it.budget.eligible()[[0, 16]].any()
    assert list(it.ledger.entries()) == []
    it.change(["c1", "c17", "c18", "c19"], "strict")
    assert "weight 0" in str(it.go().stopped)


def test_optimal_weights_survive_that_everybody_turns_private_and_back() -> None:
    it = started(replace(GROUPED, plan=plans.Grouped(Fixed(0.5), ratio="optimal")), steps=2)
    learned = it.progress.public["merge/means"].clone()
    assert learned.abs().sum() > 0
    it.change([f"c{k}" for k in range(16, 20)], "private")
    step(it, 2)
    weights = it.progress.public["merge/weights"]
    assert float(weights[2]) == 0
    assert float(weights.sum()) == pytest.approx(1.0)
    it.change("c19", "open")
    step(it, 1)
    assert not torch.equal(it.progress.public["merge/means"], learned)
    assert float(it.progress.public["merge/weights"].sum()) == pytest.approx(1.0)


def test_optimal_weights_begin_when_the_first_client_opts_out() -> None:
    closed = dict.fromkeys(CHOICES, "private")
    it = started(replace(GROUPED, plan=plans.Grouped(Fixed(0.5), ratio="optimal"), choices=closed), steps=2)
    it.change(["c18", "c19"], "open")
    it.go()
    assert float(it.progress.public["merge/weights"].sum()) == pytest.approx(1.0)


# Where the current level must be used


def test_methods_and_evaluation_see_the_level_of_the_day() -> None:
    it = started(steps=1)
    it.change("c1", "open")
    step(it, 1)
    assert it.engine.inputs_for(states_of(it, 1), np.array([1]), 2).level.tolist() == [2]
    scores = it.evaluate()
    assert scores.level[scores.clients.tolist().index(1)] == 2


def states_of(it: Run, client: int) -> Any:
    return it.store.read(np.array([client]), it.engine.method.join(it.progress.server.view, it.engine.start))


def test_where_nothing_is_uploaded_a_change_costs_nothing() -> None:
    it = run(LocalOnly(), GROUPED, rounds=4)
    it.change("c1", "strict")
    it.go()
    assert list(it.ledger.entries()) == []


# Interruptions


PLANNED = (Change(2, "c1", "open"), Change(3, "c2", "strict"), Change(5, "c1", "strict"))


def in_folder(folder: Path, privacy: Privacy = GROUPED) -> Run:
    folder.mkdir(exist_ok=True)
    ledger = Ledger.open(folder / "ledger.sqlite")
    return Run(
        *assembled(PERSONAL, privacy, rounds=8, rate=1.0),
        ledger=ledger,
        schedule=Schedule(100, 3),
        folder=folder,
        fingerprint="same",
        changes=PLANNED,
    )


def told(it: Run) -> tuple[Any, ...]:
    rows = sorted((e.round, e.scope, str(e.event), e.count) for e in it.ledger.entries())
    return rows, it.ledger.level_periods(), it.ledger._query("SELECT serial, round, client, level, asked FROM stays")


SAME = (plans.Grouped(Fixed(0.5)), plans.Grouped(Fixed(0.5), ratio=0.5), plans.Local(Fixed(0.5)), plans.Record(0.5))


@pytest.mark.parametrize("plan", SAME, ids=["grouped", "ratio", "local", "record"])
def test_a_run_that_lost_rounds_ends_as_one_that_was_never_interrupted(tmp_path: Path, plan: Any) -> None:
    privacy = replace(GROUPED, plan=plan, allow_large_delta=True)
    whole = in_folder(tmp_path / "whole", privacy)
    whole.go()
    for rounds in (2, 4, 5, 7):  # each time it is lost after some rounds, the last checkpoint is older
        part = in_folder(tmp_path / "part", privacy)
        part.resume()
        step(part, rounds - part.progress.round)
    again = in_folder(tmp_path / "part", privacy)
    again.resume()
    assert again.progress.round == 6
    again.go()
    assert largest_difference(tree.join(again.progress.server.view), tree.join(whole.progress.server.view)) == 0
    assert largest_difference(states(again), states(whole)) == 0
    assert told(again) == told(whole)


def test_optimal_weights_go_on_after_an_interruption(tmp_path: Path) -> None:
    privacy = replace(GROUPED, plan=plans.Grouped(Fixed(0.5), ratio="optimal"))
    whole = in_folder(tmp_path / "whole", privacy)
    whole.go()
    step(in_folder(tmp_path / "part", privacy), 5)
    again = in_folder(tmp_path / "part", privacy)
    again.resume()
    again.go()
    assert largest_difference(again.progress.public, whole.progress.public) < 1e-9
    assert largest_difference(again.progress.server.view.model, whole.progress.server.view.model) < 1e-9
    assert told(again) == told(whole)


def test_what_the_ledger_replays_after_reopening_is_what_was_charged(tmp_path: Path) -> None:
    it = in_folder(tmp_path)
    it.go()
    accounted = accounts(it.ledger, it.ledger.level_periods())
    it.ledger.close()
    with Ledger.read(tmp_path / "ledger.sqlite") as ledger:
        assert accounts(ledger, ledger.level_periods()) == accounted
        assert {client: [s.level for s in stays if s.asked] for client, stays in ledger.level_periods().items()} == {
            "c1": ["private", "open", "strict"],
            "c2": ["private", "strict"],
        }


def test_a_crash_between_a_change_and_its_charge_keeps_the_change(tmp_path: Path) -> None:
    whole, lost = in_folder(tmp_path / "whole"), in_folder(tmp_path / "lost")
    for it in (whole, lost):
        step(it, 4)
        it.change("c5", "open")
    whole.go()
    resumed = in_folder(tmp_path / "lost")
    resumed.resume()
    assert resumed.progress.round == 3
    resumed.go()
    assert told(resumed) == told(whole)
    assert largest_difference(resumed.progress.server.view.model, whole.progress.server.view.model) == 0


def test_a_change_never_touches_a_round_that_was_drawn_before_an_interruption(tmp_path: Path) -> None:
    """Its noise is repeated, so another sum under it would give both away."""
    first = in_folder(tmp_path)
    step(first, 5)
    resumed = in_folder(tmp_path)
    resumed.resume()
    assert resumed.progress.round == 3
    resumed.change("c5", "open")
    assert resumed.ledger.level_periods()["c5"][-1].round == 5
    step(resumed, 2)
    assert largest_difference(resumed.progress.server.view.model, first.progress.server.view.model) == 0
    assert resumed.plan.setting.choices.of(5).name == "private"
    step(resumed, 1)
    assert resumed.plan.setting.choices.of(5).name == "open"


def test_a_planned_change_that_lies_in_the_past_is_refused(tmp_path: Path) -> None:
    step(in_folder(tmp_path), 5)
    resumed = in_folder(tmp_path)
    resumed.resume()
    resumed.budget._changes = (*PLANNED, Change(4, "c7", "open"))
    resumed.step()
    with pytest.raises(TacitError, match=r"'c7'.*past"):
        resumed.step()


# Other plans


def test_under_the_local_plan_noise_and_limit_follow_the_level() -> None:
    it = started(replace(GROUPED, plan=plans.Local(Fixed(0.5))), steps=4, rate=1.0)
    it.change("c1", "strict")
    step(it, 1)
    (loose, tight) = (it.plan.client(k) for k in (2, 12))
    assert loose is not None
    assert tight is not None
    assert it.ledger.spent("client:c1") == {loose.event: 4, tight.event: 1}
    own = next(line for line in moved(it.ledger) if line.clients == ("c1",))
    assert own.line.epsilon == epsilon({loose.event: 4, tight.event: 1}, 1e-3, "replace")
    assert own.line.budget == 8.0
    it.change("c1", "open")
    step(it, 1)
    assert it.ledger.spent("client:c1").total() == 5
    it.change("c1", "strict")
    step(it, 2)
    paid = it.ledger.spent("client:c1")[tight.event]
    assert 1 <= paid < 3, "it cannot pay for all of them"
    assert epsilon({loose.event: 4, tight.event: paid}, 1e-3, "replace") <= 8.0
    assert epsilon({loose.event: 4, tight.event: paid + 1}, 1e-3, "replace") > 8.0
    assert not it.budget.eligible()[1]


def test_under_the_record_plan_noise_and_limit_follow_the_level() -> None:
    privacy = replace(GROUPED, plan=plans.Record(0.5), allow_large_delta=True)
    it = started(privacy, steps=1, rate=1.0)
    record = it.plan.record
    assert record is not None
    assert record.multipliers[1] == 1.0
    it.change("c1", "strict")
    step(it, 1)
    assert it.plan.record is not None
    assert it.plan.record.multipliers[[1, 2, 16]].tolist() == [2.0, 1.0, 0.0]
    assert len(it.ledger.spent("client:c1")) == 2


def test_the_central_plan_refuses_a_second_level_before_anything_is_written() -> None:
    it = run(FedAvg(), replace(CENTRAL, levels=(PRIVATE, STRICT), choices=dict.fromkeys(CHOICES, "private")))
    with pytest.raises(TacitError, match="grouped"):
        it.change("c1", "strict")
    assert it.ledger.level_periods() == {}
    it.change(list(CHOICES), "strict")
    it.go()
    assert it.ledger.scopes() == ["level:private", "level:strict"]
    assert it.ledger.spent("level:private") == {}


@pytest.mark.parametrize(
    ("clients", "level", "says"),
    [("c99", "open", r"'c99'.*did you mean"), ("c1", "opne", "'opne'.*did you mean 'open'")],
)
def test_clients_and_levels_that_do_not_exist_are_refused(clients: str, level: str, says: str) -> None:
    it = started()
    with pytest.raises(TacitError, match=says):
        it.change(clients, level)
    assert it.ledger.level_periods() == {}


def test_a_change_after_the_last_draw_is_refused() -> None:
    it = started()
    it.go()
    with pytest.raises(TacitError, match="no draw is left"):
        it.change("c1", "open")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change(0, "c1", "open"), "after 0 rounds"),
        (Change(8, "c1", "open"), "after 8 rounds"),
        (Change(3, "c99", "open"), "c99"),
        (Change(3, "c1", "opne"), "open"),
    ],
)
def test_planned_changes_are_checked_before_the_first_round(change: Change, says: str) -> None:
    with pytest.raises(TacitError, match=says):
        assembled(FedAvg(), replace(GROUPED, changes=(change,)), rounds=8)
    with pytest.raises(TacitError, match="twice"):
        assembled(FedAvg(), replace(GROUPED, changes=(Change(2, "c1", "open"), Change(2, "c1", "strict"))), rounds=8)


def test_a_level_that_only_changes_lead_to_is_checked_and_calibrated_beforehand() -> None:
    sloppy = Level("sloppy", epsilon=4.0, delta=0.05)
    privacy = replace(GROUPED, levels=(*LEVELS, sloppy))
    assembled(FedAvg(), privacy, rounds=8)
    with pytest.raises(TacitError, match="not below 1/20"):
        assembled(FedAvg(), replace(privacy, changes=(Change(2, "c1", "sloppy"),)), rounds=8)
