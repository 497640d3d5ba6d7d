"""A mechanism is one file: one that Tacit does not name runs, is charged, is told of in reports, and keeps its bound.

`laplace.py` beside this file has it, with an event of its own.
"""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from tacit.core import tree
from tacit.core.contract import Shared
from tacit.core.registry import Registry
from tacit.errors import TacitError
from tacit.experiments.build import build
from tacit.experiments.train import run_config
from tacit.methods import FedAvg, Multitask
from tacit.privacy.accounting.accountant import answer, epsilon
from tacit.privacy.accounting.events import describe, from_json, register, to_json
from tacit.privacy.accounting.rdp import renyi_divergences
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import MECHANISMS, Mechanism, Open, words_of
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.release import Inadmissible
from tacit.report import wording
from tacit.report.facts import Facts
from tacit.rounds.assemble import Privacy
from tests.conformance import test_boundary as boundary
from tests.experiments.tiny import tiny
from tests.federation.in_process import World
from tests.privacy.mechanisms.laplace import Laplace, LaplaceRelease, PureDpEvent
from tests.worlds import assembled, largest_difference, run

BUDGET = Level("private", epsilon=50.0, delta=1e-3)
PRIVACY = Privacy(Laplace(0.5), (BUDGET,))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS.builtin, Laplace.name, Laplace)


def test_it_runs_and_every_participation_is_charged_to_the_client_within_its_budget() -> None:
    whole = run(FedAvg(), PRIVACY, rounds=4)
    whole.go()
    history = whole.ledger.spent("client:c1", 0, None)
    (event,) = history
    assert event == PureDpEvent(1 / whole.plan.multipliers[0])
    assert answer(history, 1e-3, "replace").accountant == "rdp"
    assert 0 < epsilon(history, 1e-3, "replace") <= 50


def test_reports_say_what_it_said_of_itself() -> None:
    whole = run(FedAvg(), PRIVACY, rounds=4)
    whole.go()
    facts = Facts.of("toy", FedAvg(), whole.plan, uploads=True)
    spent = {"private": {"rdp": 3.0}}
    assert "; against everybody, by Laplace noise. The figure is that" in wording.guarantees(facts, spent)[0]
    assert words_of("laplace").to_member == "trust nobody"
    line = next(line for line in statement(whole.ledger) if line.scope == "client:c1")
    assert "pure epsilon" in str(line)


def test_its_event_can_be_written_read_and_told() -> None:
    event = PureDpEvent(0.25)
    assert from_json(to_json(event)) == event
    assert describe(event) == "a release of pure epsilon 0.25"
    assert epsilon({event: 1}, 1e-9, "replace") == pytest.approx(0.25, rel=0.01)


def test_two_events_of_one_name_are_refused() -> None:
    with pytest.raises(TacitError, match="has the name of another privacy event"):
        register(type("PureDpEvent", (), {}))


def test_an_event_that_no_accountant_knows_is_refused() -> None:
    with pytest.raises(TacitError, match="no accountant knows a Unknown"):
        renyi_divergences(type("Unknown", (), {})(), "replace")


def test_its_noise_has_the_scale_that_its_event_states() -> None:
    release, size = LaplaceRelease(0.5, (1.5,), 1.0), 40_000
    upload = Shared({"w": torch.zeros(size, dtype=torch.float64)})
    sent = tree.flatten(release.encode({}, upload, torch.tensor(0), Seeded.of(0, "toy")).body)
    stated = 2 * 0.5 * 1.5
    assert float(sent.abs().mean()) == pytest.approx(stated, rel=0.03)  # the mean distance of a Laplace number
    assert float(sent.std()) == pytest.approx(2**0.5 * stated, rel=0.03)


def test_no_client_adds_more_than_its_bound_recorded_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(boundary.MECHANISMS, "laplace", Privacy(Laplace(boundary.BOUND), (boundary.QUIET,)))
    (_, world), *_ = boundary.worlds(FedAvg(), ["laplace"])
    for kind in boundary.DATA:
        boundary.compare("laplace", kind, world)


def test_the_result_does_not_depend_on_the_chunk_size() -> None:
    views = []
    for chunk in (3, None):
        whole = run(FedAvg(), PRIVACY, rounds=2, chunk=chunk)
        whole.go()
        views.append(tree.join(whole.progress.server.view))
    assert largest_difference(*views) < 1e-9


def test_a_method_that_needs_single_messages_runs_because_each_has_all_of_its_noise() -> None:
    assert assembled(Multitask(), PRIVACY).engine.plan.mechanism.server_sees == "messages"


def test_a_federation_over_messages_gives_what_a_simulation_gives(tmp_path: Path) -> None:
    world = World(FedAvg(), PRIVACY, rounds=2)
    whole, server = world.simulated(), world.conductor(tmp_path)
    whole.go()
    server.go()
    sent, simulated = tree.join(server.progress.server.view), tree.join(whole.progress.server.view)
    assert largest_difference(sent, simulated) < 1e-9


def test_a_server_rejects_a_message_that_no_honest_client_sends() -> None:
    release, like = LaplaceRelease(0.5, (1.0,), 1.0), {"w": torch.zeros(3)}
    honest = release.encode({}, Shared(like), torch.tensor(0), Seeded.of(0, "toy"))
    assert release.admit({}, honest, like, 0) is honest
    with pytest.raises(Inadmissible, match="a norm above"):
        release.admit({}, honest._replace(body={"w": torch.full((3,), 1e4)}), like, 0)


def test_where_noise_must_be_exact_it_is_refused() -> None:
    with pytest.raises(TacitError, match="floating-point"):
        assembled(FedAvg(), Privacy(Laplace(), (BUDGET,), noise="exact"))


def test_members_accuracies_are_protected_on_the_client() -> None:
    plan = assembled(FedAvg(), Privacy(Laplace(), (BUDGET,), evaluation=Evaluation(2, 0.1))).engine.plan
    assert plan.evaluation is not None
    assert plan.evaluation.plan.name == "local"
    assert plan.evaluation.std > 0


def test_packages_add_theirs_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("laplace", "tests.privacy.mechanisms.laplace:Laplace", MECHANISMS.group),
        EntryPoint("broken", "tests.nowhere:Nothing", MECHANISMS.group),
    ]
    monkeypatch.setattr("tacit.core.registry.entry_points", lambda group: points)
    registry = Registry(MECHANISMS.what, MECHANISMS.group, {"open": Open})
    assert list(registry) == ["open", "laplace", "broken"]
    assert registry.find("laplace") is Laplace


def test_a_broken_package_stops_no_run_that_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("broken", "tests.nowhere:Nothing", MECHANISMS.group)]
    monkeypatch.setattr("tacit.core.registry.entry_points", lambda group: points)
    registry = Registry(MECHANISMS.what, MECHANISMS.group, {"open": Open})
    with pytest.warns(UserWarning, match="plan 'broken' cannot be imported"):
        assert list(registry.importable()) == [Open]
    with pytest.raises(TacitError, match="plan 'broken' cannot be imported"):
        registry.find("broken")


@pytest.mark.parametrize("kind", [kind for name, kind in MECHANISMS.items() if name != Laplace.name])
def test_every_mechanism_says_who_sees_what_and_whom_it_protects(kind: type[Mechanism]) -> None:
    assert kind().server_sees in ("uploads", "messages", "sum")
    assert kind().plan_name in kind.words
    for name, words in kind.words.items():
        assert words.to_member or name.endswith("-rota")
        assert words.against or kind.unit == "none"


def test_a_file_names_it_by_its_import_path_with_its_own_fields_as_keys(tmp_path: Path) -> None:
    where = "tests.privacy.mechanisms.laplace:Laplace"
    config = tiny(f"privacy.plan={where}", "privacy.bound=0.5", "rounds=2", "method.name=fedavg", "choices.open=0")
    result = run_config(config, tmp_path / "run", progress=False)
    assert result.run.engine.plan.mechanism == Laplace(bound=0.5)
    assert "epsilon" in " ".join(result.guarantees())
    with pytest.raises(TacitError, match="bound"):
        build(tiny(f"privacy.plan={where}", "privacy.bound=wide"))
