"""How far a run of `Multitask` is from its optimum: primal, dual, and the gap between them. Simulation only."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.data.dataset import as_input
from tacit.errors import TacitError
from tacit.methods.multitask.dual_losses import LOSSES
from tacit.methods.multitask.local_dual import targets, with_intercept
from tacit.methods.multitask.method import Multitask
from tacit.rounds.loop import Run


class Objective(NamedTuple):
    """After `round` rounds, for the covariance in force. The gap is never negative but for rounding."""

    round: int
    primal: float
    dual: float

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        return self.gap / abs(self.primal) if self.primal else 0.0


def objective(run: Run) -> Objective:
    """P(W) (4) of the models in force, noise included, and D(alpha) (5) of what the devices hold, its sign turned."""
    method = multitask_of(run)
    view, loss = run.progress.server.view, LOSSES[method.loss]
    sums, omega = view.extra["sums"].double(), view.extra["covariance"].double()
    weights, alphas = method.weights(sums, omega), _alphas(run)
    losses, conjugates, held = 0.0, 0.0, torch.zeros_like(sums)
    for t, alpha in enumerate(alphas):
        x, y = _rows(run, t, sums.shape[1])
        own = alpha[: len(x)]
        losses += float(loss.value(x @ weights[t].T, y).sum())
        conjugates += float(loss.conjugate(own, y).sum())
        held[t] = own.T @ x
    penalty, dual_penalty = (_penalty(v, omega, method.strength) for v in (sums, held))
    return Objective(run.progress.round, losses + penalty, -conjugates - dual_penalty)


def multitask_of(run: Run) -> Multitask:
    method = run.engine.method
    if not isinstance(method, Multitask):
        raise TacitError(f"the run trained {type(method).__name__}, which has no covariance of tasks: train Multitask")
    return method


def _penalty(sums: Tensor, omega: Tensor, strength: float) -> float:
    """lambda tr(W Omega^-1 W') for W = Omega V / (2 lambda): no inverse is needed."""
    flat = sums.flatten(1)
    return float((flat * (omega @ flat)).sum()) / (4 * strength)


def _alphas(run: Run) -> Tensor:
    everybody = np.arange(run.engine.federation.clients)
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    return run.store.read(everybody, first)["alpha"].double()


def _rows(run: Run, client: int, columns: int) -> tuple[Tensor, Tensor]:
    data = run.engine.federation
    rows = data.rows(client)
    x = with_intercept(as_input(data.x[rows]), multitask_of(run).intercept).double()
    return x, targets(data.y[rows], columns, x.dtype)
