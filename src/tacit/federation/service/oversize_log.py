"""Whose a request at the door is, and messages of members that were turned away for their size.

Whose a request is, its headers say: Flower's nodes sign the time with their key. What is not signed is nobody's. The
door writes down whom it turned away, and the server counts them.
"""
# pyright: reportMissingImports=false

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tacit.federation.protocol.terms import Terms

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
