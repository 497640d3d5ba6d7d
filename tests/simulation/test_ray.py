# pyright: reportMissingImports=false
"""Chunks on a Ray cluster of two workers on this machine: the same numbers as in process."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.core.contract import Method
from tacit.errors import TacitError
from tacit.experiments.config import fingerprint
from tacit.methods import Ditto, FedAvg, Multitask, Scaffold
from tacit.privacy import mechanisms as plans
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.membership import Change
from tacit.rounds.assemble import Performance, Privacy
from tacit.rounds.loop import Run
from tacit.simulation.chunks import Compile
from tests.experiments.tiny import run as run_tiny
from tests.experiments.tiny import tiny
from tests.worlds import DISTRIBUTED, GROUPED, PLANS, PRIVATE, largest_difference, run, states

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray: pip install 'tacit-fl[ray]'")
pytestmark = pytest.mark.filterwarnings(  # Ray leaves files and processes to be found by the garbage collector
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, and as many threads in process, so that both cut a cohort alike."""
    from tacit.simulation.ray import connect

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    connect()
    import ray

    yield ray
    ray.shutdown()
    torch.set_num_threads(threads)


def ended(method: Method, privacy: Privacy, compile: Compile = "auto", **options: Any) -> Run:
    one = run(method, privacy, **options)
    one.engine = replace(one.engine, compile=compile, programs={})
    one.go()
    return one


def assert_same(one: Run, other: Run) -> None:
    assert largest_difference(one.progress.server.view.model, other.progress.server.view.model) == 0
    assert largest_difference(states(one), states(other)) == 0


@needs_ray
@pytest.mark.parametrize("plan", PLANS)
def test_a_cluster_computes_what_this_process_does(cluster: Any, plan: str) -> None:
    method = FedAvg() if plan == "record" else Ditto()
    assert_same(ended(method, PLANS[plan]), ended(method, PLANS[plan], engine="ray"))


@needs_ray
@pytest.mark.parametrize("method", [Scaffold(), Multitask()])
def test_controls_and_gathered_messages_come_back_from_the_cluster(cluster: Any, method: Method) -> None:
    assert_same(ended(method, Privacy(), chunk=3), ended(method, Privacy(), chunk=3, engine="ray"))


@needs_ray
def test_workers_record_programs_too(cluster: Any) -> None:
    assert_same(ended(Ditto(), GROUPED, compile="require"), ended(Ditto(), GROUPED, compile="require", engine="ray"))


@needs_ray
def test_the_secure_sum_is_made_of_what_the_cluster_sends(cluster: Any) -> None:
    secure = Privacy(plans.Distributed(Fixed(0.5), secure_sum=True), (PRIVATE,))
    assert_same(ended(FedAvg(), DISTRIBUTED), ended(FedAvg(), secure, engine="ray"))


@needs_ray
def test_workers_follow_a_change_of_levels(cluster: Any) -> None:
    moving = replace(GROUPED, changes=(Change(2, "c3", "private"), Change(2, "c4", "open")))
    assert_same(ended(FedAvg(), moving), ended(FedAvg(), moving, engine="ray"))


@needs_ray
def test_a_worker_that_dies_is_replaced_and_nothing_changes(cluster: Any) -> None:
    expected = ended(Ditto(), GROUPED)
    one = run(Ditto(), GROUPED, engine="ray")
    one.step()
    cluster.kill(one.engine.crew[0], no_restart=False)  # type: ignore[attr-defined]
    one.go()
    assert_same(expected, one)


@needs_ray
def test_a_file_asks_for_it_and_the_run_is_still_the_same_one(cluster: Any, tmp_path: Path) -> None:
    two = ("performance.threads=2",)
    one, other = run_tiny(tmp_path / "here", *two), run_tiny(tmp_path / "there", *two, "performance.engine=ray")
    assert_same(one.run, other.run)


def test_the_engine_leaves_the_result_as_it_is() -> None:
    assert fingerprint(tiny()) == fingerprint(tiny("performance.engine=ray"))


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TacitError, match="engine='spark'"):
        Performance(engine="spark")  # type: ignore[arg-type]


def test_without_ray_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-fl\[ray\]'"):
        run(FedAvg(), engine="ray")
