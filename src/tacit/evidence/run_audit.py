"""An attack on a whole training run: canaries that are there or not by the toss of a coin, and guesses which ones were.

A canary is a client with one row (where the unit is a client), or one row more of a client (where it is a record). It
is one feature alone, with a label: its gradients point where nobody else's do. Training goes as it always does, through
recorded and compiled programs wherever the experiment's can be recorded, however short the run is; the audit says which
programs ran. Then the attacker looks along each canary's gradient at what was released, says "there" of the highest
scores and "not there" of the lowest. So many right guesses are unlikely under a true claim:

- *Steinke, Nasr and Jagielski 2023*: under (epsilon, delta) the number of right guesses is about binomial. The bound
  needs no assumption and is weak.
- *Mahloujifar, Melis and Chaudhuri 2024*: the same for a whole trade-off curve. The claim's own curve is tested; the
  bound printed is the largest mu whose Gaussian curve is rejected, told as epsilon at the claim's delta. It is a bound
  on epsilon for mechanisms whose curve is Gaussian, and else a test of the curve alone.

A bound above the claim, or a rejected curve, disproves the claim. A bound below it proves nothing.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import binom
from torch import Tensor

from tacit.core import rng
from tacit.data.dataset import FederatedDataset, as_input
from tacit.errors import TacitError
from tacit.experiments.build import Parts
from tacit.privacy.accounting.accountant import Accountant, Profile, Relation, answer, profile
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.accounting.risk import trade_off
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import shown
from tacit.rounds.assemble import Assembled, Performance, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.round import Report

LEAST: Final = 20
_SHARES: Final = (1.0, 0.5, 0.25, 0.1)  # of the canaries that are guessed; the confidence is shared among them
_RIDGE: Final = 0.3
_LOUDNESS: Final = 8.0  # of a canary's feature, beside the largest in the data
_MOST_OTHERS: Final = 64
SEEN: Final = 1e-3  # a delta or mu below this is taken for nothing
_QUIET: Final = Schedule(evaluate_every=1 << 30, sample=1)


@dataclass(frozen=True)
class RunAudit:
    """What an attack on a run found, beside what was claimed. Both at `delta`, for the same unit and neighbours."""

    plan: str
    method: str
    unit: str
    relation: str
    claim: float
    delta: float
    lower_bound: float  # needs no assumption
    gaussian_lower_bound: float  # along the curves of Gaussians
    rejected: bool  # whether the claim's own trade-off curve is
    correct: int
    guesses: int
    canaries: int
    confidence: float
    path: str = ""  # which programs the clients ran
    runs: int = 1  # trainings that were watched

    @property
    def disproved(self) -> bool:
        return self.rejected or self.lower_bound > self.claim

    def __str__(self) -> str:
        verdict = "DISPROVED" if self.disproved else "not disproved"
        terms = f"{self.unit}-level, {self.relation}, delta {self.delta:g}"
        sure = f"with {100 * self.confidence:g}% confidence at least {self.lower_bound:.2f}"
        times = f"{self.canaries} canaries" if self.runs == 1 else f"one canary, {self.runs} trainings"
        return (
            f"{self.method} under {self.plan}: epsilon {shown(self.claim)} is claimed ({terms}); {sure}, or "
            f"{self.gaussian_lower_bound:.2f} along Gaussian curves ({self.correct} of {self.guesses} guesses right, "
            f"{times}; programs: {self.path}): {verdict}"
        )


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows that may be there; `planted` says which are."""

    x: Tensor
    y: Tensor
    planted: np.ndarray

    @property
    def number(self) -> int:
        return len(self.planted)

    def first(self, planted: bool) -> "Canaries":
        """One canary alone, there or not."""
        return Canaries(self.x[:1], self.y[:1], np.array([planted]))


def audit_run(
    parts: Parts, canaries: int = 200, level: str | None = None, confidence: float = 0.95, cohort_known: bool = False
) -> RunAudit:
    """Trains once with canaries among the clients, and tells which of them were there from what was released.

    Args:
        parts: of the run that is attacked; its data and rounds are used as they are.
        canaries: how many; each is planted with probability 1/2.
        level: at which they are; the first private level if left out.
        confidence: of the bounds.
        cohort_known: the attacker is told in which rounds each canary was, or would have been, drawn. A claim that
            counts on a secret draw does not hold against it.

    Raises:
        TacitError: if the plan promises nothing, or there are too few features for so many canaries.
    """
    parts, name = audited(parts, level)
    planted = make_canaries(parts.federation, canaries, parts.training.seed)
    run, changes = watch(set_up(parts, planted, name))
    drawn = _drawn(run, len(changes), planted, parts.training.seed) if cohort_known else None
    scores = score(changes, directions(run, planted), others(run, parts.federation), drawn)
    return _judge(scores, planted.planted, claim_of(run, parts.privacy.accountant), run, confidence)


def audited(parts: Parts, level: str | None) -> tuple[Parts, str]:
    """The parts that are attacked, and the level; where the unit is a record, one client by itself."""
    name = _audited_level(parts, level)
    if parts.privacy.plan.unit == "record":
        parts = parts._replace(federation=_alone(parts.federation))
    return parts, name


def _audited_level(parts: Parts, level: str | None) -> str:
    private = [each.name for each in parts.privacy.levels if each.private]
    if not private or parts.privacy.plan.unit == "none":
        raise TacitError("this experiment promises nothing that could be disproved: give it a private level and a plan")
    if level is not None and level not in private:
        raise TacitError(f"level '{level}' is none of the private levels {private}")
    return level or private[0]


# --- canaries


def make_canaries(federation: FederatedDataset, number: int, seed: int) -> Canaries:
    features = math.prod(federation.input_shape)
    if not LEAST <= number <= features * federation.classes:
        distinct = features * federation.classes
        raise TacitError(f"{number} canaries: give at least {LEAST}, and at most {distinct} (features times classes)")
    draw = rng.generator(seed, "canaries")
    feature, label = np.divmod(draw.permutation(features * federation.classes)[:number], federation.classes)
    x = torch.zeros(number, features, dtype=federation.x.dtype)
    loud = 255 if federation.x.dtype == torch.uint8 else _LOUDNESS * float(federation.x.abs().max())
    x[torch.arange(number), torch.from_numpy(feature)] = loud
    planted = draw.random(number) < 0.5
    return Canaries(x.reshape(number, *federation.input_shape), torch.from_numpy(label).to(federation.y.dtype), planted)


def _plant(parts: Parts, canaries: Canaries, level: str) -> tuple[FederatedDataset, Any]:
    """The data with the planted canaries in it, and everybody at the level it was at; canaries at `level`."""
    federation, in_data = parts.federation, torch.from_numpy(canaries.planted)
    chosen = parts.privacy.choose(federation, parts.training.seed)
    choices = {name: chosen.of(k).name for k, name in enumerate(federation.ids)}
    x, y = canaries.x[in_data], canaries.y[in_data]
    if parts.privacy.plan.unit == "record":
        data = replace(
            federation,
            x=torch.cat([federation.x, x]),
            y=torch.cat([federation.y, y]),
            offsets=federation.offsets + np.array([0, len(x)]),
        )
        return data, replace(parts.privacy, choices=dict.fromkeys(choices, level), changes=())
    names = tuple(f"canary-{at}" for at in np.flatnonzero(canaries.planted))
    data = replace(
        federation,
        x=torch.cat([federation.x, x]),
        y=torch.cat([federation.y, y]),
        offsets=np.concatenate([federation.offsets, federation.offsets[-1] + 1 + np.arange(len(names))]),
        test_offsets=np.concatenate([federation.test_offsets, np.full(len(names), federation.test_offsets[-1])]),
        ids=(*federation.ids, *names),
    )
    return data, replace(parts.privacy, choices=choices | dict.fromkeys(names, level), changes=())


def _alone(federation: FederatedDataset) -> FederatedDataset:
    """The client with most rows: where the server is the attacker, it sees one client's messages by themselves."""
    k = int(np.argmax(federation.sizes))
    train, test = federation.rows(k), federation.test_rows(k)
    return replace(
        federation,
        x=federation.x[train],
        y=federation.y[train],
        offsets=np.array([0, train.stop - train.start]),
        test_x=federation.test_x[test],
        test_y=federation.test_y[test],
        test_offsets=np.array([0, test.stop - test.start]),
        ids=(federation.ids[k],),
    )


# --- what the attacker sees


class _Released:
    """Keeps how the shared model changed in each round."""

    def __init__(self) -> None:
        self.changes: list[Tensor] = []
        self._run: Run | None = None
        self._before = torch.zeros(0)

    def watch(self, run: Run) -> None:
        self._run, self._before = run, _flat(run.progress.server.view.model)

    def after_round(self, report: Report) -> None:
        assert self._run is not None
        now = _flat(self._run.progress.server.view.model)
        self.changes.append(now - self._before)
        self._before = now


def set_up(parts: Parts, canaries: Canaries, level: str) -> Assembled:
    """The run with these canaries in it, recorded wherever its programs can be: else a short one would not be."""
    federation, privacy = _plant(parts, canaries, level)
    named = parts.performance or Performance()

    def with_programs(performance: Performance) -> Assembled:
        experiment = federation, parts.model, parts.method, privacy, parts.training
        return assemble(*experiment, performance=performance, objective=parts.objective)

    if named.compile == "auto":
        with suppress(TacitError):
            assembled = with_programs(replace(named, compile="require"))
            trial = Run(*assembled, ledger=Ledger.open(":memory:"), schedule=_QUIET)
            trial.step()  # a program that cannot be recorded is an error here
            return assembled._replace(engine=trial.engine)
    return with_programs(named)


def watch(assembled: Assembled, seed: int | None = None) -> tuple[Run, list[Tensor]]:
    """A training to its end, and how the shared model changed in each round; `seed`: other draws, other noise."""
    engine = assembled.engine if seed is None else replace(assembled.engine, seed=seed)
    watcher = _Released()
    run = Run(engine, assembled.shapes, ledger=Ledger.open(":memory:"), schedule=_QUIET, watchers=(watcher,))
    watcher.watch(run)
    run.advance(lambda: False)
    return run, watcher.changes


def _flat(model: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([model[name].detach().double().reshape(-1) for name in sorted(model)])


def directions(run: Run, canaries: Canaries) -> Tensor:
    """Where each canary pulls the model that everybody starts from, as unit vectors [canaries, parameters]."""
    pulls = (_pull(run, x[None], y[None]) for x, y in zip(as_input(canaries.x), canaries.y, strict=True))
    return torch.stack([pull / pull.norm().clamp_min(1e-12) for pull in pulls])


def others(run: Run, federation: FederatedDataset) -> Tensor:
    """An orthonormal basis of where everybody else pulls: the attacker knows all data but the canaries'."""
    sample = range(0, federation.clients, -(-federation.clients // _MOST_OTHERS))
    pulls = torch.stack([_pull(run, *federation.take(torch.arange(*federation.offsets[k : k + 2]))) for k in sample])
    return torch.linalg.svd(pulls, full_matrices=False).Vh


def _pull(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """The negative gradient of rows at the start, flat."""
    start, task = run.engine.start, run.engine.task
    dtype = next(iter(start.values())).dtype
    gradient = torch.func.grad(lambda p: task.losses(p, x.to(dtype), y).mean())(start)
    return -_flat({name: gradient[name] for name in run.progress.server.view.model if name in gradient})


def score(changes: list[Tensor], directions: Tensor, others: Tensor, drawn: np.ndarray | None) -> np.ndarray:
    """How far the model went each canary's way, net of everybody else's ways; in the rounds that count."""
    moves = torch.stack(changes)
    directions, moves = (each - each @ others.T @ others for each in (directions, moves))
    gram = directions @ directions.T + _RIDGE * torch.eye(len(directions), dtype=torch.float64)
    by_round = torch.linalg.solve(gram, directions @ moves.T).numpy()
    return (by_round if drawn is None else by_round * drawn).sum(axis=1)


def _drawn(run: Run, rounds: int, canaries: Canaries, seed: int) -> np.ndarray:
    """In which rounds each canary was drawn; of those that are not there, in which it might have been."""
    rate = run.plan.setting.rate
    drawn = rng.generator(seed, "would-be cohorts").random((canaries.number, rounds)) < rate
    first = len(run.engine.federation.ids) - int(canaries.planted.sum())
    for round in range(rounds):
        cohort = run.plan.setting.sampler.draw(run.engine.seed, round, run.plan.eligible)
        members = np.zeros(len(run.engine.federation.ids), bool)
        members[cohort] = True
        drawn[canaries.planted, round] = members[first:]
    return drawn


# --- what it means


def claim_of(run: Run, accountant: Accountant) -> tuple[float, float, Relation, Profile]:
    """Epsilon, delta, neighbours and curve of the account that spent most, as the ledger has it."""
    costs: list[tuple[float, float, Relation, Any]] = []
    budgets, terms = run.ledger.budgets(), run.ledger.terms()
    for scope, history in run.ledger.histories().items():
        if scope.startswith(("level:", "client:")) and scope in budgets:
            delta, relation = budgets[scope].delta, terms[scope][1]
            cost = answer(history, delta, relation, accountant)  # type: ignore[arg-type]
            costs.append((cost.epsilon, delta, relation, (history, cost.accountant)))  # type: ignore[arg-type]
    if not costs:
        raise TacitError("nothing was charged, so nothing was released that could be attacked")
    epsilon, delta, relation, (history, by) = max(costs, key=lambda each: each[0])
    return epsilon, delta, relation, profile(history, relation, by)


def _judge(
    scores: np.ndarray, planted: np.ndarray, claim: tuple[float, float, Relation, Profile], run: Run, confidence: float
) -> RunAudit:
    epsilon, delta, relation, deltas = claim
    number, error = len(scores), (1 - confidence) / len(_SHARES)
    order = np.argsort(scores)
    lines = np.linspace(0, max(2 * epsilon, 1.0), 2048)
    inverse = _blow_up_inverse(lines, deltas(lines))
    plain, mu, rejected, best = 0.0, 0.0, False, (0, 0)
    for share in _SHARES:
        half = max(int(number * share) // 2, 1)
        correct = int(planted[order[-half:]].sum() + (~planted[order[:half]]).sum())
        along = one_run_mu(number, 2 * half, correct, error)
        best = (correct, 2 * half) if along > mu or best == (0, 0) else best
        plain, mu = max(plain, one_run_epsilon(number, 2 * half, correct, delta, error)), max(along, mu)
        rejected = rejected or one_run_rejects(inverse, number, 2 * half, correct, error)
    gaussian = gaussian_epsilon(1 / mu, delta) if mu > SEEN else 0.0
    plan, method = run.plan, type(run.engine.method).__name__
    return RunAudit(
        plan.name,
        method,
        plan.unit,
        relation,
        epsilon,
        delta,
        plain,
        gaussian,
        rejected,
        *best,
        number,
        confidence,
        run.engine.path,
    )


def one_run_epsilon(number: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest epsilon under which so many right guesses have a probability below `error` (Steinke et al. 2023).

    Example:
        >>> round(one_run_epsilon(number=100, guesses=100, correct=95, delta=0.0, error=0.05), 2)
        2.17
    """
    if not _unlikely(number, guesses, correct, 0.0, delta, error):
        return 0.0
    return _largest(lambda epsilon: _unlikely(number, guesses, correct, epsilon, delta, error), 64.0)


def _unlikely(number: int, guesses: int, correct: int, epsilon: float, delta: float, error: float) -> bool:
    """Theorem 5.2: binomial, and for delta the steepest average of the masses just below."""
    right = 1 / (1 + math.exp(-epsilon))
    at_least = binom.sf(correct - 1, guesses, right)
    masses = np.cumsum(binom.pmf(correct - np.arange(1, correct + 1), guesses, right))
    steepest = float((masses / np.arange(1, correct + 1)).max()) if correct else 0.0
    return bool(at_least + 2 * number * delta * steepest < error)


def one_run_mu(number: int, guesses: int, correct: int, error: float) -> float:
    """The largest mu whose Gaussian curve so many right guesses reject."""

    def rejects(mu: float) -> bool:
        return one_run_rejects(lambda x: float(ndtr(ndtri(x) - mu)), number, guesses, correct, error)

    return _largest(rejects, 32.0) if rejects(0.0) else 0.0


def one_run_rejects(inverse: Callable[[float], float], number: int, guesses: int, correct: int, error: float) -> bool:
    """Whether so many right guesses have a probability below `error` under a trade-off curve f (Mahloujifar et al.
    2024, their recursion with abstentions); `inverse` is x -> f(1 - x), for a symmetric f."""
    right, wrong = error * correct / number, error * (guesses - correct) / number
    for at in range(correct - 1, -1, -1):
        grown = max(wrong, inverse(right))
        if grown == wrong:
            break
        right, wrong = min(right + at / (guesses - at) * (grown - wrong), 1.0), grown
    return right + wrong > guesses / number


def _blow_up_inverse(epsilons: np.ndarray, deltas: np.ndarray) -> Callable[[float], float]:
    return lambda x: float(trade_off(epsilons, deltas, np.array([1 - x]))[0])


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest number below `high` that holds, of those below which all hold; by bisection."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
