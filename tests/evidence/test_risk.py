"""What an attacker gets, from privacy loss distributions and in closed form."""

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.privacy.accounting.accountant import answer, profile
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.accounting.risk import gaussian_risk, risk
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.report.budget import ledger_figures

SAMPLED: dict[Any, int] = {dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)): 500}


@pytest.mark.parametrize("z", [0.2, 0.5, 1.0, 3.0, 40.0])
def test_figures_of_a_gaussian_are_its_closed_forms_to_a_millionth(z: float) -> None:
    found, exact = risk(profile({dp.GaussianDpEvent(z): 1}, "add/remove")), gaussian_risk(1 / z)
    assert found.mu == pytest.approx(1 / z, abs=1e-6)
    assert found.advantage == pytest.approx(exact.advantage, abs=1e-6)
    assert found.found == pytest.approx(exact.found, abs=1e-6)
    assert np.array(found.curve) == pytest.approx(np.array(exact.curve), abs=1e-6)
    assert found.regret < 1e-6


def test_mu_covers_every_epsilon_and_delta_of_a_sampled_gaussian() -> None:
    found = risk(profile(SAMPLED, "add/remove"))
    for delta in (1e-2, 1e-4, 1e-6, 1e-8):
        assert gaussian_epsilon(1 / found.mu, delta) >= answer(SAMPLED, delta, "add/remove").epsilon
    assert 0 < found.regret < 0.05


def test_the_curve_lies_below_what_every_epsilon_and_delta_allow_and_is_convex() -> None:
    """The rule that any (epsilon, delta) imposes on false alarms and misses, and that a curve above it would break."""
    found, deltas = risk(profile(SAMPLED, "add/remove")), profile(SAMPLED, "add/remove")
    alarms, misses = np.array(found.curve).T
    for epsilon in (0.0, 1.0, 3.0, 6.0):
        delta = float(deltas(np.array([epsilon]))[0])
        assert (alarms * math.exp(epsilon) + misses >= 1 - delta - 1e-9).all()
        assert (alarms + misses * math.exp(epsilon) >= 1 - delta - 1e-9).all()
    slopes = np.diff(misses) / np.diff(alarms)
    assert (np.diff(slopes) >= -1e-9).all()


def test_renyi_accounting_never_promises_less_risk_than_loss_distributions() -> None:
    tight, loose = (risk(profile(SAMPLED, "add/remove", accountant)) for accountant in ("pld", "rdp"))
    assert loose.mu >= tight.mu
    assert loose.advantage >= tight.advantage
    assert loose.found >= tight.found


def test_a_profile_says_what_answers_say() -> None:
    for accountant in ("pld", "rdp"):
        found = answer(SAMPLED, 1e-5, "add/remove", accountant).epsilon
        assert profile(SAMPLED, "add/remove", accountant)(np.array([found]))[0] == pytest.approx(1e-5, rel=1e-3)
    assert profile({dp.GaussianDpEvent(2.0): 1}, "replace")(np.array([0.7]))[0] == pytest.approx(gaussian_delta(0.7, 2))


def test_nothing_released_is_no_risk_and_a_release_without_noise_is_all_of_it() -> None:
    histories: list[dict[Any, int]] = [{}, {dp.NonPrivateDpEvent(): 1}]
    nothing, bare = (risk(profile(events, "add/remove")) for events in histories)
    assert (nothing.mu, nothing.advantage) == (0, 0)
    assert nothing.found == pytest.approx(0.01)
    assert (bare.mu, bare.advantage, bare.found) == (math.inf, 1, 1)


def test_a_ledger_is_told_as_mu_and_at_another_delta(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.budget("level:private", "client", "add/remove", None, 1e-5, "pld")
        for round in range(4):
            ledger.charge(round, [Charge("level:private", "client", "add/remove", dp.GaussianDpEvent(2.0))])
    (figures,) = ledger_figures(tmp_path / "ledger.sqlite", "mu", (1e-3,))
    text = str(figures)
    assert "mu 1," in text  # moved by half a standard deviation, four times
    assert f"epsilon {gaussian_epsilon(1.0, 1e-3):.3f} at delta 0.001" in text
    told = CliRunner().invoke(app, f"ledger {tmp_path} --as mu --at-delta 1e-3 --json".split())
    (record,) = json.loads(told.stdout)["figures"]  # programs get what the screen shows
    assert record["risk"]["mu"] == pytest.approx(1.0, abs=1e-3)
    assert record["elsewhere"] == [[1e-3, pytest.approx(gaussian_epsilon(1.0, 1e-3), rel=1e-3)]]


def test_every_level_of_a_ledger_is_told_as_mu(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        for level, noise in (("strict", 2.0), ("relaxed", 1.0)):
            ledger.budget(f"level:{level}", "client", "add/remove", None, 1e-5, "pld")
            ledger.charge(0, [Charge(f"level:{level}", "client", "add/remove", dp.GaussianDpEvent(noise))])
    told = {each.scope: each.risk for each in ledger_figures(tmp_path / "ledger.sqlite", "mu")}
    assert {scope: risk and round(risk.mu, 2) for scope, risk in told.items()} == {
        "level:relaxed": 1.0,
        "level:strict": 0.5,
    }


HISTORIES: list[tuple[Any, int]] = [
    (dp.GaussianDpEvent(2.0), 3),
    (dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.2)), 500),
    (dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(0.8)), 20),
]


def library_distribution(event: Any, times: int) -> Any:
    """dp-accounting's own, which the packages below read."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event, times)
    return accountant._pld


@pytest.mark.parametrize(("event", "times"), HISTORIES, ids=["Gaussians", "many sampled", "few sampled"])
def test_advantage_and_curve_are_those_of_riskcal_and_never_below(event: Any, times: int) -> None:
    theirs = pytest.importorskip("riskcal.analysis", reason="riskcal is not installed: pip install riskcal")
    pld, found = library_distribution(event, times), risk(profile({event: times}, "add/remove"))
    assert found.advantage == pytest.approx(theirs.get_advantage_from_pld(pld), abs=1e-4)
    assert found.advantage >= theirs.get_advantage_from_pld(pld) - 1e-9
    alarms, misses = np.array(found.curve).T
    assert misses == pytest.approx(theirs.get_beta_from_pld(pld, alpha=alarms), abs=1e-4)
    assert (misses <= theirs.get_beta_from_pld(pld, alpha=alarms) + 1e-9).all()
    assert found.found == pytest.approx(1 - float(theirs.get_beta_from_pld(pld, alpha=0.01)), abs=1e-4)


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
def test_figures_of_a_mu_are_those_of_riskcal(mu: float) -> None:
    theirs = pytest.importorskip("riskcal.analysis", reason="riskcal is not installed: pip install riskcal")
    found = gaussian_risk(mu)
    assert found.advantage == pytest.approx(float(theirs.get_advantage_from_gdp(mu)), abs=1e-6)
    assert found.found == pytest.approx(1 - float(theirs.get_beta_from_gdp(mu, alpha=0.01)), abs=1e-6)


@pytest.mark.parametrize(("event", "times"), HISTORIES, ids=["Gaussians", "many sampled", "few sampled"])
def test_mu_is_no_smaller_than_that_of_gdpnum_and_the_same_for_gaussians(event: Any, times: int) -> None:
    """Its mu fits the curve in the middle; ours covers every delta down to the cut."""
    theirs = pytest.importorskip("gdpnum", reason="gdpnum is not installed: pip install gdpnum")
    mu, _ = theirs.PLDConverter(library_distribution(event, times)).get_mu_and_regret()
    found = risk(profile({event: times}, "add/remove")).mu
    assert found >= mu - 1e-3
    if isinstance(event, dp.GaussianDpEvent):
        assert found == pytest.approx(mu, abs=1e-3)
