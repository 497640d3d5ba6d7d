# pyright: reportMissingImports=false
"""Whole rounds in one process, with members who fall silent at chosen stages."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.secagg import client, server
from tacit.secagg.identity import Identity, KeyRing, KeySigner
from tacit.secagg.messages import Terms, decode, encode
from tacit.secagg.primitives import Source, system

STAGES = 5  # offer, share, mask, confirm, unmask: a member that drops out at stage s sends nothing from there on


def seeded(label: str) -> Source:
    """SHAKE-256 of the label and a count, one block a call. For test vectors alone."""
    calls = iter(range(10**9))
    return lambda size: hashlib.shake_256(f"{label}/{next(calls)}".encode()).digest(size)


def identities(members: Sequence[int], label: str = "identity") -> dict[int, Identity]:
    keys = {m: Ed25519PrivateKey.from_private_bytes(seeded(f"{label}/{m}")(32)) for m in members}
    ring = KeyRing({m: key.public_key() for m, key in keys.items()})
    return {m: Identity(m, KeySigner(key), ring) for m, key in keys.items()}


def terms(n: int = 5, **changes: Any) -> Terms:
    given = {"size": 7, "bits": 20} | changes
    return Terms.of("run", 3, tuple(range(10, 10 + n)), **given)


def inputs(of: Terms, seed: int = 0) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {m: draw.integers(-(2**31), 2**31, of.size) for m in of.members}


class Round:
    """Steps through a round. `sent[stage]` and `told[stage]` keep every message by member."""

    def __init__(
        self,
        of: Terms,
        vectors: Mapping[int, np.ndarray],
        drop: Mapping[int, int] | None = None,
        source: Callable[[int], Source] = lambda _: system,
    ) -> None:
        self.terms, self.vectors, self.drop = of, vectors, drop or {}
        self.people = identities(of.members)
        self.sources = {m: source(m) for m in of.members}
        self.stage: Any = server.open_round(of, self.people[of.members[0]].directory)
        self.states: dict[int, Any] = dict.fromkeys(of.members)
        self.told: list[dict[int, Any]] = [dict.fromkeys(of.members, of)]
        self.sent: list[dict[int, Any]] = []

    def answer(self, member: int, message: Any) -> Any:
        """The member's reply, over the wire both ways."""
        self.states[member], reply = client.answer(
            self.people[member],
            self.states[member],
            decode(encode(message)),
            self.vectors[member],
            self.sources[member],
        )
        return decode(encode(reply))

    def collect(self) -> None:
        """All answers of this stage, handed to the server; the stage stays open."""
        number = len(self.sent)
        alive = {m: message for m, message in self.told[-1].items() if self.drop.get(m, STAGES) > number}
        self.sent.append({m: self.answer(m, message) for m, message in alive.items()})
        for member, message in self.sent[-1].items():
            self.stage = self.stage.receive(member, message)

    def close(self) -> None:
        self.stage, outgoing = self.stage.close()
        self.told.append(dict(outgoing))

    def until(self, stage: int) -> "Round":
        """Up to the answers of this stage; the stage stays open."""
        while len(self.sent) <= stage:
            if len(self.told) == len(self.sent):
                self.close()
            self.collect()
        return self

    def sum(self) -> server.Sum:
        if not isinstance(self.until(STAGES - 1).stage, server.Sum):
            self.close()
        return self.stage


def plain(of: Terms, vectors: Mapping[int, np.ndarray], survivors: Sequence[int]) -> np.ndarray:
    return sum((vectors[m] for m in survivors), np.zeros(of.size, np.int64)) % 2**of.bits
