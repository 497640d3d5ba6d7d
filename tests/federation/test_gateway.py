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

from tacit.errors import TacitError
from tacit.federation.flower.processes import Link
from tacit.federation.protocol.terms import Participant, Terms
from tacit.federation.service.gateway import Gateway, Meter, OversizeLog, leaving
from tacit.federation.service.roster import Enrolment, Member, read_invitation
from tacit.federation.service.tls import fingerprint, make_node_key, sign, signed_by

OFFER = '{"levels": {"private": {}, "open": {}}, "rows": false}'
WITH_ROWS = OFFER.replace("false", "true")


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

    def __init__(self, door: Gateway) -> None:
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
    return Line(Gateway(link, 10_000))


def enrolment(link: Link, name: str = "ward-7", level: str = "private") -> dict[str, object]:
    token, _ = read_invitation(Enrolment(link.folder).invite(1)[0])
    key = make_node_key(link.folder / f"{name}.key").decode()
    return {"invitation": token, "name": name, "level": level, "rows": 0, "key": key}


ELSEWHERE = ["/v1/control/list-runs", "/v1/runtime/pull-messages", "/docs", "/", "/v1/fleet/%2e%2e/control/x"]


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_whatever_is_no_fleet_call_is_refused_and_logged(line: Line, link: Link, path: str, method: str) -> None:
    assert line.request(method, path).status_code == 403
    assert "refused" in (link.folder / "logs" / "door.log").read_text()


def join(link: Link, name: str) -> str:
    """A member by that name; its public key."""
    key = make_node_key(link.folder / f"{name}.key").decode()
    Enrolment(link.folder).admit(Member(name, "private", 0, 17, key))
    return key


def signed(link: Link, name: str, when: datetime | None = None) -> dict[str, str]:
    """The headers by which Flower knows a node."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    said = (when or datetime.now(UTC)).isoformat()
    key: Any = load_ssh_private_key((link.folder / f"{name}.key").read_bytes(), None)
    public = base64.b64encode(public_key_to_bytes(key.public_key())).decode()
    signature = base64.b64encode(sign_message(key, said.encode())).decode()
    return {"flwr-public-key": public, "flwr-timestamp": said, "flwr-signature": signature}


def reaching(door: Gateway) -> list[httpx.Request]:
    """What the SuperLink behind a door is asked."""
    seen: list[httpx.Request] = []

    def upstream(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"pong", headers={"content-type": "application/protobuf", "server": "x"})

    door.upstream = httpx.AsyncClient(transport=httpx.MockTransport(upstream), base_url="https://link")
    return seen


def test_a_fleet_call_is_passed_on_with_flowers_headers_alone(link: Link) -> None:
    join(link, "a")
    door = Gateway(link, 10_000)
    seen, headers = reaching(door), signed(link, "a")
    more = {"x-forwarded-for": "1.2.3.4", "authorization": "Bearer x"}
    answer = Line(door).post("/v1/fleet/pull-messages", content=b"ping", headers=headers | more)
    assert (answer.status_code, answer.content) == (200, b"pong")
    assert seen[0].headers["flwr-public-key"] == headers["flwr-public-key"]
    assert not set(more) & set(seen[0].headers)
    assert "server" not in answer.headers


def strangers(link: Link) -> dict[str, dict[str, str]]:
    """Headers of requests that are no member's, though most of them name a member's key."""
    join(link, "a")
    make_node_key(link.folder / "stranger.key")
    join(link, "gone")
    Enrolment(link.folder).leave("gone")
    now = datetime.now(UTC)
    right = signed(link, "a", now)
    return {
        "nobody": {},
        "the key alone": {"flwr-public-key": right["flwr-public-key"]},
        "another time": right | {"flwr-timestamp": (now - timedelta(seconds=1)).isoformat()},
        "another's signature": right | {"flwr-signature": signed(link, "stranger", now)["flwr-signature"]},
        "an hour ago": signed(link, "a", now - timedelta(hours=1)),
        "no key": right | {"flwr-public-key": "k"},
        "a key of nobody's": signed(link, "stranger"),
        "a member who left": signed(link, "gone"),
    }


def test_what_no_member_signed_is_refused_unread_and_metered_to_nobody(link: Link) -> None:
    claims = strangers(link)
    door = Gateway(link, 1_000)
    seen, line = reaching(door), Line(door)
    for who, headers in claims.items():
        for size in (1_000, 5_000):
            for _ in range(5):
                answer = line.post("/v1/fleet/push-object", content=bytes(size), headers=headers)
                assert answer.status_code == 401, who
    assert seen == []
    assert not link.turned_away.exists()
    for _ in range(8):  # the member whose key they named has all of its minute left
        headers = signed(link, "a")
        assert line.post("/v1/fleet/push-object", content=bytes(1_000), headers=headers).status_code == 200
    assert line.post("/v1/fleet/push-object", content=b"1", headers=signed(link, "a")).status_code == 413


def test_a_large_request_is_refused_before_it_is_read(line: Line, link: Link) -> None:
    join(link, "a")
    answer = line.post("/v1/fleet/push-object", content=bytes(10_001), headers=signed(link, "a"))
    assert answer.status_code == 413


def test_a_large_request_is_counted_for_the_member_who_signed_it_and_nobody_else(line: Line, link: Link) -> None:
    began, claims = time.time(), strangers(link)
    keys = {"a": make_node_key(link.folder / "a.key").decode(), "b": join(link, "b")}
    terms = Terms("run", "", (1,), 2, tuple(Participant(name, "private", 0, key) for name, key in keys.items()))
    for headers in (signed(link, "b"), *claims.values()):
        assert line.post("/v1/fleet/push-object", content=bytes(10_001), headers=headers).status_code in (401, 413)
    turned_away = OversizeLog(link.turned_away)
    assert turned_away.since(began, terms) == {"b"}
    assert turned_away.since(time.time() + 1, terms) == set()


def test_a_node_has_a_limit_for_a_minute() -> None:
    meter = Meter(800)
    assert all(meter.takes("a", 100) for _ in range(8))
    assert not meter.takes("a", 1)
    assert meter.takes("b", 1)


ROWS = [0, -1, 2**31 + 1, 10**30, 1.5, 1e300, True, "12", None, [1]]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_a_number_of_rows_that_nobody_has_is_refused_and_uses_up_nothing(line: Line, link: Link, rows: Any) -> None:
    (link.folder / "offer.json").write_text(WITH_ROWS)
    asked = enrolment(link)
    answer = line.post("/tacit/enrol", json=asked | {"rows": rows})
    assert (answer.status_code, "from 1 to 2^31" in answer.json()["error"]) == (400, True)
    assert line.post("/tacit/enrol", json=asked | {"rows": 137}).status_code == 200
    assert [member.rows for member in Enrolment(link.folder).members()] == [137]


def test_rows_that_are_not_asked_for_are_not_taken(line: Line, link: Link) -> None:
    answer = line.post("/tacit/enrol", json=enrolment(link) | {"rows": 137})
    assert (answer.status_code, "no numbers of rows public" in answer.json()["error"]) == (400, True)


def test_an_invitation_works_once(line: Line, link: Link) -> None:
    asked = enrolment(link)
    assert line.post("/tacit/offer", json={"invitation": asked["invitation"]}).status_code == 200
    assert line.post("/tacit/enrol", json=asked).json() == {"node": 17}
    assert line.post("/tacit/enrol", json=asked | {"name": "ward-8"}).status_code == 403
    assert [member.name for member in Enrolment(link.folder).members()] == ["ward-7"]


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
    assert Enrolment(link.folder).members()[0].left


def test_an_invitation_names_the_authority_of_its_server(link: Link) -> None:
    _, mark = read_invitation(Enrolment(link.folder).invite(1)[0])
    assert mark == fingerprint((link.folder / "ca.crt").read_bytes())
    with pytest.raises(TacitError, match="not an invitation"):
        read_invitation("half-of-it.x")


def test_malformed_requests_get_one_line(line: Line) -> None:
    for content in (b"", b"[]", b"{", b'{"invitation": 1}'):
        assert line.post("/tacit/enrol", content=content).status_code in (400, 403)


def test_keys_are_readable_by_their_owner_alone(link: Link) -> None:
    for name in ("server.key", "executor.secret", "control.secret"):
        assert (link.folder / name).stat().st_mode & 0o077 == 0
    assert not signed_by("not a key", b"", "00")
