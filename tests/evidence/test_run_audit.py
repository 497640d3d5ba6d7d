"""Whole runs under attack: what is true is not disproved, and what is planted is found.

The experiments and the faults are those of `benchmarks/audits.py`, which measures all of them.
"""

import numpy as np
import pytest

from benchmarks.audits import FAULTS, FEDAVG, PAIRS, WIDTH, Pair, attack, embedded_digits, parts_of
from tacit.compile.kernels import compiled
from tacit.errors import TacitError
from tacit.evidence import repeated_audit
from tacit.evidence.repeated_audit import audit_repeatedly
from tacit.evidence.run_audit import audit_run, one_run_epsilon, one_run_mu, one_run_rejects
from tacit.experiments.build import Parts
from tacit.models import SoftmaxRegression
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.rounds.assemble import Privacy, Training
from tacit.rounds.loop import Schedule

RECORDED = "recorded and compiled" if compiled() else "recorded without compiled kernels"


def test_guesses_that_are_all_right_disprove_what_chance_alone_would_not() -> None:
    """Steinke et al.: 100 of 100 right guesses have probability (e^eps / (1 + e^eps))^100."""
    found = one_run_epsilon(100, 100, 100, 0.0, 0.05)
    assert (1 / (1 + np.exp(-found))) ** 100 == pytest.approx(0.05, rel=1e-3)
    assert one_run_epsilon(100, 100, 55, 0.0, 0.05) == 0
    assert one_run_epsilon(100, 100, 100, 1e-3, 0.05) < found


def test_the_curve_of_coin_tosses_is_rejected_when_guesses_are_better_than_coins() -> None:
    def no_information(x: float) -> float:
        return x

    assert one_run_rejects(no_information, 200, 200, 130, 0.05)
    assert not one_run_rejects(no_information, 200, 200, 110, 0.05)


def test_bounds_of_ideal_scores_stay_below_the_truth_in_nearly_all_runs() -> None:
    """The definition of confidence, on scores of exactly known mu; and they find a third of it at least."""
    draw, mu, found = np.random.default_rng(0), 1.5, []
    for _ in range(40):
        there = draw.random(300) < 0.5
        order = np.argsort(draw.normal(size=300) + mu * there)
        found.append(one_run_mu(300, 100, int(there[order[-50:]].sum() + (~there[order[:50]]).sum()), 0.05))
    assert sum(bound > mu for bound in found) <= 4
    assert np.median(found) > 0.33 * mu


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_what_is_claimed_is_not_disproved(pair: Pair) -> None:
    found = pair.attacked(canaries=300)
    assert not found.disproved
    assert max(found.lower_bound, found.gaussian_lower_bound) < found.claim


@pytest.mark.parametrize("pair", [PAIRS[2], PAIRS[5]], ids=lambda pair: pair.name)
def test_audits_run_through_the_programs_that_users_run_and_say_so(pair: Pair) -> None:
    """Recorded, also where the run is short, and where a canary has fewer rows than a batch."""
    found = attack(pair.plan, pair.method, pair.z, canaries=20, rounds=2, **(pair.options or {}))
    assert found.path == RECORDED
    assert f"programs: {RECORDED}" in str(found)


def test_where_programs_cannot_be_recorded_an_audit_says_why() -> None:
    found = attack(plans.Record(0.1), FEDAVG, 2.0, canaries=20, rounds=1, batch=2000)
    assert found.path.startswith("plain (programs with Poisson batches")


def test_where_every_round_has_everybody_the_attack_finds_a_third_of_the_claim() -> None:
    """Central, nobody's draw to hide behind: the bound is no toy."""
    found = attack(z=1.5, canaries=600)
    assert not found.disproved
    assert found.gaussian_lower_bound > 0.3 * found.claim


@pytest.mark.parametrize(
    "fault",
    [
        "noise in the first round alone",
        "no clip on one tensor",
        "noise halved",
        pytest.param("a cohort that is known", marks=pytest.mark.slow),
        pytest.param("a batch asked 16 times, charged once", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert FAULTS[fault].planted().disproved


def test_every_planted_fault_has_the_same_run_without_it() -> None:
    assert len(FAULTS) == 5
    assert not FAULTS["no clip on one tensor"].honest().disproved


@pytest.mark.slow
def test_a_small_federation_is_attacked_by_many_trainings() -> None:
    """One canary among three clients: the bound is below the claim, and finds something of it."""
    found = audit_repeatedly(parts_of(z=0.7, clients=3, rounds=1), runs=100)
    assert not found.disproved
    assert (found.canaries, found.runs, found.path) == (1, 100, RECORDED)
    assert 0 < found.gaussian_lower_bound < found.claim
    assert "one canary, 100 trainings" in str(found)
    with pytest.raises(TacitError, match="at least 100"):
        audit_repeatedly(parts_of(), runs=20)


def test_error_rates_have_their_confidence_and_reject_a_claim_that_is_too_small() -> None:
    """On scores of exactly known mu."""
    draw, mu, found = np.random.default_rng(1), 2.0, []
    for _ in range(40):
        there = draw.random(400) < 0.5
        found.append(repeated_audit.error_rates(draw.normal(size=400) + mu * there, there, 0.025)[:2])
    assert sum(repeated_audit.gaussian_mu(*rates) > mu for rates in found) <= 4
    for claimed, wrong in ((mu, False), (0.3, True)):

        def deltas(epsilons: np.ndarray, z: float = 1 / claimed) -> np.ndarray:
            return np.array([gaussian_delta(epsilon, z) for epsilon in epsilons])

        assert repeated_audit.rejects(deltas, 4.0, *found[0]) is wrong


def test_an_experiment_that_promises_nothing_is_not_attacked() -> None:
    parts = Parts(embedded_digits(), SoftmaxRegression(WIDTH, 10), FEDAVG, Privacy(), Training(1), Schedule())
    with pytest.raises(TacitError, match="promises nothing"):
        audit_run(parts)
    with pytest.raises(TacitError, match="at least 20"):
        attack(canaries=3)
