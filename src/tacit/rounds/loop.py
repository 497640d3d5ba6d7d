"""The rounds of a run: settle, draw, charge, train, release, learn; checkpoint and evaluate now and then."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Method, Server, Shared, Tree
from tacit.errors import TacitError
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.chain import read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.noise import Noise, Seeded
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.membership import Change
from tacit.privacy.plan import Plan
from tacit.rounds import checkpoint
from tacit.rounds.evaluate import Scores, evaluate
from tacit.rounds.preflight import Probe
from tacit.simulation import decisions, device
from tacit.simulation.client_states import Store, open_store
from tacit.simulation.cohort_program import CohortProgram
from tacit.simulation.fingerprint import identity
from tacit.simulation.timing import Clock, LossRecorder, Spread, TimedStore


class Progress(NamedTuple):
    """Where a run stands: `round` rounds are done. Everything else that matters lies in the store and the ledger."""

    round: int
    server: Server
    public: Tree  # the release's public state


class Report(NamedTuple):
    """What is known after a round. Scores and cohort size are simulation only."""

    round: int
    rounds: int
    cohort: int
    bound: float | None
    weights: tuple[float, ...] | None  # of the levels, where they change from round to round
    scores: Scores | None
    seconds: float
    plan: Plan  # of this round: who was at which level
    asked: int = 0  # of them, `cohort` were not dropped
    work: float | None = None  # share of its local steps that a device took, on average; None if nobody did any
    heterogeneity: Spread | None = None  # beside scores, where it was asked for


def learned(
    method: Method, plan: Plan, progress: Progress, totals: Totals, gathered: Tree | None, noise: Noise
) -> Progress:
    """What the server makes of a round's sums, and, where it was to have them, of its single messages."""
    round, server, public = progress
    mean, public = plan.release.decode(public, totals, noise)
    if mean is None:  # the round is discarded
        return Progress(round + 1, server, public)
    received = mean if gathered is None else tree.split(gathered)
    return Progress(round + 1, method.server(server, received, plan.setting.rate), public)


class Watcher(Protocol):
    """Looks on; changes nothing."""

    def after_round(self, report: Report) -> None: ...


@checked
@dataclass(frozen=True)
class Schedule:
    """When to evaluate and to checkpoint, in rounds. `sample`: how many clients' personal models are evaluated.

    `heterogeneity`: also measure how far the clients' training losses are apart (`heterogeneity.py`).
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


class Run:
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
        self.plan: Plan = engine.plan
        if not shapes.upload:  # nothing leaves, so nothing is owed
            self.plan = self.plan.without_upload()
        self._first, self._changes = self.plan, changes
        self._shapes, self._fingerprint, self._watchers = shapes, fingerprint, watchers
        self._checkpoint = None if folder is None else folder / "checkpoint.bin"
        self.clock = Clock()
        store = open_store(engine.federation.clients, shapes.state, folder)
        self.store: Store = TimedStore(store, self.clock, engine.workers.several)
        self.progress = Progress(0, engine.method.init(engine.start), self.plan.release.start())
        ledger.belong(_mark(engine, fingerprint))
        self.purse = BudgetTracker(self.plan, ledger, 0, changes)

    def change(self, clients: str | Sequence[str], level: str) -> None:
        """Moves clients to another level, from the next draw on. Public, and durable when it returns.

        Nothing is refunded: what a client was charged stays charged, its limit is now that of the new level, and if
        the next round would take it past that, it is not asked. What it gave while opted out has no guarantee.
        """
        self.purse.change([clients] if isinstance(clients, str) else clients, level, self.progress.round)

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one. Refuses the checkpoint of another experiment."""
        if self._checkpoint is None or not self._checkpoint.exists():
            return
        saved = checkpoint.load(self._checkpoint)
        if saved["fingerprint"] != self._fingerprint:
            raise TacitError(
                f"{self._checkpoint} belongs to another configuration: resume with the one it was started with"
            )
        self.ledger.check()
        if (kept := saved.get("ledger")) and not self.ledger.holds(read_head(kept)):
            raise TacitError(f"the ledger is older than {self._checkpoint}, or another one: restore the newest copy")
        self.progress = Progress(
            saved["round"], Server(Shared(saved["model"], saved["extra"]), saved["memory"]), saved["public"]
        )
        self.store.restore(saved["store"])
        if self.engine.diary is not None:
            self.engine.diary.losses.copy_(saved["losses"]["by round"])
            self.engine.diary.losses[self.progress.round :] = torch.nan
        self.purse = BudgetTracker(self._first, self.ledger, self.progress.round, self._changes)
        self._adopt(self.purse.plan)
        self.engine.decisions.update(decisions.restored(saved.get("programs", {})))

    def go(self, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Rounds until the last one, a spent budget, or `stop`. Leaves a checkpoint in every case."""
        reports: list[Report] = []
        reason = None
        while self.progress.round < self.plan.setting.rounds:
            reason = "stopped on request" if stop() else self._exhausted()
            if reason:
                break
            reports.append(self.step())
        self.save()
        scores = next((r.scores for r in reversed(reports) if r.scores is not None), None)
        if scores is None or (reports and reports[-1].scores is None):
            scores = self.evaluate()
        return Outcome(self.progress, scores, reason, tuple(reports))

    def evaluate(self) -> Scores:
        view, round = self.progress.server.view, self.progress.round
        with self.clock.section("evaluation"):
            return evaluate(self.engine, view, self.store, round, self.schedule.sample)

    def heterogeneity(self) -> Spread | None:
        """Of all rounds so far; None where it was not asked for."""
        return None if self.engine.diary is None else self.engine.diary.spread()

    def save(self) -> None:
        if self._checkpoint is not None:
            with self.clock.section("checkpoint"):
                self._save(self._checkpoint)

    def _save(self, path: Path) -> None:
        (round, server, public), store = self.progress, self.store.prepare()
        content: dict[str, Any] = {
            "fingerprint": self._fingerprint,
            "round": round,
            "model": server.view.model,
            "extra": server.view.extra,
            "memory": server.memory,
            "public": public,
            "store": store,
            "ledger": str(self.ledger.head()),
            "programs": decisions.saved(self.engine.decisions),
        }
        if self.engine.diary is not None:
            content["losses"] = {"by round": self.engine.diary.losses}
        checkpoint.save(path, content)
        self.store.commit()

    def step(self) -> Report:
        """One round: drawn, charged, trained, released; then evaluated and checkpointed if it is time to."""
        began = time.perf_counter()
        with self.engine.workers.undisturbed():
            asked, cohort = self._round()
        seconds = time.perf_counter() - began
        last = self.progress.round == self.plan.setting.rounds
        scores = self.evaluate() if last or self.progress.round % self.schedule.evaluate_every == 0 else None
        report = self._report(cohort, len(asked), scores, seconds)
        for watcher in self._watchers:
            watcher.after_round(report)
        if self.progress.round % self.schedule.checkpoint_every == 0:
            self.save()
        return report

    def _round(self) -> tuple[np.ndarray, np.ndarray]:
        """Who was asked, and who of them took part in what is now the last round."""
        round = self.progress.round
        with self.clock.section("sampling"):
            self._settle()
            asked = self._draw(round)
            cohort = self._present(round, asked)
        with self.clock.section("ledger"):
            self.purse.charge(round, self.plan.accounts(cohort))
        self.progress = self._release(cohort)
        return asked, cohort

    def _report(self, cohort: np.ndarray, asked: int, scores: Scores | None, seconds: float) -> Report:
        bound, weights = (self.progress.public.get(name) for name in ("bound", "merge/weights"))
        return Report(
            round=self.progress.round,
            rounds=self.plan.setting.rounds,
            cohort=len(cohort),
            bound=None if bound is None else float(bound),
            weights=None if weights is None else tuple(weights.tolist()),
            scores=scores,
            seconds=seconds,
            plan=self.plan,
            asked=asked,
            work=self._work(cohort),
            heterogeneity=self.heterogeneity() if scores is not None else None,
        )

    def _exhausted(self) -> str | None:
        self._settle()
        return self.purse.exhausted()

    def _settle(self) -> None:
        """Changes of levels that are due take effect: written before the draw that uses them."""
        before = self.purse.plan
        if self.purse.settle(self.progress.round) is not before:
            self._adopt(self.purse.plan)

    def _adopt(self, plan: Plan) -> None:
        """Goes on under another plan. What its release does not know yet starts as it would in a new run."""
        self.plan, self.engine = plan, self.engine.under(plan)
        self.progress = self.progress._replace(public=plan.release.start() | self.progress.public)

    def _work(self, cohort: np.ndarray) -> float | None:
        could = self.engine.steps[cohort]
        taken = self.engine.work(cohort, self.progress.round - 1)
        return float(taken.sum() / could.sum()) if could.sum() else None

    def _draw(self, round: int) -> np.ndarray:
        return self.plan.setting.sampler.draw(self.engine.seed, round, self.purse.eligible())

    def _present(self, round: int, asked: np.ndarray) -> np.ndarray:
        """Those who were not dropped."""
        return self.engine.devices.present(self.engine.seed, round, asked, self.engine.federation.clients)

    def _release(self, cohort: np.ndarray) -> Progress:
        """One round, already charged: uploads are summed by level, noise is added, the server learns."""
        round, server, public = self.progress
        engine = self.engine
        gathered = self._rows() if engine.method.gather else None
        with self.clock.section("local training"):
            totals = engine.round(server.view, public, cohort, round, self.store, self._shapes.upload, gathered)
            if engine.method.idles:
                engine.idle(server.view, cohort, round, self.store)
        with self.clock.section("release"):
            noise = Seeded.of(engine.seed, engine.noise_of("server"), round)
            return learned(engine.method, self.plan, self.progress, totals, gathered, noise)

    def _rows(self) -> Tree:
        """A row for each client's message, zero until one comes."""
        clients = self.engine.federation.clients
        return tree.each(lambda leaf: leaf.new_zeros(clients, *leaf.shape), self._shapes.upload)


def _mark(engine: CohortProgram, fingerprint: str) -> str:
    """What its noise and uploads come of: a run of the same mark releases the same again."""
    return f"{type(engine.method).__name__}, seed {engine.seed}, run {fingerprint or engine.identity}"
