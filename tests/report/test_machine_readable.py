"""What commands print for programs is what they print for people, and every epsilon is the ledger's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement
from tacit.report.budget import budget
from tacit.report.budget_curves import curves
from tacit.report.machine_readable import to_json
from tests.experiments.tiny import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tiny"
    run(path)
    return path


def told(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_ledger_as_json_is_the_ledgers_statement(folder: Path) -> None:
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        lines = statement(ledger)
    found = told("ledger", folder)
    assert [row["epsilon"] for row in found["accounts"]] == [line.epsilon for line in lines]
    assert "simulation" in found["simulation"]


def test_a_run_as_json_has_figures_and_the_ledgers_epsilon(folder: Path) -> None:
    (found,) = told("show", folder)
    account = next(row for row in told("ledger", folder)["accounts"] if row["scope"] == "level:private")
    assert found["spent"]["private"]["pld"] == account["epsilon"]
    assert 0 <= found["figures"]["all"]["personal_mean"] <= 1
    assert "open" not in found["spent"]


def test_a_member_of_a_level_is_told_the_levels_account(folder: Path) -> None:
    import pandas as pd

    clients = pd.read_csv(folder / "clients.csv", dtype=str).set_index("level")["client"]
    private, opted_out = (clients.loc[level].iloc[0] for level in ("private", "open"))
    found = told("ledger", folder, "--client", private)
    assert f"'{private}' is at level 'private'" in found["note"]
    assert [row["scope"] for row in found["accounts"]] == ["level:private"]
    nothing = told("ledger", folder, "--client", opted_out)
    assert nothing["accounts"] == []
    assert "promised nothing" in nothing["note"]
    wrong = CliRunner().invoke(app, ["ledger", str(folder), "--client", "zzz"])
    assert wrong.exit_code == 2
    assert "there is no client 'zzz'" in wrong.output


def test_a_budget_as_json_is_the_budget() -> None:
    found = told("budget", "--rounds", 10, "--population", 2000)
    assert found["epsilon"] == budget(rounds=10, population=2000).epsilon
    assert found["unit"] == "client"


@pytest.mark.parametrize("what", ["methods", "models", "plans"])
def test_lists_as_json_have_names_and_keys(what: str) -> None:
    rows = told(what)
    assert all({"keys", "what"} <= set(row) for row in rows)
    assert len(rows) > 3


def test_curves_fall_with_noise_rise_with_rounds_and_rate_and_go_through_the_chosen_point() -> None:
    settings: dict[str, Any] = {"rounds": 8, "rate": 0.2, "epsilon": 2.0}
    chosen = budget(**settings)
    noise, rounds, rate = (panel.series[0].y for panel in curves(chosen, settings).panels)
    assert [*noise] == sorted(noise, reverse=True)
    assert [*rounds] == sorted(rounds)
    assert [*rate] == sorted(rate)
    assert all(chosen.epsilon in each for each in (noise, rounds, rate))


def test_a_plot_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    for name in ("b.png", "b.html"):
        result = CliRunner().invoke(app, ["budget", "--rounds", "3", "--plot", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).stat().st_size > 5_000
    assert CliRunner().invoke(app, ["budget", "--plot", str(tmp_path / "b.txt")]).exit_code == 2


def test_numbers_that_json_has_no_sign_for_are_words() -> None:
    assert json.loads(to_json({"a": math.inf, "b": math.nan, "c": (1, 2.5)})) == {
        "a": "infinity",
        "b": None,
        "c": [1, 2.5],
    }
