# pyright: reportMissingImports=false
"""The sum of a round by secure aggregation (`tacit.secagg`), stage by stage over the same messages as everything else.

The server learns the sum of the survivors' integers and who they are. A client's part is a state on its disk, which is
replaced, durably, before an answer is sent. Members know each other by the keys on the roster.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core.contract import Tree
from tacit.federation.protocol import messages
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Answer, Arrived, Ask, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.privacy.mechanisms.distributed import BODY, Distributed
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.plan import Plan
from tacit.secagg import client as members
from tacit.secagg.identity import Identity, KeyRing, KeySigner
from tacit.secagg.messages import Delivery, decode, encode, largest
from tacit.secagg.server import Masking, Stage, Sum, open_round
from tacit.secagg.terms import Discarded, Refused, threshold_of
from tacit.secagg.terms import Terms as Round
from tacit.simulation.secure_sum import threshold_share

KEY = "mask"
Send = Callable[[Mapping[int, Ask]], Any]
"""Asks clients by their places; gives (place, blob) as answers come."""


@dataclass(frozen=True)
class Member:
    place: int
    key: Path
    terms: Terms
    custody: ClientStore

    @property
    def identity(self) -> Identity:
        return Identity(self.place, KeySigner.of(self.key), ring(self.terms))


def ring(terms: Terms) -> KeyRing:
    return KeyRing.of({place: seat.key for place, seat in enumerate(terms.roster) if seat.key})


def stage(member: Member, ask: Ask, plan: Plan, vector: Callable[[], np.ndarray]) -> Tree:
    """A client's answer to one stage. `vector` trains: it is called when the masked upload is asked for."""
    try:
        message = decode(_bytes(ask.tensors))
        kept = None
        if isinstance(message, Round):
            _agreed(message, ask, plan, len(member.terms.roster))
        else:
            kept = member.custody.mask_state(ask.run)
        state = None if kept is None else members.thaw(kept)
        upload = vector() if isinstance(message, Delivery) else None
        after, reply = members.answer(member.identity, state, message, upload)
    except (Refused, Discarded) as error:
        raise Rejected("round", str(error)) from error
    if kept is not None and not member.custody.using(kept):
        raise Rejected("duplicate", "this state of the sum was used")
    member.custody.keep_mask_state(ask.run, members.freeze(after))
    return {KEY: _tensor(encode(reply))}


def _agreed(round: Round, ask: Ask, plan: Plan, clients: int) -> None:
    """The round is the one that the plan describes, whatever the server says."""
    release = plan.release
    if not isinstance(release, Distributed):
        raise Rejected("run", "this plan has no integers to sum")
    coding = release.coding
    expected = (ask.run, ask.turn, coding.padded, coding.bits)
    if (round.run, round.round, round.size, round.bits) != expected or round.least < coding.least:
        raise Rejected("round", "the sum is not of the run, turn, size, bits or least number that was agreed")
    if round.threshold < threshold_of(len(round.members), threshold_share(plan)):
        raise Rejected("round", f"{round.threshold} of {len(round.members)} members could unmask the sum: too few")
    if round.members[-1] >= clients:
        raise Rejected("sender", "a member is not on the roster")


class Collected(NamedTuple):
    total: Tensor | None  # None: the round has no sum
    survivors: tuple[int, ...]
    refused: Counter
    rejected: Counter


def collect(terms: Terms, ask: Ask, cohort: np.ndarray, plan: Plan, send: Send) -> Collected:
    """The server's part: five stages, each to its deadline. Whoever says nothing in one has dropped out of the rest."""
    release, refused, rejected = plan.release, Counter(), Counter()
    assert isinstance(release, Distributed)
    coding, share = release.coding, threshold_share(plan)
    places = tuple(int(k) for k in np.sort(cohort))
    if len(places) < max(coding.least, 1):
        return Collected(None, (), refused, rejected)
    round = Round.of(ask.run, ask.turn, places, size=coding.padded, bits=coding.bits, least=coding.least, share=share)
    now: Stage | Sum = open_round(round, ring(terms))
    outgoing: Mapping[int, Any] = dict.fromkeys(places, round)
    try:
        while isinstance(now, Stage):
            asks = {place: _asking(ask, message, isinstance(now, Masking)) for place, message in outgoing.items()}
            for place, blob in send(asks):
                now = _received(now, ask, place, blob, terms, largest(round), refused, rejected)
            now, outgoing = now.close()
    except Discarded:
        return Collected(None, (), refused, rejected)
    return Collected(torch.from_numpy(now.total), now.survivors, refused, rejected)


def totals(nothing: Totals, found: Collected) -> Totals:
    """As if the messages had been summed: the one private level's row has it all."""
    if found.total is None:
        return nothing
    body, members = torch.zeros_like(nothing.body[BODY]), nothing.members.clone()
    body[0], members[0] = found.total, len(found.survivors)
    return nothing._replace(body={BODY: body}, members=members)


def _received(
    now: Stage, ask: Ask, place: int, blob: Arrived, terms: Terms, most: int, refused: Counter, rejected: Counter
) -> Stage:
    """The stage with this answer in it, or as it was."""
    try:
        answer = messages.checked(messages.unpack(Answer, blob, most + messages.SLACK), ask, terms.names[place])
        if answer.refused:
            refused[messages.word(answer.refused)] += 1
            return now
        return now.receive(place, decode(_bytes(answer.tensors), most))
    except Rejected as error:
        rejected[error.reason] += 1
    except Refused:
        rejected["duplicate" if place in now.came else "malformed"] += 1
    return now


def _asking(ask: Ask, message: Any, whole: bool) -> Ask:
    """The broadcast goes with the stage that trains, and with no other."""
    tensors = {KEY: _tensor(encode(message))} | (ask.tensors if whole else {})
    return replace(ask, kind="mask", tensors=tensors)


def _tensor(blob: bytes) -> Tensor:
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)


def _bytes(tensors: Mapping[str, Tensor]) -> bytes:
    leaf = tensors.get(KEY)
    if leaf is None or leaf.dtype != torch.uint8 or leaf.dim() != 1:
        raise Rejected("malformed", "no stage of secure aggregation in it")
    return leaf.numpy().tobytes()
