# pyright: reportMissingImports=false
"""The only door to the outside: TLS, Flower's fleet calls and enrolment. Everything else is refused.

Flower's control API, by which one runs code, shares a port with the rest. So the SuperLink listens on loopback, and
this process passes on `POST /v1/fleet/...` of members and nothing else, with a limit on the size of a request and on
what one node may send in a minute. Whose a request is, is verified by its signature before anything of it is read.

Whose a request at the door is, and messages of members that were turned away for their size.

Whose a request is, its headers say: Flower's nodes sign the time with their key. What is not signed is nobody's. The
door writes down whom it turned away, and the server counts them.
"""

import json
import ssl
import sys
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tacit.errors import TacitError
from tacit.federation.flower.processes import Link
from tacit.federation.protocol.terms import Terms, checked_rows
from tacit.federation.service.roster import Enrolment, Member
from tacit.federation.service.tls import signed_by

_STALE = 300.0  # seconds that a signed time may be away from now, as in Flower


@dataclass(frozen=True)
class OversizeLog:
    path: Path

    def note(self, key: str) -> None:
        """A line for a request of a member, by the key that signed it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "key": key}) + "\n")

    def since(self, when: float, terms: Terms) -> set[str]:
        """The names of the members who were turned away since then."""
        if not self.path.exists():
            return set()
        lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
        keys = {line["key"] for line in lines if line["time"] >= when}
        return {seat.name for seat in terms.roster if keys and seat.key and in_headers(seat.key) in keys}


def signer(headers: Mapping[str, str]) -> str | None:
    """The public key of a request whose time is signed with it, as it stands in the header."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        key, said = headers["flwr-public-key"], headers["flwr-timestamp"]
        fresh = abs(time.time() - datetime.fromisoformat(said).timestamp()) < _STALE
        signature = b64decode(headers["flwr-signature"], validate=True)
        signed = verify_signature(bytes_to_public_key(b64decode(key, validate=True)), said.encode(), signature)
    except (KeyError, ValueError):
        return None
    return key if fresh and signed else None


def in_headers(public_key: str) -> str:
    """A public key in OpenSSH's form as it stands in the header of a request."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(public_key.encode())
    return b64encode(public_key_to_bytes(key)).decode()


FLEET: Final = "/v1/fleet/"
WINDOW: Final = 60.0
_SMALL: Final = 65_536
_PASSED: Final = ("flwr-", "content-type")


class Meter:
    """How many bytes each node has sent in the current minute."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._sent: dict[str, int] = defaultdict(int)
        self._since = time.monotonic()

    def takes(self, who: str, size: int) -> bool:
        if time.monotonic() - self._since > WINDOW:
            self._sent.clear()
            self._since = time.monotonic()
        self._sent[who] += size
        return self._sent[who] <= self.most


class MemberList:
    """The keys of those who joined and have not left, read anew when the list has changed."""

    def __init__(self, register: Enrolment) -> None:
        self._register, self._keys, self._read_at = register, frozenset[str](), -1

    def have(self, key: str) -> bool:
        if (changed := self._register.changed_at) != self._read_at:
            self._keys = frozenset(in_headers(each.key) for each in self._register.members() if not each.left)
            self._read_at = changed
        return key in self._keys


class TooLarge(Exception):
    """`key`: of the member whose request it is, if it is one's."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__("too large")
        self.key = key


class Log:
    """A line for every request that was turned away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, why: str, request: Request) -> None:
        who = request.client.host if request.client else "unknown"
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{time.time():.0f} {why}: {request.method} {request.url.path[:100]!r} from {who}\n")


async def _body(request: Request, most: int) -> bytes:
    """The body, never more than `most` bytes of it in memory."""
    if int(request.headers.get("content-length") or 0) > most:
        raise TooLarge
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


class Gateway:
    """`most`: bytes of one request; a node may send eight of that size in a minute."""

    def __init__(self, link: Link, most: int) -> None:
        self.link, self.most, self.meter = link, most, Meter(8 * most)
        self.register, self.log = Enrolment(link.folder), Log(link.folder / "logs" / "door.log")
        self.turned_away = OversizeLog(link.turned_away)
        self.members = MemberList(self.register)
        trust = ssl.create_default_context(cafile=str(link.folder / "ca.crt"))
        self.upstream = httpx.AsyncClient(
            base_url=f"https://{link.address}", verify=trust, timeout=120, trust_env=False
        )

    async def fleet(self, request: Request) -> Response:
        path = request.url.path
        if not path.startswith(FLEET) or ".." in path:
            return _refused()
        key = signer(request.headers)
        if key is None or not self.members.have(key):
            return PlainTextResponse("not signed by a member's key", 401)
        try:
            body = await _body(request, self.most)
        except TooLarge:
            raise TooLarge(key) from None
        if not self.meter.takes(key, len(body)):
            raise TooLarge(key)
        headers = {k: v for k, v in request.headers.items() if k.startswith(_PASSED)}
        try:
            answer = await self.upstream.post(path, content=body, headers=headers)
        except httpx.TransportError:
            return PlainTextResponse("the server is not reachable", 503)
        kept = {k: v for k, v in answer.headers.items() if k.startswith(_PASSED)}
        return Response(answer.content, answer.status_code, kept)

    async def nothing(self, _: Request) -> Response:
        return _refused()

    async def authority(self, _: Request) -> Response:
        return PlainTextResponse((self.link.folder / "ca.crt").read_text())

    async def offer(self, request: Request) -> Response:
        """The experiment, for whoever holds an invitation."""
        asked = await _json(request)
        if not self.register.invited(str(asked.get("invitation"))):
            return _refused("this invitation is not valid, or was used: ask for a new one")
        return JSONResponse(json.loads((self.link.folder / "offer.json").read_text()))

    async def enrol(self, request: Request) -> Response:
        asked = await _json(request)
        token, name = str(asked["invitation"]), str(asked["name"])
        if not self.register.invited(token):
            return _refused("this invitation is not valid, or was used: ask for a new one")
        offer = json.loads((self.link.folder / "offer.json").read_text())
        if asked["level"] not in offer["levels"]:
            raise TacitError(f"level '{str(asked['level'])[:40]}' is not on the menu {sorted(offer['levels'])}")
        self.register.check(name)
        rows, key = checked_rows(asked["rows"], offer["rows"]), str(asked["key"])
        node = await run_in_threadpool(self.link.register, key.encode(), name)
        self.register.enrol(token, Member(name, str(asked["level"]), rows, node, key))
        return JSONResponse({"node": node})

    async def leave(self, request: Request) -> Response:
        """A member leaves by a statement of today that its node's key has signed."""
        asked = await _json(request)
        name, when = str(asked["name"]), float(asked["time"])
        member = next((each for each in self.register.members() if each.name == name and not each.left), None)
        fresh, said = abs(time.time() - when) <= 300, leaving(name, when)
        if member is None or not fresh or not signed_by(member.key, said, str(asked["signature"])):
            return _refused("no such member, or not signed with its key")
        self.register.leave(name)
        await run_in_threadpool(self.link.unregister, member.node)
        return JSONResponse({"left": name})

    def app(self) -> Starlette:
        def guarded(handle: Handle) -> Handle:
            return guard(handle, self.log, self.turned_away)

        fleet = Route("/{path:path}", guarded(self.fleet), methods=["POST"])
        routes = [
            Route("/tacit/authority", guarded(self.authority), methods=["GET"]),
            *(
                Route(f"/tacit/{name}", guarded(getattr(self, name)), methods=["POST"])
                for name in ("offer", "enrol", "leave")
            ),
        ]
        other = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"]
        anything = Route("/{path:path}", guarded(self.nothing), methods=other)
        return Starlette(routes=[*routes, fleet, anything])


def leaving(name: str, when: float) -> bytes:
    return f"tacit leave {name} {when!r}".encode()


Handle = Callable[[Request], Awaitable[Response]]


def guard(handle: Handle, log: Log, turned_away: OversizeLog) -> Handle:
    """What goes wrong is one line to the other side, which says nothing of this one, and one in the log.

    Of what is too large the server application is told, if it is a member's.
    """

    async def answer(request: Request) -> Response:
        try:
            response = await handle(request)
            if response.status_code in (401, 403):
                log.note("refused", request)
            return response
        except TooLarge as error:
            log.note("too large", request)
            if error.key is not None:
                turned_away.note(error.key)
            return PlainTextResponse("too large", 413)
        except TacitError as error:
            return JSONResponse({"error": " ".join(str(error).split())}, 400)
        except (KeyError, ValueError, TypeError, ClientDisconnect):
            return PlainTextResponse("malformed", 400)

    return answer


async def _json(request: Request) -> dict[str, Any]:
    content = json.loads(await _body(request, _SMALL))
    if not isinstance(content, dict):
        raise TypeError("not a table")
    return content


def _refused(why: str = "refused") -> Response:
    return PlainTextResponse(why, 403)


def main() -> None:
    """`python -m tacit.federation.service.gateway FOLDER LINK_PORT HOST PORT MOST`"""
    folder, link_port, host, port, most = sys.argv[1:6]
    link = Link(Path(folder), int(link_port))
    uvicorn.run(
        Gateway(link, int(most)).app(),
        host=host,
        port=int(port),
        ssl_certfile=str(link.folder / "server.pem"),
        ssl_keyfile=str(link.folder / "server.key"),
        log_level="warning",
        server_header=False,
    )


if __name__ == "__main__":
    main()
