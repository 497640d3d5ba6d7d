"""A killed run resumes to the same result and never spends less on paper than in truth (`make crash` does 20 kills)."""

from pathlib import Path

from benchmarks.crash import trial


def test_a_killed_run_resumes_to_the_same_model_and_ledger(tmp_path: Path) -> None:
    outcome = trial(kills=1, rounds=12, seed=1, folder=tmp_path)
    assert outcome.alike == 1
    assert all(moment.honest for moment in outcome.moments)
