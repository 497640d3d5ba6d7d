"""Heads of ledgers go with every message, and each side keeps the other's: who was restored from a copy is found.

The server tells a member the heads of its own ledger since the one that the member has seen, with a seal that only that
ledger can make. A member takes part only if its own ledger is whole and holds the head that the server has kept of it,
and if the server's ledger holds the one that the member has kept. With every answer, a refusal too, goes what it has
kept. A server that is shown its own seal on a head that its ledger does not hold has forgotten turns that happened, and
stops. An invented head has no seal, so that no member can stop a server by a lie.
"""

import hmac
import logging
from dataclasses import dataclass, field, replace
from typing import Final

from tacit.errors import StorageError, TacitError
from tacit.federation.protocol import messages
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Answer, Arrived, Ask, Rejected
from tacit.privacy.ledger.chain import Head, read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.sqlite import KeptHead

SERVER: Final = "server"
_MOST: Final = 200  # heads in a message. Who has an older one refuses once, and tells which.
_log = logging.getLogger("tacit")


class Behind(TacitError):
    """The server's ledger lacks what a member was told of it."""


@dataclass
class Exchange:
    """The server's side of one run."""

    ledger: Ledger
    run: str
    _heard: list[KeptHead] = field(default_factory=list)
    _now: tuple[tuple[int, str], Head] | None = None

    def tell(self, ask: Ask, name: str) -> Ask:
        """The question with the server's heads, and with the member's own as the server has kept it."""
        kept = self.ledger.last_kept(f"client:{name}", self.run)
        first = read_head(kept.seen).serial if kept and kept.seen else 0
        now = self._head_of(ask)
        before = [head for head in self.ledger.heads_since(first) if head.serial < now.serial]
        heads = [*before[1 - _MOST :], now]
        return replace(
            ask,
            heads=" ".join(map(str, heads)),
            seen="" if kept is None else str(kept.head),
            proof=self._seal(ask.turn, now),
        )

    def hear(self, name: str, blob: Arrived) -> None:
        """Notes the member's head. Raises `Behind` if it proves to have seen one that the server's ledger lacks."""
        try:
            answer = messages.peek(blob)
            if answer.run != self.run or answer.client != name or not answer.head:
                return
            head, seen = read_head(answer.head), self._proven(answer.seen)
        except (TacitError, ValueError):
            return  # whoever takes messages apart rejects it
        if seen is not None and not self.ledger.holds(seen[1]):
            raise Behind(
                f"member '{name}' was asked in turn {seen[0]}, and the server's ledger lacks that turn (it has "
                f"{self.ledger.head().serial} rows, the member saw {seen[1].serial}): the server was restored from an "
                "older copy. Nothing of this turn was released; restore a newer copy, or end this run and start another"
            )
        kept = self.ledger.last_kept(f"client:{name}", self.run)
        if kept is not None and (answer.refused or answer.kind == "heads"):
            head = kept.head  # only who takes part has found in its ledger what it was told of it
        self._heard.append(
            KeptHead(f"client:{name}", self.run, answer.turn, head, "" if seen is None else str(seen[1]))
        )

    def keep(self) -> None:
        """What was heard, durably: of each member the last, if it is new."""
        last = {kept.owner: kept for kept in self._heard}
        self._heard.clear()
        self.ledger.keep(kept for kept in last.values() if self._is_new(kept))

    def _is_new(self, kept: KeptHead) -> bool:
        known = self.ledger.last_kept(kept.owner, self.run)
        return known is None or (known.head, known.seen) != (kept.head, kept.seen)

    def _head_of(self, ask: Ask) -> Head:
        """One head for a turn, that after its charge: messages of one turn may overtake each other."""
        stage = ask.turn, ask.kind
        if self._now is None or self._now[0] != stage:
            self._now = stage, self.ledger.head()
        return self._now[1]

    def _proven(self, text: str) -> tuple[int, Head] | None:
        """Turn and head of the server that a member has kept, if the server's own seal is on them."""
        if not text:
            return None
        turn, head, proof = text.split(" ")
        turn_and_head = int(turn), read_head(head)
        return turn_and_head if hmac.compare_digest(proof.encode(), self._seal(*turn_and_head).encode()) else None

    def _seal(self, turn: int, head: Head) -> str:
        return self.ledger.seal(f"{self.run} {turn} {head}")


def compare(store: ClientStore, ask: Ask) -> None:
    """A member's side: refuses if a ledger, its own or the server's, is not the one it was; keeps the server's head."""
    try:
        with store.ledger() as ledger:
            ledger.check()
            _own(store, ledger, ask)
            _server(ledger, ask)
            store.keep_head(ledger.head())
    except StorageError:
        raise
    except TacitError as error:
        _log.warning("refused turn %d of run %s: %s", ask.turn, ask.run, error)
        raise Rejected("ledger", str(error)) from error


def _own(store: ClientStore, ledger: Ledger, ask: Ask) -> None:
    known_heads = {"this client's other files": store.head(), "the server": read_head(ask.seen) if ask.seen else None}
    for who, head in known_heads.items():
        if head is not None and not ledger.holds(head):
            raise TacitError(
                f"{who} knew this client's ledger with {head.serial} rows, and it has not got them: it was lost or "
                "restored from an older copy. Restore the newest one"
            )


def _server(ledger: Ledger, ask: Ask) -> None:
    heads = [read_head(text) for text in ask.heads.split(" ")]
    kept = ledger.last_kept(SERVER, ask.run)
    if kept is not None and kept.head not in heads:
        raise TacitError(
            f"the server's ledger does not show the head of turn {kept.turn} ({kept.head.serial} rows; now "
            f"{heads[-1].serial}): the server was restored from an older copy, or its ledger was changed"
        )
    if kept is None or (kept.turn, kept.head) != (ask.turn, heads[-1]):
        ledger.keep([KeptHead(SERVER, ask.run, ask.turn, heads[-1], ask.seen, ask.proof)])


def standing(store: ClientStore, reply: Answer) -> Answer:
    """The reply with the member's head, and with what it has kept of the server: no data, and on refusals, too."""
    try:
        if not store.has_ledger():
            return reply
        with store.ledger() as ledger:
            kept, head = ledger.last_kept(SERVER, reply.run), ledger.head()
    except TacitError:  # a disk or a ledger that cannot be read: the refusal says so
        return reply
    return replace(reply, head=str(head), seen="" if kept is None else f"{kept.turn} {kept.head} {kept.proof}")
