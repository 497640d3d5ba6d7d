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
from tacit.federation.protocol.messages import Answer, Arrived, Ask, Kind, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.privacy.mechanisms.release import Inadmissible, MaskedSum, Message
from tacit.privacy.plan import Plan
from tacit.rounds.round import Progress, Replies
from tacit.secagg import client as members
from tacit.secagg.identity import Identity, KeyRing, KeySigner
from tacit.secagg.messages import Delivery, Discarded, Refused, decode, encode, largest, threshold_of
from tacit.secagg.messages import Terms as Round
from tacit.secagg.server import Masking, Stage, Sum, open_round
from tacit.simulation import totals


def blank(plan: Plan, upload: Tree) -> Tree:
    """The leaves of an answer."""
    zero = torch.zeros((), dtype=torch.float64)
    return tree.prefix("body", plan.release.blank(upload)) | {"bit": zero, "power": zero}


def admitted(plan: Plan, public: Tree, tensors: Tree, template: Tree, level: int) -> Message:
    """The message in an answer, as the plan's release admits it, or `Rejected`."""
    good = schema.fitted(tensors, template)
    message = Message(tree.strip("body", good), good["bit"], good["power"])
    try:
        return plan.release.admit(public, message, tree.strip("body", template), level)
    except Inadmissible as error:
        raise Rejected(error.reason, str(error)) from error


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
class MaskedMember:
    place: int
    key: Path
    terms: Terms
    store: ClientStore

    @property
    def identity(self) -> Identity:
        return Identity(self.place, KeySigner.of(self.key), ring(self.terms))


def ring(terms: Terms) -> KeyRing:
    return KeyRing.of({place: seat.key for place, seat in enumerate(terms.roster) if seat.key})


def stage(member: MaskedMember, ask: Ask, plan: Plan, vector: Callable[[], np.ndarray]) -> Tree:
    """A client's answer to one stage. `vector` trains: it is called when the masked upload is asked for."""
    try:
        message = decode(_bytes(ask.tensors))
        kept = None
        if isinstance(message, Round):
            _agreed(message, ask, plan, len(member.terms.roster))
        else:
            kept = member.store.mask_state(ask.run)
        state = None if kept is None else members.thaw(kept)
        upload = vector() if isinstance(message, Delivery) else None
        after, reply = members.answer(member.identity, state, message, upload)
    except (Refused, Discarded) as error:
        raise Rejected("round", str(error)) from error
    if kept is not None and not member.store.using(kept):
        raise Rejected("duplicate", "this state of the sum was used")
    member.store.keep_mask_state(ask.run, members.freeze(after))
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
    refused: Counter[str]
    rejected: Counter[str]


def collect(terms: Terms, ask: Ask, cohort: np.ndarray, agreed: MaskedSum, send: Send) -> Collected:
    """The server's part: five stages, each to its deadline. Whoever says nothing in one has dropped out of the rest."""
    refused, rejected = Counter[str](), Counter[str]()
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
    return Collected(torch.as_tensor(now.total), now.survivors, refused, rejected)


def _received(
    now: Stage,
    ask: Ask,
    place: int,
    blob: Arrived,
    terms: Terms,
    most: int,
    refused: Counter[str],
    rejected: Counter[str],
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


Asking = Callable[[Kind, int], Ask]
"""The question of a kind in a turn, with the broadcast of where the run stands."""


@dataclass(frozen=True)
class ReplyCollector:
    """The collector of a federation: members compute, and answer over a transport.

    `plan`, `upload`: what is asked for, and its shapes. `bound`: the release's public state that bounds a message, if
    it is not that of the broadcast. `masked`: by secure aggregation, so that only the sum is seen.
    """

    plan: Plan
    upload: Tree
    terms: Terms
    asking: Asking
    send: Callable[[Mapping[str, Ask]], Iterator[tuple[str, Arrived]]]
    masked: bool = False
    gather: bool = False  # single messages are needed, too
    bound: Tree | None = None

    def collect(self, progress: Progress, cohort: np.ndarray, turn: int) -> Replies:
        if self.masked and self.upload:
            return self._masked(self.asking("mask", turn), cohort)
        return self._single(self.asking("train", turn), cohort, progress.public if self.bound is None else self.bound)

    def _single(self, ask: Ask, cohort: np.ndarray, public: Tree) -> Replies:
        admitted_of, refused, rejected = self._admit(ask, cohort, public)
        blank = totals.no_messages(self.plan, self.upload)
        sums = totals.of_messages(blank, admitted_of, self.plan.setting.choices.level)
        rows = gathered(self.plan, public, self.upload, admitted_of, len(self.terms.roster)) if self.gather else None
        return Replies(sums, rows, len(admitted_of), refused, rejected)

    def _masked(self, ask: Ask, cohort: np.ndarray) -> Replies:
        """The sum of the survivors, and no message of anybody."""
        names = self.terms.names
        places = {names[int(k)]: int(k) for k in cohort}

        def send(asks: Mapping[int, Ask]) -> Iterator[tuple[int, Arrived]]:
            wire = {names[k]: each for k, each in asks.items()}
            return ((places[name], blob) for name, blob in self.send(wire) if name in wire)

        agreed = self.plan.release.masked_sum
        assert agreed is not None  # the server refused plans without one
        collected = collect(self.terms, ask, cohort, agreed, send)
        blank = totals.no_messages(self.plan, self.upload)
        members = blank.members.clone()
        members[0] = len(collected.survivors)
        sums = totals.of_masked_sum(blank, collected.total, members)
        return Replies(sums, None, len(collected.survivors), collected.refused, collected.rejected)

    def _admit(
        self, ask: Ask, cohort: np.ndarray, public: Tree
    ) -> tuple[dict[int, Message], Counter[str], Counter[str]]:
        """What was admitted by clients' places, and why the rest was not. One answer a client counts, the first."""
        places = {self.terms.names[int(k)]: int(k) for k in cohort}
        template = blank(self.plan, self.upload)
        admitted_of: dict[int, Message] = {}
        refused, rejected = Counter[str](), Counter[str]()
        for name, blob in self.send(dict.fromkeys(places, ask)):
            try:
                if name not in places:
                    raise Rejected("sender", f"{name!r} was not asked")
                answer = messages.checked(messages.unpack(messages.Answer, blob, messages.room(template)), ask, name)
                if answer.refused:
                    refused[messages.word(answer.refused)] += 1
                elif places[name] in admitted_of:
                    raise Rejected("duplicate", f"{name!r} answered twice")
                else:
                    level = int(self.plan.setting.choices.level[places[name]])
                    admitted_of[places[name]] = admitted(self.plan, public, answer.tensors, template, level)
            except Rejected as error:
                rejected[error.reason] += 1
        return admitted_of, refused, rejected
