"""`tacit budget --bits`: the distributed plan in figures."""

from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.report.budget_shares import Against, shares

ASKED: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "rate": 0.5, "rounds": 20, "population": 100, "parameters": 500}


@pytest.mark.parametrize("against", ["server", "released"])
def test_the_figure_that_is_named_is_kept_and_the_other_is_told(against: Against) -> None:
    found = shares(**ASKED, against=against)
    assert 7.5 < found.epsilons[against] <= 8.0
    assert found.epsilons["server"] > found.epsilons["released"]
    assert any("times the noise (std) that a trusted server would add" in note for note in found.plan.notes)


def test_too_few_bits_and_an_unknown_population_are_refused() -> None:
    with pytest.raises(TacitError, match="4 bits"):
        shares(**{**ASKED, "epsilon": 0.5}, bits=4)
    with pytest.raises(TacitError, match="give population"):
        shares(**{**ASKED, "population": None})


def test_the_command_prints_both_figures() -> None:
    asked = "budget --bits 18 --parameters 500 --population 100 --rate 0.5 --rounds 20 --epsilon 8 --delta 1e-3"
    said = CliRunner().invoke(app, asked.split()).output
    assert "against the server" in said
    assert "against readers" in said
    assert "18 bits" in said
