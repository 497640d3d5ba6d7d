"""What the server hears of a turn: single messages that were admitted, or by secure aggregation their sum alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tacit.core.contract import Tree
from tacit.federation.protocol import messages
from tacit.federation.protocol.messages import Arrived, Ask, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.federation.protocol.validate import admitted, blank, gathered, summed
from tacit.privacy.mechanisms.release import Message, Totals
from tacit.simulation.cohort_program import CohortProgram


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
        from tacit.federation.protocol import masked

        names = self.terms.names
        places = {names[k]: int(k) for k in cohort}

        def send(asks: Mapping[int, Ask]) -> Iterator[tuple[int, Arrived]]:
            wire = {names[k]: each for k, each in asks.items()}
            return ((places[name], blob) for name, blob in self.send(wire) if name in wire)

        found = masked.collect(self.terms, ask, cohort, self.engine.plan, send)
        totals = masked.totals(self.engine.nothing(self.upload), found)
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
