"""The second accountant agrees with the first on every kind of event that a ledger can hold."""

from collections import Counter
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.evidence.second_accountant import TOLERANCE, second_epsilon
from tacit.privacy.accounting.accountant import Accountant, Relation, answer, to_json
from tacit.privacy.accounting.events import _KINDS
from tacit.privacy.accounting.skellam import SampledSkellamDpEvent, SkellamDpEvent

QUICK = 12
Draw = np.random.Generator


def gaussian(draw: Draw) -> Any:
    return dp.GaussianDpEvent(float(draw.uniform(0.7, 12)))


def sampled(draw: Draw) -> Any:
    queries = dp.SelfComposedDpEvent(gaussian(draw), int(draw.integers(1, 4)))
    return dp.PoissonSampledDpEvent(float(10 ** draw.uniform(-3, -0.2)), queries)


def fixed_size(draw: Draw) -> Any:
    population = int(draw.integers(100, 3000))
    size = int(draw.integers(1, population // 3))
    return dp.SampledWithoutReplacementDpEvent(population, size, dp.GaussianDpEvent(float(draw.uniform(1.5, 8))))


def skellam(draw: Draw) -> Any:
    l2 = float(draw.uniform(1, 40))
    numbers = (l2 * float(draw.uniform(1, 8))) ** 2, l2, l2 * float(draw.uniform(1, 9))
    if draw.random() < 0.5:
        return SkellamDpEvent(*numbers)
    return SampledSkellamDpEvent(float(draw.uniform(0.01, 0.5)), float(draw.choice([0, 0.001])), *numbers)


def laplace(draw: Draw) -> Any:
    return dp.LaplaceDpEvent(float(draw.uniform(2, 30)))


def response(draw: Draw) -> Any:
    return dp.RandomizedResponseDpEvent(float(draw.uniform(0.3, 0.95)), int(draw.integers(2, 12)))


def concentrated(draw: Draw) -> Any:
    return dp.ZCDpEvent(float(draw.uniform(0.001, 0.2)), float(draw.choice([0, 0.01])))


def composed(draw: Draw) -> Any:
    parts = (dp.SelfComposedDpEvent(sampled(draw), int(draw.integers(1, 5))), gaussian(draw), dp.NoOpDpEvent())
    return dp.ComposedDpEvent(parts)


def most_once(kind: Any) -> int:
    return 400 if kind is sampled else 8 if kind in (gaussian, laplace, response) else 30


BY_RELATION: dict[Relation, list[Any]] = {
    "add/remove": [gaussian, sampled, sampled, laplace, concentrated, composed],
    "zero-out": [gaussian, sampled, skellam, response, laplace],
    "replace": [gaussian, laplace, response, concentrated],
    "replace-one": [gaussian, fixed_size],
}


def random_history(seed: int) -> tuple[Counter[Any], Relation, float, Accountant]:
    draw = np.random.default_rng(seed)
    relation: Relation = list(BY_RELATION)[seed % 4]
    kinds = [BY_RELATION[relation][k] for k in draw.integers(len(BY_RELATION[relation]), size=draw.integers(1, 4))]
    history = Counter({kind(draw): int(draw.integers(1, most_once(kind))) for kind in kinds})
    return history, relation, float(10 ** draw.uniform(-8, -2)), "rdp" if draw.random() < 0.25 else "pld"


def shortfall(seed: int) -> float:
    """By how much of the first accountant's epsilon the second differs; below 0: by how much less it says."""
    history, relation, delta, accountant = random_history(seed)
    first = answer(history, delta, relation, accountant)
    again = second_epsilon({to_json(event): n for event, n in history.items()}, delta, relation, first.accountant)
    return (again - first.epsilon) / max(first.epsilon, 0.01)


@pytest.mark.parametrize("seed", range(QUICK))
def test_both_accountants_agree_within_two_percent(seed: int) -> None:
    assert abs(shortfall(seed)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, 200))
def test_both_accountants_agree_on_many_more_histories(seed: int) -> None:
    assert abs(shortfall(seed)) <= TOLERANCE


def test_every_kind_of_event_that_a_ledger_can_hold_is_known() -> None:
    draw = np.random.default_rng(0)
    names = {type(kind(draw)).__name__ for kinds in BY_RELATION.values() for kind in kinds for _ in range(9)}
    tried = {name.removesuffix("DpEvent") for name in names} | {"NoOp", "NonPrivate", "SelfComposed", "RepeatAndSelect"}
    here = {name for name, kind in _KINDS.items() if kind.__module__.startswith(("dp_accounting", "tacit."))}
    assert here <= tried


def test_a_release_without_noise_has_no_epsilon_and_nothing_has_none_to_pay() -> None:
    assert second_epsilon({'{"event": "NonPrivate"}': 1}, 1e-3, "add/remove") == np.inf
    assert second_epsilon({'{"event": "Gaussian", "noise_multiplier": 0.0}': 1}, 1e-3, "add/remove") == np.inf
    assert second_epsilon({'{"event": "NoOp"}': 5}, 1e-3, "add/remove") == 0
    assert second_epsilon({}, 1e-3, "add/remove") == 0


def test_randomised_responses_add_up_at_delta_zero() -> None:
    event = dp.RandomizedResponseDpEvent(0.5, 4)
    assert second_epsilon({to_json(event): 3}, 0.0, "replace") == pytest.approx(3 * np.log(5))


def test_an_event_of_somebody_elses_is_refused_and_not_guessed() -> None:
    with pytest.raises(TacitError, match="does not know the event 'Geometric'"):
        second_epsilon({'{"event": "Geometric"}': 1}, 1e-3, "add/remove")


def test_halved_noise_is_told_apart() -> None:
    """The planted fault: a figure computed for twice the noise differs by far more than the tolerance."""
    text = (
        '{"event": "PoissonSampled", "of": {"event": "Gaussian", "noise_multiplier": %s}, "sampling_probability": 0.1}'
    )
    honest, halved = (second_epsilon({text % z: 100}, 1e-5, "add/remove") for z in ("2.0", "1.0"))
    assert halved > 2 * honest
