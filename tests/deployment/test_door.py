"""The only door to the outside: fleet calls and enrolment pass, nothing else does."""
# pyright: reportMissingImports=false

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import httpx

from tacit.deployment.flower import Link
from tacit.deployment.keys import fingerprint, make_node_key, sign, signed_by
from tacit.deployment.proxy import Door, leaving
from tacit.deployment.register import Register, read_invitation
from tacit.deployment.turned_away import TurnedAway
from tacit.engine.flower.terms import Seat, Terms
from tacit.errors import TacitError

OFFER = '{"levels": {"private": {}, "open": {}}}'


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link(tmp_path / "server", 1)
    made.prepare()
    (made.folder / "offer.json").write_text(OFFER)
    monkeypatch.setattr(Link, "register", lambda self, key, name: 17)
    monkeypatch.setattr(Link, "unregister", lambda self, node: None)
    return made


class Line:
    """Requests to a door, without a network."""

    def __init__(self, door: Door) -> None:
        self._transport = httpx.ASGITransport(door.app())

    def request(self, method: str, path: str, **what: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="https://door") as client:
                return await client.request(method, path, **what)

        return asyncio.run(ask())

    def post(self, path: str, **what: Any) -> httpx.Response:
        return self.request("POST", path, **what)


@pytest.fixture
def line(link: Link) -> Line:
    return Line(Door(link, 10_000))


def enrolment(link: Link, name: str = "ward-7", level: str = "private") -> dict[str, object]:
    token, _ = read_invitation(Register(link.folder).invite(1)[0])
    key = make_node_key(link.folder / f"{name}.key").decode()
    return {"invitation": token, "name": name, "level": level, "rows": 0, "key": key}


ELSEWHERE = ["/v1/control/list-runs", "/v1/runtime/pull-messages", "/docs", "/", "/v1/fleet/%2e%2e/control/x"]


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_whatever_is_no_fleet_call_is_refused_and_logged(line: Line, link: Link, path: str, method: str) -> None:
    assert line.request(method, path).status_code == 403
    assert "refused" in (link.folder / "logs" / "door.log").read_text()


def test_a_fleet_call_is_passed_on_with_flowers_headers_alone(link: Link) -> None:
    seen = []

    def upstream(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"pong", headers={"content-type": "application/protobuf", "server": "x"})

    door = Door(link, 10_000)
    door.upstream = httpx.AsyncClient(transport=httpx.MockTransport(upstream), base_url="https://link")
    headers = {"flwr-public-key": "k", "x-forwarded-for": "1.2.3.4"}
    answer = Line(door).post("/v1/fleet/pull-messages", content=b"ping", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"pong")
    assert seen[0].headers["flwr-public-key"] == "k"
    assert "x-forwarded-for" not in seen[0].headers
    assert "server" not in answer.headers


def test_a_large_request_is_refused_before_it_is_read(line: Line) -> None:
    assert line.post("/v1/fleet/push-object", content=bytes(10_001)).status_code == 413


def signed(link: Link, name: str, when: str) -> dict[str, str]:
    """The headers by which Flower knows a node."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    key: Any = load_ssh_private_key((link.folder / f"{name}.key").read_bytes(), None)
    public = base64.b64encode(public_key_to_bytes(key.public_key())).decode()
    signature = base64.b64encode(sign_message(key, when.encode())).decode()
    return {"flwr-public-key": public, "flwr-timestamp": when, "flwr-signature": signature}


def test_a_large_request_is_counted_for_the_member_who_signed_it_and_nobody_else(line: Line, link: Link) -> None:
    names = ("a", "b", "c")
    seats = [Seat(name, "private", 0, make_node_key(link.folder / f"{name}.key").decode()) for name in names]
    terms, began, now = Terms("run", "", (1,), 2, tuple(seats)), time.time(), datetime.now(UTC)
    forged = signed(link, "b", now.isoformat()) | {"flwr-timestamp": (now - timedelta(seconds=1)).isoformat()}
    stale = signed(link, "c", (now - timedelta(hours=1)).isoformat())
    for headers in (signed(link, "a", now.isoformat()), forged, stale, {}):
        answer = line.post("/v1/fleet/push-object", content=bytes(10_001), headers=headers)
        assert answer.status_code == 413
    turned_away = TurnedAway(link.turned_away)
    assert turned_away.since(began, terms) == {"a"}
    assert turned_away.since(time.time() + 1, terms) == set()


def test_a_node_has_a_limit_for_a_minute(link: Link) -> None:
    meter = Door(link, 100).meter
    assert all(meter.takes("a", 100) for _ in range(8))
    assert not meter.takes("a", 1)
    assert meter.takes("b", 1)


def test_an_invitation_works_once(line: Line, link: Link) -> None:
    asked = enrolment(link)
    assert line.post("/tacit/offer", json={"invitation": asked["invitation"]}).status_code == 200
    assert line.post("/tacit/enrol", json=asked).json() == {"node": 17}
    assert line.post("/tacit/enrol", json=asked | {"name": "ward-8"}).status_code == 403
    assert [member.name for member in Register(link.folder).members()] == ["ward-7"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"level": "secret"}, "menu"), ({"name": "../x"}, "no name"), ({"name": ""}, "no name")],
)
def test_an_enrolment_that_does_not_fit_uses_up_nothing(
    line: Line, link: Link, change: dict[str, str], reason: str
) -> None:
    asked = enrolment(link)
    answer = line.post("/tacit/enrol", json=asked | change)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]
    assert line.post("/tacit/enrol", json=asked).status_code == 200


def test_a_name_is_taken_once(line: Line, link: Link) -> None:
    assert line.post("/tacit/enrol", json=enrolment(link)).status_code == 200
    assert "taken" in line.post("/tacit/enrol", json=enrolment(link)).json()["error"]


def test_only_the_key_of_a_member_takes_it_off_the_list(line: Line, link: Link) -> None:
    line.post("/tacit/enrol", json=enrolment(link))
    when = time.time()
    make_node_key(link.folder / "other.key")
    forged = sign(link.folder / "other.key", leaving("ward-7", when))
    stale = sign(link.folder / "ward-7.key", leaving("ward-7", when - 1000))
    right = sign(link.folder / "ward-7.key", leaving("ward-7", when))
    said = {"name": "ward-7", "time": when}
    assert line.post("/tacit/leave", json=said | {"signature": forged}).status_code == 403
    assert line.post("/tacit/leave", json=said | {"time": when - 1000, "signature": stale}).status_code == 403
    assert line.post("/tacit/leave", json=said | {"signature": right}).status_code == 200
    assert Register(link.folder).members()[0].left


def test_an_invitation_names_the_authority_of_its_server(link: Link) -> None:
    _, mark = read_invitation(Register(link.folder).invite(1)[0])
    assert mark == fingerprint((link.folder / "ca.crt").read_bytes())
    with pytest.raises(TacitError, match="not an invitation"):
        read_invitation("half-of-it.x")


def test_malformed_requests_get_one_line(line: Line) -> None:
    for content in (b"", b"[]", b"{", b'{"invitation": 1}'):
        assert line.post("/tacit/enrol", content=content).status_code in (400, 403)


def test_keys_are_readable_by_their_owner_alone(link: Link) -> None:
    for name in ("server.key", "executor.secret"):
        assert (link.folder / name).stat().st_mode & 0o077 == 0
    assert not signed_by("not a key", b"", "00")
