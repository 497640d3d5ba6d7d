"""How good the models are: the global one on the common test set, global and personal on each client's own.

Simulation only, but for `alone`: a deployment reports nothing that was not paid for.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import rng, tree
from tacit.core.contract import Shared, Task, Tree
from tacit.data.dataset import FederatedDataset, as_input
from tacit.models.functional import ModuleTask
from tacit.simulation.chunks import Inputs
from tacit.simulation.client_program import ClientProgram
from tacit.simulation.client_states import Store
from tacit.simulation.cohort_program import CohortProgram

_ROWS = 4096  # test rows predicted at once
_CLIENTS = 50  # personal models evaluated at once
_OWN_ROWS = 256  # training rows that batch statistics are taken from


class Padded(NamedTuple):
    rows: Tensor
    real: Tensor


@dataclass(frozen=True)
class Summary:
    """Accuracies of a group of clients. `worst_decile`: mean over the worst tenth of them (at least one)."""

    clients: int
    mean: float
    variance: float
    worst_decile: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Summary":
        if not len(values):
            return cls(0, float("nan"), float("nan"), float("nan"))
        worst = np.sort(values)[: max(1, len(values) // 10)]
        return cls(len(values), float(values.mean()), float(values.var()), float(worst.mean()))


@dataclass(frozen=True, eq=False)
class Scores:
    """Accuracy of every evaluated client's own test rows. Clients without test rows are left out."""

    common: float | None  # the global model on the common test set
    clients: np.ndarray  # which clients
    level: np.ndarray  # their privacy levels
    shared: np.ndarray  # the global model on their own test rows
    personal: np.ndarray  # their personal models on the same rows
    strangers: int  # of them, those that never took part
    loss: float | None = None  # mean loss of the global model on the common test set

    def summary(self, which: str, level: int | None = None) -> Summary:
        """`which`: "shared" or "personal"; of one level, or of all clients."""
        values = getattr(self, which)
        return Summary.of(values if level is None else values[self.level == level])


class NoisyScores(NamedTuple):
    """An evaluation by a federation's members: noisy means over all of them, who did not answer counting as 1/2.

    `std`: of the noise in each mean. None: too few answered for a release.
    """

    asked: int
    answered: int
    std: float
    shared: float | None = None
    personal: float | None = None


def evaluate(
    engine: CohortProgram, view: Shared, store: Store, round: int, sample: int | None = None, chunk: int | None = None
) -> Scores:
    """Scores of all clients, or of a random `sample` of them (the same one in every round)."""
    clients = _who(engine.federation, engine.seed, sample)
    # what a method keeps local is not in the broadcast: the shared model alone has it as it was at the start
    shared, common, loss = engine.away(partial(_shared, engine.there), engine.start | view.model)
    return Scores(
        common=common,
        loss=loss,
        clients=clients,
        level=engine.plan.setting.choices.level[clients],
        shared=shared[clients],
        personal=_personal(engine, view, store, clients, round, chunk),
        strangers=int((~store.touched[clients]).sum()),
    )


def _shared(engine: ClientProgram, params: Tree) -> tuple[np.ndarray, float | None, float | None]:
    """Accuracy of the shared model on each client's own test rows; accuracy and loss on the common ones."""
    data = engine.federation
    task = engine.task.with_rows(*_some_rows(data, engine.seed))
    means = _client_means(_hits(task, params, data.test_x, data.test_y), data.test_offsets)
    common, loss = _on_common(task, params, data)
    return means, common, loss


def _who(data: FederatedDataset, seed: int, sample: int | None) -> np.ndarray:
    tested = np.flatnonzero(np.diff(data.test_offsets) > 0)
    if sample is None or sample >= len(tested):
        return tested
    return np.sort(rng.generator(seed, "evaluate").choice(tested, sample, replace=False))


def _some_rows(data: FederatedDataset, seed: int) -> tuple[Tensor, Tensor]:
    """Training rows for the batch statistics of the shared model, where it has any."""
    rows = rng.generator(seed, "statistics").integers(len(data.y), size=_OWN_ROWS)
    own = as_input(data.x[torch.from_numpy(rows).to(data.x.device)])
    return own, torch.ones(_OWN_ROWS, dtype=torch.bool, device=own.device)


def _hits(task: Task, params: Tree, x: Tensor, y: Tensor) -> np.ndarray:
    parts = [
        task.apply(params, as_input(rows)).argmax(-1) == labels
        for rows, labels in zip(x.split(_ROWS), y.split(_ROWS), strict=True)
    ]
    return torch.cat(parts).cpu().numpy().astype(np.float64) if len(y) else np.zeros(0)


def _on_common(task: Task, params: Tree, data: FederatedDataset) -> tuple[float, float] | tuple[None, None]:
    """Accuracy and mean loss on the common test set, if there is one."""
    if data.common_x is None or data.common_y is None:
        return None, None
    x, y = data.common_x, data.common_y
    losses = [
        task.losses(params, as_input(rows), own) for rows, own in zip(x.split(_ROWS), y.split(_ROWS), strict=True)
    ]
    return float(_hits(task, params, x, y).mean()), float(torch.cat(losses).mean())


def _client_means(hits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    sums = np.concatenate([[0.0], np.cumsum(hits)])
    counts = np.diff(offsets)
    return (sums[offsets[1:]] - sums[offsets[:-1]]) / np.maximum(counts, 1)


def _personal(
    engine: CohortProgram, view: Shared, store: Store, clients: np.ndarray, round: int, chunk: int | None
) -> np.ndarray:
    first = engine.method.join(view, engine.start)
    order = np.argsort(np.diff(engine.federation.test_offsets)[clients], kind="stable")
    places = [order[begin : begin + (chunk or _CLIENTS)] for begin in range(0, len(order), chunk or _CLIENTS)]

    def accuracy(task: ModuleTask, where: np.ndarray) -> np.ndarray:
        some = clients[where]
        inputs = engine.inputs_for(store.read(some, first), some, round, "adapt")
        return _accuracy(engine, task, view, inputs, round, some)

    found = np.empty(len(clients))
    for where, values in zip(places, engine.workers.map(accuracy, places), strict=True):
        found[where] = values
    return found


def _accuracy(
    engine: CohortProgram, task: ModuleTask, view: Shared, inputs: Inputs, round: int, clients: np.ndarray
) -> np.ndarray:
    data, full = engine.federation, inputs.full
    own, test = _padded(data.offsets, clients, _OWN_ROWS), _padded(data.test_offsets, clients)

    def everybody(view: Shared, inputs: Inputs, own: Padded, test: Padded) -> Tensor:
        return vmap(partial(_own_accuracy, engine.there, task, view, round, full))(inputs, own, test)

    return engine.away(everybody, view, inputs, own, test).numpy().astype(np.float64)


def _own_accuracy(
    engine: ClientProgram,
    task: ModuleTask,
    view: Shared,
    round: int,
    full: int,
    given: Inputs,
    own: Padded,
    test: Padded,
) -> Tensor:
    """Of one client's personal model on its own test rows."""
    data = engine.federation
    site, _ = engine.site(task, given, round, full)
    state = engine.method.adapt(view, given.state, site)
    # batch statistics come from the client's own training rows, never from test rows
    measured = task.with_rows(as_input(data.x[own.rows]), own.real)
    outputs = engine.method.predict(measured, view, state, as_input(data.test_x[test.rows]))
    return ((outputs.argmax(-1) == data.test_y[test.rows]) & test.real).sum() / test.real.sum()


def alone(engine: ClientProgram, view: Shared, state: Tree, place: int, round: int) -> tuple[float, float] | None:
    """The shared and the personal model's accuracy on one client's own test rows, by itself; None if it has none."""
    data, who = engine.federation, np.array([place])
    if data.test_offsets[place] == data.test_offsets[place + 1]:
        return None
    inputs = engine.inputs_for(tree.each(lambda leaf: leaf.unsqueeze(0), state), who, round, "adapt")
    given = Inputs(state, *(leaf[0] for leaf in inputs[1:]))
    rows = (
        Padded(*(part[0] for part in each))
        for each in (_padded(data.offsets, who, _OWN_ROWS), _padded(data.test_offsets, who))
    )
    own, test = rows
    measured = engine.task.with_rows(as_input(data.x[own.rows]), own.real)
    shared = _hits(measured, engine.start | view.model, data.test_x[test.rows], data.test_y[test.rows]).mean()
    personal = _own_accuracy(engine, engine.task, view, round, inputs.full, given, own, test)
    return float(shared), float(personal)


def _padded(offsets: np.ndarray, clients: np.ndarray, most: int | None = None) -> Padded:
    """Row numbers padded to the longest, and which are real."""
    begin, end = offsets[clients], offsets[clients + 1]
    longest = int((end - begin).max())
    rows = begin[:, None] + np.arange(longest if most is None else min(most, longest))[None, :]
    real = rows < end[:, None]
    return Padded(torch.from_numpy(np.where(real, rows, begin[:, None])), torch.from_numpy(real))
