"""A ledger that was edited, shortened, restored or written anew is found, by its chain or by a head kept elsewhere."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import dp_accounting as dp
import pytest

from tacit.errors import TacitError
from tacit.privacy.ledger import chain
from tacit.privacy.ledger.chain import Head, read_head
from tacit.privacy.ledger.ledger import Batch, Charge, Ledger
from tacit.privacy.ledger.sqlite import KeptHead
from tacit.privacy.membership import LevelPeriod

EVENT = dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.4))
LEVEL = Charge("level:private", "client", "add/remove", EVENT)
GUARDS = ("update", "delete")


def client(name: object, count: int = 1) -> Charge:
    return Charge(f"client:{name}", "client", "replace", dp.GaussianDpEvent(1.4), count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with rows in every table."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.belong("a run")
        ledger.budget("level:private", "client", "add/remove", 3.6, 1e-4)
        for round in range(5):
            ledger.charge_together([Batch(round, [LEVEL, client("a"), client("b", 2)])], ("run-1", round))
        ledger.move({"a": [LevelPeriod(0, "private", True, 3.6, 1e-4), LevelPeriod(3, "open")]})
        ledger.keep([KeptHead("server", "run-1", 4, Head(7, "0" * 64))])
    return path


def outside(path: Path, *statements: str, guards: bool = False) -> None:
    """What somebody with a database browser does: takes the guards away, changes rows, and puts the guards back."""
    db = sqlite3.connect(path)
    kept = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in kept:
        db.execute(f"DROP TRIGGER {name}")
    for sql in statements:
        db.execute(sql)
    for _, sql in kept if guards else []:
        db.execute(sql)
    db.commit()
    db.close()


def faults(path: Path) -> tuple[str, ...]:
    with Ledger.read(path) as ledger:
        return ledger.walk().faults


def test_rows_that_were_walked_are_walked_again_only_if_somebody_else_wrote(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[str] = []
    whole = chain._next
    monkeypatch.setattr(chain, "_next", lambda *row: (walked.append(row[1]), whole(*row))[1])
    with Ledger.open(path) as ledger:
        ledger.check()
        everything = len(walked)
        ledger.check()
        assert len(walked) == everything > 20
        ledger.charge(9, [LEVEL])
        walked.clear()
        ledger.check()
        assert walked == ["charges"]
        outside(path, "UPDATE charges SET count = 7 WHERE round = 1", guards=True)
        with pytest.raises(TacitError, match=r"round 1.*not as they were written"):
            ledger.check()


@pytest.mark.parametrize("value", ["'x'", "x'00ff'", "9e999", "99999999"])
@pytest.mark.parametrize(
    ("table", "column"), [("charges", "count"), ("budgets", "delta"), ("identity", "id"), ("chain", "last")]
)
def test_whatever_a_row_was_changed_to_is_found(path: Path, table: str, column: str, value: str) -> None:
    last = f"WHERE rowid = (SELECT MAX(rowid) FROM {table})"
    outside(path, f"UPDATE {table} SET {column} = {value} {last}", guards=True)
    assert faults(path)
    with pytest.raises(TacitError), Ledger.open(path) as ledger:
        ledger.check()


def test_a_ledger_is_checked_while_another_process_writes(path: Path) -> None:
    """Each walk is of one moment: no row is seen without its link."""
    with Ledger.open(path) as writer, Ledger.read(path) as reader:
        stop = threading.Event()

        def write() -> None:
            for round in range(100, 160):
                writer.charge(round, [LEVEL])
            stop.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not stop.is_set():
            reader.check()
        thread.join()
        reader.check()


def test_what_a_ledger_is_bound_to_is_what_it_was_told_last(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.bindings() == {}
        ledger.bind({"facts.json": "1"})
        head = ledger.head()
        ledger.bind({"facts.json": "1"})
        assert ledger.head() == head
        ledger.bind({"facts.json": "2"})
        ledger.belong("a run")
    with Ledger.read(path) as ledger:
        assert ledger.bindings() == {"facts.json": "2"}
        assert ledger.walk().faults == ()
    outside(path, "UPDATE run SET mark = '{}' WHERE only = 2", guards=True)
    assert faults(path)


def test_the_chain_of_a_ledger_that_was_only_written_to_is_whole(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.check()
        found = ledger.walk()
        assert found.head == ledger.head()
        assert (found.older, found.faults) == (0, ())
        rows = {name: len(ledger._query(f"SELECT 1 FROM {name}")) for name in ("charges", "scopes", "budgets", "stays")}
        assert rows == {"charges": 15, "scopes": 3, "budgets": 1, "stays": 2}
        assert ledger.head().serial == sum(rows.values()) + 1 + 5 + 1  # the run's mark, answers, a head


def test_a_hash_covers_the_row_and_the_hash_before_it(tmp_path: Path) -> None:
    """By the formula, written out again."""
    with Ledger.open(tmp_path / "l") as ledger:
        ledger.charge(0, [LEVEL])
        ((identity,),) = ledger._query("SELECT id FROM identity")
        digest = hashlib.sha256(json.dumps(["tacit ledger", identity, 1, 0]).encode()).hexdigest()
        for table in ("scopes", "charges"):
            for row in ledger._query(f"SELECT * FROM {table}"):
                text = digest + json.dumps([table, *row], separators=(",", ":"))
                digest = hashlib.sha256(text.encode()).hexdigest()
        assert ledger.head() == Head(2, digest)


EDITS = {
    "a count": "UPDATE charges SET count = 1 WHERE scope = 'client:b' AND round = 2",
    "an event": """UPDATE charges SET event = replace(event, '1.4', '9.4') WHERE round = 3""",
    "a round": "UPDATE charges SET round = 9 WHERE round = 1",
    "a time": "UPDATE charges SET time = 0 WHERE round = 1",
    "a promise": "UPDATE budgets SET epsilon = 100",
    "a row taken out of the middle": "DELETE FROM charges WHERE round = 2 AND scope = 'client:a'",
    "the last rows taken off": "DELETE FROM charges WHERE round = 4",
    "all rows": "DELETE FROM charges",
    "a row put in": "INSERT INTO charges SELECT 7, batch, scope, unit, relation, event, 1, time FROM charges LIMIT 1",
    "where somebody was": "UPDATE stays SET level = 'private'",
    "whose rounds they are": "UPDATE run SET mark = 'another'",
    "an answer": "DELETE FROM answers WHERE turn = 4",
    "a head": "UPDATE heads SET head = '9' || substr(head, 2)",
    "the identity": "UPDATE identity SET id = '00'",
    "how old rows are": "UPDATE identity SET older = 20",
    "a link": "DELETE FROM chain WHERE serial = (SELECT serial FROM chain ORDER BY serial LIMIT 1 OFFSET 4)",
    "a hash": "UPDATE chain SET hash = substr(hash, 2) || '0' WHERE serial = 4",
    "the first link": "DELETE FROM chain WHERE serial = 0",
}


@pytest.mark.parametrize("sql", EDITS.values(), ids=EDITS)
def test_whatever_was_changed_is_found(path: Path, sql: str) -> None:
    outside(path, sql, guards=True)
    assert faults(path)
    with Ledger.read(path) as ledger, pytest.raises(TacitError, match="was changed"):
        ledger.check()


def test_two_rows_that_changed_places_are_found(path: Path) -> None:
    swap = "UPDATE charges SET rowid = {} WHERE rowid = {}"
    outside(path, swap.format(99, 4), swap.format(4, 5), swap.format(5, 99), guards=True)
    assert any("not as they were written" in fault for fault in faults(path))


def test_guards_that_were_taken_away_are_found(path: Path) -> None:
    outside(path)
    assert "the guard charges_no_delete was taken away" in faults(path)


@pytest.mark.parametrize("edit", ["the last rows taken off", "a row put in"])
def test_nothing_is_charged_to_a_ledger_that_ends_elsewhere_than_its_chain(path: Path, edit: str) -> None:
    outside(path, EDITS[edit], guards=True)
    with Ledger.open(path) as ledger, pytest.raises(TacitError, match="changed from outside"):
        ledger.charge(6, [LEVEL])


SHORTENED = (
    "DELETE FROM heads",
    "DELETE FROM stays",
    "DELETE FROM answers WHERE turn >= 3",
    "DELETE FROM charges WHERE round >= 3",
    "DELETE FROM chain WHERE serial > (SELECT MAX(serial) FROM chain WHERE source = 'answers' AND last <= 3)",
)


def test_rows_taken_off_with_their_links_are_found_by_a_head_that_was_kept(path: Path) -> None:
    """The chain of what is left is whole: nobody can tell from the file alone."""
    with Ledger.read(path) as ledger:
        kept = ledger.head()
    outside(path, *SHORTENED, guards=True)
    with Ledger.read(path) as ledger:
        assert ledger.walk().faults == ()
        assert ledger.head().serial < kept.serial
        assert not ledger.holds(kept)


def test_a_ledger_restored_from_a_copy_is_found_however_far_it_went_on(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copy(path, copy)
    with Ledger.open(path) as ledger:
        early = ledger.head()
        ledger.charge(5, [LEVEL])
        kept = ledger.head()
    shutil.copy(copy, path)
    with Ledger.open(path) as ledger:
        for round in range(5, 9):
            ledger.charge(round, [LEVEL])
        assert ledger.walk().faults == ()
        assert ledger.holds(early)
        assert not ledger.holds(kept)


def test_two_ledgers_with_the_same_rows_have_different_chains(tmp_path: Path) -> None:
    heads = []
    for name in "ab":
        with Ledger.open(tmp_path / name) as ledger:
            heads.append(ledger.head())
    assert heads[0].serial == heads[1].serial == 0
    assert heads[0].hash != heads[1].hash


def test_a_repeated_charge_adds_no_link(path: Path) -> None:
    with Ledger.open(path) as ledger:
        before = ledger.head()
        assert not ledger.charge_together([Batch(0, [LEVEL, client("a"), client("b", 2)])], ("run-1", 0))
        assert ledger.head() == before


def test_an_answer_and_what_it_costs_are_written_together(path: Path) -> None:
    with Ledger.open(path) as ledger:
        wrong = Charge("client:a", "record", "replace", dp.GaussianDpEvent(1.4))
        before = ledger.head()
        with pytest.raises(TacitError, match="one scope has one unit"):
            ledger.charge_together([Batch(5, [LEVEL]), Batch(5, [wrong])], ("run-1", 5))
        assert ledger.head() == before
        assert ("run-1", 5) not in ledger.answered()
        assert ledger.charge_together([Batch(5, [LEVEL])], ("run-1", 5))
        assert not ledger.charge_together([], ("run-1", 5))
        assert ledger.answered("run-1")[-1] == ("run-1", 5)


def test_writers_at_once_extend_one_chain(path: Path) -> None:
    ledgers = [Ledger.open(path) for _ in range(4)]

    def work(k: int) -> None:
        for round in range(10):
            ledgers[k].charge(round, [client(k)])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ledger in ledgers:
        ledger.close()
    assert faults(path) == ()
    with Ledger.read(path) as ledger:
        assert len(list(ledger.entries())) == 15 + 40


KILLED = """
import os, signal, sys
import dp_accounting as dp
from tacit.privacy.ledger.ledger import Batch, Charge, Ledger
ledger = Ledger.open(sys.argv[1])
for round in range(10**6):
    charges = [Charge(f"client:{k}", "client", "replace", dp.GaussianDpEvent(1.4)) for k in range(50)]
    ledger.charge_together([Batch(round, charges)], ("run-1", round))
    print(ledger.head(), flush=True)
"""


def test_a_process_that_was_killed_leaves_a_whole_chain_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(8)]
        process.kill()
        told += process.stdout.readlines()
    heads = [read_head(line.strip()) for line in told if line.endswith("\n")]
    assert faults(path) == ()
    with Ledger.open(path) as ledger:
        assert all(ledger.holds(head) for head in heads)
        assert len(list(ledger.entries())) == 50 * len(ledger.answered()) >= 50 * len(heads)


# Ledgers of earlier versions


@pytest.fixture
def earlier(path: Path, tmp_path: Path) -> Path:
    """The same charges and promises in a file as versions without a chain made it."""
    old = tmp_path / "earlier.sqlite"
    with Ledger.read(path) as ledger:
        tables = "('scopes', 'budgets', 'charges')"
        sql = f"SELECT sql FROM sqlite_master WHERE tbl_name IN {tables} AND sql IS NOT NULL ORDER BY type = 'trigger'"
        made = [text for (text,) in ledger._query(sql)]
    db = sqlite3.connect(old)
    for text in sorted(made, key=lambda text: not text.startswith("CREATE TABLE")):
        db.execute(text)
    db.execute("ATTACH ? AS new", (str(path),))
    for table in ("scopes", "budgets", "charges"):
        db.execute(f"INSERT INTO {table} SELECT * FROM new.{table}")
    db.commit()
    db.execute("PRAGMA application_id = 1413563209")
    db.execute("PRAGMA user_version = 1")
    db.close()
    return old


def test_a_ledger_of_an_earlier_version_is_read_as_it_is(path: Path, earlier: Path) -> None:
    before = earlier.read_bytes()
    with Ledger.read(earlier) as old, Ledger.read(path) as new:
        assert list(old.entries()) == list(new.entries())
        assert (old.level_periods(), old.kept_heads(), old.answered()) == ({}, [], [])
        found = old.walk()
        assert (found.head, found.older) == (None, 19)
        assert old.older_charges() == 15
    assert earlier.read_bytes() == before


def test_a_ledger_of_an_earlier_version_is_chained_when_it_is_opened_and_loses_nothing(
    path: Path, earlier: Path
) -> None:
    with Ledger.open(earlier) as ledger, Ledger.read(path) as new:
        assert list(ledger.entries()) == list(new.entries())
        assert ledger.budgets() == new.budgets()
        ledger.charge(0, [LEVEL, client("a"), client("b", 2)])  # again: counts once
        assert ledger.head().serial == 19
        ledger.charge(5, [LEVEL])
        found = ledger.walk()
        assert (found.older, found.head, found.faults) == (19, ledger.head(), ())
        assert (ledger.older_charges(), ledger.head().serial) == (15, 20)
    with Ledger.open(earlier) as ledger:  # once
        assert ledger.walk().older == 19
    outside(earlier, EDITS["a count"], guards=True)
    assert faults(earlier)


def test_a_head_is_told_as_text() -> None:
    head = Head(12, "ab" * 32)
    assert read_head(str(head)) == head
    for wrong in ("", "12", "12:", ":" + "ab" * 32, "-1:" + "ab" * 32, "12:" + "ab" * 31, "1" * 40 + ":" + "ab" * 32):
        with pytest.raises(TacitError, match="no head of a ledger"):
            read_head(wrong)
