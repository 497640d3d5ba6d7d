"""Who is found out in fact: membership of clients, guessed from their losses, with and without reference models.

Several models are trained as a run's was, each with a random half of the clients of every level. So each client is a
member of some of them and an outsider to the others. Two attacks score a client beside a model: by the *loss* of the
client's own rows under it, and by how much smaller that is than under the models it is an outsider to (*reference*):
some rows are easy for every model. For simulations: it looks at everybody's rows, and no ledger is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from tacit.core import rng
from tacit.data.dataset import keep_clients
from tacit.errors import TacitError
from tacit.experiments.build import Parts
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import assemble
from tacit.rounds.loop import Run, Schedule

LEAST = 4  # models, and clients of a level
ATTACKS = ("loss", "reference")


@dataclass(frozen=True, eq=False)
class Attacked:
    """One level. `scores`: by attack, [models, clients]; `inside`: who was a member of which model."""

    clients: int
    scores: Mapping[str, np.ndarray]
    inside: np.ndarray

    def auc(self, kind: str) -> tuple[float, float]:
        """How often a member scores higher than an outsider to the same model, and the standard error over models."""
        each = np.array(
            [_auc(row[members], row[~members]) for row, members in zip(self.scores[kind], self.inside, strict=True)]
        )
        return float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5)

    def curve(self, kind: str) -> tuple[list[float], list[float]]:
        """False alarms and hits, as a threshold sinks; over all models."""
        order = np.argsort(-self.scores[kind], axis=None, kind="stable")
        member = self.inside.reshape(-1)[order]
        alarms, hits = np.cumsum(~member) / (~member).sum(), np.cumsum(member) / member.sum()
        return [0.0, *alarms.tolist()], [0.0, *hits.tolist()]

    def words(self, kind: str) -> str:
        mean, error = self.auc(kind)
        return f"by {kind} ({100 * mean:.0f}%, {100 * error:.0f})"


def membership(parts: Parts, models: int) -> dict[str, Attacked]:
    """Trains `models` models on half of the clients each, and attacks them; by level.

    Levels of fewer than four clients are left out.

    Raises:
        TacitError: fewer than four models.
    """
    if models < LEAST:
        raise TacitError(f"{models} reference models: give at least {LEAST}")
    data, seed = parts.federation, parts.training.seed
    chosen = parts.privacy.choose(data, seed)
    level = np.array([chosen.of(k).name for k in range(data.clients)])
    inside = np.stack([_halves(level, seed, at) for at in range(models)])
    losses = np.stack([_losses(parts, level, members, seed + 1 + at) for at, members in enumerate(inside)])
    scores = {"loss": -losses, "reference": _reference(losses, inside) - losses}
    names = [name for name in dict.fromkeys(level) if (level == name).sum() >= LEAST]
    return {
        name: Attacked(
            int((level == name).sum()),
            {kind: scores[kind][:, level == name] for kind in ATTACKS},
            inside[:, level == name],
        )
        for name in names
    }


def _halves(level: np.ndarray, seed: int, at: int) -> np.ndarray:
    """A random half of the clients of every level; of two models that follow each other the second has the others, so
    that everybody is an outsider to some."""
    draw, inside = rng.generator(seed, "reference models", at // 2), np.zeros(len(level), bool)
    for name in dict.fromkeys(level):
        order = draw.permutation(np.flatnonzero(level == name))
        inside[order[: -(-len(order) // 2)]] = True
    return ~inside if at % 2 and (~inside).sum() > 0 else inside


def _losses(parts: Parts, level: np.ndarray, inside: np.ndarray, seed: int) -> np.ndarray:
    """Every client's mean loss on its own training rows, under the shared model of a run with those inside alone."""
    clients = np.flatnonzero(inside)
    data = keep_clients(parts.federation, clients)
    privacy = replace(parts.privacy, choices={parts.federation.ids[k]: str(level[k]) for k in clients}, changes=())
    training = replace(parts.training, seed=seed)
    assembled = assemble(
        data, parts.model, parts.method, privacy, training, performance=parts.performance, objective=parts.objective
    )
    run = Run(*assembled, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=1 << 30, sample=1))
    run.advance(lambda: False)
    return _mean_losses(run, parts)


def _mean_losses(run: Run, parts: Parts) -> np.ndarray:
    everybody, engine = parts.federation, run.engine
    model = {**engine.start, **run.progress.server.view.model}
    dtype = next(iter(model.values())).dtype
    means = np.empty(everybody.clients)
    with torch.no_grad():
        for k in range(everybody.clients):
            x, y = everybody.take(torch.arange(*everybody.offsets[k : k + 2]))
            means[k] = float(engine.task.losses(model, x.to(dtype) if x.is_floating_point() else x, y).mean())
    return means


def _reference(losses: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """For each model and client: the mean loss under the other models that the client is an outsider to."""
    outside = ~inside
    total, count = (losses * outside).sum(0), outside.sum(0)
    return (total - losses * outside) / np.maximum(count - outside, 1)


def _auc(members: np.ndarray, outsiders: np.ndarray) -> float:
    """How often one of the first is larger than one of the second; ties count half."""
    return float(np.mean(np.sign(members[:, None] - outsiders[None, :]) / 2 + 0.5))
