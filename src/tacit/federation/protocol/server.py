"""The server of a real federation: draws, charges, asks, admits, releases, learns; one round after the other.

The rounds of `rounds/loop.py`, with the sum coming from messages. Registered clients are drawn, and whoever is offline,
late or refused has dropped out: nobody is drawn in its place. Everything is charged before anybody is asked.

A turn is one time that clients are asked. Where noise is fresh, a round that was interrupted is repeated as a new turn,
with a new draw and a new charge; only where the server is trusted with uploads, and had not yet released anything of
the turn, is the same turn asked again: nothing left the server, so nothing more is owed.

A server that was restored from a copy knows less than its members: `heads.py` finds it. One that goes on from files
first asks all members where they stand, and every answer tells it again, before anything of its turn is released.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tacit.core import tree
from tacit.core.contract import Server, Shared, Tree
from tacit.core.files import write_atomically
from tacit.errors import TacitError
from tacit.federation.protocol import messages
from tacit.federation.protocol.collect import CollectedReplies, ReplyCollector, Transport
from tacit.federation.protocol.heads import Exchange
from tacit.federation.protocol.journal import Journal
from tacit.federation.protocol.messages import Arrived, Ask, Kind, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.privacy import evaluation as evaluations
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.chain import read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.noise import Noise, Secure, Seeded
from tacit.rounds import checkpoint
from tacit.rounds.assemble import Assembled
from tacit.rounds.loop import Progress, learned
from tacit.simulation.cohort_program import CohortProgram

STANDING: Final = 20.0  # seconds to wait for members to say where they stand


class Figures(NamedTuple):
    """An evaluation: noisy means over all members, who did not answer counting as 1/2. None: too few for a release."""

    asked: int
    answered: int
    std: float  # of the noise in each mean
    shared: float | None = None
    personal: float | None = None


class RoundReport(NamedTuple):
    """What is known after a round: nothing that a client did not send through its release."""

    round: int
    rounds: int
    turn: int
    asked: int
    took_part: int
    dropped: int  # silent, late, refused or rejected
    refused: Counter  # by the clients' own reasons
    rejected: Counter  # by the server, by reason
    seconds: float
    figures: Figures | None = None  # of an evaluation after the round, if there was one


@dataclass
class FederationServer:
    """Runs a federation over a transport. With a `folder` it can be killed at any moment and goes on from there."""

    made: Assembled
    terms: Terms
    ledger: Ledger
    transport: Transport
    folder: Path | None = None
    fresh: bool = True
    deadline: float = 60.0
    sums_in_the_open: bool = False  # the server sees what only the sum should show: to try things out
    watchers: Sequence[Callable[[RoundReport], None]] = ()
    totals: Counter = field(default_factory=Counter)  # of rejections, over the whole run

    def __post_init__(self) -> None:
        if self.fresh:
            self.made = self.made.exactly()
        engine, shapes = self.made
        if engine.method.idles:
            raise TacitError(
                f"{type(engine.method).__name__} trains clients that were not asked: nobody asks them here"
            )
        hidden = engine.plan.summed and not self.sums_in_the_open
        able = engine.plan.release.masked_sum is not None and all(seat.key for seat in self.terms.roster)
        if hidden and not able:
            raise TacitError(
                f"plan '{engine.plan.name}' shows the server a sum alone, and these messages cannot be masked: "
                "use plan 'local', or 'distributed' with a key for every member"
            )
        if engine.plan.evaluation is not None and not self.fresh:
            raise TacitError(
                "evaluations in a deployment have fresh noise: leave them out to compare with a simulation"
            )
        self.hidden = hidden
        self.plan = engine.plan if shapes.upload else engine.plan.without_upload()
        self.progress = Progress(0, engine.method.init(engine.start), self.plan.release.start())
        self.journal = Journal(self.folder and self.folder / "turn.json")
        self._seed = self._draws()
        self._heads = Exchange(self.ledger, self.terms.run)
        self._asked_all = self.journal.turn < 0  # nothing has happened yet that anybody could know of
        self._recognise(self.journal.head)
        self._resume()
        self.purse = BudgetTracker(self.plan, self.ledger, self._next_turn())

    def go(self, stop: Callable[[], bool] = lambda: False) -> str | None:
        """Rounds until the last one, a spent budget, or `stop`; then all are told the end. Says why it ended early."""
        reason = None
        while self.progress.round < self.plan.setting.rounds and reason is None:
            reason = "stopped on request" if stop() else self.purse.exhausted()
            if reason is None:
                self.step()
        self.close()
        return reason

    def step(self) -> RoundReport:
        began, round = time.perf_counter(), self.progress.round
        self._ask_all_where_they_stand()
        turn = self._next_turn()
        self.journal.write(turn, round, False, self.ledger.head())
        cohort = self.plan.setting.sampler.draw(self._seed, turn, self.purse.eligible())
        self.purse.charge(turn, self.plan.accounts(cohort))
        engine, shapes = self.made
        heard = self._heard(engine, shapes.upload, cohort, turn, self.progress.public)
        self.journal.write(turn, round, True, self.ledger.head())
        self.progress = self._release(heard, turn)
        self.save()
        told = RoundReport(
            self.progress.round, self.plan.setting.rounds, turn, len(cohort), heard.several,
            len(cohort) - heard.several, heard.refused, heard.rejected, time.perf_counter() - began, self.evaluate(),
        )  # fmt: skip
        for watch in self.watchers:
            watch(told)
        return told

    def evaluate(self) -> Figures | None:
        """The members' accuracies, if it is time for them and they can pay: a turn of its own, with its own charge."""
        evaluation, round = self.made.engine.plan.evaluation, self.progress.round
        if evaluation is None or not evaluation.due(round, self.plan.setting.rounds):
            return None
        turn = max(self.journal.turn, self.ledger.rounds()) + 1
        plan, purse = evaluation.plan, BudgetTracker(evaluation.plan, self.ledger, turn)
        if purse.exhausted() is not None:
            return None
        cohort = np.flatnonzero(purse.eligible())
        self.journal.evaluating(turn, round, self.ledger.head())
        purse.charge(turn, plan.accounts(cohort))
        engine, public = self.made.engine.under(plan), plan.release.start()
        heard = self._heard(engine, evaluations.blank(), cohort, turn, public)
        self.purse = BudgetTracker(self.plan, self.ledger, turn + 1)  # the same accounts pay for training
        mean, _ = plan.release.decode(public, heard.totals, Secure())
        means = {} if mean is None else evaluations.means(mean.model)
        return Figures(len(cohort), heard.several, evaluation.std, **means)

    def close(self) -> list[str]:
        """Everybody gets the last model and what it was charged for; the names of those who confirmed."""
        ask = self._ask("close", self.progress.round, max(self.journal.turn, 0))
        done = []
        for name, blob in self._send(dict.fromkeys(self.terms.names, ask)):
            try:
                answer = messages.checked(messages.unpack(messages.Answer, blob, messages.SLACK), ask, name)
            except Rejected as error:
                self.totals[error.reason] += 1
                continue
            done += [name] * (not answer.refused)
        return done

    def save(self) -> None:
        if self.folder is None:
            return
        round, server, public = self.progress
        content = {
            "terms": self.terms.digest,
            "round": round,
            "model": server.view.model,
            "extra": server.view.extra,
            "memory": server.memory,
            "public": public,
            "ledger": str(self.ledger.head()),
        }
        checkpoint.save(self.folder / "checkpoint.bin", content)

    def _resume(self) -> None:
        path = self.folder and self.folder / "checkpoint.bin"
        if path is None or not path.exists():
            return
        saved = checkpoint.load(path)
        if saved["terms"] != self.terms.digest:
            raise TacitError(f"{path} belongs to other terms: go on with those it was started with")
        self._recognise(saved.get("ledger", ""))
        server = Server(Shared(saved["model"], saved["extra"]), saved["memory"])
        self.progress = Progress(saved["round"], server, saved["public"])

    def _recognise(self, kept: str) -> None:
        """Stops unless the ledger is whole and holds the head that another file of the run has kept."""
        self.ledger.check()
        if kept and not self.ledger.holds(read_head(kept)):
            raise TacitError(
                f"the ledger in {self.folder} is older than the files beside it, or another one ({kept.split(':')[0]} "
                f"rows were there, now {self.ledger.head().serial}): restore the newest copy of the whole folder"
            )

    def _ask_all_where_they_stand(self) -> None:
        """Once, before a run goes on from files: members that saw more than this server knows stop it."""
        if self._asked_all:
            return
        ask = replace(self._ask("heads", self.progress.round, max(self.journal.turn, 0)), evaluated=(), tensors={})
        for _ in self._send(dict.fromkeys(self.terms.names, ask), min(self.deadline, STANDING)):
            pass
        self._asked_all = True

    def _draws(self) -> int:
        """The seed of cohorts. Amplification holds against those who cannot know it, so it is nobody else's."""
        if not self.fresh:
            return self.made.engine.seed
        path = self.folder and self.folder / "secret"
        if path is None:
            return secrets.randbits(128)
        if not path.exists():
            write_atomically(path, secrets.token_hex(16).encode())
            path.chmod(0o600)
        return int(path.read_text(), 16)

    def _again(self) -> bool:
        """Whether the last turn may be asked again without a new charge."""
        journal = self.journal
        return journal.round == self.progress.round and not journal.seen and self.plan.trusts_server

    def _next_turn(self) -> int:
        if not self.fresh:
            return self.progress.round
        return self.journal.turn if self._again() else max(self.journal.turn, self.ledger.rounds()) + 1

    def _ask(self, kind: Kind, round: int, turn: int) -> Ask:
        view = tree.join(self.progress.server.view)
        tensors = tree.prefix("view", view) | tree.prefix("public", self.progress.public)
        head = str(self.ledger.head())
        return Ask(
            self.terms.run, kind, round, turn, self.terms.text(), (), self.journal.evaluated, head, tensors=tensors
        )

    def _for(self, ask: Ask, name: str) -> bytes:
        """The question with what the ledger has against this client."""
        scopes = (f"client:{name}", f"server:{name}")
        charged = {entry.round for scope in scopes for entry in self.ledger.entries(scope)}
        return messages.pack(self._heads.tell(replace(ask, charged=tuple(sorted(charged))), name))

    def _send(self, asks: Mapping[str, Ask], seconds: float | None = None) -> Iterator[tuple[str, Arrived]]:
        """Answers as they come. Their heads are looked at first: one that shows more than is known here ends it all."""
        wire = {name: self._for(ask, name) for name, ask in asks.items()}
        for name, blob in self.transport.ask(wire, self.deadline if seconds is None else seconds):
            self._heads.hear(name, blob)
            yield name, blob
        self._heads.keep()

    def _heard(
        self, engine: CohortProgram, upload: Tree, cohort: np.ndarray, turn: int, public: Tree
    ) -> CollectedReplies:
        """Of uploads, or of figures; `public`: what a message's bound is taken from."""
        masked = self.hidden and bool(upload)
        hearing = ReplyCollector(engine, upload, self.terms, self._send)
        ask = self._ask("mask" if masked else "train", self.progress.round, turn)
        heard = hearing.sum(ask, cohort) if masked else hearing.messages(ask, cohort, public)
        self.totals += heard.rejected
        return heard

    def _release(self, heard: CollectedReplies, turn: int) -> Progress:
        engine = self.made.engine
        noise: Noise = Secure() if self.fresh else Seeded.of(engine.seed, engine.noise_of("server"), turn)
        return learned(engine.method, self.plan, self.progress, heard.totals, heard.rows, noise)
