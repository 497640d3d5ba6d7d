"""Whoever is killed, at whichever step: what was released has been charged, by the server and by the member itself.

A step is anything that becomes durable on either side. A process that dies at one of them leaves what was written
before it. Which way may the two ledgers then differ? The server charges before it asks, and a member before it
computes. So the server may have charges of turns that a member never saw, until the member next hears of them; a member
has none for less than it answered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.data.dataset import LocalView
from tacit.federation.protocol import client_store, server
from tacit.federation.protocol.client import Client
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Answer, Arrived, Ask, unpack
from tacit.federation.protocol.server import FederationServer
from tacit.federation.protocol.terms import Terms
from tacit.methods import Ditto
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds import checkpoint
from tacit.rounds.assemble import Assembled
from tests.federation.in_process import Wire, World
from tests.federation.test_rounds import alike
from tests.worlds import PLANS, ragged

STEPS: tuple[tuple[Any, str], ...] = (
    *((Ledger, name) for name in ("budget", "charge", "charge_together", "keep")),
    *((ClientStore, name) for name in ("pin", "note_paid", "keep_head", "keep", "end")),
    *((module, "write_atomically") for module in (client_store, server, checkpoint)),
    (Client, "_train"),
)
"""Each of them is a step before it, and a step after it."""


class Killed(BaseException):
    """Nobody catches it: the process is gone."""


@dataclass
class Executioner:
    """Kills whoever takes the step of this number; each step is before or after something that becomes durable."""

    at: int
    taken: int = 0
    where: str = ""

    def step(self, name: str) -> None:
        self.taken += 1
        if self.taken == self.at:
            self.where = name
            raise Killed

    def around(self, name: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.step(f"before {name}")
            found = honest(*args, **options)
            self.step(f"after {name}")
            return found

        return watched

    def follow(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in STEPS:
            patch.setattr(owner, name, self.around(f"{owner.__name__}.{name}", getattr(owner, name)))


@dataclass
class Mortal(Wire):
    """A member that is killed is silent in this turn, and back in the next, with what its disk has."""

    reborn: Callable[[], Mapping[str, Client]] = dict
    left: list[tuple[str, int]] = field(default_factory=list)  # uploads that left a member: its name, the turn

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            try:
                answer = self.clients[name].answer(blob)
            except Killed:
                self.clients = self.reborn()
                continue
            told = unpack(Answer, answer)
            if told.kind == "train" and not told.refused:
                self.left.append((name, unpack(Ask, blob).turn))
            yield name, answer


def conduct(world: World, folder: Path, at: int, patch: pytest.MonkeyPatch) -> tuple[FederationServer, Mortal, str]:
    """A federation to its end, with one process killed at a step; the server goes on from its disk if it was it."""
    death = Executioner(at)
    death.follow(patch)
    wire = Mortal(world.clients(folder), reborn=lambda: world.clients(folder))
    while True:
        try:
            conductor = world.conductor(folder, wire)
            assert conductor.go() is None
            return conductor, wire, death.where
        except Killed:
            continue


@dataclass
class OftenBegun(World):
    """What follows from terms and data is put together once, however often somebody is killed."""

    made: dict[tuple[int, ...], Assembled] = field(default_factory=dict)

    def assembled(self, terms: Terms, view: LocalView) -> Assembled:
        known = tuple(map(int, view.offsets))
        if known not in self.made:
            self.made[known] = super().assembled(terms, view)
        return self.made[known]


def world_of(plan: str) -> World:
    return OftenBegun(Ditto(), PLANS[plan], ragged(2), rounds=2, rate=1.0, fresh=True)


def check(world: World, conductor: FederationServer, wire: Mortal, where: str) -> None:
    for name, client in wire.clients.items():
        scope = "level:private" if conductor.plan.trusts_server else f"client:{name}"
        with client.store.ledger() as own:
            mine = {entry.round for entry in own.entries(scope)}
        theirs = {entry.round for entry in conductor.ledger.entries(scope)}
        answered = Counter(turn for who, turn in wire.left if who == name)
        assert answered.keys() <= mine, f"{where}: {name} answered turns that its own ledger has not got"
        assert answered.keys() <= theirs, f"{where}: {name} answered turns that the server's ledger has not got"
        assert mine <= theirs, f"{where}: {name} was charged for turns that the server has not got"
        if not conductor.plan.trusts_server:
            assert set(answered.values()) <= {1}, f"{where}: {name} answered a turn twice, with fresh noise"
    assert conductor.progress.round == world.rounds
    conductor.close()  # whoever was killed while it was told the end
    assert all(alike(conductor.ledger, client) for client in wire.clients.values()), where


def steps_of(world: World, folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        death = Executioner(-1)
        death.follow(patch)
        world.conductor(folder, Wire(world.clients(folder))).go()
    return death.taken


def kill_at_steps(plan: str, folder: Path, every: int) -> set[str]:
    places, world = set[str](), world_of(plan)
    for at in range(1, steps_of(world, folder / "whole") + 1, every):
        with pytest.MonkeyPatch.context() as patch:
            conductor, wire, where = conduct(world, folder / str(at), at, patch)
            places.add(where)
        check(world, conductor, wire, where)
        conductor.ledger.close()
    return places


@pytest.mark.parametrize("plan", ["central", "local"])
def test_whoever_is_killed_no_ledger_has_less_than_was_released(plan: str, tmp_path: Path) -> None:
    places = kill_at_steps(plan, tmp_path, every=25)
    assert len(places) > 3


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["central", "grouped", "local", "record", "distributed"])
def test_whoever_is_killed_at_any_step_no_ledger_has_less_than_was_released(plan: str, tmp_path: Path) -> None:
    kill_at_steps(plan, tmp_path, every=1)


def test_a_member_that_computes_before_it_pays_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a member whose charge is put off is caught at the first kill after its answer."""
    monkeypatch.setattr(Ledger, "charge_together", lambda self, batches, answer=None: answer is not None)
    world = world_of("local")
    with pytest.MonkeyPatch.context() as patch:
        conductor, wire, where = conduct(world, tmp_path, 10**9, patch)
    with pytest.raises(AssertionError, match="its own ledger has not got"):
        check(world, conductor, wire, where)
