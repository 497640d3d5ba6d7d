"""`tacit ledger RUN --verify` finds a ledger that was edited, shortened or restored, and says which line failed."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.experiments.train import run_config
from tacit.privacy.ledger.chain import TABLES
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.integrity import UNBOUND
from tacit.report.summary import open_run
from tests.experiments.tiny import tiny


def tell(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["ledger", *map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def failures(text: str) -> list[str]:
    return [line.removeprefix("FAIL").strip() for line in text.splitlines() if line.startswith("FAIL")]


def edit(path: Path, *statements: str) -> None:
    """With the guards away, and back again."""
    db = sqlite3.connect(path)
    guards = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in guards:
        db.execute(f"DROP TRIGGER {name}")
    for sql in statements:
        db.execute(sql)
    for _, sql in guards:
        db.execute(sql)
    db.commit()
    db.close()


def cut(path: Path, serial: int) -> None:
    """Takes off the rows after this one with their links: the chain of what is left is whole."""
    ends = "DELETE FROM {0} WHERE rowid > (SELECT COALESCE(MAX(last), -1) FROM chain WHERE source = '{0}')"
    edit(path, f"DELETE FROM chain WHERE serial > {serial}", *map(ends.format, TABLES))


def shorten(path: Path, rounds: int) -> None:
    """Takes off the last rounds, and all that came after."""
    with Ledger.read(path) as ledger:
        sql = "SELECT serial FROM chain WHERE source = 'charges' ORDER BY serial DESC LIMIT ?"
        serial = ledger._query(sql, rounds + 1)[-1][0]
    cut(path, serial)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run_config(tiny("rounds=4"), folder, progress=False)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_nobody_touched_passes(run: Path) -> None:
    text = tell(run, "--verify")
    assert "chain: " in text
    assert "level:private: epsilon " in text
    assert "of 6 that was promised" in text
    assert "checkpoint.bin: the ledger holds the head" in text
    assert "outcome.json: the ledger holds the head" in text
    assert not failures(text)


def test_an_edited_row_is_found(run: Path) -> None:
    edit(run / "ledger.sqlite", "UPDATE charges SET time = time - 1 WHERE round = 1")
    (found,) = failures(tell(run, "--verify", code=1))
    assert "round 1" in found
    assert "not as they were written" in found


def test_an_account_that_exceeds_its_promise_is_found(run: Path) -> None:
    edit(run / "ledger.sqlite", "UPDATE charges SET count = 1000 WHERE round = 1")
    found = failures(tell(run, "--verify", code=1))
    assert any("level:private" in line and "more than 6 that was promised" in line for line in found)


def test_an_event_that_is_none_is_found(run: Path) -> None:
    edit(run / "ledger.sqlite", "UPDATE charges SET event = '{}' WHERE round = 1")
    assert any("cannot be replayed" in line for line in failures(tell(run, "--verify", code=1)))


def test_the_last_rows_taken_off_with_their_links_are_found_by_the_run_s_other_files(run: Path) -> None:
    shorten(run / "ledger.sqlite", 1)
    *found, counted = failures(tell(run, "--verify", code=1))
    assert [line.split(":")[0] for line in found] == ["checkpoint.bin", "outcome.json"]
    assert all("shortened or restored" in line for line in found)
    assert counted == "after round 4 the ledger had 4 charges, and now it has 3"
    with pytest.raises(TacitError, match="shortened or restored"):
        run_config(tiny("rounds=4"), run, resume=True, progress=False)


def test_a_run_does_not_go_on_with_an_edited_ledger(run: Path) -> None:
    edit(run / "ledger.sqlite", "UPDATE charges SET time = time - 1 WHERE round = 1")
    with pytest.raises(TacitError, match="not as they were written"):
        run_config(tiny("rounds=4"), run, resume=True, progress=False)


def test_an_older_ledger_is_found_by_the_metrics_where_nothing_else_is_left(run: Path) -> None:
    for name in ("checkpoint.bin", "outcome.json", "clients.csv"):
        (run / name).unlink()
    shorten(run / "ledger.sqlite", 3)
    assert failures(tell(run, "--verify", code=1)) == ["after round 2 the ledger had 2 charges, and now it has 1"]


def test_heads_taken_out_of_the_files_that_keep_them_are_missed(run: Path) -> None:
    (run / "outcome.json").write_text(json.dumps({"round": 4, "stopped": None}))
    assert failures(tell(run, "--verify", code=1)) == ["outcome.json: it was edited: it holds no head of the ledger"]


def test_what_reports_refuse_is_a_failure(run: Path) -> None:
    (run / "metrics.csv").unlink()
    (found,) = failures(tell(run, "--verify", code=1))
    assert "outcome.json says 4 rounds, and metrics.csv ends at round 0" in found


@pytest.mark.parametrize("name", ["facts.json", "config.toml", "digest.key"])
def test_an_edited_file_is_named(run: Path, name: str) -> None:
    (run / name).write_bytes((run / name).read_bytes() + b" ")
    (found,) = failures(tell(run, "--verify", code=1))
    assert found.startswith(f"{name}: it was edited, or the ledger is that of another run")


def test_a_ledger_apart_from_its_run_and_a_run_without_its_key_can_be_read(run: Path, tmp_path: Path) -> None:
    (run / "digest.key").unlink()  # it is not passed on
    assert not failures(tell(run, "--verify"))
    (tmp_path / "alone").mkdir()
    shutil.copy(run / "ledger.sqlite", tmp_path / "alone")
    assert not failures(tell(tmp_path / "alone" / "ledger.sqlite", "--verify"))
    assert len(failures(tell(tmp_path / "alone", "--verify", code=1))) == 2  # a folder that says nothing of its run


def test_a_run_without_digests_says_that_its_facts_cannot_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version wrote it. Resumed, it has them."""
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "bind", lambda self, files: None)
        run_config(tiny("rounds=2"), tmp_path / "run", progress=False)
    assert UNBOUND in tell(tmp_path / "run", "--verify")
    assert UNBOUND in open_run(tmp_path / "run").guarantees()
    run_config(tiny("rounds=2"), tmp_path / "run", resume=True, progress=False)
    assert UNBOUND not in tell(tmp_path / "run", "--verify")
    assert UNBOUND not in open_run(tmp_path / "run").guarantees()


def test_a_run_whose_ledger_lost_its_guards_is_told_so_when_it_is_resumed(run: Path) -> None:
    db = sqlite3.connect(run / "ledger.sqlite")
    db.execute("DROP TRIGGER run_once")
    db.close()
    with pytest.raises(TacitError, match=r"the guard run_once was taken away.*restore the newest copy"):
        run_config(tiny("rounds=4"), run, resume=True, progress=False)
    assert failures(tell(run, "--verify", code=1)) == ["chain: the guard run_once was taken away"]


def test_a_renamed_scope_is_named(run: Path) -> None:
    edit(run / "ledger.sqlite", "UPDATE charges SET scope = 'level:other'")
    found = failures(tell(run, "--verify", code=1))
    assert any("charges of 'level:other'" in line for line in found)


def test_a_head_in_a_list_is_compared(run: Path, tmp_path: Path) -> None:
    with Ledger.open(run / "ledger.sqlite") as ledger:
        heads = ledger.heads_since(0)
    notes = tmp_path / "heads.txt"
    notes.write_text("\n".join(map(str, heads)))
    assert not failures(tell(run, "--verify", "--heads", notes))
    notes.write_text(f"{heads[-1].serial}:{'ab' * 32}\n")
    (found,) = failures(tell(run, "--verify", "--heads", notes, code=1))
    assert "written anew or restored" in found
    notes.write_text("nonsense")
    assert "no head of a ledger" in tell(run, "--verify", "--heads", notes, code=2)


def test_a_ledger_of_an_earlier_version_is_told_apart(run: Path) -> None:
    """As if it had been written by one: without a chain, and without heads in other files."""
    old = (run / "checkpoint.bin", run / "outcome.json", run / "clients.csv")
    for path in old:
        path.unlink()
    drop = [f"DROP TABLE {name}" for name in ("chain", "identity", "heads", "answers")]
    db = sqlite3.connect(run / "ledger.sqlite")
    for sql in (*drop, "PRAGMA user_version = 2"):
        db.execute(sql)
    db.commit()
    db.close()
    assert "rows of an earlier version are not covered" in tell(run, "--verify")
    Ledger.open(run / "ledger.sqlite").close()
    assert "are from before the chain: covered as it found them" in tell(run, "--verify")


# The two sides of a federation


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    pytest.importorskip("safetensors", reason="needs the extra 'flower'")
    from tacit.methods import FedAvg
    from tests.federation.in_process import Wire, World
    from tests.worlds import PLANS, ragged

    world = World(FedAvg(), PLANS["local"], ragged(2), rounds=3, rate=1.0, fresh=True)
    server = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    server.go()
    server.ledger.close()
    (tmp_path / "server" / "terms.json").write_text(server.terms.text())
    (tmp_path / "c1" / "client.json").write_text(json.dumps({"name": "c1"}))
    return tmp_path


def test_the_two_sides_of_a_federation_pass(federation: Path) -> None:
    server, member = federation / "server", federation / "c1"
    assert not failures(tell(server, "--verify", "--heads", member))
    text = tell(member, "--verify", "--heads", server)
    assert not failures(text)
    assert "custody.sqlite: the ledger holds the head" in text
    assert not failures(tell(federation / "c0", "--verify", "--client", "c0", "--heads", server))
    assert failures(tell(federation / "c0", "--verify", "--heads", server, code=1))  # whose is it?


@pytest.mark.parametrize("whose", ["server", "c1"])
def test_a_shortened_ledger_is_found_by_the_other_side(federation: Path, whose: str) -> None:
    """With all the other files of its own folder gone."""
    folder, other = federation / whose, federation / {"server": "c1", "c1": "server"}[whose]
    for path in folder.iterdir():
        if path.name not in ("ledger.sqlite", "terms.json", "client.json") and path.is_file():
            path.unlink()
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        serial = ledger.heads_since(0)[-4].serial
    cut(folder / "ledger.sqlite", serial)
    assert not failures(tell(folder, "--verify"))
    found = failures(tell(folder, "--verify", "--heads", other, code=1))
    assert any("shortened or restored" in line for line in found)


def test_a_ledger_that_is_not_the_one_it_was_is_found_by_the_other_side(federation: Path) -> None:
    (federation / "c1" / "ledger.sqlite").unlink()
    Ledger.open(federation / "c1" / "ledger.sqlite").close()
    assert failures(tell(federation / "c1", "--verify", "--heads", federation / "server", code=1))
