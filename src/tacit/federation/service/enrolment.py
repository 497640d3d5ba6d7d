"""Who may join, and who has: one-time invitations and the list of members, in the server's folder."""

import base64
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage, write_atomically
from tacit.errors import TacitError
from tacit.federation.service.tls import fingerprint

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


@dataclass(frozen=True)
class Member:
    """A registered client. `key` is the public key that its node proves to have."""

    name: str
    level: str
    rows: int
    node: int
    key: str
    left: bool = False


@dataclass(frozen=True)
class Enrolment:
    """Kept by one process at a time, the one that enrols; others read it."""

    folder: Path

    def invite(self, count: int) -> list[str]:
        """New invitations: a secret that works once, and the fingerprint of the server's authority."""
        mark = base64.urlsafe_b64encode(bytes.fromhex(fingerprint((self.folder / "ca.crt").read_bytes())))
        made = [secrets.token_urlsafe(18) for _ in range(count)]
        open_ = self._read("invitations", [])
        self._write("invitations", open_ + [_digest(token) for token in made])
        return [f"{token}.{mark.decode().rstrip('=')}" for token in made]

    def invited(self, token: str) -> bool:
        return any(hmac.compare_digest(_digest(token), known) for known in self._read("invitations", []))

    @property
    def changed_at(self) -> int:
        """A number that is another one once the list of members has changed."""
        path = self.folder / "members.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def members(self) -> list[Member]:
        return [Member(**each) for each in self._read("members", [])]

    def enrol(self, token: str, member: Member) -> None:
        """Uses up the invitation. Refuses a name that is taken."""
        if not self.invited(token):
            raise TacitError("this invitation is not valid, or was used: ask for a new one")
        self.check(member.name)
        self.admit(member)
        rest = [known for known in self._read("invitations", []) if not hmac.compare_digest(_digest(token), known)]
        self._write("invitations", rest)

    def admit(self, member: Member) -> None:
        """Puts a member on the list, by whoever runs the server."""
        self._write("members", [asdict(each) for each in (*self.members(), member)])

    def check(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise TacitError(f"'{name[:60]}' is no name for a client: use letters, digits, dots and dashes, 61 at most")
        if any(member.name == name for member in self.members()):
            raise TacitError(f"the name '{name}' is taken: choose another")

    def leave(self, name: str) -> Member:
        """Marks a member as gone; its name stays taken, and its account stays what it is."""
        found = next((member for member in self.members() if member.name == name and not member.left), None)
        if found is None:
            raise TacitError(f"'{name}' is not a member")
        rows = [asdict(each) | ({"left": True} if each.name == name else {}) for each in self.members()]
        self._write("members", rows)
        return found

    def _read(self, name: str, otherwise: Any) -> Any:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return otherwise
        with storage(path):
            return json.loads(path.read_text())

    def _write(self, name: str, content: Any) -> None:
        write_atomically(self.folder / f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())


def read_invitation(text: str) -> tuple[str, str]:
    """The secret and the fingerprint in an invitation."""
    token, _, mark = text.strip().partition(".")
    try:
        return token, base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4)).hex()
    except ValueError:
        raise TacitError("this is not an invitation: copy the whole of it, as the server printed it") from None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
