"""Whole runs under attack: what is true is not disproved, and what is planted is found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tacit import methods
from tacit.core import tree
from tacit.core.contract import Losses, Method, Reply, Shared, Site, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.loaders import load
from tacit.errors import TacitError
from tacit.evidence.run_audit import RunAudit, audit_run, one_run_epsilon, one_run_mu, one_run_rejects
from tacit.experiments.build import Parts
from tacit.methods import FedAvg, LocalSgd
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import grouped, record, release
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Performance, Privacy, Training
from tacit.rounds.loop import Schedule
from tacit.sampling.cohorts import Poisson

WIDTH = 256
CENTRAL = plans.Central(Fixed(0.1))
FEDAVG = FedAvg(LocalSgd(0.5))


@cache
def embedded_digits() -> FederatedDataset:
    """Digits through random features: as many canaries as there are features times classes."""
    data = load("digits", clients=20, classes_each=10, seed=0)
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(64, WIDTH)) / 8).float()

    def embed(x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1).float() @ weights).relu()

    common = None if data.common_x is None else embed(data.common_x)
    return replace(data, x=embed(data.x), test_x=embed(data.test_x), common_x=common)


def attack(
    plan: Any = CENTRAL,
    method: Method = FEDAVG,
    z: float = 3.5,
    rate: float = 1.0,
    rounds: int = 8,
    canaries: int = 300,
    **options: Any,
) -> RunAudit:
    privacy = Privacy(plan, (Level("private", delta=1e-3, noise=z),), allow_large_delta=True)
    training = Training(rounds, Poisson(rate), batch=options.pop("batch", 5), steps=options.pop("steps", None), seed=1)
    model = initialise(SoftmaxRegression(WIDTH, 10), 0)
    parts = Parts(embedded_digits(), model, method, privacy, training, Schedule(), Performance())
    return audit_run(parts, canaries, **options)


def test_guesses_that_are_all_right_disprove_what_chance_alone_would_not() -> None:
    """Steinke et al.: 100 of 100 right guesses have probability (e^eps / (1 + e^eps))^100."""
    found = one_run_epsilon(100, 100, 100, 0.0, 0.05)
    assert (1 / (1 + np.exp(-found))) ** 100 == pytest.approx(0.05, rel=1e-3)
    assert one_run_epsilon(100, 100, 55, 0.0, 0.05) == 0
    assert one_run_epsilon(100, 100, 100, 1e-3, 0.05) < found


def test_the_curve_of_coin_tosses_is_rejected_when_guesses_are_better_than_coins() -> None:
    def no_information(x: float) -> float:
        return x

    assert one_run_rejects(no_information, 200, 200, 130, 0.05)
    assert not one_run_rejects(no_information, 200, 200, 110, 0.05)


def test_bounds_of_ideal_scores_stay_below_the_truth_in_nearly_all_runs() -> None:
    """The definition of confidence, on scores of exactly known mu; and they find a third of it at least."""
    draw, mu, found = np.random.default_rng(0), 1.5, []
    for _ in range(40):
        there = draw.random(300) < 0.5
        order = np.argsort(draw.normal(size=300) + mu * there)
        found.append(one_run_mu(300, 100, int(there[order[-50:]].sum() + (~there[order[:50]]).sum()), 0.05))
    assert sum(bound > mu for bound in found) <= 4
    assert np.median(found) > 0.33 * mu


PAIRS: list[tuple[str, Any, Method, float]] = [
    ("central", CENTRAL, FEDAVG, 1.5),
    ("grouped", plans.Grouped(Fixed(0.1)), FEDAVG, 1.5),
    ("local", plans.Local(Fixed(0.1)), FEDAVG, 1.5),
    ("record", plans.Record(0.1), FEDAVG, 2.0),
    ("distributed", plans.Distributed(Fixed(0.1)), FEDAVG, 1.5),
    ("stepwise", plans.Stepwise(0.1), FEDAVG, 1.5),
    ("central", CENTRAL, methods.Ditto(FEDAVG), 1.5),
    ("grouped", plans.Grouped(Fixed(0.1)), methods.Ditto(FEDAVG), 1.5),
    ("record", plans.Record(0.1), methods.Ditto(FEDAVG), 2.0),
    ("central", CENTRAL, methods.Scaffold(), 1.5),
    ("central", CENTRAL, methods.APFL(), 1.5),
    ("local", plans.Local(Fixed(0.1)), methods.FineTuned(FEDAVG), 1.5),
]


def names(pairs: Sequence[tuple[str, Any, Method, float]]) -> list[str]:
    return [f"{plan}-{type(method).__name__}" for plan, _, method, _ in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan", "method", "z"), PAIRS, ids=names(PAIRS))
def test_what_is_claimed_is_not_disproved(name: str, plan: Any, method: Method, z: float) -> None:
    found = attack(plan, method, z, batch=2000 if name == "record" else 5, steps=1 if name == "stepwise" else None)
    assert not found.disproved
    assert max(found.lower_bound, found.gaussian_lower_bound) < found.claim


def test_where_every_round_has_everybody_the_attack_finds_a_third_of_the_claim() -> None:
    """Central, nobody's draw to hide behind: the bound is no toy."""
    found = attack(z=1.5, canaries=600)
    assert not found.disproved
    assert found.gaussian_lower_bound > 0.3 * found.claim


# --- planted faults


def halve_noise(patch: pytest.MonkeyPatch) -> RunAudit:
    honest = grouped.noises.add
    patch.setattr(grouped.noises, "add", lambda total, std, noise: honest(total, std / 2, noise))
    return attack(canaries=1500)


def forget_noise(patch: pytest.MonkeyPatch) -> RunAudit:
    """Noise in the first round alone."""
    honest, rounds = grouped.noises.add, iter(range(100))
    patch.setattr(grouped.noises, "add", lambda t, std, noise: t if next(rounds) else honest(t, std, noise))
    return attack()


def skip_clip_on_a_leaf(patch: pytest.MonkeyPatch) -> RunAudit:
    honest = release.clipped_upload_sum

    def planted(uploads: Any, bound: Any, levels: int) -> Any:
        clipped, bare = honest(uploads, bound, levels), honest(uploads, bound * 100, levels)
        last = sorted(clipped.totals)[-1]
        return clipped._replace(totals={**clipped.totals, last: bare.totals[last]})

    patch.setattr(release, "clipped_upload_sum", planted)
    return attack()


def know_the_cohort(patch: pytest.MonkeyPatch) -> RunAudit:
    return attack(z=1.0, rate=0.1, rounds=40, canaries=1500, cohort_known=True)


@dataclass(frozen=True)
class AsksAgain(FedAvg):
    """Asks every batch sixteen times and takes the mean: the noise averages out."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def mean(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            several = [site.private_grad(params, step, losses) for _ in range(16)]
            return tree.each(lambda *leaves: sum(leaves) / len(leaves), *several)  # type: ignore[arg-type]

        trained = self.local.run(view.model, site, mean, guarded=True)
        return Reply(Shared(tree.sub(trained, view.model)), state)


def query_a_batch_again(patch: pytest.MonkeyPatch) -> RunAudit:
    """Charged as if each batch had been asked once."""
    honest = record.round_event
    patch.setattr(record, "round_event", lambda batches, rows, asked: honest(batches, rows, [1] * len(asked)))
    return attack(plans.Record(0.1), AsksAgain(LocalSgd(0.5)), z=6.0, canaries=600, batch=2000)


FAULTS: list[Any] = [
    forget_noise,
    skip_clip_on_a_leaf,
    halve_noise,
    pytest.param(know_the_cohort, marks=pytest.mark.slow),
    pytest.param(query_a_batch_again, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: getattr(fault, "__name__", ""))
def test_a_planted_fault_is_found(fault: Callable[[pytest.MonkeyPatch], RunAudit], monkeypatch: Any) -> None:
    assert fault(monkeypatch).disproved


def test_an_experiment_that_promises_nothing_is_not_attacked() -> None:
    parts = Parts(embedded_digits(), SoftmaxRegression(WIDTH, 10), FEDAVG, Privacy(), Training(1), Schedule())
    with pytest.raises(TacitError, match="promises nothing"):
        audit_run(parts)
    with pytest.raises(TacitError, match="at least 20"):
        attack(canaries=3)
