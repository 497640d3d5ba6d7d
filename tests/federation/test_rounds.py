"""A federation of clients with their own disks equals its simulation; ledgers agree; what does not fit is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.core import tree
from tacit.core.contract import Method, Tree
from tacit.errors import StorageError, TacitError
from tacit.federation.protocol.client import Client
from tacit.federation.protocol.messages import Answer, Arrived, Ask, pack, unpack
from tacit.methods import Ditto, FedAvg, KeepLocal, Multitask, Prototypes, Scaffold
from tacit.privacy import mechanisms as plans
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Grouped
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run
from tests.federation.in_process import Wire, World
from tests.worlds import PLANS, PRIVATE, largest_difference, ragged

METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "ditto": Ditto(),
    "scaffold": Scaffold(),
    "keep-local": KeepLocal(("norm",), Ditto()),
    "prototypes": Prototypes(),
}

STEPWISE_SUM = Privacy(Stepwise(0.5, seen="sum"), (PRIVATE,))


def rows(ledger: Ledger, scopes: set[str] | None = None) -> list[tuple[Any, ...]]:
    entries = (e for e in ledger.entries() if scopes is None or e.scope in scopes)
    return sorted((e.round, e.scope, str(e.event), e.count) for e in entries)


def simulated_state(run: Run, place: int) -> Tree:
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    return tree.each(lambda leaf: leaf[0], run.store.read(np.array([place]), first))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_federation_is_its_simulation(tmp_path: Path, method: Method, plan: str) -> None:
    world = World(method, PLANS[plan], ragged(3))
    expected = world.simulated()
    expected.go()
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    assert server.go() is None
    view, known = (tree.join(each.progress.server.view) for each in (server, expected))
    assert largest_difference(view, known) < 1e-9
    for place, name in enumerate(world.federation.ids):
        if expected.store.touched[place]:
            first = simulated_state(expected, place)
            kept = wire.clients[name].store.state(world.run_id, world.rounds, first)
            assert largest_difference(kept, first) < 1e-9
    assert rows(server.ledger) == rows(expected.ledger)


def test_weights_that_remember_released_means_work_in_a_federation(tmp_path: Path) -> None:
    """What the server remembers stays with it: members are sent what they are asked with, and nothing else."""
    private = (Level("strict", delta=1e-3, noise=2.0), Level("mild", delta=1e-3, noise=0.5), Level("open"))
    grouped = Grouped(Fixed(0.5), ratio="optimal", span=2, average=2, open_rounds=1)
    plan = Privacy(grouped, private, {"mild": 0.4, "open": 0.3})
    world = World(Ditto(strength="optimal"), plan, ragged(6), rounds=4)
    expected = world.simulated()
    expected.go()
    server = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    assert server.go() is None
    assert server.progress.public.keys() > server.plan.release.start().keys()
    assert rows(server.ledger) == rows(expected.ledger)
    assert {entry.round for entry in server.ledger.entries("level:strict")} == {1, 2, 3}
    assert largest_difference(server.progress.server.view.model, expected.progress.server.view.model) < 1e-9


@pytest.mark.parametrize("plan", ["open", "record"])
def test_members_drop_what_the_simulation_drops(tmp_path: Path, plan: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    world = World(FedAvg(), PLANS[plan], ragged(3), model=model)
    expected = world.simulated()
    expected.go()
    server = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    assert server.go() is None
    assert largest_difference(server.progress.server.view.model, expected.progress.server.view.model) < 1e-9


def alike(server: Ledger, client: Client) -> bool:
    """Whether the client's own ledger says what the server's says of it."""
    with client.store.ledger() as own:
        scopes = {e.scope for e in own.entries()} | {f"client:{client.name}", f"server:{client.name}"}
        return rows(server, scopes) == rows(own)


@pytest.mark.parametrize("plan", ["central", "grouped", "local", "record", "distributed"])
def test_both_sides_keep_the_same_account_with_fresh_noise_and_drop_outs(tmp_path: Path, plan: str) -> None:
    world = World(Ditto(), PLANS[plan], ragged(4), fresh=True, rounds=4)
    wire = Wire(world.clients(tmp_path), offline={"c1"})
    server = world.conductor(tmp_path, wire)
    server.step()
    server.step()
    wire.offline = {"c2"}
    server.step()
    wire.offline = set()
    server.go()
    assert rows(server.ledger)
    assert all(alike(server.ledger, client) for client in wire.clients.values())
    assert all(torch.isfinite(leaf).all() for leaf in server.progress.server.view.model.values())


def test_nobody_is_asked_before_the_turn_is_charged(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rounds=2, rate=1.0, fresh=True)
    server, charged = world.conductor(tmp_path), []
    send = server.transport.ask

    def ask(asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        charged.append({unpack(Ask, blob).turn for blob in asks.values()} == {server.ledger.rounds()})
        return send(asks, seconds)

    server.transport.ask = ask
    server.step()
    server.step()
    assert charged == [True, True]


def test_fresh_noise_is_not_the_noise_of_the_seed(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rounds=1, rate=1.0)
    views = []
    for name, fresh in (("seeded", False), ("one", True), ("two", True)):
        server = replace(world, fresh=fresh).conductor(tmp_path / name)
        server.go()
        views.append(server.progress.server.view.model)
    assert min(largest_difference(a, b) for a, b in combinations(views, 2)) > 1e-3


class Died(Exception):
    pass


class Dying(Wire):
    """The server's process ends after so many answers."""

    left = 10**6

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for item in super().ask(asks, seconds):
            self.left -= 1
            if self.left < 0:
                raise Died
            yield item


@pytest.mark.parametrize("plan", ["open", "grouped", "local"])
@pytest.mark.parametrize("moment", [0, 5])
def test_a_seeded_federation_resumes_to_the_same_result(tmp_path: Path, plan: str, moment: int) -> None:
    world = World(Ditto(), PLANS[plan], rate=0.9)
    expected = world.conductor(tmp_path / "whole")
    expected.go()
    wire = Dying(world.clients(tmp_path))
    wire.left = moment
    with pytest.raises(Died):
        world.conductor(tmp_path, wire).go()
    again = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    again.go()
    view, known = (tree.join(each.progress.server.view) for each in (again, expected))
    assert largest_difference(view, known) == 0
    assert rows(again.ledger) == rows(expected.ledger)


@pytest.mark.parametrize("plan", ["central", "local", "record", "distributed"])
def test_what_a_client_released_twice_with_fresh_noise_is_charged_twice(tmp_path: Path, plan: str) -> None:
    world = World(FedAvg(), PLANS[plan], ragged(3), rounds=3, rate=1.0, fresh=True)
    wire = Dying(world.clients(tmp_path))
    wire.left = 4  # in the second round, when one client has answered
    with pytest.raises(Died):
        world.conductor(tmp_path, wire).go()
    again = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    assert again.go() is None
    trusted = plan == "central"  # the server had released nothing of that turn
    scope = "level:private" if trusted else "client:c0"
    assert again.ledger.charged_rounds()[scope] == (3 if trusted else 4)
    assert all(alike(again.ledger, client) for client in wire.clients.values())


def test_a_release_that_may_have_happened_is_charged_again(tmp_path: Path) -> None:
    """The server dies between its release and its checkpoint."""
    world = World(FedAvg(), PLANS["central"], ragged(3), rounds=3, rate=1.0, fresh=True)
    server = world.conductor(tmp_path)
    server.step()
    server.save = lambda: (_ for _ in ()).throw(Died())
    with pytest.raises(Died):
        server.step()
    again = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    again.go()
    assert again.progress.round == 3
    assert again.ledger.charged_rounds()["level:private"] == 4


@pytest.mark.parametrize("plan", [plans.Local(Fixed(0.5), participations=2), plans.Record(0.5, participations=2)])
def test_a_client_refuses_by_its_own_ledger_whatever_the_server_says(tmp_path: Path, plan: Any) -> None:
    privacy = Privacy(plan, (Level("private", epsilon=2.0, delta=1e-3),), allow_large_delta=True)
    world = World(FedAvg(), privacy, ragged(2), rounds=1, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    told = []
    for number in range(4):  # four runs, each of a server that remembers nothing
        forgetful = replace(world, run_id=f"run-{number}").conductor(tmp_path / str(number), wire)
        told.append(forgetful.step())
    assert [each.cohort for each in told] == [2, 2, 0, 0]
    assert told[2].refused == {"budget": 2}
    for client in wire.clients.values():
        with client.store.ledger() as own:
            assert own.spent(f"client:{client.name}").total() % 2 == 0
            assert all(line.epsilon <= 2.0 for line in statement(own))


def test_a_client_answers_no_turn_twice_with_fresh_noise(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rounds=3, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    name, blob = wire.asked[0]
    assert unpack(Answer, wire.clients[name].answer(blob)).refused == "duplicate"


def test_of_two_processes_that_are_asked_the_same_at_once_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends a turn twice meets two processes, and neither sees that the other has begun."""
    world = World(FedAvg(), PLANS["local"], ragged(3), rounds=3, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    name, blob = wire.asked[0]
    store = wire.clients[name].store
    monkeypatch.setattr(store, "last_answered", lambda _: -1)
    monkeypatch.setattr(store, "newest", lambda _: 0)
    answer = unpack(Answer, wire.clients[name].answer(blob))
    assert (answer.refused, answer.tensors) == ("duplicate", {})


def test_a_run_has_one_set_of_terms(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rate=1.0)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    name, blob = wire.asked[0]
    ask = unpack(Ask, blob)
    other = replace(world.terms, roster=world.terms.roster[:2])
    changed = pack(replace(ask, round=1, turn=1, terms=other.text()))
    assert unpack(Answer, wire.clients[name].answer(changed)).refused == "run"


def test_a_client_that_lost_its_place_on_the_roster_does_not_answer(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rate=1.0)
    stranger = replace(world.client(0, tmp_path), name="mallory")
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    assert unpack(Answer, stranger.answer(wire.asked[0][1])).refused == "sender"


@pytest.mark.parametrize("wrong", ["nan", "shape", "missing", "dtype"])
def test_a_client_trains_on_no_broadcast_that_does_not_fit(tmp_path: Path, wrong: str) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rate=1.0)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    name, blob = wire.asked[0]
    ask = unpack(Ask, blob)
    leaf = "view/model/head.weight"
    bad = {
        "nan": ask.tensors | {leaf: ask.tensors[leaf] * torch.nan},
        "shape": ask.tensors | {leaf: ask.tensors[leaf][:1]},
        "dtype": ask.tensors | {leaf: ask.tensors[leaf].float()},
        "missing": tree.drop(ask.tensors, [leaf]),
    }[wrong]
    answer = unpack(Answer, wire.clients[name].answer(pack(replace(ask, round=1, turn=1, tensors=bad))))
    assert answer.refused in ("shape", "not finite")
    assert not answer.tensors
    assert not wire.clients[name].store.answered("run-1", 1)


def test_a_reason_that_a_client_makes_up_is_not_shown(tmp_path: Path) -> None:
    world = World(FedAvg(), PLANS["local"], ragged(3), rounds=1, rate=1.0, fresh=True)

    def rude(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        return [
            (name, pack(replace(unpack(Answer, blob), refused="\x1b[2Jgone", tensors={})) if name == "c1" else blob)
        ]

    assert world.conductor(tmp_path, Wire(world.clients(tmp_path), rude)).step().refused == {"another reason": 1}


@dataclass
class Hostile:
    """What the client c1 makes of its answers."""

    kind: str = ""
    old: bytes = b""

    def __call__(self, name: str, blob: bytes) -> list[tuple[str, bytes]]:
        answer = unpack(Answer, blob)
        if name != "c1" or answer.kind == "close":
            return [(name, blob)]
        self.old = self.old or blob
        first = min(name for name in answer.tensors if name.startswith("body/"))  # safetensors knows no order
        leaf = answer.tensors[first]
        changed = {
            "nan": {first: leaf * torch.nan},
            "huge": {first: leaf * 0 + (2**31 - 1 if leaf.dtype == torch.int32 else 10**12)},
            "shape": {first: leaf.reshape(-1)[:3]},
            "extra": {"body/more": leaf},
            "oversize": {"more": torch.zeros(10**6)},
        }
        headers = {"old round": {"round": 77}, "other run": {"run": "run-7"}, "other name": {"client": "c2"}}
        sent = {
            "duplicate": [(name, blob), (name, blob)],
            "replayed": [(name, self.old)],
            "uninvited": [("c0", blob)],
            "noise": [(name, bytes(range(256)) * 40)],
            "cut": [(name, blob[: len(blob) // 2])],
        }
        if self.kind in changed:
            return [(name, pack(replace(answer, tensors=answer.tensors | changed[self.kind])))]
        if self.kind in headers:
            return [(name, pack(replace(answer, **headers[self.kind])))]
        return sent.get(self.kind, [(name, blob)])


SEEN_AS = {
    "nan": "not finite",
    "huge": "huge",
    "shape": "shape",
    "extra": "shape",
    "old round": "round",
    "other run": "run",
    "other name": "sender",
    "oversize": "size",
    "duplicate": "duplicate",
    "replayed": "round",
    "uninvited": "sender",
    "noise": "malformed",
    "cut": "malformed",
}


@pytest.mark.parametrize("plan", ["open", "central", "local", "distributed"])
def test_a_hostile_answer_is_rejected_and_counted_and_the_round_goes_on(tmp_path: Path, plan: str) -> None:
    world = World(FedAvg(), PLANS[plan], ragged(3), rounds=len(SEEN_AS) + 1, rate=1.0, fresh=True)
    mallory = Hostile()
    server = world.conductor(tmp_path, Wire(world.clients(tmp_path), mallory))
    server.step()
    for mallory.kind, reason in SEEN_AS.items():
        told = server.step()
        if plan == "open" or mallory.kind != "nan":  # integers are never NaN: another dtype
            assert told.rejected == {reason: 1}, mallory.kind
        assert told.cohort == (3 if mallory.kind == "duplicate" else 2), mallory.kind
        assert all(torch.isfinite(leaf).all() for leaf in server.progress.server.view.model.values())
    assert server.go() is None


@pytest.mark.parametrize("privacy", [PLANS["distributed"], STEPWISE_SUM])
def test_the_sum_of_a_plan_that_hides_messages_needs_masks(tmp_path: Path, privacy: Privacy) -> None:
    world = World(FedAvg(), privacy, rate=1.0, steps=2)
    conductor = world.conductor(tmp_path)
    with pytest.raises(TacitError, match="cannot be masked"):
        replace(conductor, sums_in_the_open=False)
    careful = replace(world.client(1, tmp_path), sums_in_the_open=False)
    answer = unpack(Answer, careful.answer(conductor._for(conductor._ask("train", 0), "c1")))
    assert (answer.refused, answer.tensors) == ("unmasked", {})


def test_a_full_disk_on_a_client_is_a_drop_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Ditto(), PLANS["local"], ragged(3), rounds=2, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    full = wire.clients["c1"].store

    def refuse(*_: object) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(full, "keep", refuse)
        told = server.step()
    assert (told.cohort, told.refused) == (2, {"storage": 1})
    server.go()
    assert all(alike(server.ledger, client) for client in wire.clients.values())


def test_methods_that_gather_messages_get_a_row_for_each_client(tmp_path: Path) -> None:
    world = World(Multitask(), PLANS["open"])
    expected = world.simulated()
    expected.go()
    server = world.conductor(tmp_path)
    server.go()
    view, known = (tree.join(each.progress.server.view) for each in (server, expected))
    assert largest_difference(view, known) < 1e-9
