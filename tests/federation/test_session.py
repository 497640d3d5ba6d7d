"""A member derives what follows from a run's terms once; every message is still checked, and paid for, by itself."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from benchmarks.federation import liar, oracle
from tacit.federation.flower import no_remote_code, session
from tacit.federation.protocol.messages import Answer, Arrived, Ask, pack, unpack
from tacit.federation.protocol.server import FederationServer
from tacit.federation.protocol.terms import Terms
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import ClientFolder
from tacit.privacy.ledger.ledger import Ledger


@dataclass
class Line:
    """A transport to one member's folder, as the process of a message asks it."""

    folder: Path
    asked: list[bytes] = field(default_factory=list)

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            self.asked.append(blob)
            yield name, session.answer(self.folder, blob)


@pytest.fixture
def member(tmp_path: Path) -> ClientFolder:
    experiment.public_side.cache_clear()
    return liar.joined(tmp_path / "m", liar.offered(liar.text(oracle.LOCAL)), liar.some_rows(9))


def server_of(member: ClientFolder, line: Line) -> FederationServer:
    terms = Terms("run", liar.text(oracle.LOCAL), liar.INPUTS, liar.CLASSES, liar.roster(member, {}))
    return FederationServer(experiment.server_side(terms), terms, Ledger.open(":memory:"), line)


def count_derivations(monkeypatch: pytest.MonkeyPatch) -> list[Terms]:
    whole, derived = experiment._assembled, []

    def counted(config: object, terms: Terms, federation: object) -> object:
        derived.append(terms)
        return whole(config, terms, federation)  # type: ignore[arg-type]

    monkeypatch.setattr(experiment, "_assembled", counted)
    return derived


def test_messages_of_one_run_are_derived_once_and_charged_each(
    member: ClientFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(member.folder)
    server = server_of(member, line)
    derived = count_derivations(monkeypatch)
    assert [server.step().cohort for _ in range(3)] == [1, 1, 1]
    assert len(derived) == 1
    with Ledger.open(member.folder / "ledger.sqlite") as own:
        assert own.charged_rounds()[f"client:{liar.NAME}"] == 3


def test_other_terms_in_the_same_run_meet_no_derivation_of_before(
    member: ClientFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(member.folder)
    server = server_of(member, line)
    derived = count_derivations(monkeypatch)
    server.step()
    lying = replace(server.terms, experiment=liar.text(oracle.LOCAL, rounds=2))
    ask = replace(unpack(Ask, line.asked[0]), round=1, turn=1, terms=lying.text())
    assert unpack(Answer, session.answer(member.folder, pack(ask))).refused == "run"
    assert derived == [server.terms, lying]


def test_what_the_owner_changes_holds_from_the_next_message_on(member: ClientFolder) -> None:
    server = server_of(member, Line(member.folder))
    assert server.step().cohort == 1
    member.settle(replace(member.agreement, epsilon=1.0))
    assert server.step().refused == {"terms": 1}


def test_a_session_answers_by_its_socket_and_without_it_the_message_is_answered_all_the_same(
    member: ClientFolder,
) -> None:
    path = session.socket_of(member.folder)
    path.parent.mkdir()
    listening = session.listen(path)
    assert path.stat().st_mode & 0o077 == 0
    Thread(target=session.serve, args=(member.folder, listening), daemon=True).start()
    server = server_of(member, Line(member.folder))
    assert server.step().cohort == 1
    path.unlink()
    assert server.step().cohort == 1


def test_the_session_is_there_before_the_nursery_takes_a_message(
    member: ClientFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process that Flower starts itself finds a socket that nobody answers, and waits for ever."""

    class StartedError(Exception):
        pass

    def start(*_: object) -> None:
        raise StartedError

    def listen(path: Path) -> socket.socket:
        listening = listen_for_ever(path)
        listening.settimeout(1.0)
        return sockets.enter_context(listening)

    listen_for_ever, sockets = session.listen, ExitStack()
    for name in ("take_no_code", "_load"):
        monkeypatch.setattr(no_remote_code, name, lambda: None)
    monkeypatch.setattr(no_remote_code.signal, "signal", lambda *_: None)
    monkeypatch.setattr(session, "listen", listen)
    monkeypatch.setattr(session.Session, "ensure", start)
    door = member.folder / "flower" / "door"
    door.parent.mkdir()
    with sockets, pytest.raises(StartedError):
        no_remote_code.nursery(door)
