"""One client: checks what it is asked, pays from its own ledger, trains on its own data, sends an encoded upload.

It trusts its own disk before the server's word: a run has one set of terms, a budget is what its own ledger says, a
turn that was answered with fresh noise is not answered again. Where its disk is not what it was, it takes no part.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.errors import StorageError, TacitError
from tacit.federation.protocol import messages
from tacit.federation.protocol.client_store import ClientStore, owed, pay
from tacit.federation.protocol.heads import compare, standing
from tacit.federation.protocol.messages import Answer, Ask, Rejected
from tacit.federation.protocol.terms import Terms, read_terms
from tacit.privacy.evaluation import UNIT, figures
from tacit.privacy.mechanisms.noise import Secure
from tacit.privacy.mechanisms.release import Message
from tacit.privacy.plan import Plan
from tacit.rounds.assemble import Assembled
from tacit.rounds.evaluate import alone
from tacit.simulation.client_program import ClientProgram

Assemble = Callable[[Terms], Assembled]
"""The terms and the client's own data, checked and calibrated. It refuses by what is public alone, never by data."""
REPEATS = 4  # a run whose every round is repeated more often than this is not one to take part in


class Refusal(TacitError):
    """The client does not take part. The server is told the `reason`, a word that depends on no data, and no more.

    "terms" is the one reason for all that the client does not like in a run's terms, and for whatever went wrong that
    nobody thought of: a server that tries one set of terms after the other learns nothing from which of them fails.
    """

    def __init__(self, reason: str, why: str = "") -> None:
        super().__init__(f"{reason}: {why}" if why else reason)
        self.reason = reason


@dataclass(frozen=True)
class Client:
    """`fresh`: noise and draws come from the operating system, as in a real federation; else from the common seed."""

    name: str
    store: ClientStore
    assemble: Assemble
    fresh: bool = True
    key: Path | None = None  # its node's private key, for plans whose sums are masked
    sums_in_the_open: bool = False  # sends without a mask what only a sum should show: to try things out
    note: Callable[[str], None] = lambda why: None  # where the client's own people read why it refused

    def answer(self, blob: bytes) -> bytes:
        """The reply to a message of the server. It never raises: what goes wrong is a refusal, too."""
        reply = nothing(self.name)
        try:
            ask = messages.unpack(Ask, blob)
            reply = replace(reply, run=ask.run, kind=ask.kind, round=ask.round, turn=ask.turn)
            return messages.pack(standing(self.store, replace(reply, tensors=self._take_part(ask))))
        except Exception as error:  # its text would go to the server
            self._note(error)
            return messages.pack(self._with_heads(refused(reply, error)))

    def _with_heads(self, reply: Answer) -> Answer:
        with suppress(Exception):
            return standing(self.store, reply)
        return reply

    def _note(self, error: Exception) -> None:
        with suppress(Exception):
            self.note(str(error) if isinstance(error, TacitError) else f"{type(error).__name__}: {error}")

    def _take_part(self, ask: Ask) -> Tree:
        terms = read_terms(ask.terms)
        if terms.run != ask.run:
            raise Rejected("run", f"the terms are those of {terms.run[:40]!r}")
        if ask.kind == "heads":
            return {}  # they go with every reply
        place, assembled = terms.place(self.name), self.assemble(terms)
        if self.fresh:
            assembled = assembled.exactly()
        plan = assembled.engine.plan
        _check_turn(ask, plan)
        self.store.pin(terms)
        if ask.kind == "mask":
            return self._mask(ask, terms, assembled, place)
        view, public = self._broadcast(ask, assembled)
        if ask.kind == "close":
            compare(self.store, ask)
            self._pay(ask, plan, place, now=False)
            self.store.end(terms, tree.join(view))
            return {}
        sent = assembled.shapes.upload or ask.evaluation
        if plan.summed and sent and not self.sums_in_the_open:
            raise Refusal("unmasked")  # whatever the server asks for: the noise is sized for a sum
        return self._contribute(ask, assembled, place, view, public)

    def _broadcast(self, ask: Ask, assembled: Assembled) -> tuple[Shared, Tree]:
        method = assembled.engine.method
        view = tree.join(method.init(assembled.engine.start).view)
        public = assembled.engine.plan.release.start()
        known = messages.fitted(tree.strip("view", ask.tensors), view, shapes=not method.gather)
        return tree.split(known), messages.fitted(tree.strip("public", ask.tensors), public)

    def _contribute(self, ask: Ask, assembled: Assembled, place: int, view: Shared, public: Tree) -> Tree:
        """An upload, or the figures of an evaluation: encoded by the release that was paid for."""
        self._fits_the_past(ask, assembled.engine.plan)
        self._pay(ask, assembled.engine.plan, place, now=True)
        clients = self._program(ask.run, assembled)
        state = self.store.state(ask.run, ask.round, clients.method.join(view, clients.start))
        if ask.evaluation:
            return _figures(ask, clients, place, view, state)
        return self._train(ask, clients, place, view, public, state)

    def _train(self, ask: Ask, clients: ClientProgram, place: int, view: Shared, public: Tree, state: Tree) -> Tree:
        batched = tree.each(lambda leaf: leaf.unsqueeze(0), state)
        inputs = clients.inputs_for(batched, np.array([place]), ask.turn)
        message, after = clients.alone(view, public, torch.tensor(ask.round), inputs)
        self.store.keep(ask.run, ask.round + 1, after, tree.join(view))
        return upload(message, clients.plan)

    def _mask(self, ask: Ask, terms: Terms, assembled: Assembled, place: int) -> Tree:
        """One stage of secure aggregation. Nothing depends on data before the one that asks for the masked upload."""
        from tacit.federation.protocol import collect

        def vector() -> np.ndarray:
            message = self._contribute(ask, assembled, place, *self._broadcast(ask, assembled))
            return next(iter(tree.strip("body", message).values())).numpy()

        if self.key is None:
            raise Rejected("run", "this client has no key to sign with")
        self._fits_the_past(ask, assembled.engine.plan, done=True)
        member = collect.MaskedMember(place, self.key, terms, self.store)
        return collect.stage(member, ask, asked_for(ask, assembled.engine.plan), vector)

    def _fits_the_past(self, ask: Ask, plan: Plan, done: bool = False) -> None:
        """`done`: the turn itself may have been answered, since later stages of it follow."""
        if ask.round + 1 < self.store.newest(ask.run):
            raise Rejected("round", f"round {ask.round} lies in the past")
        last = self.store.last_answered(ask.run)
        if ask.turn < last or (ask.turn == last and not done and self._once(ask, plan)):
            raise Rejected("duplicate", f"turn {ask.turn} was answered")
        compare(self.store, ask)

    def _once(self, ask: Ask, plan: Plan) -> bool:
        """Whether a second answer to the same turn would be another release."""
        return self.fresh and not asked_for(ask, plan).trusts_server

    def _pay(self, ask: Ask, plan: Plan, place: int, now: bool) -> None:
        """What the past cost, and, if there is to be a `now`, this turn: durable before anything is computed."""
        with self.store.ledger() as ledger:
            due = owed(plan, place, ask, self.store, now)
            answer = (ask.run, ask.turn) if now else None
            paid = pay(ledger, self.store, plan.setting.accountant, due, answer)
            self.store.keep_head(ledger.head())
        if not paid.affordable:
            raise Refusal("budget")
        if now and not paid.new and self._once(ask, plan):
            raise Rejected("duplicate", f"turn {ask.turn} is being answered")

    def _program(self, run: str, assembled: Assembled) -> ClientProgram:
        if not self.fresh:
            return assembled.engine
        engine, seed = assembled.engine, self.store.secret(run)
        return ClientProgram(
            engine.method, engine.task, engine.plan, engine.federation, engine.start, seed, noise=lambda _: Secure()
        )


def nothing(name: str) -> Answer:
    """The answer to a question that could not be read."""
    return Answer("", "train", 0, 0, name)


def refused(reply: Answer, error: Exception) -> Answer:
    """What the server is told of something that went wrong."""
    if isinstance(error, Refusal | Rejected):
        return replace(reply, refused=error.reason)
    return replace(reply, refused="storage" if isinstance(error, StorageError) else "terms")


def _check_turn(ask: Ask, plan: Plan) -> None:
    """No more evaluations than were agreed to, and no more turns than a run with some mishaps has."""
    times = 0 if plan.evaluation is None else plan.evaluation.plan.setting.rounds
    if len(ask.evaluated) > times:
        raise Rejected("round", f"{len(ask.evaluated)} evaluations where {times} were agreed to")
    if not 0 <= ask.round <= plan.setting.rounds:
        raise Rejected("round", f"round {ask.round} of {plan.setting.rounds}")
    if not 0 <= ask.turn < REPEATS * (plan.setting.rounds + times + 1):
        raise Rejected("round", f"turn {ask.turn} of {plan.setting.rounds} rounds")


def asked_for(ask: Ask, plan: Plan) -> Plan:
    """The plan of what this turn is for."""
    return plan.evaluation.plan if ask.evaluation and plan.evaluation is not None else plan


def _figures(ask: Ask, clients: ClientProgram, place: int, view: Shared, state: Tree) -> Tree:
    """The client's figures, encoded. Without test rows both count as the middle, as what is not a number does."""
    plan, evaluation = asked_for(ask, clients.plan), clients.plan.evaluation
    range = UNIT if evaluation is None else evaluation.range
    scores = alone(clients, view, state, place, ask.turn) or (math.nan, math.nan)
    level, public = torch.tensor(plan.setting.choices.level[place]), plan.release.start()
    noise = clients.noise(clients.keys("release", ask.turn, np.array([place]))[0])
    return upload(plan.release.encode(public, Shared(figures(scores, range)), level, noise), plan)


def upload(message: Message, plan: Plan) -> Tree:
    """What leaves: the encoded upload."""
    body = plan.release.wire(message.body)
    return tree.prefix("body", body) | {"bit": message.bit.double(), "power": message.power.double()}
