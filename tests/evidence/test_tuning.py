"""A search is charged: what the winner states is the epsilon of search and training together."""

import json
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.evidence import certificate, signing
from tacit.evidence.second_accountant import second_epsilon
from tacit.evidence.tuning import Search, score_of, tune
from tacit.evidence.verify import verify
from tacit.experiments.build import Parts, build
from tacit.experiments.result import Result
from tacit.experiments.train import conduct
from tacit.models.metrics import METRICS
from tacit.privacy.accounting.accountant import answer, to_json
from tacit.privacy.accounting.rdp import ORDERS, divergences
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Choices
from tacit.report.summary import open_run
from tacit.rounds.evaluate import Scores
from tests.experiments.tiny import run, tiny

TRIAL = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5)), 50)
SEARCH = RepeatAndSelectDpEvent(TRIAL, 10.0, 1.0)


def test_the_best_of_many_trials_costs_what_the_library_says() -> None:
    """The library also uses that divergences grow with the order, which matters at small orders alone."""
    orders = ORDERS[ORDERS < 256]
    library = RdpAccountant(orders.tolist()).compose(SEARCH)
    ours = divergences(SEARCH, "add/remove")[: len(orders)]
    assert (ours >= np.array(library._rdp) * 0.999).all()
    assert ours[orders > 4] == pytest.approx(np.array(library._rdp)[orders > 4], rel=0.01)


def test_both_accountants_agree_on_a_search_and_it_costs_more_than_a_trial() -> None:
    first = answer({SEARCH: 1}, 1e-5, "add/remove")
    assert first.accountant == "rdp"
    assert second_epsilon({to_json(SEARCH): 1}, 1e-5, "add/remove", "rdp") == pytest.approx(first.epsilon, rel=0.02)
    assert first.epsilon > 1.5 * answer({TRIAL: 1}, 1e-5, "add/remove", "rdp").epsilon


def test_a_search_within_the_budget_is_in_ledger_report_and_certificate(tmp_path: Path) -> None:
    search = Search({"method.lr": ("0.1", "0.5")}, mean=2.0)
    chosen, result = tune(tiny("rounds=3"), search, tmp_path / "won")
    assert chosen["method.lr"] in ("0.1", "0.5")
    with Ledger.read(tmp_path / "won" / "ledger.sqlite") as ledger:
        events = ledger.spent("level:private")
    (searched,) = (event for event in events if isinstance(event, RepeatAndSelectDpEvent))
    training = {event: n for event, n in events.items() if event != searched}
    stated = open_run(tmp_path / "won").epsilons["private"]["rdp"]
    assert stated <= 6.0
    assert stated > 1.5 * answer(training, 1e-2, "add/remove", "rdp").epsilon
    assert result.findings.epsilons["private"]["rdp"] == stated
    content = certificate.certify(tmp_path / "won", signing.make_key(tmp_path / "key"))
    assert content["guarantees"][0]["epsilon"] == stated
    assert "private selection" in content["questions"][8]["answer"]
    assert not any(text.startswith("Tuning") for text in content["not_covered"])
    certificate.write(content, tmp_path / "certificate.json")
    lines = verify(tmp_path / "certificate.json", tmp_path / "won")
    assert [line.text for line in lines if line.passed is False] == []
    assert any("search was charged" in line.text for line in lines)


def test_a_search_that_was_charged_is_on_disk_before_its_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.evidence.tuning.conduct", die)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny("rounds=2"), Search({"method.lr": ("0.1",)}), tmp_path / "won")
    with Ledger.read(tmp_path / "won-search.sqlite") as ledger:
        assert sum(ledger.spent("level:private").values()) == 1
    with pytest.raises(TacitError, match="a search is charged once"):
        tune(tiny("rounds=2"), Search({"method.lr": ("0.1",)}), tmp_path / "won")


def test_what_changes_the_price_is_not_tuned(tmp_path: Path) -> None:
    for key in ("rounds", "privacy.clip", "rate"):
        with pytest.raises(TacitError, match="cannot be tuned"):
            Search({key: ("1", "2")})
    with pytest.raises(TacitError, match="by participation"):
        tune(tiny("privacy.plan=local"), Search({"method.lr": ("0.1",)}), tmp_path / "won")


def test_a_tuned_certificate_without_the_charge_is_refused(tmp_path: Path) -> None:
    tune(tiny("rounds=2"), Search({"method.lr": ("0.1",)}, mean=1.5), tmp_path / "won")
    content = certificate.certify(tmp_path / "won", signing.make_key(tmp_path / "key"))
    run(tmp_path / "other", "rounds=2")
    certificate.write(content, tmp_path / "certificate.json")
    lines = verify(tmp_path / "certificate.json", tmp_path / "other")
    assert any(line.passed is False and "no search is in the ledger" in line.text for line in lines)
    assert json.loads((tmp_path / "won" / "tuning.json").read_text())["chosen"] == {"method.lr": "0.1"}
    assert np.isfinite(content["guarantees"][0]["epsilon"])


def test_a_client_moves_a_trials_score_by_at_most_one_whatever_its_metric_says() -> None:
    """The noise of a score is sized for that."""
    empty = np.zeros(0)
    wild = np.array([0.5, 1e9, -1e9, np.nan, np.inf, -np.inf])
    for at in range(len(wild)):
        scores = Scores(None, np.arange(6), np.zeros(6), empty, wild, 0, metric=METRICS["r2"])
        others = replace(scores, personal=np.delete(wild, at))
        assert 0 <= score_of(scores) - score_of(others) <= 1
    with pytest.raises(TacitError, match="better when smaller"):
        score_of(Scores(None, empty, empty, empty, empty, 0, metric=METRICS["rmse"]))


def test_trials_train_the_same_clients_at_the_same_levels_and_never_see_test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a seed of its own a trial would have dealt rows anew, and let others opt out."""
    seen: list[tuple[FederatedDataset, Choices, int]] = []

    def watched(parts: Parts, *more: object) -> Result:
        result = conduct(parts, *more)  # type: ignore[arg-type]
        seen.append((parts.federation, result.run.plan.setting.choices, parts.training.seed))
        return result

    monkeypatch.setattr("tacit.evidence.tuning.conduct", watched)
    config = tiny("rounds=1")
    _, won = tune(config, Search({"method.lr": ("0.1",)}, mean=3.0), tmp_path / "won")
    whole, levels = build(config).federation, won.run.plan.setting.choices.level
    assert len({seed for *_, seed in seen} | {config.seed}) == len(seen) + 1 > 2
    for data, choices, _ in seen:
        assert choices.level.tolist() == levels.tolist()
        assert data.common_x is None
        for k in range(whole.clients):
            mine = {row.numpy().tobytes() for row in whole.x[whole.rows(k)]}
            assert {row.numpy().tobytes() for row in [*data.x[data.rows(k)], *data.test_x[data.test_rows(k)]]} == mine
