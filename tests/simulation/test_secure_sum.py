"""A simulation that sums by secure aggregation ends where one that sums in plain does, bit by bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.core.contract import Method
from tacit.errors import TacitError
from tacit.experiments.build import build
from tacit.experiments.config import fingerprint
from tacit.experiments.run_dir import plain
from tacit.methods import Ditto, FedAvg, LocalOnly
from tacit.privacy import mechanisms as plans
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run
from tacit.sampling.availability import Availability
from tacit.secagg import local
from tacit.simulation import secure_sum
from tacit.simulation.chunks import Compile
from tests.experiments.tiny import run as run_tiny
from tests.experiments.tiny import tiny
from tests.worlds import DISTRIBUTED, PRIVATE, largest_difference, run, states

SECURE = Privacy(plans.Distributed(Fixed(0.5), secure_sum=True), (PRIVATE,))
PLAIN_FILE = ("method.name=fedavg", "choices=", "levels.open=", "privacy.plan=distributed", "privacy.clip=1.0")


def ended(privacy: Privacy, method: Method, compile: Compile = "auto", drop: float = 0.0, **options: Any) -> Run:
    one = run(method, privacy, **options)
    one.engine = replace(one.engine, compile=compile, programs={}, devices=Availability(drop=drop))
    one.go()
    return one


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
@pytest.mark.parametrize("options", [{}, {"chunk": 3}, {"compile": "require"}, {"drop": 0.4, "rounds": 8}])
def test_the_secure_sum_is_the_plain_sum_bit_by_bit(method: Method, options: dict[str, Any]) -> None:
    one, other = ended(DISTRIBUTED, method, **options), ended(SECURE, method, **options)
    assert largest_difference(one.progress.server.view.model, other.progress.server.view.model) == 0
    assert largest_difference(states(one), states(other)) == 0


def test_it_really_goes_through_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = []
    original = secure_sum._sum
    monkeypatch.setattr(secure_sum, "_sum", lambda rows, *rest: cohorts.append(list(rows)) or original(rows, *rest))
    one = ended(SECURE, FedAvg())
    assert len(cohorts) == 5
    assert all(len(set(cohort)) >= one.plan.release.coding.least for cohort in cohorts)  # type: ignore[attr-defined]


def test_a_threshold_is_that_of_the_terms_and_leaves_the_sum_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    original = local.run
    monkeypatch.setattr(
        local, "run", lambda terms, rows: asked.append((len(terms.members), terms.threshold)) or original(terms, rows)
    )
    higher = Privacy(plans.Distributed(Fixed(0.5), secure_sum=True, threshold=0.75), (PRIVATE,))
    one, other = ended(SECURE, FedAvg()), ended(higher, FedAvg())
    assert largest_difference(one.progress.server.view.model, other.progress.server.view.model) == 0
    half = len(asked) // 2
    assert all(threshold == members // 2 + 1 for members, threshold in asked[:half])
    assert all(threshold == -(-3 * members // 4) for members, threshold in asked[half:])
    for wrong in (0.49, 1.1, float("nan")):
        with pytest.raises(TacitError, match="threshold"):
            plans.Distributed(threshold=wrong)


def test_a_threshold_can_be_set_in_a_file_and_identifies_no_run() -> None:
    given = tiny(*PLAIN_FILE, "privacy.threshold=0.75")
    assert build(given).privacy.plan == plans.Distributed(Fixed(1.0), threshold=0.75)
    assert fingerprint(given) == fingerprint(tiny(*PLAIN_FILE))


def test_a_round_of_too_few_is_discarded_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways alike: nobody is asked to unmask less than the noise was sized for."""
    one = run(FedAvg(), SECURE)
    before = one.progress.server.view.model
    monkeypatch.setattr(one, "present", lambda *_: np.array([2]))
    one.take_round()
    assert one.ledger.rounds() == 0  # the last round that was charged
    assert largest_difference(before, one.progress.server.view.model) == 0
    assert one.progress.round == 1


def test_a_method_that_sends_nothing_has_nothing_to_sum() -> None:
    one = ended(SECURE, LocalOnly())
    assert one.progress.round == 5


def test_a_file_asks_for_it_and_the_run_is_still_the_same_one(tmp_path: Path) -> None:
    secure = (*PLAIN_FILE, "privacy.secure_sum=true")
    assert build(tiny(*secure)).privacy.plan == plans.Distributed(Fixed(1.0), secure_sum=True)
    assert fingerprint(tiny(*PLAIN_FILE)) == fingerprint(tiny(*secure))
    assert plain(build(tiny(*PLAIN_FILE)).privacy) == plain(build(tiny(*secure)).privacy)
    one, other = run_tiny(tmp_path / "plain", *PLAIN_FILE), run_tiny(tmp_path / "secure", *secure)
    assert all(torch.equal(a, b) for a, b in zip(_model(one), _model(other), strict=True))


def _model(result: Any) -> list[torch.Tensor]:
    return list(result.run.progress.server.view.model.values())


def test_other_plans_do_not_have_it() -> None:
    with pytest.raises(TacitError, match=r"secure_sum is True, and plan 'grouped' does not use it.*distributed"):
        build(tiny("privacy.secure_sum=true"))


def test_what_is_missing_is_said_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_sum, "find_spec", lambda _: None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-fl\[secagg\]'"):
        run(FedAvg(), SECURE)
