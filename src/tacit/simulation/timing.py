"""Where a run's time goes.

How different the clients are: earth mover's distances between their training losses (PrivateFL, Section 2.3).

In every round a client's local model, as trained in that round, has a mean loss on the rows it was trained on. Over the
rounds these make one distribution for each client; heterogeneity is the mean distance between two clients' of them.
Simulation only: a deployment reports no losses.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng, tree
from tacit.core.contract import Method, Reply, Shared, Site, Tree
from tacit.models.functional import Loss
from tacit.simulation.client_states import Store

SECTIONS = ("sampling", "ledger", "local training", "storage", "release", "evaluation", "checkpoint")


class Clock:
    """Seconds of wall clock by section. A section inside another is taken out of it, so nothing counts twice.

    Storage is read and written by several workers side by side: their seconds are divided by their number.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds: dict[str, float] = dict.fromkeys(SECTIONS, 0.0)
        self._outer: str | None = None
        self._lock = Lock()

    @contextmanager
    def section(self, name: str, workers: int = 1) -> Iterator[None]:
        """For the thread of the run; with `workers`, for any of its workers."""
        outer, began = self._outer, self._now()
        if workers == 1:
            self._outer = name
        try:
            yield
        finally:
            taken = (self._now() - began) / workers
            if workers == 1:
                self._outer = outer
            with self._lock:
                self.seconds[name] += taken
                if outer is not None:
                    self.seconds[outer] -= taken


class TimedStore:
    """A store whose reading and writing shows on the clock."""

    def __init__(self, store: Store, clock: Clock, workers: int) -> None:
        self._store, self._clock, self._workers = store, clock, workers

    @property
    def touched(self) -> np.ndarray:
        return self._store.touched

    def expect(self, clients: np.ndarray) -> None:
        self._store.expect(clients)

    def read(self, clients: np.ndarray, first: Tree) -> Tree:
        with self._clock.section("storage", self._workers):
            return self._store.read(clients, first)

    def write(self, clients: np.ndarray, states: Tree) -> None:
        with self._clock.section("storage", self._workers):
            self._store.write(clients, states)

    def prepare(self) -> Tree:
        return self._store.prepare()

    def commit(self) -> None:
        self._store.commit()

    def restore(self, saved: Tree) -> None:
        self._store.restore(saved)


MOST: Final = 500  # clients whose losses are kept; a random sample of more than these


class Spread(NamedTuple):
    """Mean and standard deviation of the distances between two clients, over all pairs."""

    mean: float
    std: float


class LossRecorder:
    """Losses by round and client; not a number where a client did not take part."""

    def __init__(self, clients: int, rounds: int, seed: int) -> None:
        kept = rng.generator(seed, "diary").permutation(clients)[:MOST]
        self._place = np.full(clients, -1)
        self._place[kept] = np.arange(len(kept))
        self.losses = torch.full((rounds, len(kept)), torch.nan, dtype=torch.float64)

    def write(self, round: int, clients: np.ndarray, losses: Tensor) -> None:
        place = torch.from_numpy(self._place[clients])
        kept = place >= 0
        self.losses[round, place[kept]] = losses[kept].double()

    def spread(self) -> Spread | None:
        """None until two clients have taken part."""
        known = [losses[~losses.isnan()].numpy() for losses in self.losses.T]
        found = distances([each for each in known if len(each)])
        return Spread(float(found.mean()), float(found.std())) if len(found) else None


def local_loss(method: Method, view: Shared, reply: Reply, site: Site, loss: Loss) -> Tensor:
    """Mean loss of the client's own model after the round's training, on the rows of the round; NaN without rows."""
    moved = tree.add(tree.pick(view.model, reply.upload.model), reply.upload.model)
    local = Shared(view.model | moved, view.extra)
    total, rows = torch.zeros(()), torch.zeros(())
    for step in range(site.steps):
        x, y, mask = site.batch(step)
        each, real = loss(method.predict(site.task, local, reply.state, x), y), mask & site.live[step]
        total, rows = total + torch.where(real, each, 0.0).sum(), rows + real.sum()
    return total / rows


def distances(samples: list[np.ndarray]) -> np.ndarray:
    """The earth mover's distance of each pair of samples: the area between their distribution functions."""
    if len(samples) < 2:
        return np.zeros(0)
    if len({len(sample) for sample in samples}) == 1:  # between quantile functions: the sorted samples themselves
        rows = torch.from_numpy(np.sort(np.stack(samples).astype(np.float64), axis=1))
        return torch.nn.functional.pdist(rows, p=1).numpy() / rows.shape[1]
    places = np.sort(np.concatenate(samples))
    below = np.stack([np.searchsorted(np.sort(each), places[:-1], side="right") / len(each) for each in samples])
    widths = np.diff(places)
    return np.concatenate([np.abs(below[k + 1 :] - below[k]) @ widths for k in range(len(samples) - 1)])
