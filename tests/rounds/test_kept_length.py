"""How much of updates a clip leaves: measured in a simulation, read off released bounds in a deployment."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.experiments.callbacks import released_figures
from tacit.federation.service.server_dir import starved
from tacit.report import wording
from tacit.report.html import page
from tacit.rounds.round import Report

X, Y = np.random.default_rng(0).normal(size=(6, 3)), np.array([0, 1, 0, 1, 1, 0])
DATA = tacit.from_clients({f"{k}": (X, Y) for k in range(5)}, test_fraction=0.2, seed=1)
"""Everybody holds the same rows; which of them are test rows differs."""


def model() -> nn.Module:
    return nn.Linear(3, 2)


def run(clip: float, plan: type = tacit.Central, lr: float = 0.5) -> tacit.Result:
    privacy = tacit.Privacy(plan(clip), (tacit.Level("private", noise=1.0, delta=0.1),))
    training = tacit.Training(rounds=1, sampler=tacit.Poisson(0.9), steps=1, batch=100)
    return tacit.train(DATA, model, tacit.FedAvg(tacit.LocalSgd(lr)), privacy, training, progress=False)


def lengths(result: tacit.Result, lr: float) -> list[float]:
    """Of one whole step from the model that was learned, client by client."""
    found = []
    for client in range(DATA.clients):
        learned, (x, y) = result.model(), DATA.take(torch.arange(*DATA.offsets[client : client + 2]))
        nn.functional.cross_entropy(learned(x), y).backward()
        found.append(lr * float(torch.cat([p.grad.ravel() for p in learned.parameters() if p.grad is not None]).norm()))
    return found


@pytest.mark.parametrize("clip", [0.001, 0.2, 5.0])
def test_what_is_kept_is_the_bound_over_the_length_of_an_update_and_at_most_all(clip: float) -> None:
    result = run(clip)
    expected = np.median([min(1.0, clip / length) for length in lengths(result, 0.5)])
    assert result.findings.value("all", "kept_length") == pytest.approx(expected, rel=1e-4)


def test_a_clip_that_leaves_less_than_a_tenth_is_warned_of_and_another_is_not() -> None:
    starving, fine = run(0.001), run(1.0)
    assert "The clip leaves" in str(starving)
    assert "The clip leaves" in page([starving.findings])
    assert "The clip leaves" not in str(fine)
    assert wording.clipped(0.1) is None
    assert wording.clipped(0.0999) is not None


def test_where_no_whole_update_is_clipped_nothing_is_measured() -> None:
    training = tacit.Training(rounds=1, sampler=tacit.Poisson(0.9))
    plain = tacit.train(DATA, model, tacit.FedAvg(), training=training, progress=False)
    assert plain.findings.value("all", "kept_length") is None


def report(bound: float | None, first: float = 0.1, kept: float | None = None) -> Report:
    plan = run(1.0, lambda _: tacit.Central(tacit.Quantile(first))).run.plan  # type: ignore[arg-type]
    return Report(1, 2, 3, bound, None, None, 0.1, plan, kept=kept)


def test_a_deployment_is_told_of_a_bound_that_its_paid_bits_have_moved_tenfold_and_of_no_update() -> None:
    assert starved(report(0.9)) is None
    assert "risen from 0.1 to 1.2" in str(starved(report(1.2)))
    assert starved(report(1.2, kept=0.001)) == starved(report(1.2, kept=1.0))


def test_what_only_a_simulation_may_see_reaches_no_tracker_of_a_federation() -> None:
    assert not any(
        "kept" in name or value == 0.001 for name, value in released_figures(report(0.9, kept=0.001)).items()
    )


def test_a_federations_server_measures_no_update() -> None:
    from tacit.federation.protocol import server

    assert "kept" not in inspect.getsource(server)
