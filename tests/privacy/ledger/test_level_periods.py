"""A client's own account, replayed from its stays: properties, words, and what it costs to keep."""

import sqlite3
from collections import Counter
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.privacy.accounting import accountant as accounting
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.accounting.sampling import Sampler
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.ledger.statement import moved, statement
from tacit.privacy.levels import Level, LevelOptions, by_client
from tacit.privacy.mechanisms import Grouped
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.membership import Change, LevelHistory, LevelPeriod, accounts, read_changes
from tacit.privacy.plan import CalibrationContext, Plan
from tacit.sampling.cohorts import FixedSize, Poisson, Shuffled

ROUNDS = 10
DELTA = 1e-4
LEVELS = (
    Level("strict", epsilon=3.0, delta=DELTA, noise=4.0),
    Level("private", epsilon=9.0, delta=DELTA, noise=2.0),
    Level("loose", epsilon=40.0, delta=DELTA / 10, noise=0.8),
    Level("open"),
)
NAMES = [level.name for level in LEVELS]


def planned(clients: int = 6, sampler: Sampler = Poisson(1.0)) -> Plan:
    ids = [f"c{k}" for k in range(clients)]
    chosen = {name: NAMES[k % len(NAMES)] for k, name in enumerate(ids)}
    choices = by_client(LevelOptions(LEVELS), ids, chosen)
    setting = CalibrationContext(ids, np.full(clients, 10), choices, sampler, Shuffled(5), ROUNDS)
    return Grouped(Fixed(1.0)).plan(setting)


def round_of(purse: BudgetTracker, round: int) -> None:
    """What the loop does, without training."""
    plan = purse.settle(round)
    purse.charge(round, plan.accounts(np.flatnonzero(purse.eligible())))


moves = st.lists(
    st.tuples(st.integers(0, ROUNDS - 1), st.integers(0, 5), st.sampled_from(NAMES)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_an_account_never_shrinks_and_no_round_that_was_asked_takes_it_past_its_level(
    wishes: list[tuple[int, int, str]],
) -> None:
    plan = planned()
    with Ledger.open(":memory:") as ledger:
        purse = BudgetTracker(plan, ledger)
        spent = dict.fromkeys(plan.setting.ids, 0.0)
        for round in range(ROUNDS):
            for _, client, level in (wish for wish in wishes if wish[0] == round):
                purse.change([f"c{client}"], level, round)
            if purse.settle(round) and purse.exhausted():
                break
            round_of(purse, round)
            for name, events in accounts(ledger, ledger.level_periods()).items():
                now = epsilon(events, DELTA, "add/remove")
                assert now >= spent[name] - 1e-9
                place = plan.setting.ids.index(name)
                level = purse.plan.setting.choices.of(place)
                if purse.plan.eligible[place] and level.epsilon is not None:
                    assert epsilon(events, level.delta or 0.0, "add/remove") <= level.epsilon
                spent[name] = now


@settings(max_examples=30, deadline=None)
@given(moves, st.integers(1, ROUNDS - 1))
def test_a_purse_opened_in_the_middle_goes_on_as_the_one_that_was_there_from_the_start(
    wishes: list[tuple[int, int, str]], start: int
) -> None:
    with Ledger.open(":memory:") as ledger:
        purse = BudgetTracker(planned(), ledger)
        for round in range(start):
            for _, client, level in (wish for wish in wishes if wish[0] == round):
                purse.change([f"c{client}"], level, round)
            round_of(purse, round)
        other = BudgetTracker(planned(), ledger, start)
        assert (other.settle(start).eligible == purse.settle(start).eligible).all()
        assert (other.eligible() == purse.eligible()).all()
        assert other.exhausted() == purse.exhausted()
        asked, more = purse.plan.eligible, ROUNDS - start
        assert (other._left[asked].clip(max=more) == purse._left[asked].clip(max=more)).all()


def test_clients_with_the_same_history_share_one_account() -> None:
    """Two thousand clients that move together are reckoned once."""
    with Ledger.open(":memory:") as ledger:
        plan = planned(8000)
        purse = BudgetTracker(plan, ledger)
        round_of(purse, 0)
        accounting._largest_count.cache_clear()
        purse.change([f"c{k}" for k in range(1, 8000, 4)], "loose", 1)
        round_of(purse, 1)
        assert accounting._largest_count.cache_info().misses == 1
        (group,) = moved(ledger)
        assert len(group.clients) == 2000
        assert group.line.rounds == 2


def test_cohorts_of_fixed_size_are_divided_by_the_share_of_those_that_are_asked() -> None:
    with Ledger.open(":memory:") as ledger:
        purse = BudgetTracker(planned(8, FixedSize(4)), ledger)
        purse.change(["c0"], "open", 0)
        release = purse.settle(0).release
        assert release.expected == (0.5, 1.0, 1.0, 1.5)  # pyright: ignore[reportAttributeAccessIssue]


EVENT = {name: dp.GaussianDpEvent(level.noise or 1.0) for name, level in zip(NAMES, LEVELS, strict=True)}


def stay(round: int, level: str, asked: bool = True) -> LevelPeriod:
    found = LEVELS[NAMES.index(level)]
    return LevelPeriod(round, level, asked, found.epsilon, found.delta)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_rounds_at_a_level_are_charged_to_who_was_there_and_asked(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for round in range(6):
            levels = [Charge(f"level:{name}", "client", "add/remove", EVENT[name]) for name in ("strict", "private")]
            ledger.charge(round, levels)
        ledger.move({"a": [stay(0, "private"), stay(2, "open"), stay(3, "strict"), stay(5, "strict", asked=False)]})
    with Ledger.read(path) as ledger:
        assert accounts(ledger, ledger.level_periods())["a"] == {EVENT["private"]: 2, EVENT["strict"]: 2}
        assert accounts(ledger, ledger.level_periods(), until=1)["a"] == {EVENT["private"]: 1}
        assert accounts(ledger, ledger.level_periods(), until=4)["a"] == {EVENT["private"]: 2, EVENT["strict"]: 1}


def test_what_is_said_later_of_the_same_round_holds() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.move({"a": [stay(0, "private"), stay(3, "open")]})
        ledger.move({"a": [stay(3, "strict")]})
        ledger.move({"a": [stay(3, "open")]})
        assert ledger.level_periods() == {"a": (stay(0, "private"), stay(3, "open"))}


def test_who_was_where_is_kept(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [Charge("level:strict", "client", "add/remove", EVENT["strict"])])
        assert ledger.level_periods() == {}
        assert moved(ledger) == []
        ledger.move({"a": [stay(0, "private"), stay(1, "strict")]})
    with Ledger.open(path) as ledger:
        assert list(ledger.level_periods()) == ["a"]


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE stays SET level = 'open'",
        "DELETE FROM stays",
        "INSERT OR REPLACE INTO stays SELECT serial, round, client, 'open', 1, NULL, NULL, 0 FROM stays",
    ],
)
def test_nobody_rewrites_who_was_where(path: Path, attack: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.move({"a": [stay(0, "private"), stay(1, "strict")]})
        before = ledger.level_periods()
    db = sqlite3.connect(path)
    try:
        db.execute(attack)
        db.commit()
    except sqlite3.IntegrityError:
        pass
    db.close()
    with Ledger.read(path) as ledger:
        assert ledger.level_periods() == before


def test_a_change_that_fails_half_way_moves_nobody(path: Path) -> None:
    with Ledger.open(path) as ledger:
        broken = {"a": [stay(0, "private"), stay(1, "strict")], "b": [LevelPeriod(0, None)]}  # type: ignore[arg-type]
        with pytest.raises(TacitError):
            ledger.move(broken)
        assert ledger.level_periods() == {}


def test_the_promise_to_a_client_with_its_own_account_is_that_of_its_last_private_level() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.budget("client:a", "client", "replace", 9.0, DELTA)
        ledger.charge(0, [Charge("client:a", "client", "replace", EVENT["private"])])
        ledger.move({"a": [stay(0, "private"), stay(1, "strict"), stay(2, "open")]})
        (line,) = statement(ledger)
        assert (line.budget, line.delta) == (3.0, DELTA)
        (group,) = moved(ledger)
        assert group.line.epsilon == line.epsilon == epsilon(Counter({EVENT["private"]: 1}), DELTA, "replace")
        assert group.line.relation == "replace"


def test_changes_come_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "changes.csv"
    file.write_text("round,client,level\n3,a,open\n12,b,strict\n")
    assert list(read_changes(file)) == [Change(3, "a", "open"), Change(12, "b", "strict")]
    for text, says in (
        ("client,level\na,open\n", "round, client and level"),
        ("round,client,level\nx,a,open\n", "'x'"),
    ):
        file.write_text(text)
        with pytest.raises(TacitError, match=says):
            read_changes(file)
    with pytest.raises(TacitError, match="cannot read the changes"):
        read_changes(tmp_path / "none.csv")


def test_members_are_where_they_chose_until_they_change() -> None:
    setting = planned().setting
    members = LevelHistory(setting.choices, setting.ids)
    later = members.after(members.changing(["c1"], "open", 4))
    assert not members.periods
    assert [later.at(round)[0].of(1).name for round in (0, 3, 4, 9)] == ["private", "private", "open", "open"]
    assert [later.begun(round).any() for round in (3, 4)] == [False, True]
    gone = later.after(later.dismissing(["c1"], 6))
    assert [bool(gone.at(round)[1][1]) for round in (5, 6)] == [True, False]
