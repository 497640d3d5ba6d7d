"""Clients compute on any device: their tensors meet those of no other one, and the numbers are the same.

No device but the CPU is at hand: a pretended one (`tests/elsewhere.py`) refuses what a real one would.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.core.contract import Reply, Shared, Site, Tree
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.experiments import train
from tacit.experiments.config import fingerprint
from tacit.federation.service.experiment import experiment_of, text_of
from tacit.methods import REGISTRY, Ditto, FedAvg
from tacit.models import FiveLayerCNN, TwoConvCNN, initialise, transformed
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.membership import Change
from tacit.rounds.assemble import Assembled, Performance, Privacy, Training, assemble
from tacit.rounds.loop import Outcome, Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.elsewhere import NAME, Elsewhere
from tests.experiments.tiny import run as run_tiny
from tests.experiments.tiny import stopping_after, tiny
from tests.worlds import DISTRIBUTED, GROUPED, PLANS, PRIVATE, assembled, largest_difference, ragged, states


def ended(parts: Assembled, device: str, schedule: Schedule, **options: Any) -> tuple[Run, Outcome]:
    engine = replace(parts.engine, device=torch.device(device), compile="off", programs={})
    run = Run(engine, parts.shapes, Ledger.open(":memory:"), schedule, **options)
    return run, run.go()


def assert_same_there(
    parts: Assembled, schedule: Schedule = Schedule(evaluate_every=1), rounding: float = 0.0, **options: Any
) -> None:
    """A run on the pretended device against one on the CPU: models, public state, clients' states and scores."""
    with Elsewhere() as device:
        there, found = ended(parts, NAME, schedule, **options)
    here, expected = ended(parts, "cpu", schedule, **options)
    assert device.operations > 100
    assert largest_difference(here.progress.server.view.model, there.progress.server.view.model) <= rounding
    assert largest_difference(here.progress.public, there.progress.public) == 0
    assert largest_difference(states(here), states(there)) == 0
    assert expected.scores is not None
    assert found.scores is not None
    assert np.array_equal(expected.scores.personal, found.scores.personal)
    assert np.array_equal(expected.scores.shared, found.scores.shared)
    assert [report.heterogeneity for report in expected.reports] == [report.heterogeneity for report in found.reports]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_runs_on_another_device(name: str) -> None:
    assert_same_there(assembled(REGISTRY[name](), Privacy(), ragged(4), rounds=1, rate=0.9, chunk=4))


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_runs_on_another_device(plan: str) -> None:
    assert_same_there(assembled(Ditto(), PLANS[plan], ragged(4), rounds=1, rate=0.9, chunk=3))


@pytest.mark.parametrize(
    "model",
    [
        FiveLayerCNN(side=16, classes=3),
        transformed(TwoConvCNN(side=8, classes=3, hidden=(2, 3, 4)), (1, 8, 8)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    ],
    ids=["pooled convolution", "transform and convolution", "batch norm"],
)
def test_models_run_on_another_device(model: nn.Module) -> None:
    """Convolutions are those of the device, not our kernels for CPUs: equal but for rounding."""
    side, draw = 16 if isinstance(model, FiveLayerCNN) else 8, np.random.default_rng(0)
    rows = {k: (draw.integers(255, size=(5, 1, side, side), dtype=np.uint8), draw.integers(3, size=5)) for k in "abc"}
    federation = from_clients(rows, classes=3, common=rows["a"], images=True)
    training = Training(1, Poisson(0.9), 4, seed=1, dtype=torch.float64)
    performance = Performance(chunk=2)
    parts = assemble(federation, initialise(model, 0), FedAvg(), Privacy(), training, performance=performance)
    assert_same_there(parts, rounding=1e-12)


def test_changes_of_level_and_losses_of_clients_do_too() -> None:
    changes = (Change(1, "c3", "private"), Change(1, "c4", "open"))
    parts = assembled(FedAvg(), replace(GROUPED, changes=changes), ragged(6), rounds=2, chunk=3)
    assert_same_there(parts, Schedule(evaluate_every=1, heterogeneity=True), changes=changes)


def test_a_sum_by_secure_aggregation_does_too() -> None:
    secure = Privacy(replace(DISTRIBUTED.plan, secure_sum=True), (PRIVATE,))
    assert_same_there(assembled(FedAvg(), secure, ragged(4), rounds=1, rate=0.9, chunk=3))


@dataclass(frozen=True)
class Careless(FedAvg):
    """Adds a tensor that it made on the CPU, by name."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, state, site)
        return reply._replace(upload=Shared({k: v + torch.zeros(v.shape, device="cpu") for k, v in view.model.items()}))


def test_the_pretended_device_refuses_a_tensor_of_another() -> None:
    with Elsewhere(), pytest.raises(RuntimeError, match="not on the device"):
        ended(assembled(Careless(), Privacy(), ragged(6), rounds=1), NAME, Schedule())


def test_a_file_asks_for_it_and_a_run_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, states and ledger lie on the CPU, and `device` is no part of the fingerprint."""
    short = ("levels=", "choices=", "rounds=4", "rate=0.2", "evaluate.every=4", "run.checkpoint_every=2")
    short = (*short, "performance.chunk=4")
    expected = run_tiny(tmp_path / "here", *short)
    with monkeypatch.context() as patched:
        patched.setattr(train, "interruptible", stopping_after(2))
        run_tiny(tmp_path / "there", *short)
    with Elsewhere() as device:
        found = run_tiny(tmp_path / "there", *short, f"performance.device={NAME}", resume=True)
    assert device.operations > 100
    models = (result.run.progress.server.view.model for result in (expected, found))
    assert largest_difference(*models) == 0
    rows = expected.run.engine.federation.x[:3]
    assert np.array_equal(expected.predict(rows, "0"), found.predict(rows, "0"))


@pytest.mark.parametrize(
    ("device", "what"),
    [
        ("gpu", "device is 'gpu', which torch does not know: use 'cpu', 'cuda' or 'cuda:1'"),
        ("meta", r"device is 'meta', which cannot compute here \(.*\): use 'cpu'"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_in_one_line(device: str, what: str) -> None:
    with pytest.raises(TacitError, match=what) as error:
        Performance(device=device)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(TacitError, match=r"device is 'cuda', which cannot compute here \(.*CUDA.*\): use 'cpu'"):
        Performance(device="cuda")


def test_ray_and_federations_compute_on_cpus() -> None:
    with pytest.raises(TacitError, match="device is 'cuda', and Ray's workers compute on CPUs"):
        Performance(engine="ray", device="cuda")
    with pytest.raises(
        TacitError, match=r"performance.device is 'cuda', and members compute on their CPUs: leave it out"
    ):
        experiment_of(text_of(tiny("performance.device=cuda")))


def test_the_device_leaves_the_result_as_it_is() -> None:
    assert fingerprint(tiny()) == fingerprint(tiny("performance.device=cuda"))
