"""Weights among private levels: FedHDP's N1 : r N2 of section 4, the best ones, and settings that do nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from papers.fedhdp.theory.multilevel import Group, Menu, optimal_shares, server_variance
from papers.fedhdp.theory.point import two_level_ratio
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy
from tacit.experiments.config import parse
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.levels import Choices, Level, LevelOptions
from tacit.privacy.mechanisms import Grouped
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.mechanisms.level_weights import Released, Weighted
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.release import Totals
from tacit.privacy.plan import CalibrationContext, Plan
from tacit.sampling.cohorts import Poisson, Shuffled

PRIVATE = (Level("strict", 1.0, 1e-4), Level("mild", 8.0, 1e-4))
SIZE = 20_000


def planned(mechanism: Grouped, levels: tuple[Level, ...] = PRIVATE, counts: tuple[int, ...] = (1000, 1000)) -> Plan:
    """500 rounds, a twentieth of the clients in each."""
    choices = Choices(LevelOptions(levels), np.repeat(np.arange(len(counts)), counts))
    ids = [str(k) for k in range(sum(counts))]
    return mechanism.plan(CalibrationContext(ids, np.full(len(ids), 30), choices, Poisson(0.05), Shuffled(10), 500))


def grouped(plan: Plan) -> GroupedRelease:
    assert isinstance(plan.release, GroupedRelease)
    return plan.release


def released_noise(release: GroupedRelease, rounds: int) -> float:
    """The std of a coordinate of the merged mean when nobody uploads anything but zeros, in clip bounds."""
    levels = len(release.expected)
    empty = Totals({"model/w": torch.zeros(levels, SIZE)}, *(torch.zeros(levels) for _ in range(3)))
    state, stds = release.start(), []
    for round in range(rounds):
        mean, state = release.decode(state, empty, Seeded.of(0, "test", round))
        stds.append(float(mean.model["w"].square().mean().sqrt()))
    return float(np.mean(stds[rounds // 2 :])) / release.clip.bound


def test_two_private_levels_have_less_than_half_of_the_noise_of_counts_and_of_everybody_at_the_strictest() -> None:
    """Eps 1 and 8: the merged noise, as released, is near the limit of inverse variance."""
    alike, best = grouped(planned(Grouped(Fixed(0.5)))), grouped(planned(Grouped(Fixed(0.5), ratio="optimal")))
    strictest = grouped(planned(Grouped(Fixed(0.5)), counts=(2000, 0)))
    strict, mild = (n / z for n, z in zip(best.expected, best.multipliers, strict=True))
    limit = (strict**2 + mild**2) ** -0.5
    assert alike.merged_noise((0.5, 0.5)) == pytest.approx(0.0380, abs=0.0002)
    assert strictest.merged_noise((1.0, 0.0)) == pytest.approx(0.0369, abs=0.0002)
    assert limit == pytest.approx(0.0175, abs=0.0002)
    assert released_noise(alike, 4) == pytest.approx(0.0380, rel=0.02)
    assert released_noise(best, 40) < 0.5 * released_noise(alike, 4)
    assert released_noise(best, 40) < 1.05 * limit


def test_before_anything_is_released_optimal_weights_are_those_of_public_noise_bound_and_counts() -> None:
    """r* of two private levels, with the bound's square for what is not known of the clients."""
    release = grouped(planned(Grouped(Fixed(0.5), ratio="optimal", horizon=1e-9)))
    zeros = [Released({"w": torch.zeros(SIZE)}, SIZE * (z * 0.5 / n) ** 2, n)
             for z, n in zip(release.multipliers, release.expected, strict=True)]  # fmt: skip
    weights, _ = release.merge.weigh(release.merge.start(2), zeros, torch.tensor(0.25))
    first, second = (Group(int(n), SIZE * (z * 0.5) ** 2)
                     for n, z in zip(release.expected, release.multipliers, strict=True))  # fmt: skip
    assert float(weights[0] / weights[1]) == pytest.approx(1 / two_level_ratio(0.25, first, second), rel=1e-3)
    shares = optimal_shares(Menu(0.2, 0.05, (first, second)))
    assert weights.tolist() == pytest.approx(list(shares), rel=1e-3)
    assert server_variance(Menu(0.2, 0.05, (first, second)), shares) < server_variance(
        Menu(0.2, 0.05, (first, second)), (0.5, 0.5)
    )


def test_levels_that_want_different_models_are_weighed_by_counts_in_the_end() -> None:
    """The distance of the released means is seen through the noise, and weights go back to the shares."""
    release = grouped(planned(Grouped(Fixed(0.5), ratio="optimal")))
    far = torch.zeros(2, SIZE)
    far[0, 0], far[1, 1] = 25.0, 25.0  # every upload of a level at the bound, in a direction of its own
    totals, state = Totals({"model/w": far}, *(torch.zeros(2) for _ in range(3))), release.start()
    for round in range(100):
        _, state = release.decode(state, totals, Seeded.of(0, "test", round))
    assert state["merge/weights"].tolist() == pytest.approx([0.5, 0.5], abs=0.1)


@pytest.mark.parametrize(
    ("ratio", "weights"),
    [
        ({"mild": 1.0, "strict": 0.2}, (0.2 / 1.2, 1 / 1.2)),
        ({"strict": 0.2}, (0.2 / 1.2, 1 / 1.2)),
        ({"strict": 0.0}, (0.0, 1.0)),
    ],
)
def test_every_level_may_have_a_ratio_of_its_own(ratio: dict[str, float], weights: tuple[float, ...]) -> None:
    plan = planned(Grouped(Fixed(1.0), ratio=ratio))
    assert isinstance(grouped(plan).merge, Weighted)
    assert grouped(plan).merge.weights == pytest.approx(weights)  # pyright: ignore[reportAttributeAccessIssue]
    assert plan.eligible.sum() == (1000 if weights[0] == 0 else 2000)
    assert [account.scope for account in plan.levels] == ["level:strict", "level:mild"][weights[0] == 0 :]


@pytest.mark.parametrize("ratio", [1.0, {"strict": 0.1}, {"mild": 0.01, "strict": 1.0}, "optimal"])
def test_weights_change_neither_noise_nor_events(ratio: Any) -> None:
    """Each level's sum keeps its sensitivity and noise, so that every epsilon is what it was."""
    plan, plain = planned(Grouped(Fixed(1.0), ratio=ratio)), planned(Grouped(Fixed(1.0)))
    assert plan.multipliers == plain.multipliers
    assert plan.levels == plain.levels
    for account, level in zip(plan.levels, PRIVATE, strict=True):
        assert level.epsilon is not None
        assert 0.98 * level.epsilon < epsilon({account.event: 500}, 1e-4, account.relation) <= level.epsilon


@pytest.mark.parametrize(
    ("ratio", "counts", "note"),
    [
        (0.1, (1000, 1000), "ratio 0.1 has no effect"),
        ("optimal", (2000, 0), "nothing to weigh"),
        ({"mild": 0.5}, (2000, 0), "nobody is at level 'mild'"),
        ({"mild": 0.5, "strict": 0.5}, (1000, 1000), "all clients weigh alike"),
        (1.0, (1000, 1000), "ratio 'optimal' can bring it down to 0.0175"),
    ],
)
def test_a_setting_without_effect_is_noted(ratio: Any, counts: tuple[int, ...], note: str) -> None:
    assert note in " ".join(planned(Grouped(Fixed(1.0), ratio=ratio), counts=counts).notes)


def test_nothing_is_noted_where_a_setting_has_its_effect() -> None:
    levels = (*PRIVATE, Level("open"))
    for ratio in (0.1, 1.0, "optimal", {"strict": 0.1, "mild": 0.5}):
        assert planned(Grouped(Fixed(1.0), ratio=ratio), levels, (1000, 900, 100)).notes == ()


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        ({"strict": 2.0}, "ratio of level 'strict' must lie between 0"),
        ({"strict": -0.1}, "ratio of level 'strict' must lie between 0"),
        ({}, "give a number for each level"),
        ({"strct": 0.5}, "did you mean 'strict'"),
        ({"strict": 0.0, "mild": 0.0}, "asks nobody"),
        (0.0, "asks nobody"),
    ],
)
def test_impossible_ratios_are_refused(ratio: Any, words: str) -> None:
    with pytest.raises(TacitError, match=words) as caught:
        planned(Grouped(Fixed(1.0), ratio=ratio))
    assert "\n" not in str(caught.value)


def test_a_horizon_that_nothing_uses_is_refused() -> None:
    with pytest.raises(TacitError, match="only ratio 'optimal' uses it"):
        Grouped(ratio=0.5, horizon=10.0)


def test_a_file_can_say_it() -> None:
    levels = {"mild": {"epsilon": 8.0, "delta": 1e-3}, "strict": {"epsilon": 1.0, "delta": 1e-3}}
    ratio = {"mild": 1.0, "strict": 0.2}
    config = parse({"privacy": {"plan": "grouped", "ratio": ratio}, "levels": levels})
    assert build_privacy(config).plan == Grouped(ratio=ratio)
