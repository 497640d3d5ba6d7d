"""In a federation noise is exact, whatever the terms say; in a simulation it is where that is asked for."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.core import tree
from tacit.core.contract import Method
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy
from tacit.experiments.config import parse
from tacit.experiments.run_dir import identity
from tacit.federation.protocol.messages import Answer, unpack
from tacit.federation.service.experiment import experiment_of, text_of
from tacit.methods import FedAvg, Multitask
from tacit.privacy import mechanisms as plans
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Quantile
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.privacy.plan import EXACT
from tacit.rounds.assemble import Privacy
from tests.federation.in_process import Wire, World
from tests.worlds import PLANS, PRIVATE, assembled, largest_difference, ragged

BUDGET = Level("private", epsilon=8.0, delta=1e-3)
MOVING = {
    "central, moving": Privacy(plans.Central(Quantile(0.5)), (PRIVATE,)),
    "local, moving": Privacy(plans.Local(Quantile(0.5)), (PRIVATE,)),
    "stepwise": Privacy(Stepwise(0.5), (PRIVATE,)),
}
NOISY = {name: PLANS[name] for name in ("central", "grouped", "local", "record")} | MOVING


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("Gaussian noise on floats")


def federated(world: World, folder: Path) -> tuple[Any, Wire]:
    wire = Wire(world.clients(folder))
    server = world.conductor(folder, wire)
    assert server.go() is None
    return server, wire


@pytest.mark.parametrize("name", NOISY)
def test_a_federation_adds_no_noise_to_floats(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noises, "add", refuse)
    monkeypatch.setattr(noises.Secure, "normal", refuse)
    steps = 2 if name == "stepwise" else None
    world = World(FedAvg(), NOISY[name], ragged(3), rounds=2, rate=1.0, fresh=True, steps=steps, dtype=torch.float32)
    server, wire = federated(world, tmp_path)
    assert EXACT in server.plan.notes
    assert not server.rejections  # nothing of an honest client was turned away
    model = server.progress.server.view.model
    assert all(leaf.dtype == torch.float32 and bool(leaf.isfinite().all()) for leaf in model.values())
    bodies = [tree.strip("body", unpack(Answer, blob).tensors) for _, blob in wire.answers]
    kinds = {leaf.dtype for body in bodies for leaf in body.values()}
    assert kinds == ({torch.float32} if name in ("record", "stepwise") else {torch.int32})


@pytest.mark.parametrize("name", ["central", "local", "record"])
def test_figures_of_an_evaluation_have_exact_noise(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noises.Secure, "normal", refuse)
    evaluation = Evaluation(1, 0.3)
    privacy = replace(PLANS[name], levels=(BUDGET,), allow_large_delta=True, evaluation=evaluation)
    server, wire = federated(World(FedAvg(), privacy, ragged(3), rounds=1, rate=1.0, fresh=True), tmp_path)
    leaf = "body/model/shared"
    sent = [unpack(Answer, blob).tensors.get(leaf) for _, blob in wire.answers]
    assert sum(each is not None and each.dtype == torch.int32 for each in sent) == 3
    assert not server.rejections


SUMMED = [(name, FedAvg()) for name in ("central", "grouped", "local", "record", "local, moving")]


@pytest.mark.parametrize(("name", "method"), [*SUMMED, ("local", Multitask())])
def test_with_common_seeds_an_exact_federation_is_its_exact_simulation(
    name: str, method: Method, tmp_path: Path
) -> None:
    world = World(method, replace(NOISY[name], noise="exact"), ragged(3))
    expected = world.simulated()
    expected.go()
    server, _ = federated(world, tmp_path)
    view, known = (tree.join(each.progress.server.view) for each in (server, expected))
    assert largest_difference(view, known) < 1e-9
    fast = World(method, NOISY[name], ragged(3)).simulated()
    fast.go()
    assert largest_difference(known, tree.join(fast.progress.server.view)) > 1e-6


@pytest.mark.parametrize("name", ["central", "grouped", "local", "record"])
def test_an_exact_simulation_does_not_depend_on_chunks(name: str) -> None:
    from tacit.privacy.ledger.ledger import Ledger
    from tacit.rounds.loop import Run

    ends = []
    for chunk in (1, 7):
        made = assembled(FedAvg(), replace(NOISY[name], noise="exact"), rounds=2, chunk=chunk)
        run = Run(*made, ledger=Ledger.open(":memory:"))
        run.go()
        ends.append(tree.join(run.progress.server.view))
    assert largest_difference(*ends) < 1e-12


def test_exact_noise_is_asked_for_in_a_file_and_makes_another_run() -> None:
    tables = {
        "privacy": {"plan": "central", "noise": "exact"},
        "levels": {"private": {"epsilon": 8.0, "delta": 1e-3}},
    }
    assert build_privacy(parse(tables)).noise == "exact"
    exact, fast = (assembled(FedAvg(), replace(NOISY["central"], noise=kind)) for kind in ("exact", "fast"))
    assert exact.engine.plan.release != fast.engine.plan.release
    same = (ragged(3), torch.nn.Linear(2, 2), FedAvg())
    training = World(FedAvg()).training
    marks = {identity(*same, replace(NOISY["central"], noise=kind), training, key=b"") for kind in ("exact", "fast")}
    assert len(marks) == 2
    with pytest.raises(TacitError, match="noise='slow'"):
        Privacy(noise="slow")  # type: ignore[arg-type]


def test_a_federation_refuses_terms_with_fast_noise() -> None:
    text = '[privacy]\nplan = "central"\nnoise = "fast"\n[levels]\nprivate = { epsilon = 8.0, delta = 1e-3 }\n'
    with pytest.raises(TacitError, match="a federation's noise is exact"):
        text_of(parse(tomllib.loads(text)))
    with pytest.raises(TacitError, match=r"privacy\.noise.*may not set"):
        experiment_of(text)


def test_shares_of_floats_are_not_called_exact() -> None:
    with pytest.raises(TacitError, match="is not exact"):
        assembled(FedAvg(), Privacy(Stepwise(0.5, seen="sum"), (PRIVATE,), noise="exact"), steps=2)
