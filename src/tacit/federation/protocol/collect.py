# pyright: reportMissingImports=false
"""What the server hears of a turn: single messages that were admitted, or by secure aggregation their sum alone.

What the server takes from a message: the right leaves, finite, and no larger than an honest client's can be.

The sum of a round by secure aggregation (`tacit.secagg`), stage by stage over the same messages as everything else.

The server learns the sum of the survivors' integers and who they are. A client's part is a state on its disk, which is
replaced, durably, before an answer is sent. Members know each other by the keys on the roster.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.federation.protocol import messages
from tacit.federation.protocol import messages as schema
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Answer, Arrived, Ask, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.privacy.mechanisms.release import Inadmissible, MaskedSum, Message, Totals
from tacit.privacy.plan import Plan
from tacit.secagg import client as members
from tacit.secagg.identity import Identity, KeyRing, KeySigner
from tacit.secagg.messages import Delivery, decode, encode, largest
from tacit.secagg.server import Masking, Stage, Sum, open_round
from tacit.secagg.terms import Discarded, Refused, threshold_of
from tacit.secagg.terms import Terms as Round
from tacit.simulation.cohort_program import CohortProgram


def blank(plan: Plan, upload: Tree) -> Tree:
    """The leaves of an answer."""
    zero = torch.zeros((), dtype=torch.float64)
    return tree.prefix("body", plan.release.blank(upload)) | {"bit": zero, "power": zero}


def admitted(plan: Plan, public: Tree, tensors: Tree, like: Tree, level: int) -> Message:
    """The message in an answer, as the plan's release admits it, or `Rejected`."""
    good = schema.fitted(tensors, like)
    message = Message(tree.strip("body", good), good["bit"], good["power"])
    try:
        return plan.release.admit(public, message, tree.strip("body", like), level)
    except Inadmissible as error:
        raise Rejected(error.reason, str(error)) from error


def summed(nothing: Totals, messages: Mapping[int, Message], level: np.ndarray) -> Totals:
    """The sum by level, in the order of the clients' places: it does not depend on who was first."""
    body = tree.each(lambda leaf: leaf.clone() if leaf.is_floating_point() else leaf.long(), nothing.body)
    bit, power, members = (part.double() for part in nothing[1:])
    for place in sorted(messages):
        j, message = int(level[place]), messages[place]
        for name, leaf in body.items():
            leaf[j] += message.body[name]
        bit[j] += message.bit
        power[j] += message.power
        members[j] += 1
    return Totals(body, bit, power, members)


def gathered(plan: Plan, public: Tree, upload: Tree, messages: Mapping[int, Message], clients: int) -> Tree:
    """A row for each client's message, zero where none came."""
    rows = tree.each(lambda leaf: leaf.new_zeros(clients, *leaf.shape), upload)
    for place, message in messages.items():
        known = plan.release.read(public, message.body, torch.tensor(plan.setting.choices.level[place]))
        for name, leaf in rows.items():
            leaf[place] = known[name]
    return rows


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
    agreed = plan.release.masked_sum
    if agreed is None:
        raise Rejected("run", "this plan has no integers to sum")
    expected = (ask.run, ask.turn, agreed.size, agreed.bits)
    if (round.run, round.round, round.size, round.bits) != expected or round.least < agreed.least:
        raise Rejected("round", "the sum is not of the run, turn, size, bits or least number that was agreed")
    if round.threshold < threshold_of(len(round.members), agreed.threshold):
        raise Rejected("round", f"{round.threshold} of {len(round.members)} members could unmask the sum: too few")
    if round.members[-1] >= clients:
        raise Rejected("sender", "a member is not on the roster")


class Collected(NamedTuple):
    total: Tensor | None  # None: the round has no sum
    survivors: tuple[int, ...]
    refused: Counter
    rejected: Counter


def collect(terms: Terms, ask: Ask, cohort: np.ndarray, agreed: MaskedSum, send: Send) -> Collected:
    """The server's part: five stages, each to its deadline. Whoever says nothing in one has dropped out of the rest."""
    refused, rejected = Counter(), Counter()
    places = tuple(int(k) for k in np.sort(cohort))
    if len(places) < max(agreed.least, 1):
        return Collected(None, (), refused, rejected)
    _, size, bits, least, share = agreed
    round = Round.of(ask.run, ask.turn, places, size=size, bits=bits, least=least, share=share)
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


def masked_totals(nothing: Totals, found: Collected) -> Totals:
    """As if the messages had been summed: the one private level's row has it all."""
    if found.total is None:
        return nothing
    ((leaf, rows),) = nothing.body.items()
    body, members = torch.zeros_like(rows), nothing.members.clone()
    body[0], members[0] = found.total, len(found.survivors)
    return nothing._replace(body={leaf: body}, members=members)


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


class Transport(Protocol):
    """Carries blobs to clients, by name, and brings back what comes before the deadline, from whom it really came."""

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]: ...


class CollectedReplies(NamedTuple):
    """What came of asking: sums by level, for methods that need them single messages, and why others are not in it."""

    totals: Totals
    rows: Tree | None
    several: int
    refused: Counter
    rejected: Counter


@dataclass(frozen=True)
class ReplyCollector:
    """`engine` has the plan of what is asked for, `upload` its shapes; `send` asks clients by their names."""

    engine: CohortProgram
    upload: Tree
    terms: Terms
    send: Callable[[Mapping[str, Ask]], Iterator[tuple[str, Arrived]]]

    def messages(self, ask: Ask, cohort: np.ndarray, public: Tree) -> CollectedReplies:
        found, refused, rejected = self._collect(ask, cohort, public)
        totals = summed(self.engine.nothing(self.upload), found, self.engine.plan.setting.choices.level)
        plan, clients = self.engine.plan, len(self.terms.roster)
        rows = gathered(plan, public, self.upload, found, clients) if self.engine.method.gather else None
        return CollectedReplies(totals, rows, len(found), refused, rejected)

    def sum(self, ask: Ask, cohort: np.ndarray) -> CollectedReplies:
        """The same through secure aggregation: the sum of the survivors, and no message of anybody."""

        names = self.terms.names
        places = {names[k]: int(k) for k in cohort}

        def send(asks: Mapping[int, Ask]) -> Iterator[tuple[int, Arrived]]:
            wire = {names[k]: each for k, each in asks.items()}
            return ((places[name], blob) for name, blob in self.send(wire) if name in wire)

        agreed = self.engine.plan.release.masked_sum
        assert agreed is not None  # the server refused plans without one
        found = collect(self.terms, ask, cohort, agreed, send)
        totals = masked_totals(self.engine.nothing(self.upload), found)
        return CollectedReplies(totals, None, len(found.survivors), found.refused, found.rejected)

    def _collect(self, ask: Ask, cohort: np.ndarray, public: Tree) -> tuple[dict[int, Message], Counter, Counter]:
        """What was admitted by clients' places, and why the rest was not. One answer a client counts, the first."""
        places = {self.terms.names[k]: int(k) for k in cohort}
        like = blank(self.engine.plan, self.upload)
        found: dict[int, Message] = {}
        refused, rejected = Counter(), Counter()
        for name, blob in self.send(dict.fromkeys(places, ask)):
            try:
                if name not in places:
                    raise Rejected("sender", f"{name!r} was not asked")
                answer = messages.checked(messages.unpack(messages.Answer, blob, messages.room(like)), ask, name)
                if answer.refused:
                    refused[messages.word(answer.refused)] += 1
                elif places[name] in found:
                    raise Rejected("duplicate", f"{name!r} answered twice")
                else:
                    level = int(self.engine.plan.setting.choices.level[places[name]])
                    found[places[name]] = admitted(self.engine.plan, public, answer.tensors, like, level)
            except Rejected as error:
                rejected[error.reason] += 1
        return found, refused, rejected
