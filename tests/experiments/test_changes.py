"""Changes of level in an experiment: what the report, the folder and the command line say of them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.experiments import train
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.membership import accounts
from tacit.report.run_folder import Folder
from tacit.report.summary import open_run
from tests.experiments.tiny import run, stopping_after

# "0" opts out and comes back, "1" opts out, "2" asks for more than it has spent already
CHOICES = "choices={ " + ", ".join(f"{k} = '{'open' if k > 17 else 'private'}'" for k in range(20)) + " }"
LEVELS = (
    "levels={ private = { epsilon = 30.0, delta = 1e-2, noise = 0.8 }, "
    "strict = { epsilon = 2.0, delta = 1e-2, noise = 2.0 }, open = {} }"
)
CHANGES = (
    "changes=[{ round = 2, clients = ['0', '1'], level = 'open' }, { round = 4, clients = ['0'], level = 'private' }, "
    "{ round = 5, clients = ['2'], level = 'strict' }]"
)
CASE = (LEVELS, CHOICES, CHANGES)


def words(*lines: str) -> str:
    return " ".join(" ".join(lines).split())


def test_the_report_counts_clients_where_they_are_now_and_says_what_a_change_does_not_mend(tmp_path: Path) -> None:
    result = run(tmp_path / "a", *CASE)
    facts = {promise.level: promise for promise in result.findings.facts.promises}
    assert {level: promise.clients for level, promise in facts.items()} == {"private": 16, "strict": 1, "open": 3}
    assert (facts["private"].once_open, facts["strict"].dismissed) == (1, 1)
    said = words(*result.guarantees())
    assert (
        "Of these clients 1 had opted out for some rounds: there is no guarantee for what was contributed then" in said
    )
    assert "Of these clients 1 changed level and will not be asked" in said
    assert "no guarantee, because 4 of 20 clients opted out, some of them for a time" in said
    assert "Changes of level between rounds: 3 clients" in said
    table = pd.read_csv(tmp_path / "a" / "clients.csv", dtype=str).set_index("client")["level"]
    assert [table[name] for name in "0123"] == ["private", "open", "strict", "private"]
    assert words(*open_run(tmp_path / "a").guarantees()) == said


def test_the_epsilon_of_a_level_is_that_of_whoever_there_spent_most(tmp_path: Path) -> None:
    result = run(tmp_path / "a", *CASE)
    with Ledger.read(tmp_path / "a" / "ledger.sqlite") as ledger:
        spent = accounts(ledger, ledger.level_periods())
        stayed = ledger.spent("level:private")
    found = result.findings.epsilons
    assert found["strict"]["pld"] == epsilon(spent["2"], 1e-2, "add/remove") > 2.0
    assert found["private"]["pld"] == epsilon(stayed, 1e-2, "add/remove")
    assert "open" not in found


def test_an_interrupted_run_with_changes_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole", *CASE)
    with monkeypatch.context() as patch:
        patch.setattr(train, "interruptible", stopping_after(5))
        assert run(tmp_path / "part", *CASE).interrupted
    assert json.loads((tmp_path / "part" / "facts.json").read_text())["changed"] >= 2
    run(tmp_path / "part", *CASE, resume=True)
    whole, part = Folder(tmp_path / "whole"), Folder(tmp_path / "part")
    for place in ("metrics", "clients", "facts"):
        assert getattr(part, place).read_text() == getattr(whole, place).read_text()
    ends = [json.loads(folder.outcome.read_text()) | {"ledger": ""} for folder in (whole, part)]
    assert ends[0] == ends[1]  # but for the ledger's head, in which the time of a charge is
    with Ledger.read(whole.ledger) as one, Ledger.read(part.ledger) as other:
        assert one.level_periods() == other.level_periods()
        assert one.histories() == other.histories()


def test_other_changes_are_another_experiment(tmp_path: Path) -> None:
    run(tmp_path / "a", *CASE)
    with pytest.raises(TacitError, match="changes"):
        run(tmp_path / "a", LEVELS, CHOICES, resume=True)


def test_the_ledger_command_tells_changes_by_history_and_by_client(tmp_path: Path) -> None:
    run(tmp_path / "a", *CASE)

    def ledger(*more: str) -> str:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["ledger", str(tmp_path / "a"), *more])
        return words(result.output) if result.exit_code == 0 else f"refused: {result.stderr}"

    everything = ledger()
    assert "level:private" in everything
    assert "Changes of level: 3 clients, 3 histories" in everything
    assert "open from 2 on (no guarantee)" in everything
    one = ledger("--client", "0")
    assert "open 2-3 (no guarantee)" in one
    assert "level:private" not in one
    assert "Changes of level: 1 clients" in one
    assert "Client '7' is at level 'private'" in ledger("--client", "7")


def test_changes_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "changes.csv"
    file.write_text("round,client,level\n2,0,open\n2,1,open\n4,0,private\n5,2,strict\n")
    one = run(tmp_path / "a", *CASE)
    other = run(tmp_path / "b", LEVELS, CHOICES, f"changes='{file}'")
    assert other.metrics.equals(one.metrics)
    assert run(tmp_path / "b", LEVELS, CHOICES, f"changes='{file}'", resume=True).metrics.equals(one.metrics)
