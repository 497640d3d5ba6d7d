# pyright: reportMissingImports=false
"""A whole round in one process, over the same bytes that a network would carry: for simulation, trials and timing."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.secagg import client
from tacit.secagg.client import State
from tacit.secagg.identity import Identity, KeyRing, KeySigner
from tacit.secagg.messages import Terms, decode, encode
from tacit.secagg.server import Stage, Sum, open_round

Answer = Callable[[Identity, State | None, bytes, np.ndarray], tuple[State, bytes]]
"""A member's part: its next state and its answer, from its state, the server's message and its input."""


def answer(identity: Identity, state: State | None, message: bytes, vector: np.ndarray) -> tuple[State, bytes]:
    after, reply = client.answer(identity, state, decode(message), vector)
    return after, encode(reply)


def run(
    terms: Terms,
    vectors: Mapping[int, np.ndarray],
    silent: Mapping[int, int] | None = None,
    part: Answer = answer,
) -> Sum:
    """The sum of the survivors' vectors modulo 2^b. `silent`: from which stage (0 to 4) on a member says nothing."""
    silent, people = silent or {}, identities(terms.members)
    stage: Stage | Sum = open_round(terms, people[terms.members[0]].directory)
    states: dict[int, State | None] = dict.fromkeys(terms.members)
    outgoing, number = dict.fromkeys(terms.members, encode(terms)), 0
    while isinstance(stage, Stage):
        for member, message in outgoing.items():
            if silent.get(member, 5) > number:
                states[member], reply = part(people[member], states[member], message, vectors[member])
                stage = stage.receive(member, decode(reply))
        stage, replies = stage.close()
        outgoing, number = {member: encode(message) for member, message in replies.items()}, number + 1
    return stage


def identities(members: Sequence[int]) -> dict[int, Identity]:
    """Members with keys of their own, who know each other's."""
    keys = {member: Ed25519PrivateKey.generate() for member in members}
    ring = KeyRing({member: key.public_key() for member, key in keys.items()})
    return {member: Identity(member, KeySigner(key), ring) for member, key in keys.items()}
