"""Servers and members that were restored from a copy, or lost a part of their files, release nothing uncharged."""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.errors import TacitError
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Answer, Ask, pack, unpack
from tacit.methods import FedAvg
from tests.federation.in_process import Reports, Wire, World
from tests.worlds import PLANS, ragged


def world_of(plan: str, clients: int = 4, **options: object) -> World:
    given = {"rounds": 12, "rate": 0.6, "fresh": True} | options
    return World(FedAvg(), PLANS[plan], ragged(clients), **given)  # pyright: ignore[reportArgumentType]


def steps(world: World, folder: Path, wire: Wire, several: int) -> None:
    server = world.conductor(folder, wire)
    for _ in range(several):
        server.step()
    server.ledger.close()


def restored(world: World, folder: Path, wire: Wire, lost: int = 4) -> None:
    """Two turns, a copy of the server's folder, `lost` turns more, and back to the copy."""
    steps(world, folder, wire, 2)
    shutil.copytree(folder / "server", folder / "copy")
    steps(world, folder, wire, lost)
    shutil.rmtree(folder / "server")
    shutil.copytree(folder / "copy", folder / "server")


@pytest.mark.parametrize("plan", ["central", "grouped", "local", "record"])
def test_a_server_that_was_restored_from_a_copy_releases_nothing_more(tmp_path: Path, plan: str) -> None:
    world = world_of(plan)
    wire = Wire(world.clients(tmp_path))
    restored(world, tmp_path, wire)
    told = Reports()
    server = world.conductor(tmp_path, wire)
    server.watchers = (told,)
    with pytest.raises(TacitError, match=r"was asked in turn \d+.*restored from an older copy"):
        server.go()
    assert told == []
    assert server.progress.round == 2


def test_a_restored_server_stops_as_soon_as_it_meets_somebody_who_knows_better(tmp_path: Path) -> None:
    """Nobody that it could have asked at first was there: it goes on, and stops before the release of that turn."""
    world = world_of("central", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    wire.offline = {"c0"}
    steps(world, tmp_path, wire, 2)
    shutil.copytree(tmp_path / "server", tmp_path / "copy")
    steps(world, tmp_path, wire, 2)
    shutil.rmtree(tmp_path / "server")
    shutil.copytree(tmp_path / "copy", tmp_path / "server")
    wire.offline = {"c1", "c2", "c3"}
    server = world.conductor(tmp_path, wire)
    assert server.step().cohort == 1
    wire.offline = {"c1", "c3"}
    with pytest.raises(TacitError, match="'c2' was asked in turn 3"):
        server.step()
    assert server.progress.round == 3


def test_a_server_that_was_killed_goes_on(tmp_path: Path) -> None:
    """What a resumed server has lost is nothing: members find in it all that they have seen."""
    world = world_of("central", rounds=5)
    wire = Wire(world.clients(tmp_path))
    for _ in range(2):
        steps(world, tmp_path, wire, 2)
    assert world.conductor(tmp_path, wire).go() is None
    refused = [unpack(Answer, blob).refused for _, blob in wire.answers]
    assert not any(refused)


def test_a_member_refuses_a_server_that_forgot_what_it_told(tmp_path: Path) -> None:
    """Also one that has gone on from the copy until its ledger is longer than the one that the member has seen."""
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    restored(world, tmp_path, wire, 1)
    others = Wire({name: client for name, client in wire.clients.items() if name != "c1"}, offline=set())
    others.offline = {"c0", "c1", "c2", "c3"}
    server = world.conductor(tmp_path, others)
    for _ in range(4):
        server.step()
    before = wire.clients["c1"].store.answers()
    ask = replace(server._ask("train", 9), charged=tuple(range(10)))
    answer = unpack(Answer, wire.clients["c1"].answer(pack(ask)))
    assert (answer.refused, answer.tensors) == ("ledger", {})
    assert wire.clients["c1"].store.answers() == before


def test_a_lie_about_what_a_member_has_seen_stops_nobody(tmp_path: Path) -> None:
    """Only the server's own seal counts: a hostile member cannot end the run with an invented head."""
    world = world_of("central", rate=1.0, rounds=3)

    def lie(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        answer = unpack(Answer, blob)
        turn, head, proof = answer.seen.split()
        wrong = {"c0": f"7 999:{'ab' * 32} {proof}", "c1": f"{int(turn) + 5} {head} {proof}", "c2": "nonsense \0"}
        return [(name, pack(replace(answer, seen=wrong.get(name, answer.seen))))]

    server = world.conductor(tmp_path, Wire(world.clients(tmp_path), lie))
    assert server.go() is None


def edit(path: Path, *statements: str) -> None:
    """With the guards away, and back again: a ledger without them is not even opened to be written to."""
    db = sqlite3.connect(path)
    guards = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for sql in (*(f"DROP TRIGGER {name}" for name, _ in guards), *statements, *(sql for _, sql in guards)):
        db.execute(sql)
    db.commit()
    db.close()


def test_a_server_does_not_go_on_with_a_ledger_that_was_changed_or_is_older_than_its_other_files(
    tmp_path: Path,
) -> None:
    world = world_of("central")
    wire = Wire(world.clients(tmp_path))
    ledger = tmp_path / "server" / "ledger.sqlite"
    steps(world, tmp_path, wire, 1)
    shutil.copy(ledger, tmp_path / "older")
    steps(world, tmp_path, wire, 1)
    shutil.copy(ledger, tmp_path / "newer")
    edit(ledger, "UPDATE charges SET count = 2 WHERE round = 1")
    with pytest.raises(TacitError, match="was changed"):
        world.conductor(tmp_path, wire)
    shutil.copy(tmp_path / "older", ledger)
    with pytest.raises(TacitError, match="older than"):
        world.conductor(tmp_path, wire)
    ledger.unlink()
    with pytest.raises(TacitError, match="older than"):
        world.conductor(tmp_path, wire)
    shutil.copy(tmp_path / "newer", ledger)
    world.conductor(tmp_path, wire).step()


# Members


def asks_to(wire: Wire, name: str) -> list[Ask]:
    found = [unpack(Ask, blob) for who, blob in wire.asked if who == name]
    return [ask for ask in found if ask.kind == "train"]


@pytest.mark.parametrize("plan", ["local", "record"])
def test_a_member_that_lost_what_it_answered_answers_nothing_again(tmp_path: Path, plan: str) -> None:
    """The ledger is there, `custody.sqlite` is not: fresh noise on an old turn would be another release, unpaid."""
    world = world_of(plan, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    server.step()
    (tmp_path / "c1" / "custody.sqlite").unlink()
    again = world.client(1, tmp_path)
    last = asks_to(wire, "c1")[-1]
    fresh = [
        unpack(Answer, again.answer(pack(ask)))
        for ask in (*asks_to(wire, "c1"), replace(last, round=2, turn=2, charged=(0, 1, 2)))
    ]
    assert [answer.tensors for answer in fresh] == [{}, {}, {}]
    assert all(answer.refused for answer in fresh)
    with again.store.ledger() as own:
        assert own.charged_rounds()["client:c1"] == 2


def test_a_member_that_lost_its_ledger_takes_part_in_nothing(tmp_path: Path) -> None:
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    (tmp_path / "c1" / "ledger.sqlite").unlink()
    told = server.step()
    assert (told.cohort, told.refused) == (3, {"ledger": 1})


def test_a_member_whose_ledger_was_restored_from_a_copy_refuses(tmp_path: Path) -> None:
    """By its other files; and where all of them were restored, by the head that the server has kept."""
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    shutil.copytree(tmp_path / "c1", tmp_path / "copy1")
    shutil.copy(tmp_path / "c2" / "ledger.sqlite", tmp_path / "copy2")
    server.step()
    shutil.rmtree(tmp_path / "c1")
    shutil.copytree(tmp_path / "copy1", tmp_path / "c1")
    shutil.copy(tmp_path / "copy2", tmp_path / "c2" / "ledger.sqlite")
    told = server.step()
    assert (told.cohort, told.refused) == (2, {"ledger": 2})
    server.ledger.close()
    told = world.conductor(tmp_path, wire).step()  # a server that goes on asks where they stand, and forgets nothing
    assert (told.cohort, told.refused) == (2, {"ledger": 2})


def test_a_member_whose_ledger_was_edited_refuses(tmp_path: Path) -> None:
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    server.step()
    edit(tmp_path / "c1" / "ledger.sqlite", "UPDATE charges SET event = replace(event, '1.', '9.') WHERE round = 0")
    told = server.step()
    assert (told.cohort, told.refused) == (3, {"ledger": 1})


def test_an_answer_is_in_the_ledger_before_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that dies while it trains has charged and answered: the turn is not answered again."""
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    client = wire.clients["c1"]

    class Died(BaseException):
        pass

    def die(*_: object) -> Callable[..., object]:
        raise Died

    wire.offline = {"c1"}
    server.step()
    blob = next(blob for name, blob in wire.asked if name == "c1")
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "_train", die)
        with pytest.raises(Died):
            client.answer(blob)
    with client.store.ledger() as own:
        assert own.answered() == [("run-1", 0)]
        assert own.charged_rounds() == {"client:c1": 1}
    assert unpack(Answer, client.answer(blob)).refused == "duplicate"


def test_what_an_earlier_version_had_answered_is_taken_over(tmp_path: Path) -> None:
    world = world_of("local", rate=1.0)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.step()
    ask = asks_to(wire, "c1")[0]
    db = sqlite3.connect(tmp_path / "c1" / "custody.sqlite")
    db.execute("CREATE TABLE answered (run TEXT, turn INTEGER, PRIMARY KEY (run, turn)) STRICT")
    db.execute("INSERT INTO answered VALUES ('run-1', 7), ('run-0', 3)")
    db.commit()
    db.close()
    client = world.client(1, tmp_path)
    assert client.store.last_answered("run-1") == 7
    assert client.store.answered("run-0", 3)
    later = replace(ask, round=1, turn=7, charged=(0, 7))
    assert unpack(Answer, client.answer(pack(later))).refused == "duplicate"


def test_both_sides_keep_each_others_heads(tmp_path: Path) -> None:
    world = world_of("local", rate=1.0, rounds=3)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    server.go()
    for name, client in wire.clients.items():
        with client.store.ledger() as own:
            told = own.kept_heads("server", "run-1")
            assert [kept.turn for kept in told] == [0, 1, 2, 2]  # the last one at the end
            assert all(server.ledger.holds(kept.head) for kept in told)
            mine = server.ledger.kept_heads(f"client:{name}", "run-1")
            assert len(mine) >= 3
            assert all(own.holds(kept.head) for kept in mine)


def test_a_ledger_that_another_process_is_making_has_no_row_yet(tmp_path: Path) -> None:
    """`tacit join` looks while its own node makes the file, which has no byte until the first transaction is whole."""
    with sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE scopes (scope TEXT)")
        store = ClientStore(tmp_path)
        assert (store.has_ledger(), store.answers()) == (False, 0)
        db.execute("ROLLBACK")
    with store.ledger():
        assert (store.has_ledger(), store.answers()) == (True, 0)
