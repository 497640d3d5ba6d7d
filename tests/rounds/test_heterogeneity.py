"""Distances between clients' training losses: the textbook's, fast, and the same after an interruption."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from tacit.core import tree
from tacit.methods import Ditto, FedAvg, KeepLocal, LocalOnly, Method, PPSgd, Scaffold
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.loop import Run, Schedule
from tacit.simulation.timing import MOST, LossRecorder, distances
from tests.experiments.tiny import run as tiny_run
from tests.worlds import CENTRAL, assembled, ragged

samples = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=6), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None)
@given(samples, st.booleans())
def test_the_distances_are_those_of_scipy(given_: list[list[float]], alike: bool) -> None:
    rows = [np.array(each[:1] if alike else each) for each in given_]
    expected = [wasserstein_distance(a, b) for k, a in enumerate(rows) for b in rows[k + 1 :]]
    assert np.allclose(distances(rows), expected, atol=1e-9)


@pytest.mark.parametrize("ragged_by", [0, 30])
def test_a_hundred_clients_over_150_rounds_take_a_moment(ragged_by: int) -> None:
    draw = np.random.default_rng(0)
    rows = [draw.normal(size=150 - (k % (ragged_by + 1))) for k in range(100)]
    began = time.process_time()
    assert len(distances(rows)) == 4950
    assert time.process_time() - began < 3


def test_of_many_clients_a_sample_is_kept_and_absence_is_no_loss() -> None:
    diary = LossRecorder(2 * MOST, 3, seed=0)
    assert diary.spread() is None
    diary.write(0, np.arange(2 * MOST), torch.ones(2 * MOST))
    diary.write(2, np.array([0, 1]), torch.tensor([5.0, torch.nan]))
    assert int((~diary.losses[0].isnan()).sum()) == MOST
    spread = diary.spread()
    assert spread is not None
    assert spread.mean >= 0


def started(method: Method, folder: Path | None = None, rate: float = 1.0) -> Run:
    parts = assembled(method, CENTRAL, ragged(8), rounds=3, rate=rate)
    ledger = Ledger.open(":memory:" if folder is None else folder / "ledger.sqlite")
    return Run(*parts, ledger=ledger, schedule=Schedule(1, 1, heterogeneity=True), folder=folder)


@pytest.mark.parametrize(
    "method",
    [FedAvg(), Scaffold(), Ditto(), LocalOnly(), PPSgd(), KeepLocal(("norm",), FedAvg())],
    ids=lambda method: type(method).__name__,
)
def test_every_method_can_be_asked_and_runs_as_if_it_were_not(method: Method) -> None:
    asked, plain = started(method), started(method)
    plain.engine = replace(plain.engine, diary=None)
    reports = [asked.step() for _ in range(2)]
    for _ in range(2):
        plain.step()
    assert reports[-1].heterogeneity is not None
    assert reports[-1].heterogeneity.mean > 0
    views = [tree.join(run.progress.server.view) for run in (asked, plain)]
    assert all(torch.equal(views[0][name], views[1][name]) for name in views[0])


def test_the_loss_is_that_of_the_locally_trained_model() -> None:
    run = started(FedAvg())
    run.step()
    diary = run.engine.diary
    assert diary is not None
    view, engine = run.engine.method.init(run.engine.start).view, run.engine
    clients = np.arange(8)
    inputs = engine.inputs_for({}, clients, 0)

    def trained(given: object) -> dict[str, torch.Tensor]:
        site, _ = engine.site(engine.task, given, 0, 0)  # pyright: ignore[reportArgumentType]
        return tree.add(view.model, engine.method.client(view, {}, site).upload.model)

    models = torch.func.vmap(trained)(inputs)
    for k in clients:
        rows = slice(engine.federation.offsets[k], engine.federation.offsets[k + 1])
        own = tree.each(lambda leaf, k=k: leaf[k], models)
        loss = engine.task.losses(own, engine.federation.x[rows], engine.federation.y[rows]).mean()
        assert float(diary.losses[0, diary._place[k]]) == pytest.approx(float(loss), rel=1e-5)


def test_a_resumed_run_has_the_same_diary(tmp_path: Path) -> None:
    whole = started(FedAvg(), rate=0.5)
    whole.go()
    part = started(FedAvg(), tmp_path, rate=0.5)
    part.step()
    part.save()
    again = started(FedAvg(), tmp_path, rate=0.5)
    again.resume()
    again.go()
    assert again.heterogeneity() == whole.heterogeneity()


def test_a_file_asks_for_it_and_it_stands_among_the_metrics(tmp_path: Path) -> None:
    result = tiny_run(tmp_path, "evaluate.heterogeneity=true")
    found = result.findings.metrics.query("metric == 'loss_distance_mean'")
    assert list(found["round"]) == [2, 4, 6, 8]
    assert min(found["value"].tolist()) > 0
