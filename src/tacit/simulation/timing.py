"""Where a run's time goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np

from tacit.core.contract import Tree
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
