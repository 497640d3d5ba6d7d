"""One round, whoever collects: settle, draw, charge, collect, release, learn.

A simulation (`loop.py`) and a federation's server (`federation/protocol/server.py`) run these lines. They differ in who
collects (`Collector`), in where draws and noise come from, and in the journal that numbers the turns.

A stated epsilon rests on their order: what a cohort will release is charged, durably, before anybody computes or is
asked (`Rounds.charge_and_collect`, the only caller of a collector).
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from tacit.core import tree
from tacit.core.contract import Method, Server, Tree
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.noise import Noise
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.plan import Plan
from tacit.rounds.averaging import average
from tacit.rounds.evaluate import NoisyScores, Scores
from tacit.simulation.timing import Clock, Spread


class Progress(NamedTuple):
    """Where a run stands: `round` rounds are done. Everything else that matters lies in the store and the ledger."""

    round: int
    server: Server
    public: Tree  # the release's public state


@dataclass(frozen=True)
class Replies:
    """What came of asking a cohort.

    `totals`: sums by level. `rows`: a row for each client's message, zero where none came, for methods that need single
    messages. `members`: how many clients are in it. `refused`, `rejected`: why others are not, by their own reasons and
    by the server's.
    """

    totals: Totals
    rows: Tree | None
    members: int
    refused: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)


class Collector(Protocol):
    """Has a cohort compute, and brings its messages together: as a tensor program, or over a transport."""

    def collect(self, progress: Progress, cohort: np.ndarray, turn: int) -> Replies:
        """What the cohort makes of the broadcast in `progress`. It was charged for this turn."""
        ...


class Journal(Protocol):
    """Numbers the turns: a turn is one time that a cohort is asked."""

    def next_turn(self, round: int) -> int:
        """The turn in which `round` is taken, or taken again after an interruption."""
        ...

    def begin(self, turn: int, round: int) -> None:
        """Notes a turn, before its charge."""
        ...

    def release(self, turn: int, round: int) -> None:
        """Notes that a release of the turn may follow."""
        ...


AnyJournal = TypeVar("AnyJournal", bound=Journal)


class RoundNumbers:
    """The journal of a simulation, which keeps none: an interrupted round is repeated with the same draws and noise."""

    def next_turn(self, round: int) -> int:
        return round

    def begin(self, turn: int, round: int) -> None: ...

    def release(self, turn: int, round: int) -> None: ...


class Report(NamedTuple):
    """What is known after a round. Of a federation that is nothing that a client did not send through its release."""

    round: int
    rounds: int
    cohort: int  # clients in the sum; in simulation only
    bound: float | None
    weights: tuple[float, ...] | None  # of the levels, where they change from round to round
    scores: Scores | None  # simulation only
    seconds: float
    plan: Plan  # of this round: who was at which level
    asked: int = 0
    work: float | None = None  # share of its local steps that a device took, on average; None if nobody did any
    heterogeneity: Spread | None = None  # beside scores, where it was asked for
    kept: float | None = None  # share of an update's length that the clip leaves, beside scores; in simulation only
    turn: int = 0
    refused: Counter[str] = Counter()  # in a federation, by the clients' own reasons
    rejected: Counter[str] = Counter()  # by the server, by reason
    figures: NoisyScores | None = None  # of an evaluation by a federation's members, if there was one

    @property
    def dropped(self) -> int:
        """Of those who were asked: silent, late, refused or rejected."""
        return self.asked - self.cohort


class Watcher(Protocol):
    """Looks on; changes nothing."""

    def after_round(self, report: Report) -> None: ...


class Turn(NamedTuple):
    """A turn that was taken. Of those `asked`, the `cohort` was not dropped before it began."""

    number: int
    asked: np.ndarray
    cohort: np.ndarray
    replies: Replies
    seconds: float


def learn(method: Method, plan: Plan, progress: Progress, replies: Replies, noise: Noise) -> Progress:
    """What the server makes of a round's sums, and, where it was to have them, of its single messages.

    The release adds its noise to the sums; everything after it is post-processing. A discarded round changes the
    release's public state alone.
    """
    round, server, public = progress
    mean, public = plan.release.decode(public, replies.totals, noise)
    if mean is not None:
        received = mean if replies.rows is None else tree.split(replies.rows)
        server = method.server(server, received, plan.setting.rate)
    public = public | tree.pick(progress.public, [name for name in progress.public if name.startswith("average/")])
    return Progress(round + 1, *average(server, public, round + 1, plan.average, plan.setting.rounds))


class Rounds(ABC, Generic[AnyJournal]):
    """A run that goes on round by round. Subclasses say who collects and where draws and noise come from."""

    method: Method
    plan: Plan
    ledger: Ledger
    budget: BudgetTracker
    progress: Progress
    journal: AnyJournal
    clock: Clock
    watchers: Sequence[Watcher]
    draw_seed: int

    @property
    @abstractmethod
    def collector(self) -> Collector: ...

    @abstractmethod
    def noise(self, turn: int) -> Noise:
        """What the server's release adds in a turn."""

    @abstractmethod
    def step(self) -> Report:
        """One round, and what belongs to it: evaluation, checkpoint, a report to the watchers."""

    def advance(self, stop: Callable[[], bool | str]) -> tuple[list[Report], str | None]:
        """Rounds until the last one, a spent budget, or `stop`, which may give a reason; their reports, and why it
        ended early."""
        reports: list[Report] = []
        while self.progress.round < self.plan.setting.rounds:
            if reason := stop() or self._exhausted():
                return reports, reason if isinstance(reason, str) else "stopped on request"
            reports.append(self.step())
        return reports, None

    def take_round(self) -> Turn:
        """Settles, draws, charges, collects, releases and learns; `progress` is one round further."""
        began, round = time.perf_counter(), self.progress.round
        with self.clock.section("sampling"):
            self._settle()
            turn = self.journal.next_turn(round)
            self.journal.begin(turn, round)
            asked = self.draw(turn)
            cohort = self.present(turn, asked)
        replies = self.charge_and_collect(self.plan, self.budget, self.collector, turn, cohort)
        with self.clock.section("release"):
            self.journal.release(turn, round)
            self.progress = learn(self.method, self.plan, self.progress, replies, self.noise(turn))
        return Turn(turn, asked, cohort, replies, time.perf_counter() - began)

    def charge_and_collect(
        self, plan: Plan, budget: BudgetTracker, collector: Collector, turn: int, cohort: np.ndarray
    ) -> Replies:
        """Charges what the cohort will release, durably; only then does anybody compute, or is anybody asked."""
        with self.clock.section("ledger"):
            budget.charge(turn, plan.accounts(cohort))
        with self.clock.section("local training"):
            return collector.collect(self.progress, cohort, turn)

    def draw(self, turn: int) -> np.ndarray:
        """Who is asked in a turn, of those who can still pay for it."""
        return self.plan.setting.sampler.draw(self.draw_seed, turn, self.budget.eligible())

    def present(self, turn: int, asked: np.ndarray) -> np.ndarray:
        """Those of the drawn who can be asked at all."""
        return asked

    def adopt(self, plan: Plan) -> None:
        """Goes on under another plan. What its release does not know yet starts as it would in a new run."""
        self.plan = plan
        self.progress = self.progress._replace(public=plan.release.start() | self.progress.public)

    def report(self, turn: Turn, **more: Any) -> Report:
        """What is known of a turn that was taken; `more`: fields that one kind of run has. Watchers are told."""
        bound, weights = (self.progress.public.get(name) for name in ("bound", "merge/weights"))
        report = Report(
            round=self.progress.round,
            rounds=self.plan.setting.rounds,
            cohort=turn.replies.members,
            bound=None if bound is None else float(bound),
            weights=None if weights is None else tuple(map(float, weights)),
            seconds=turn.seconds,
            plan=self.plan,
            asked=len(turn.asked),
            turn=turn.number,
            refused=turn.replies.refused,
            rejected=turn.replies.rejected,
            **{"scores": None, **more},
        )
        for watcher in self.watchers:
            watcher.after_round(report)
        return report

    def _exhausted(self) -> str | None:
        self._settle()
        return self.budget.exhausted()

    def _settle(self) -> None:
        """Changes of levels that are due take effect: written before the draw that uses them."""
        before = self.budget.plan
        if self.budget.settle(self.journal.next_turn(self.progress.round)) is not before:
            self.adopt(self.budget.plan)
