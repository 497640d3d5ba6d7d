"""Evaluation in a federation: paid for on both sides before it is sent, masked where sums are, never twice."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")
pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from tacit.errors import TacitError
from tacit.federation.protocol.messages import Answer, Arrived, Ask, pack, unpack
from tacit.federation.protocol.server import FederationServer
from tacit.federation.service.tls import make_node_key
from tacit.methods import Ditto, FedAvg, LocalOnly
from tacit.privacy import mechanisms as plans
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tacit.rounds.evaluate import alone
from tests.federation.in_process import Reports, Wire, World
from tests.federation.test_rounds import Died, alike
from tests.worlds import ragged

LEVEL, OPEN = Level("private", epsilon=8.0, delta=1e-3), Level("open")
REQUESTS = {
    "open": (plans.Open(), (OPEN,), {}),
    "central": (plans.Central(Fixed(0.5)), (LEVEL,), {}),
    "grouped": (plans.Grouped(Fixed(0.5)), (LEVEL, OPEN), {"open": 0.4}),
    "local": (plans.Local(Fixed(0.5)), (LEVEL,), {}),
    "record": (plans.Record(0.5), (LEVEL,), {}),
    "distributed": (plans.Distributed(Fixed(0.5)), (LEVEL,), {}),
}
PRIVATE = [name for name in REQUESTS if name != "open"]


def privacy(name: str, evaluation: Evaluation | None = Evaluation(2, 0.3), epsilon: float = 8.0) -> Privacy:
    request, levels, choices = REQUESTS[name]
    levels = tuple(replace(level, epsilon=epsilon) if level.private else level for level in levels)
    return Privacy(request, levels, choices, allow_large_delta=True, evaluation=evaluation)


def world_of(name: str, folder: Path, clients: int = 5, **options: Any) -> World:
    """With keys, so that sums are masked where the plan says so."""
    epsilon = options.pop("epsilon", 8.0)
    given = {"rounds": 4, "rate": 0.8, "fresh": True, "privacy": privacy(name, epsilon=epsilon)} | options
    world = World(Ditto(), federation=ragged(clients), **given)
    for place in world.federation.ids:
        (folder / place).mkdir(parents=True, exist_ok=True)
        world.keys[place] = make_node_key(folder / place / "node.key").decode()
    return world


def told_by(server: FederationServer) -> Reports:
    told = Reports()
    server.watchers = (told,)
    server.go()
    return told


def truth(world: World, server: FederationServer, wire: Wire) -> np.ndarray:
    """The mean of the clients' true accuracies now: what nobody in a deployment can compute."""
    view, found = server.progress.server.view, []
    for place, client in enumerate(wire.clients.values()):
        engine = world.seen_by(place, world.terms, world.rows(place)).engine
        state = client.store.state(world.run_id, world.rounds, engine.method.join(view, engine.start))
        found.append(alone(engine, view, state, place, 0))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("name", REQUESTS)
def test_both_sides_pay_for_evaluations_and_the_figures_are_about_right(tmp_path: Path, name: str) -> None:
    world = world_of(name, tmp_path, epsilon=300.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    told = told_by(server)
    assert [each.figures is not None for each in told] == [False, True, False, True]
    last = told[-1].figures
    assert last is not None
    assert last.shared is not None
    assert last.personal is not None
    error = np.abs(np.array([last.shared, last.personal]) - truth(world, server, wire))
    assert (error <= 6 * last.std + 1e-4).all()
    assert all(alike(server.ledger, client) for client in wire.clients.values())
    charged = {entry.round for entry in server.ledger.entries()}
    assert charged == (set() if name == "open" else set(range(6)))  # four rounds and two evaluations
    assert all(line.epsilon <= 300.0 for line in statement(server.ledger) if line.budget is not None)


def test_nothing_is_evaluated_unless_it_is_asked_for(tmp_path: Path) -> None:
    world = replace(world_of("local", tmp_path), privacy=privacy("local", None))
    wire = Wire(world.clients(tmp_path))
    told = told_by(world.conductor(tmp_path, wire))
    assert all(each.figures is None for each in told)
    assert not any(unpack(Ask, blob).evaluated for _, blob in wire.asked)


@pytest.mark.parametrize("name", PRIVATE)
def test_nobody_is_taken_past_its_epsilon_by_evaluations(tmp_path: Path, name: str) -> None:
    world = world_of(name, tmp_path, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    assert server.go() is None
    for client in wire.clients.values():
        with client.store.ledger() as own:
            assert all(line.epsilon <= 8.0 for line in statement(own) if line.budget is not None)


def test_a_client_whose_own_account_is_spent_refuses_an_evaluation(tmp_path: Path) -> None:
    """A server that remembers nothing asks for evaluation after evaluation, each in a run of its own."""
    request = plans.Local(Fixed(0.5), participations=1)
    spending = Privacy(request, (LEVEL,), allow_large_delta=True, evaluation=Evaluation(1, 0.9))
    world = replace(world_of("local", tmp_path, 3, rounds=1, rate=1.0), privacy=spending)
    wire = Wire(world.clients(tmp_path))
    answered, refused = [], []
    for number in range(3):
        forgetful = replace(world, run_id=f"run-{number}").conductor(tmp_path / f"s{number}", wire)
        told = forgetful.step()
        assert told.figures is not None
        answered.append((told.cohort, told.figures.answered))
        refused.append(dict(told.refused))
    assert answered == [(3, 3), (0, 0), (0, 0)]
    assert refused[1:] == [{"budget": 3}, {"budget": 3}]
    assert [client.store.answers() for client in wire.clients.values()] == [2, 2, 2]


def evaluation_ask(wire: Wire, name: str = "c1") -> Ask:
    return next(ask for who, blob in wire.asked if who == name and (ask := unpack(Ask, blob)).evaluation)


@pytest.mark.parametrize("plan", ["local", "record"])
def test_an_evaluation_is_answered_once(tmp_path: Path, plan: str) -> None:
    world = world_of(plan, tmp_path, rounds=2, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    world.conductor(tmp_path, wire).step()
    ask = evaluation_ask(wire)
    assert unpack(Answer, wire.clients["c1"].answer(pack(ask))).refused == "duplicate"


def test_an_open_plan_with_private_members_adds_noise_on_the_client_once(tmp_path: Path) -> None:
    """Training alone sends nothing; its evaluation is paid for all the same, and not repeated to average noise out."""
    given = Privacy(plans.Open(), (LEVEL,), allow_large_delta=True, evaluation=Evaluation(2, 0.3))
    world = replace(world_of("local", tmp_path, rounds=2, rate=1.0), privacy=given, method=LocalOnly())
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.go()
    assert {entry.scope for entry in server.ledger.entries()} == {f"client:c{k}" for k in range(5)}
    assert all(alike(server.ledger, client) for client in wire.clients.values())
    assert unpack(Answer, wire.clients["c1"].answer(pack(evaluation_ask(wire)))).refused == "duplicate"


def test_a_client_gives_no_more_evaluations_than_were_agreed_to(tmp_path: Path) -> None:
    world = world_of("local", tmp_path, rounds=2, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.go()
    ask = evaluation_ask(wire)
    more = replace(ask, turn=3, evaluated=(*ask.evaluated, 3))
    assert unpack(Answer, wire.clients["c1"].answer(pack(more))).refused == "round"
    off = replace(world, privacy=privacy("local", None), run_id="run-2")
    wanted = replace(ask, run="run-2", terms=off.terms.text())
    other = off.client(1, tmp_path)
    assert unpack(Answer, other.answer(pack(wanted))).refused == "round"


def test_a_turn_that_was_paid_for_as_an_evaluation_is_not_taken_for_training(tmp_path: Path) -> None:
    """Under a trusted server's plan the same turn may be asked again: as something else, it is charged again."""
    world = world_of("central", tmp_path, rounds=2, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    server.step()
    ask, client = evaluation_ask(wire), wire.clients["c1"]
    with client.store.ledger() as own:
        before = own.spent("level:private").total()
    assert not unpack(Answer, client.answer(pack(replace(ask, evaluated=())))).tensors  # its budget has no such round
    with client.store.ledger() as own:
        assert own.spent("level:private").total() == before


class DyingInEvaluation(Wire):
    """The server's process ends when the first answer to an evaluation has come."""

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for item in super().ask(asks, seconds):
            yield item
            if unpack(Ask, next(iter(asks.values()))).evaluation:
                raise Died


@pytest.mark.parametrize("name", PRIVATE)
def test_an_interrupted_evaluation_is_charged_and_not_repeated(tmp_path: Path, name: str) -> None:
    world = world_of(name, tmp_path, rate=1.0)
    with pytest.raises(Died):
        world.conductor(tmp_path, DyingInEvaluation(world.clients(tmp_path))).go()
    wire = Wire(world.clients(tmp_path))
    again = world.conductor(tmp_path, wire)
    assert (again.progress.round, len(again.journal.evaluated)) == (2, 1)
    told = told_by(again)
    assert [each.figures is not None for each in told] == [False, True]
    assert all(alike(again.ledger, client) for client in wire.clients.values())
    assert {entry.round for entry in again.ledger.entries()} == set(range(6))


def test_who_does_not_answer_counts_as_a_half_and_is_charged(tmp_path: Path) -> None:
    world = world_of("central", tmp_path, rounds=2, rate=1.0, epsilon=1e4)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    wire.offline = {"c0", "c1", "c2", "c3", "c4"}
    told = server.step()
    assert told.figures is not None
    assert (told.figures.asked, told.figures.answered) == (5, 0)
    assert told.figures.shared == pytest.approx(0.5, abs=6 * told.figures.std)
    wire.offline = set()
    server.close()
    assert all(alike(server.ledger, client) for client in wire.clients.values())


def test_figures_under_masking_are_seen_by_nobody(tmp_path: Path) -> None:
    world = world_of("distributed", tmp_path, rounds=2, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.go()
    sent = [unpack(Answer, blob) for _, blob in wire.answers]
    assert {tuple(answer.tensors) for answer in sent} == {("mask",), ()}
    plain = server._ask("train", 2)
    assert plain.evaluation
    assert unpack(Answer, wire.clients["c1"].answer(pack(plain))).refused == "unmasked"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [(torch.tensor(torch.nan, dtype=torch.float64), "shape"), (torch.tensor(2**30, dtype=torch.int32), "huge")],
)
def test_a_lie_about_ones_accuracy_is_rejected_and_counted(tmp_path: Path, wrong: torch.Tensor, reason: str) -> None:
    world = world_of("central", tmp_path, rounds=2, rate=1.0)

    def lie(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        answer = unpack(Answer, blob)
        if name == "c1" and "body/model/shared" in answer.tensors:
            blob = pack(replace(answer, tensors=answer.tensors | {"body/model/shared": wrong}))
        return [(name, blob)]

    server = world.conductor(tmp_path, Wire(world.clients(tmp_path), lie))
    told = told_by(server)
    assert told[-1].figures is not None
    assert told[-1].figures.answered == 4
    assert server.rejections[reason] == 1


def test_opted_out_clients_report_plainly_and_pay_nothing(tmp_path: Path) -> None:
    world = world_of("open", tmp_path, rounds=2, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    told = told_by(server)
    assert told[-1].figures is not None
    assert told[-1].figures.std == 0
    assert not list(server.ledger.entries())


def test_seeded_noise_has_no_evaluation(tmp_path: Path) -> None:
    world = replace(world_of("local", tmp_path), fresh=False, method=FedAvg())
    with pytest.raises(TacitError, match="fresh noise"):
        world.conductor(tmp_path)
