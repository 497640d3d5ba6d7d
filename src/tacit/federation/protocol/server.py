"""The server of a real federation: draws, charges, asks, admits, releases, learns; one round after the other.

The rounds of `rounds/round.py`, with the sum coming from messages. Registered clients are drawn, and whoever is
offline, late or refused has dropped out: nobody is drawn in its place. Everything is charged before anybody is asked.

A turn is one time that clients are asked. Where noise is fresh, a round that was interrupted is repeated as a new turn,
with a new draw and a new charge; only where the server is trusted with uploads, and had not yet released anything of
the turn, is the same turn asked again: nothing left the server, so nothing more is owed.

A server that was restored from a copy knows less than its members: `heads.py` finds it. One that goes on from files
first asks all members where they stand, and every answer tells it again, before anything of its turn is released.

`TurnJournal` is the server's note of the turn it is in, durable before clients are asked.
"""

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.core.files import write_atomically
from tacit.errors import TacitError
from tacit.federation.protocol import messages
from tacit.federation.protocol.collect import ReplyCollector, Transport
from tacit.federation.protocol.heads import Exchange
from tacit.federation.protocol.messages import Arrived, Ask, Kind, Rejected
from tacit.federation.protocol.terms import Terms
from tacit.privacy import evaluation as evaluations
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.noise import Noise, Secure, Seeded
from tacit.privacy.plan import Plan
from tacit.rounds import checkpoint
from tacit.rounds.assemble import Assembled
from tacit.rounds.evaluate import NoisyScores
from tacit.rounds.round import Progress, Report, Rounds, Watcher
from tacit.simulation.timing import Clock


@dataclass
class TurnJournal:
    """The last turn: durable before its charge. `released`: the server was about to make a release of it.

    `fresh`: noise is fresh, so that a repeated round is a new turn with a new charge; else a turn is its round.
    `repeats`: a turn of which nothing was released may be asked again all the same: the server is trusted with uploads.
    `evaluated`: all turns that were for evaluations. One that was interrupted is not repeated. `head`: of the ledger.
    """

    path: Path | None
    ledger: Ledger
    fresh: bool = True
    repeats: bool = False
    turn: int = -1
    round: int = -1
    released: bool = False
    evaluated: tuple[int, ...] = ()
    head: str = ""

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.turn, self.round, self.released, evaluated, self.head = json.loads(self.path.read_text())
            self.evaluated = tuple(evaluated)

    def next_turn(self, round: int) -> int:
        if not self.fresh:
            return round
        again = self.repeats and self.round == round and not self.released
        return self.turn if again else self.new_turn()

    def new_turn(self) -> int:
        """One that nobody was asked in or charged for."""
        return max(self.turn, self.ledger.rounds()) + 1

    def begin(self, turn: int, round: int) -> None:
        self._write(turn, round, False)

    def release(self, turn: int, round: int) -> None:
        self._write(turn, round, True)

    def evaluate(self, turn: int, round: int) -> None:
        """Notes the turn of an evaluation, before its charge."""
        self.evaluated = (*self.evaluated, turn)
        self._write(turn, round, True)

    def _write(self, turn: int, round: int, released: bool) -> None:
        self.turn, self.round, self.released, self.head = turn, round, released, str(self.ledger.head())
        if self.path is not None:
            content = [turn, round, released, self.evaluated, self.head]
            write_atomically(self.path, json.dumps(content).encode())


STANDING: Final = 20.0  # seconds to wait for members to say where they stand


@dataclass
class FederationServer(Rounds[TurnJournal]):
    """Runs a federation over a transport. With a `folder` it can be killed at any moment and goes on from there."""

    made: Assembled
    terms: Terms
    ledger: Ledger
    transport: Transport
    folder: Path | None = None
    fresh: bool = True
    deadline: float = 60.0
    sums_in_the_open: bool = False  # the server sees what only the sum should show: to try things out
    watchers: Sequence[Watcher] = ()
    rejections: Counter[str] = field(default_factory=Counter)  # over the whole run, by reason

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
        self.hidden, self.method, self.clock = hidden, engine.method, Clock()
        self.plan = engine.plan if shapes.upload else engine.plan.without_upload()
        self.progress = Progress(0, engine.method.init(engine.start), self.plan.release.start())
        self.draw_seed = self._draw_seed()
        path = self.folder and self.folder / "turn.json"
        self.journal = TurnJournal(path, self.ledger, self.fresh, repeats=self.plan.trusts_server)
        self._heads = Exchange(self.ledger, self.terms.run)
        self._asked_all = self.journal.turn < 0  # nothing has happened yet that anybody could know of
        checkpoint.recognise(self.ledger, self.journal.head, path)
        if self._checkpoint is not None and self._checkpoint.exists():
            self.progress, _ = checkpoint.load_progress(self._checkpoint, self.terms.digest, self.ledger)
        self.budget = BudgetTracker(self.plan, self.ledger, self.journal.next_turn(self.progress.round))

    def go(self, stop: Callable[[], bool] = lambda: False) -> str | None:
        """Rounds until the last one, a spent budget, or `stop`; then all are told the end. Says why it ended early."""
        _, reason = self.advance(stop)
        self.close()
        return reason

    def step(self) -> Report:
        """One round, from where the run stands on disk; then an evaluation if it is time for one."""
        self._ask_all_where_they_stand()
        turn = self.take_round()
        self.save()
        self.rejections += turn.replies.rejected
        return self.report(turn, figures=self.evaluate())

    @property
    def collector(self) -> ReplyCollector:
        upload = self.made.shapes.upload
        return self._replies(self.made.engine.plan, upload, gather=self.method.gather)

    def noise(self, turn: int) -> Noise:
        engine = self.made.engine
        return Secure() if self.fresh else Seeded.of(engine.seed, engine.noise_of("server"), turn)

    def evaluate(self) -> NoisyScores | None:
        """The members' figures, if it is time for them and they can pay: a turn of its own, with its own charge."""
        evaluation, round = self.made.engine.plan.evaluation, self.progress.round
        if evaluation is None or not evaluation.due(round, self.plan.setting.rounds):
            return None
        turn, plan = self.journal.new_turn(), evaluation.plan
        budget = BudgetTracker(plan, self.ledger, turn)
        if budget.exhausted() is not None:
            return None
        cohort, public = np.flatnonzero(budget.eligible()), plan.release.start()
        self.journal.evaluate(turn, round)
        collector = self._replies(plan, evaluations.blank(), bound=public)
        replies = self.charge_and_collect(plan, budget, collector, turn, cohort)
        self.rejections += replies.rejected
        self.budget = BudgetTracker(self.plan, self.ledger, turn + 1)  # the same accounts pay for training
        mean, _ = plan.release.decode(public, replies.totals, Secure())
        means = {} if mean is None else evaluations.means(mean.model, evaluation.range)
        return NoisyScores(
            len(cohort), replies.members, evaluation.std, **means, metric=self.made.engine.task.metrics[0].name
        )

    def close(self) -> list[str]:
        """Everybody gets the last model and what it was charged for; the names of those who confirmed."""
        ask = self._ask("close", max(self.journal.turn, 0))
        done: list[str] = []
        for name, blob in self._send(dict.fromkeys(self.terms.names, ask)):
            try:
                answer = messages.checked(messages.unpack(messages.Answer, blob, messages.SLACK), ask, name)
            except Rejected as error:
                self.rejections[error.reason] += 1
                continue
            done += [name] * (not answer.refused)
        return done

    def save(self) -> None:
        if self._checkpoint is not None:
            checkpoint.save_progress(self._checkpoint, self.terms.digest, self.progress, self.ledger)

    @property
    def _checkpoint(self) -> Path | None:
        return self.folder and self.folder / "checkpoint.bin"

    def _ask_all_where_they_stand(self) -> None:
        """Once, before a run goes on from files: members that saw more than this server knows stop it."""
        if self._asked_all:
            return
        ask = replace(self._ask("heads", max(self.journal.turn, 0)), evaluated=(), tensors={})
        for _ in self._send(dict.fromkeys(self.terms.names, ask), min(self.deadline, STANDING)):
            pass
        self._asked_all = True

    def _draw_seed(self) -> int:
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

    @property
    def _told(self) -> Tree:
        """What members need of the release's public state; what the server remembers beside it stays with it."""
        expected = self.made.engine.plan.release.start()
        return expected | tree.pick(self.progress.public, expected)

    def _ask(self, kind: Kind, turn: int) -> Ask:
        """The question, with the broadcast of where the run stands."""
        view = tree.join(self.progress.server.view)
        tensors = tree.prefix("view", view) | tree.prefix("public", self._told)
        head = str(self.ledger.head())
        return Ask(
            self.terms.run,
            kind,
            self.progress.round,
            turn,
            self.terms.text(),
            evaluated=self.journal.evaluated,
            heads=head,
            tensors=tensors,
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

    def _replies(self, plan: Plan, upload: Tree, gather: bool = False, bound: Tree | None = None) -> ReplyCollector:
        return ReplyCollector(plan, upload, self.terms, self._ask, self._send, self.hidden, gather, bound)
