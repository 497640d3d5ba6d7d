"""Evaluation in a deployment: bounded whatever the data is, within the level's budget, with the stated noise."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tacit.core.contract import Shared
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import epsilon, gaussian_multiplier
from tacit.privacy.evaluation import BOUND, Evaluated, Evaluation, figures, means
from tacit.privacy.levels import Choices, Level, LevelOptions
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.privacy.plan import CalibrationContext, Plan
from tacit.rounds.assemble import Privacy
from tacit.sampling.cohorts import FixedSize, FixedSteps, LimitedParticipation, Poisson, PoissonBatches, Shuffled
from tests.worlds import assembled

CLIENTS, ROUNDS = 20, 12
LEVEL = Level("private", epsilon=4.0, delta=1e-3)
REQUESTS = {
    "central": plans.Central(Fixed(0.5)),
    "grouped": plans.Grouped(Fixed(0.5)),
    "local": plans.Local(Fixed(0.5), participations=5),
    "record": plans.Record(0.5, participations=5),
    "stepwise": Stepwise(0.5, participations=5),
    "distributed": plans.Distributed(Fixed(0.5), participations=5),
    "distributed-released": plans.Distributed(Fixed(0.5), budget="released"),
}


def setting(
    levels: tuple[Level, ...] = (LEVEL,), chosen: list[int] | None = None, sampler: Any = Poisson(0.3)
) -> CalibrationContext:
    level = np.array(chosen or [0] * CLIENTS, dtype=np.int64)
    choices, ids, sizes = (
        Choices(LevelOptions(levels), level),
        [f"c{k}" for k in range(len(level))],
        np.full(len(level), 200),
    )
    upload = {"model/w": torch.zeros(50, device="meta")}
    return CalibrationContext(ids, sizes, choices, sampler, Shuffled(20, 1), ROUNDS, upload=upload)


def both(request: Any, evaluation: Evaluation, given: CalibrationContext) -> tuple[Plan, Evaluated]:
    if isinstance(request, plans.Record):
        given = given._replace(batches=PoissonBatches(20, 1))
    if isinstance(request, Stepwise):
        given = given._replace(batches=FixedSteps(20, 3))
    found = evaluation.plan(request, given)
    return request.plan(given._replace(beside=found.beside)), found


@pytest.mark.parametrize("name", REQUESTS)
def test_rounds_and_evaluations_together_keep_to_the_level_and_use_it_up(name: str) -> None:
    plan, found = both(REQUESTS[name], Evaluation(every=4, share=0.2), setting())
    training, own = plan.of(0), found.plan.of(0)
    assert training is not None
    assert own is not None
    assert (training.scope, training.unit, training.relation) == (own.scope, own.unit, own.relation)
    assert (training.epsilon, own.epsilon) == (4.0, 4.0)
    times = ROUNDS if training.scope.startswith("level:") else 5
    spent = Counter({training.event: times * training.count}) + Counter({own.event: 3 * own.count})
    cost = epsilon(spent, 1e-3, training.relation)
    assert 0.97 * 4.0 < cost <= 4.0
    alone = epsilon({own.event: 3 * own.count}, 1e-3, own.relation)
    assert 0.97 * 0.8 < alone <= 0.8


def test_gaussian_noise_of_both_adds_up_by_the_closed_form() -> None:
    plan, found = both(REQUESTS["local"], Evaluation(every=4, share=0.2), setting())
    training, own = plan.multipliers[0], found.plan.multipliers[0]
    assert (5 / training**2 + 3 / own**2) ** -0.5 == pytest.approx(gaussian_multiplier(4.0, 1e-3), rel=1e-3)
    assert own == pytest.approx(gaussian_multiplier(0.8, 1e-3) * math.sqrt(3), rel=1e-3)


def test_figures_are_bounded_whatever_they_are() -> None:
    for values in ((0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (-7.0, 9.0)):
        leaves = figures(values)
        assert torch.stack(list(leaves.values())).norm() <= BOUND * (1 + 1e-12)
    assert means({"shared": torch.tensor(0.25), "personal": torch.tensor(3.0)}) == {"shared": 0.75, "personal": 1.0}


def released(found: Evaluated, values: list[tuple[float, float]], seed: int) -> torch.Tensor:
    """One evaluation of clients with these figures, as the server releases it."""
    plan = found.plan
    release, level = plan.release, plan.setting.choices.level
    state, levels = release.start(), len(plan.setting.choices.menu.levels)
    messages = [
        release.encode(state, Shared(figures(v)), torch.tensor(level[k]), Seeded.of(seed, "client", k))
        for k, v in enumerate(values)
    ]
    body = {
        name: torch.stack([
            sum((m.body[name] for k, m in enumerate(messages) if level[k] == j), torch.zeros_like(leaf))
            for j in range(levels)
        ])
        for name, leaf in messages[0].body.items()
    }  # fmt: skip
    zero = torch.zeros(levels)
    members = torch.tensor(np.bincount(level, minlength=levels), dtype=torch.float32)
    mean, _ = release.decode(state, Totals(body, zero, zero, members), Seeded.of(seed, "server"))
    assert mean is not None
    return torch.stack([mean.model["shared"], mean.model["personal"]])


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_released_has_the_noise_that_is_stated_around_the_true_mean(name: str) -> None:
    _, found = both(REQUESTS[name], Evaluation(every=4, share=0.2), setting())
    draws = torch.stack([released(found, [(0.75, 0.25)] * CLIENTS, seed) for seed in range(200)])
    assert draws.std(0).tolist() == pytest.approx([found.std] * 2, rel=0.17)  # 3.4 standard errors
    error = found.std / math.sqrt(200)
    assert torch.allclose(draws.mean(0), torch.tensor([0.25, -0.25], dtype=draws.dtype), atol=4 * error)


def test_the_stated_noise_is_that_of_the_event() -> None:
    """Central: std over the sensitivity of the sum; a client moves the sum of its level by its own vector."""
    _, found = both(REQUESTS["central"], Evaluation(every=4, share=0.2), setting())
    assert found.std * CLIENTS / BOUND == pytest.approx(found.plan.multipliers[0])
    _, fixed = both(REQUESTS["central"], Evaluation(every=4, share=0.2), setting(sampler=FixedSize(12)))
    assert fixed.std * CLIENTS / (2 * BOUND) == pytest.approx(fixed.plan.multipliers[0])  # exchanged, not removed
    _, local = both(REQUESTS["local"], Evaluation(every=4, share=0.2), setting())
    assert local.std * math.sqrt(CLIENTS) / (2 * BOUND) == pytest.approx(local.plan.multipliers[0])


@pytest.mark.parametrize("name", ["grouped", "local"])
def test_who_opted_out_is_not_charged_and_adds_no_noise(name: str) -> None:
    half = [0, 1] * (CLIENTS // 2)
    _, found = both(REQUESTS[name], Evaluation(), setting((LEVEL, Level("open")), half))
    assert found.plan.client(1) is None
    assert [account.scope for account in found.plan.accounts(np.array([1]))] == (
        ["level:private"] * (name == "grouped")
    )
    assert found.plan.multipliers[1] == 0
    assert "open" not in found.beside


def test_levels_that_are_not_asked_to_train_are_not_evaluated() -> None:
    half = [0, 1] * (CLIENTS // 2)
    _, found = both(plans.Grouped(Fixed(0.5), ratio=0.0), Evaluation(), setting((LEVEL, Level("open")), half))
    assert found.plan.eligible.tolist() == [False, True] * (CLIENTS // 2)
    assert not found.plan.levels
    _, weighed = both(plans.Grouped(Fixed(0.5), ratio="optimal"), Evaluation(), setting((LEVEL, Level("open")), half))
    assert isinstance(weighed.plan.release, GroupedRelease)
    assert weighed.plan.eligible.all()


@pytest.mark.parametrize(
    ("request_", "given", "reason"),
    [
        (plans.Central(Fixed(0.5)), {"levels": (Level("private", delta=1e-3, noise=1.0),)}, "noise and no epsilon"),
        (plans.Central(Fixed(0.5)), {"sampler": LimitedParticipation(1, 1)}, "asks everybody"),
        (Stepwise(0.5, seen="sum"), {}, "seen = 'sum'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(request_: Any, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(TacitError, match=reason):
        Evaluation().plan(request_, setting(**given))


@pytest.mark.parametrize(("every", "share"), [(0, 0.1), (5, 0.0), (5, 1.0)])
def test_a_share_lies_between_nothing_and_all(every: int, share: float) -> None:
    with pytest.raises(TacitError, match="evaluate"):
        Evaluation(every, share)


def test_evaluations_come_every_so_many_rounds_and_at_the_end() -> None:
    _, found = both(REQUESTS["central"], Evaluation(every=5), setting())
    due = [round for round in range(1, ROUNDS + 1) if found.due(round, ROUNDS)]
    assert due == [5, 10, 12]
    assert found.plan.setting.rounds == 3


def test_a_simulation_is_calibrated_as_its_deployment() -> None:
    levels = (Level("private", epsilon=4.0, delta=1e-3),)
    plain = assembled(FedAvg(), Privacy(plans.Central(Fixed(0.5)), levels)).engine.plan
    evaluated = Privacy(plans.Central(Fixed(0.5)), levels, evaluation=Evaluation(2, 0.3))
    plan = assembled(FedAvg(), evaluated).engine.plan
    assert plan.evaluation is not None
    assert plain.multipliers[0] < plan.multipliers[0] < 1.1 * plain.multipliers[0]


@pytest.mark.parametrize(("members", "central", "local"), [(5, 0.88, 3.9), (100, 0.044, 0.88), (1000, 0.0044, 0.28)])
def test_the_page_states_the_noise_that_members_get(members: int, central: float, local: float) -> None:
    """docs/how-to/from-notebook-to-federation.md"""
    given = setting((Level("private", epsilon=8.0, delta=1e-3),), [0] * members)._replace(allow_large_delta=True)
    found = [Evaluation(every=3).plan(REQUESTS[name], given).std for name in ("central", "local")]
    assert found == pytest.approx([central, local], rel=0.02)
