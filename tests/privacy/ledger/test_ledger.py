"""What was charged stays charged: through kills, repeats, full disks, and people with a database browser."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import dp_accounting as dp
import pytest

from tacit.errors import StorageError, TacitError
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.ledger import statement as statements
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.ledger.sqlite import MARK, VERSION
from tacit.privacy.ledger.statement import shown, statement

GAUSSIAN = dp.GaussianDpEvent(1.4)
SAMPLED = dp.PoissonSampledDpEvent(0.05, GAUSSIAN)
LEVEL = Charge("level:private", "client", "add/remove", SAMPLED)


def client(name: object, event: dp.DpEvent = GAUSSIAN, count: int = 1) -> Charge:
    return Charge(f"client:{name}", "client", "replace", event, count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_new_ledger_is_empty() -> None:
    with Ledger.open(":memory:") as ledger:
        assert ledger.rounds() == -1
        assert ledger.scopes() == []
        assert ledger.spent("level:private") == Counter()
        assert list(ledger.entries()) == []
        assert statement(ledger) == []


def test_charges_survive_reopening(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.budget("level:private", "client", "add/remove", 3.6, 1e-4)
        ledger.charge(0, [LEVEL])
        ledger.charge(1, [LEVEL, client("a", count=3)])
    with Ledger.open(path) as ledger:
        assert ledger.rounds() == 1
        assert ledger.scopes() == ["client:a", "level:private"]
        assert ledger.spent("level:private") == Counter({SAMPLED: 2})
        assert ledger.spent("client:a") == Counter({GAUSSIAN: 3})
        assert ledger.budgets()["level:private"].epsilon == 3.6
        assert [(e.round, e.scope, e.count) for e in ledger.entries()] == [
            (0, "level:private", 1),
            (1, "client:a", 3),
            (1, "level:private", 1),
        ]
        assert [e.event for e in ledger.entries("client:a")] == [GAUSSIAN]
        assert ledger.rounds("client:a") == 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]


KILLED = """
import os, signal, sys
import dp_accounting as dp
from tacit.privacy.ledger.ledger import Charge, Ledger
ledger = Ledger.open(sys.argv[1])
for round in range(3):
    ledger.budget(f"client:{round}", "client", "replace", 8.0, 1e-5)
    ledger.charge(round, [Charge(f"client:{round}", "client", "replace", dp.GaussianDpEvent(1.4), 2)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_right_after_charging_has_charged(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Ledger.open(path) as ledger:
        assert ledger.rounds() == 2
        assert [ledger.spent(f"client:{k}") for k in range(3)] == [Counter({GAUSSIAN: 2})] * 3
        assert ledger.budgets()["client:2"].epsilon == 8.0


def test_the_disk_is_told_to_flush_every_commit(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger._query("PRAGMA synchronous") == [(2,)]
        assert ledger._query("PRAGMA journal_mode") == [("wal",)]


# Repeats


def test_the_same_round_with_the_same_charges_counts_once(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [LEVEL, client("a"), client("b")])
        ledger.charge(1, [LEVEL])
        before = list(ledger.entries())
        ledger.charge(0, [client("b"), LEVEL, client("a")])  # an old round, in another order
        ledger.charge(1, [LEVEL])
        assert list(ledger.entries()) == before


def test_the_same_round_with_other_charges_adds_all_of_them(path: Path) -> None:
    """A round repeated with another cohort released something else: both are paid for."""
    with Ledger.open(path) as ledger:
        ledger.charge(0, [LEVEL, client("a"), client("b")])
        ledger.charge(1, [LEVEL])
        ledger.charge(0, [LEVEL, client("b"), client("c")])
        assert ledger.spent("level:private") == Counter({SAMPLED: 3})
        assert [ledger.spent(f"client:{k}")[GAUSSIAN] for k in "abc"] == [1, 2, 1]
        ledger.charge(0, [LEVEL, client("b", count=2), client("c")])
        assert ledger.spent("client:b")[GAUSSIAN] == 4
        assert ledger.rounds() == 1


def test_an_attempt_with_new_noise_is_charged_again() -> None:
    with Ledger.open(":memory:") as ledger:
        for nonce in ("", "second", "second"):
            ledger.charge(0, [LEVEL], nonce=nonce)
        assert ledger.spent("level:private") == Counter({SAMPLED: 2})


def test_charges_of_one_scope_and_event_add_up_within_a_round() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.charge(0, [client("a"), client("a", count=4), client("a", SAMPLED)])
        assert ledger.spent("client:a") == Counter({GAUSSIAN: 5, SAMPLED: 1})
        assert ledger.charged_rounds() == {"client:a": 1}


def test_an_empty_round_charges_nobody() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.charge(0, [])
        assert ledger.scopes() == []


# Only ever more


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE charges SET count = 0",
        "DELETE FROM charges",
        "UPDATE budgets SET epsilon = 100",
        "DELETE FROM budgets",
        "UPDATE scopes SET unit = 'record'",
        "DELETE FROM scopes",
    ],
)
def test_rows_cannot_be_changed_or_deleted(path: Path, sql: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.budget("level:private", "client", "add/remove", 3.6, 1e-4)
        ledger.charge(0, [LEVEL])
    stranger = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        stranger.execute(sql)
    stranger.close()


def test_rows_cannot_be_replaced(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [client("a", count=5)])
    stranger = sqlite3.connect(path)
    stranger.execute(
        "INSERT OR REPLACE INTO charges (round, batch, scope, unit, relation, event, count, time) "
        "SELECT round, batch, scope, unit, relation, event, 1, time FROM charges"
    )
    stranger.commit()
    stranger.close()
    with Ledger.open(path) as ledger:
        assert ledger.spent("client:a") == Counter({GAUSSIAN: 5})


def test_a_budget_line_does_not_change(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.budget("client:a", "client", "replace", 8.0, 1e-5)
        ledger.budget("client:a", "client", "replace", 8.0, 1e-5)
    with Ledger.open(path) as ledger:
        ledger.budget("client:a", "client", "replace", 8.0, 1e-5)
        for other in (
            ("client", "replace", 9.0, 1e-5),
            ("client", "replace", None, 1e-5),
            ("client", "replace", 8.0, 1e-4),
            ("client", "zero-out", 8.0, 1e-5),
            ("record", "replace", 8.0, 1e-5),
        ):
            with pytest.raises(TacitError, match=r"epsilon 8, delta 1e-05.*not .*a promise does not change"):
                ledger.budget("client:a", *other)


def test_a_scope_keeps_its_unit_and_relation() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.charge(0, [client("a")])
        for unit, relation in (("record", "replace"), ("client", "zero-out")):
            with pytest.raises(TacitError, match="client:a is kept as client replace"):
                ledger.charge(1, [client("b"), Charge("client:a", unit, relation, GAUSSIAN)])
        with pytest.raises(TacitError, match="client:a is kept as client replace"):
            ledger.budget("client:a", "record", "add/remove", 1.0, 1e-5)
        assert ledger.scopes() == ["client:a"]
        ledger.charge(1, [client("a")])  # and is still usable
        assert ledger.spent("client:a") == Counter({GAUSSIAN: 2})


def test_one_round_cannot_charge_a_scope_by_two_units() -> None:
    with Ledger.open(":memory:") as ledger:
        with pytest.raises(TacitError, match="client:a is charged by two"):
            ledger.charge(0, [client("a"), Charge("client:a", "record", "replace", GAUSSIAN)])
        assert ledger.scopes() == []


@pytest.mark.parametrize(("eps", "delta"), [(1.0, math.nan), (1.0, 1.0), (-1.0, 0.1), (math.nan, 0.1)])
def test_impossible_promises_are_refused(eps: float, delta: float) -> None:
    with Ledger.open(":memory:") as ledger, pytest.raises(TacitError, match="cannot be promised"):
        ledger.budget("client:a", "client", "replace", eps, delta)


def test_a_charge_for_nothing_is_refused() -> None:
    with pytest.raises(TacitError, match="0 events"):
        client("a", count=0)


# Files that are something else


def test_other_files_are_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"round,scope,event\n" * 100)
    with pytest.raises(TacitError, match="is not a ledger"):
        Ledger.open(path)
    assert path.read_bytes() == b"round,scope,event\n" * 100


def test_other_databases_are_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(TacitError, match="not a ledger"):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_another_format_is_refused_by_number(path: Path) -> None:
    Ledger.open(path).close()
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version = {VERSION + 1}")
    other.close()
    with pytest.raises(TacitError, match=f"format {VERSION + 1}, this Tacit reads {VERSION}"):
        Ledger.open(path)


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    """What a process killed while making one leaves behind."""
    path.touch()
    with Ledger.open(path) as ledger:
        ledger.charge(0, [LEVEL])
    header = path.read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == MARK


def test_a_damaged_ledger_is_refused(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for round in range(200):
            ledger.charge(round, [client(k) for k in range(5)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(8192, size - 4096, 4096):
            file.seek(page)
            file.write(b"\xff" * 2048)
    with pytest.raises(StorageError, match="damaged"):
        Ledger.open(path)
    with path.open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(StorageError, match="damaged"):
        Ledger.open(path)


def test_a_foreign_row_is_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [client("a")])
        ledger._query("INSERT INTO charges VALUES (1, 'x', 'client:a', 'client', 'replace', '{}', 1, 0)")
        with pytest.raises(TacitError, match="not a privacy event"):
            ledger.spent("client:a")


# Disks that say no


def test_a_full_disk_charges_nothing_and_the_ledger_stays_usable(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [client("a")])
        ((pages,),) = ledger._query("PRAGMA page_count")
        ledger._query(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="disk is full: free some space"):
            ledger.charge(1, [client(k) for k in range(1000)])
        assert ledger.rounds() == 0
        ledger._query("PRAGMA max_page_count = 100000")
        ledger.charge(1, [client(k) for k in range(1000)])
        assert ledger.rounds() == 1
        assert len(ledger.scopes()) == 1001


def test_a_ledger_that_cannot_be_written_says_so(path: Path) -> None:
    Ledger.open(path).close()
    with Ledger.read(path) as ledger, pytest.raises(StorageError, match="cannot be written"):
        ledger.charge(0, [LEVEL])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_can_be_read_but_not_written(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(0, [LEVEL])
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Ledger.read(path) as ledger:
            assert ledger.rounds() == 0
        with pytest.raises(StorageError), Ledger.open(path) as ledger:
            ledger.charge(1, [LEVEL])
    finally:
        path.parent.chmod(0o755)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere.*check that the folder exists"):
        Ledger.open(tmp_path / "nowhere" / "ledger.db")
    with pytest.raises(StorageError, match="cannot be opened"):
        Ledger.open(tmp_path)


def test_reading_does_not_make_a_ledger(path: Path) -> None:
    with pytest.raises(StorageError, match="no ledger at"):
        Ledger.read(path)
    assert not path.exists()


def test_a_reader_sees_what_a_writer_has_charged_so_far(path: Path) -> None:
    with Ledger.open(path) as writer:
        writer.charge(0, [LEVEL])
        with Ledger.read(path) as reader:
            assert reader.spent("level:private") == Counter({SAMPLED: 1})
            writer.charge(1, [LEVEL])
            assert reader.rounds() == 1


def test_threads_may_charge_together(path: Path) -> None:
    with Ledger.open(path) as ledger:
        threads = [threading.Thread(target=ledger.charge, args=(k, [client(k), client("all")])) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.spent("client:all") == Counter({GAUSSIAN: 8})


# The statement


def test_the_statement_replays_the_events() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.budget("level:private", "client", "add/remove", 3.6, 1e-4)
        ledger.budget("level:idle", "client", "add/remove", 3.6, 1e-4)
        ledger.budget("level:fixed", "client", "replace-one", None, 1e-4)
        fixed = dp.SampledWithoutReplacementDpEvent(2000, 100, dp.GaussianDpEvent(3.0))
        for round in range(10):
            ledger.charge(round, [LEVEL, Charge("level:fixed", "client", "replace-one", fixed)])
        lines = {line.scope: line for line in statement(ledger)}
    private, idle, fixed_line = lines["level:private"], lines["level:idle"], lines["level:fixed"]
    assert private.epsilon == epsilon({SAMPLED: 10}, 1e-4, "add/remove")
    assert private.epsilon_rdp == epsilon({SAMPLED: 10}, 1e-4, "add/remove", "rdp")
    assert (private.accountant, private.budget, private.rounds, private.delta) == ("pld", 3.6, 10, 1e-4)
    assert "client-level, add/remove, delta 0.0001, PLD" in private.words
    assert "10 times Gaussian noise, multiplier 1.400, on a Poisson sample of 5% of the clients" in private.words
    assert (idle.epsilon, idle.rounds) == (0.0, 0)
    assert (fixed_line.accountant, fixed_line.budget) == ("rdp", None)
    assert fixed_line.epsilon == fixed_line.epsilon_rdp


def test_who_opted_out_or_has_no_delta_has_no_guarantee() -> None:
    with Ledger.open(":memory:") as ledger:
        ledger.budget("level:open", "client", "add/remove", None, 1e-4)
        ledger.charge(0, [Charge("level:open", "client", "add/remove", dp.NonPrivateDpEvent()), client("unregistered")])
        unregistered, opted_out = statement(ledger)
    assert opted_out.epsilon == unregistered.epsilon == math.inf
    assert opted_out.words.startswith("no guarantee")
    assert unregistered.words.startswith("no guarantee (client-level, replace, delta unknown")


def test_equal_histories_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = statements.answer
    monkeypatch.setattr(statements, "answer", lambda *args: (calls.append(args), real(*args))[1])
    with Ledger.open(":memory:") as ledger:
        for k in range(500):
            ledger.budget(f"client:{k}", "client", "replace", 8.0, 1e-5)
        ledger.charge(0, [client(k) for k in range(500)])
        ledger.charge(1, [client(k) for k in range(250)])
        assert len({line.epsilon for line in statement(ledger)}) == 2
    assert len(calls) == 4  # two histories, two accountants


@pytest.mark.parametrize(
    ("value", "text"), [(3.60001, "3.601"), (3.6, "3.6"), (12.3456, "12.35"), (0.0, "0"), (math.inf, "no guarantee")]
)
def test_figures_are_rounded_up(value: float, text: str) -> None:
    assert shown(value) == text
