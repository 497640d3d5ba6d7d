"""Chunks of the cohort on a Ray cluster (extra `ray`), for simulations that outgrow one machine.

Each worker has the whole federation and the client programs; a chunk's states travel with it, and come back. The store,
the ledger, checkpoints and evaluation stay where the run was started. A chunk's round is a pure function, so a worker
that died is replaced and its chunks are computed again, to the same numbers.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch

from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.plan import Plan
from tacit.simulation import device
from tacit.simulation.client_states import Store
from tacit.simulation.cohort_program import Broadcast, CohortProgram, Computed

_AHEAD = 2  # chunks sent to a worker before the first comes back
_TRIES = 3  # how often a chunk is tried again whose worker died


def connect(address: str | None = None, cores: int | None = None) -> Any:
    """Joins a cluster, or starts one here; the package `ray`, connected.

    Nothing is reported to anybody: Ray's usage statistics are off unless somebody turned them on.

    Args:
        address: of a cluster; "local" for one that starts here. None: the one that RAY_ADDRESS names, if it names one.
        cores: of a cluster that starts here; as many as torch has threads by default.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray, address = _ray(), address or os.environ.get("RAY_ADDRESS", "local")
    if not ray.is_initialized():
        here = {"num_cpus": cores or torch.get_num_threads(), "include_dashboard": False} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    return ray


def _ray() -> Any:
    """The package, which is large and may not be there: imported when it is used."""
    try:
        return import_module("ray")
    except ImportError:
        raise TacitError("engine 'ray' needs the package ray: pip install 'tacit-fl[ray]'") from None


class Worker:
    """Lives on the cluster: one torch thread, a run's client programs, and what it has recorded of them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        device.keep_memory()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # they are shared, and only read
        self._named: tuple[str, CohortProgram] | None = None

    def compute(self, engine: "Lent", given: Broadcast, clients: np.ndarray, state: Tree) -> Computed:
        programs = self._fetched(engine)
        programs.prepare(given, clients)
        return programs.compute(programs.task, given, clients, programs.inputs_for(state, clients, given.round))

    def _fetched(self, engine: "Lent") -> CohortProgram:
        """Once for each engine, and again by a worker that took a dead one's place."""
        if self._named is None or self._named[0] != engine.name:
            self._named = engine.name, _ray().get(engine.place)
        return self._named[1]


class Lent(NamedTuple):
    """An engine that lies on the cluster. It is fetched by who needs it, not sent with every chunk."""

    name: str
    place: Any


@dataclass(frozen=True, eq=False)
class OnRay(CohortProgram):
    """Runs chunks on the cluster's workers; the results are those of `CohortProgram` with as many workers."""

    @property
    def several(self) -> int:
        return max(1, int(_ray().cluster_resources().get("CPU", 1)))

    @cached_property
    def lent(self) -> Lent:
        """What a worker needs: no threads, nothing recorded, nothing of Ray."""
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return Lent(uuid4().hex, _ray().put(CohortProgram(**{**given, "programs": {}})))

    @property
    def crew(self) -> tuple[Any, ...]:
        return _crew(_ray().get_runtime_context().gcs_address, self.several)

    def under(self, plan: Plan) -> "OnRay":
        return replace(self, plan=plan, programs={}, decisions={})

    def _parts(self, given: Broadcast, store: Store, gathered: Tree, chunks: Sequence[np.ndarray]) -> Iterator[Totals]:
        shared, crew, waiting = _ray().put(given), self.crew, deque[tuple[np.ndarray, Any]]()
        for number, clients in enumerate(chunks):
            worker, state = crew[number % len(crew)], self._states(given.view, clients, store)
            waiting.append((clients, worker.compute.remote(self.lent, shared, clients, state)))
            if len(waiting) > _AHEAD * len(crew):
                yield self._received(given.round, store, gathered, *waiting.popleft())
        while waiting:
            yield self._received(given.round, store, gathered, *waiting.popleft())

    def _received(self, round: int, store: Store, gathered: Tree, clients: np.ndarray, computing: Any) -> Totals:
        return self._keep(round, store, gathered, clients, _ray().get(computing))


@lru_cache(maxsize=1)
def _crew(cluster: str, several: int) -> tuple[Any, ...]:
    """The workers of this process on a cluster; all its runs share them."""
    remote = _ray().remote(num_cpus=1, max_restarts=-1, max_task_retries=_TRIES)(Worker)
    return tuple(remote.remote() for _ in range(several))
