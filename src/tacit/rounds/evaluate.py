"""How good the models are: the global one on the common test set, global and personal on each client's own.

Simulation only, but for `alone`: a deployment reports nothing that was not paid for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import rng, tree
from tacit.core.contract import Shared, Task, Tree
from tacit.core.tensors import from_array, split_rows
from tacit.data.dataset import FederatedDataset, as_input
from tacit.models.functional import ModuleTask
from tacit.models.metrics import ACCURACY, Metric
from tacit.privacy.mechanisms.clipping import measure
from tacit.simulation.chunks import Inputs
from tacit.simulation.client_program import ClientProgram
from tacit.simulation.client_states import Store
from tacit.simulation.cohort_program import CohortProgram

_ROWS = 4096  # test rows predicted at once
_CLIENTS = 50  # personal models evaluated at once
_LOOKED_AT = 8  # clients whose updates are measured
_OWN_ROWS = 256  # training rows that batch statistics are taken from


class Padded(NamedTuple):
    rows: Tensor
    real: Tensor


@dataclass(frozen=True)
class Summary:
    """A metric of a group of clients. `worst_decile`: mean over the worst tenth of them (at least one)."""

    clients: int
    mean: float
    variance: float
    worst_decile: float

    @classmethod
    def of(cls, values: np.ndarray, larger: bool = True) -> "Summary":
        """`larger`: whether larger is better."""
        if not len(values):
            return cls(0, float("nan"), float("nan"), float("nan"))
        worst = np.sort(values if larger else -values)[: max(1, len(values) // 10)] * (1 if larger else -1)
        return cls(len(values), float(values.mean()), float(values.var()), float(worst.mean()))


@dataclass(frozen=True, eq=False)
class Scores:
    """A metric of every evaluated client's own test rows. Clients without test rows are left out."""

    common: float | None  # the global model on the common test set
    clients: np.ndarray  # which clients
    level: np.ndarray  # their privacy levels
    shared: np.ndarray  # the global model on their own test rows
    personal: np.ndarray  # their personal models on the same rows
    strangers: int  # of them, those that never took part
    loss: float | None = None  # mean loss of the global model on the common test set
    metric: Metric = ACCURACY
    others: tuple["Scores", ...] = ()  # by further metrics

    def summary(self, which: str, level: int | None = None) -> Summary:
        """`which`: "shared" or "personal"; of one level, or of all clients."""
        values = getattr(self, which)
        return Summary.of(values if level is None else values[self.level == level], self.metric.larger)


class NoisyScores(NamedTuple):
    """An evaluation by a federation's members: noisy means over all of them, who did not answer counting as the middle.

    `std`: of the noise in each mean. None: too few answered for a release.
    """

    asked: int
    answered: int
    std: float
    shared: float | None = None
    personal: float | None = None
    metric: str = ACCURACY.name


def evaluate(
    engine: CohortProgram, view: Shared, store: Store, round: int, sample: int | None = None, chunk: int | None = None
) -> Scores:
    """Scores of all clients, or of a random `sample` of them (the same one in every round)."""
    clients = _who(engine.federation, engine.seed, sample)
    # what a method keeps local is not in the broadcast: the shared model alone has it as it was at the start
    shared, common, loss = engine.away(partial(_shared, engine.there), engine.start | view.model)
    personal = _personal(engine, view, store, clients, round, chunk)
    first, *others = (
        Scores(
            common=None if common is None else common[at],
            loss=loss,
            clients=clients,
            level=engine.plan.setting.choices.level[clients],
            shared=shared[clients, at],
            personal=personal[:, at],
            strangers=int((~store.touched[clients]).sum()),
            metric=metric,
        )
        for at, metric in enumerate(engine.task.metrics)
    )
    return replace(first, others=tuple(others))


def kept_length(engine: CohortProgram, view: Shared, bound: Tensor, store: Store, round: int) -> float:
    """The share of an update's length that a clip to `bound` leaves: the median over a few clients.

    Simulation only. It looks at updates before they are clipped, which no release covers; whoever runs the simulation
    is told, and no round depends on it.
    """
    clients = rng.generator(engine.seed, "kept length").permutation(engine.federation.clients)[:_LOOKED_AT]
    inputs = engine.inputs_for(store.read(clients, engine.method.join(view, engine.start)), clients, round)
    full = inputs.full

    def everybody(view: Shared, inputs: Inputs) -> Tensor:
        return vmap(partial(_length, engine.there, engine.task, view, round, full))(inputs)

    lengths = engine.away(everybody, view, inputs).double()
    return float(
        (bound.double() / lengths.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1).nan_to_num(0).median()
    )


def _length(engine: ClientProgram, task: ModuleTask, view: Shared, round: int, full: int, given: Inputs) -> Tensor:
    """Of one client's upload, before it is clipped."""
    site, _ = engine.site(task, given, round, full)
    return measure(tree.join(engine.method.client(view, given.state, site).upload)).sqrt()


def _shared(engine: ClientProgram, params: Tree) -> tuple[np.ndarray, list[float] | None, float | None]:
    """The shared model's metrics on each client's own test rows, [clients, metrics]; metrics and loss on the common."""
    data = engine.federation
    task = engine.task.with_rows(*_some_rows(data, engine.seed))
    metrics = engine.task.metrics
    sums = _sums(metrics, task, params, data.test_x, data.test_y, data.test_offsets)
    common, loss = _on_common(metrics, task, params, data)
    return np.stack([_finished(*each) for each in zip(metrics, sums, strict=True)], 1), common, loss


def _who(data: FederatedDataset, seed: int, sample: int | None) -> np.ndarray:
    tested = np.flatnonzero(np.diff(data.test_offsets) > 0)
    if sample is None or sample >= len(tested):
        return tested
    return np.sort(rng.generator(seed, "evaluate").choice(tested, sample, replace=False))


def _some_rows(data: FederatedDataset, seed: int) -> tuple[Tensor, Tensor]:
    """Training rows for the batch statistics of the shared model, where it has any."""
    rows = rng.generator(seed, "statistics").integers(len(data.y), size=_OWN_ROWS)
    inputs = as_input(data.x[from_array(rows).to(data.x.device)])
    return inputs, torch.ones(_OWN_ROWS, dtype=torch.bool, device=inputs.device)


def _sums(
    metrics: Sequence[Metric], task: Task, params: Tree, x: Tensor, y: Tensor, offsets: np.ndarray
) -> list[list[np.ndarray]]:
    """By metric, the sums of each of its terms over the rows between offsets."""
    parts = [
        [metric.terms(outputs, targets) for metric in metrics]
        for rows, targets in zip(split_rows(x, _ROWS), split_rows(y, _ROWS), strict=True)
        for outputs in (task.apply(params, as_input(rows)),)
    ]
    if not len(y):
        return [[np.zeros(len(offsets) - 1)] * 2 for _ in metrics]
    terms = (zip(*(part[at] for part in parts), strict=True) for at in range(len(metrics)))
    return [[_between(torch.cat(each), offsets) for each in term] for term in terms]


def _between(term: Tensor, offsets: np.ndarray) -> np.ndarray:
    values = term.cpu().numpy().astype(np.float64)
    sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, 0)])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _finished(metric: Metric, sums: Sequence[np.ndarray]) -> np.ndarray:
    """Not a number where there are no rows."""
    return metric.finish(*map(from_array, sums)).double().numpy()


def _on_common(
    metrics: Sequence[Metric], task: Task, params: Tree, data: FederatedDataset
) -> tuple[list[float], float] | tuple[None, None]:
    """Metrics and mean loss on the common test set, if there is one."""
    if data.common_x is None or data.common_y is None:
        return None, None
    x, y = data.common_x, data.common_y
    losses = [
        task.losses(params, as_input(rows), targets)
        for rows, targets in zip(split_rows(x, _ROWS), split_rows(y, _ROWS), strict=True)
    ]
    sums = _sums(metrics, task, params, x, y, np.array([0, len(y)]))
    scores = [float(_finished(*each)[0]) for each in zip(metrics, sums, strict=True)]
    return scores, float(torch.cat(losses).mean())


def _personal(
    engine: CohortProgram, view: Shared, store: Store, clients: np.ndarray, round: int, chunk: int | None
) -> np.ndarray:
    first = engine.method.join(view, engine.start)
    order = np.argsort(np.diff(engine.federation.test_offsets)[clients], kind="stable")
    places = [order[begin : begin + (chunk or _CLIENTS)] for begin in range(0, len(order), chunk or _CLIENTS)]

    def measure(task: ModuleTask, where: np.ndarray) -> np.ndarray:
        some = clients[where]
        inputs = engine.inputs_for(store.read(some, first), some, round, "adapt")
        return _measured(engine, task, view, inputs, round, some)

    scores = np.empty((len(clients), len(engine.task.metrics)))
    for where, values in zip(places, engine.workers.map(measure, places), strict=True):
        scores[where] = values
    return scores


def _measured(
    engine: CohortProgram, task: ModuleTask, view: Shared, inputs: Inputs, round: int, clients: np.ndarray
) -> np.ndarray:
    data, full = engine.federation, inputs.full
    training, test = _padded(data.offsets, clients, _OWN_ROWS), _padded(data.test_offsets, clients)

    def everybody(view: Shared, inputs: Inputs, training: Padded, test: Padded) -> Tensor:
        return vmap(partial(_own_metrics, engine.there, task, view, round, full))(inputs, training, test)

    return engine.away(everybody, view, inputs, training, test).numpy().astype(np.float64)


def _own_metrics(
    engine: ClientProgram,
    task: ModuleTask,
    view: Shared,
    round: int,
    full: int,
    inputs: Inputs,
    training: Padded,
    test: Padded,
) -> Tensor:
    """[metrics] of one client's personal model on its own test rows."""
    data = engine.federation
    site, _ = engine.site(task, inputs, round, full)
    state = engine.method.adapt(view, inputs.state, site)
    # batch statistics come from the client's own training rows, never from test rows
    measured = task.with_rows(as_input(data.x[training.rows]), training.real)
    outputs = engine.method.predict(measured, view, state, as_input(data.test_x[test.rows]))
    return torch.stack([metric(outputs, data.test_y[test.rows], test.real) for metric in engine.task.metrics])


def alone(engine: ClientProgram, view: Shared, state: Tree, place: int, round: int) -> tuple[float, float] | None:
    """The shared and the personal model's (first) metric on one client's own test rows, by itself; None without any."""
    data, who = engine.federation, np.array([place])
    if data.test_offsets[place] == data.test_offsets[place + 1]:
        return None
    inputs = engine.inputs_for(tree.each(lambda leaf: leaf.unsqueeze(0), state), who, round, "adapt")
    single = Inputs(state, *(leaf[0] for leaf in inputs[1:]))
    rows = (
        Padded(*(part[0] for part in each))
        for each in (_padded(data.offsets, who, _OWN_ROWS), _padded(data.test_offsets, who))
    )
    training, test = rows
    measured = engine.task.with_rows(as_input(data.x[training.rows]), training.real)
    metric, ends = engine.task.metrics[:1], np.array([0, len(test.rows)])
    x, y = data.test_x[test.rows], data.test_y[test.rows]
    shared = _finished(metric[0], _sums(metric, measured, engine.start | view.model, x, y, ends)[0])[0]
    personal = _own_metrics(engine, engine.task, view, round, inputs.full, single, training, test)
    return float(shared), float(personal[0])


def _padded(offsets: np.ndarray, clients: np.ndarray, most: int | None = None) -> Padded:
    """Row numbers padded to the longest, and which are real."""
    begin, end = offsets[clients], offsets[clients + 1]
    longest = int((end - begin).max())
    rows = begin[:, None] + np.arange(longest if most is None else min(most, longest))[None, :]
    real = rows < end[:, None]
    return Padded(from_array(np.where(real, rows, begin[:, None])), from_array(real))
