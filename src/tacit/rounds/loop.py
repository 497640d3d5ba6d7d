"""A simulated run: the rounds of `round.py` on tensor programs, with evaluations and checkpoints now and then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.noise import Noise, Seeded
from tacit.privacy.membership import Change
from tacit.privacy.plan import Plan
from tacit.rounds import checkpoint
from tacit.rounds.evaluate import Scores, evaluate, kept_length
from tacit.rounds.preflight import Probe
from tacit.rounds.round import Progress, Replies, Report, RoundNumbers, Rounds, Turn, Watcher
from tacit.simulation import decisions, device
from tacit.simulation.client_states import Store, open_store
from tacit.simulation.cohort_program import CohortProgram
from tacit.simulation.fingerprint import identity
from tacit.simulation.timing import Clock, LossRecorder, Spread, TimedStore


@checked
@dataclass(frozen=True)
class Schedule:
    """When to evaluate and to checkpoint, in rounds.

    Args:
        evaluate_every: so many rounds, and after the last one.
        checkpoint_every: so many rounds; a run that was killed goes on from the last of them, to the same result.
        sample: how many clients' personal models are evaluated; None: all.
        heterogeneity: also measure how far the clients' training losses are apart (`simulation/timing.py`).

    Raises:
        TacitError: a number below 1.

    >>> import tacit
    >>> tacit.Schedule(evaluate_every=5).checkpoint_every
    10
    """

    evaluate_every: int = 10
    checkpoint_every: int = 10
    sample: int | None = None
    heterogeneity: bool = False

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "checkpoint_every", "sample"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TacitError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True)
class Outcome:
    progress: Progress
    scores: Scores | None
    stopped: str | None  # why it ended before its last round
    reports: tuple[Report, ...]


@dataclass(frozen=True, eq=False)
class SimulatedCohort:
    """The collector of a simulation: the cohort's clients compute here, as tensor programs."""

    engine: CohortProgram
    store: Store
    upload: Tree  # its shapes

    def collect(self, progress: Progress, cohort: np.ndarray, turn: int) -> Replies:
        view, engine = progress.server.view, self.engine
        rows = self._rows() if engine.method.gather else None
        totals = engine.round(view, progress.public, cohort, turn, self.store, self.upload, rows)
        if engine.method.idles:
            engine.idle(view, cohort, turn, self.store)
        return Replies(totals, rows, len(cohort))

    def _rows(self) -> Tree:
        """A row for each client's message, zero until one comes."""
        clients = self.engine.federation.clients
        return tree.each(lambda leaf: leaf.new_zeros(clients, *leaf.shape), self.upload)


class Run(Rounds[RoundNumbers]):
    """A simulated federation that can be advanced, interrupted and resumed; the result is the same."""

    def __init__(
        self,
        engine: CohortProgram,
        shapes: Probe,
        ledger: Ledger,
        schedule: Schedule = Schedule(),
        folder: Path | None = None,
        fingerprint: str = "",
        watchers: Sequence[Watcher] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        engine.check()
        device.keep_memory()
        device.give_back()
        if engine.identity is None:  # "": by the seed alone, to compare with a federation whose parties have no more
            engine = replace(engine, programs={}, decisions={}, identity=identity(engine, changes))
        if schedule.heterogeneity:
            rounds = engine.plan.setting.rounds
            engine = replace(
                engine, programs={}, decisions={}, diary=LossRecorder(engine.federation.clients, rounds, engine.seed)
            )
        self.engine, self.ledger, self.schedule = engine, ledger, schedule
        self.method, self.draw_seed, self.journal = engine.method, engine.seed, RoundNumbers()
        self.plan: Plan = engine.plan
        if not shapes.upload:  # nothing leaves, so nothing is owed
            self.plan = self.plan.without_upload()
        self._first, self._changes = self.plan, changes
        self._shapes, self._fingerprint, self.watchers = shapes, fingerprint, watchers
        self._checkpoint = None if folder is None else folder / "checkpoint.bin"
        self.clock = Clock()
        store = open_store(engine.federation.clients, shapes.state, folder)
        self.store: Store = TimedStore(store, self.clock, engine.workers.several)
        self.progress = Progress(0, engine.method.init(engine.start), self.plan.release.start())
        ledger.belong(_mark(engine, fingerprint))
        self.budget = BudgetTracker(self.plan, ledger, 0, changes)

    def __repr__(self) -> str:
        done, rounds, clients = self.progress.round, self.plan.setting.rounds, self.engine.federation.clients
        name = type(self.method).__name__
        return f"Run({name}, plan {self.plan.name}: {done} of {rounds} rounds, {clients:,} clients)"

    @property
    def collector(self) -> SimulatedCohort:
        return SimulatedCohort(self.engine, self.store, self._shapes.upload)

    def noise(self, turn: int) -> Noise:
        return Seeded.of(self.engine.seed, self.engine.noise_of("server"), turn)

    def change(self, clients: str | Sequence[str], level: str) -> None:
        """Moves clients to another level, from the next draw on. Public, and durable when it returns.

        Nothing is refunded: what a client was charged stays charged, its limit is now that of the new level, and if
        the next round would take it past that, it is not asked. What it gave while opted out has no guarantee.
        """
        self.budget.change([clients] if isinstance(clients, str) else clients, level, self.progress.round)

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one. Refuses the checkpoint of another experiment."""
        if self._checkpoint is None or not self._checkpoint.exists():
            return
        self.progress, saved = checkpoint.load_progress(self._checkpoint, self._fingerprint, self.ledger)
        self.store.restore(saved["store"])
        if self.engine.diary is not None:
            self.engine.diary.losses.copy_(saved["losses"]["by round"])
            self.engine.diary.losses[self.progress.round :] = torch.nan
        self.budget = BudgetTracker(self._first, self.ledger, self.progress.round, self._changes)
        self.adopt(self.budget.plan)
        self.engine.decisions.update(decisions.restored(saved.get("programs", {})))

    def go(self, stop: Callable[[], bool | str] = lambda: False) -> Outcome:
        """Rounds until the last one, a spent budget, or `stop`. Leaves a checkpoint in every case."""
        reports, reason = self.advance(stop)
        self.save()
        scores = next((r.scores for r in reversed(reports) if r.scores is not None), None)
        if scores is None or (reports and reports[-1].scores is None):
            scores = self.evaluate()
        return Outcome(self.progress, scores, reason, tuple(reports))

    def evaluate(self) -> Scores:
        view, round = self.progress.server.view, self.progress.round
        with self.clock.section("evaluation"):
            return evaluate(self.engine, view, self.store, round, self.schedule.sample)

    def kept_length(self) -> float | None:
        """The share of an update's length that the clip leaves now; None where whole updates are not clipped."""
        bound, plan = self.progress.public.get("bound"), self.plan
        if bound is None or plan.record is not None or plan.steps is not None or self.method.gather:
            return None
        with self.clock.section("evaluation"):
            return kept_length(self.engine, self.progress.server.view, bound, self.store, self.progress.round)

    def heterogeneity(self) -> Spread | None:
        """Of all rounds so far; None where it was not asked for."""
        return None if self.engine.diary is None else self.engine.diary.spread()

    def save(self) -> None:
        if self._checkpoint is not None:
            with self.clock.section("checkpoint"):
                self._save(self._checkpoint)

    def _save(self, path: Path) -> None:
        more: dict[str, Any] = {"store": self.store.prepare(), "programs": decisions.saved(self.engine.decisions)}
        if self.engine.diary is not None:
            more["losses"] = {"by round": self.engine.diary.losses}
        checkpoint.save_progress(path, self._fingerprint, self.progress, self.ledger, **more)
        self.store.commit()

    def step(self) -> Report:
        """One round: drawn, charged, trained, released; then evaluated and checkpointed if it is time to."""
        with self.engine.workers.undisturbed():
            turn = self.take_round()
        last = self.progress.round == self.plan.setting.rounds
        scores = self.evaluate() if last or self.progress.round % self.schedule.evaluate_every == 0 else None
        spread = self.heterogeneity() if scores is not None else None
        kept = self.kept_length() if scores is not None else None
        report = self.report(turn, scores=scores, work=self._work(turn), heterogeneity=spread, kept=kept)
        if self.progress.round % self.schedule.checkpoint_every == 0:
            self.save()
        return report

    def adopt(self, plan: Plan) -> None:
        super().adopt(plan)
        self.engine = self.engine.under(plan)

    def present(self, turn: int, asked: np.ndarray) -> np.ndarray:
        """Those who were not dropped."""
        return self.engine.devices.present(self.engine.seed, turn, asked, self.engine.federation.clients)

    def _work(self, turn: Turn) -> float | None:
        could = self.engine.steps[turn.cohort]
        taken = self.engine.work(turn.cohort, turn.number)
        return float(taken.sum() / could.sum()) if could.sum() else None


def _mark(engine: CohortProgram, fingerprint: str) -> str:
    """What its noise and uploads come of: a run of the same mark releases the same again."""
    return f"{type(engine.method).__name__}, seed {engine.seed}, run {fingerprint or engine.identity}"
