"""What the owner of the data said yes to is what the client takes part in, whatever the terms say."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.experiments.config import parse
from tacit.federation.protocol.client import Refusal
from tacit.federation.protocol.terms import Participant, Terms
from tacit.federation.service.client_dir import Agreement
from tacit.federation.service.experiment import seat, text_of

LEVELS = {"private": {"epsilon": 8.0, "delta": 1e-3}, "open": {}}
AGREED = Agreement("a", "private", "local", 8.0, 1e-3, (64,), 10)


def terms(level: str = "private", **more: object) -> Terms:
    content = {"privacy": {"plan": "local", "clip": 0.5}, "levels": LEVELS, **more}
    return Terms("run", text_of(parse(content)), (64,), 10, (Participant("a", level), Participant("b", level)))


def test_terms_as_agreed_are_accepted() -> None:
    AGREED.check(terms())
    replace(AGREED, evaluated=True).check(terms(evaluate={"deployment": "noisy"}))


@pytest.mark.parametrize(
    "other",
    [
        terms("open"),
        terms(levels=LEVELS | {"private": {"epsilon": 9.0, "delta": 1e-3}}),
        terms(privacy={"plan": "grouped", "clip": 0.5}),
        terms(evaluate={"deployment": "noisy"}),
    ],
    ids=["level", "epsilon", "plan", "evaluation"],
)
def test_other_terms_are_refused(other: Terms) -> None:
    with pytest.raises(Refusal, match="terms: "):
        AGREED.check(other)


def test_a_level_of_a_given_noise_keeps_its_noise() -> None:
    agreed = replace(AGREED, epsilon=None, noise=4.0)
    agreed.check(terms(levels={"private": {"noise": 4.0, "delta": 1e-3}}))
    with pytest.raises(Refusal, match="terms: "):
        agreed.check(terms(levels={"private": {"noise": 0.04, "delta": 1e-3}}))


def test_what_epsilon_limits_is_part_of_the_agreement() -> None:
    """Under one and the same plan it may be what the server learns, or what those learn who see the models alone."""
    agreed, limits = replace(AGREED, plan="distributed"), {"plan": "distributed", "clip": 0.5}
    agreed.check(terms(privacy=limits))
    with pytest.raises(Refusal, match="terms: "):
        agreed.check(terms(privacy=limits | {"budget": "released"}))


def test_a_rota_is_part_of_the_agreement() -> None:
    """It charges another account: by turns, a member would pay from two budgets."""
    agreed, trusted = replace(AGREED, plan="central"), {"plan": "central", "clip": 0.5}
    agreed.check(terms(privacy=trusted))
    with pytest.raises(Refusal, match="terms: "):
        agreed.check(terms(privacy=trusted, cohort=1, times=1))


def test_no_plan_but_record_makes_numbers_of_rows_public() -> None:
    """Also where the server needs every member's own message."""
    for privacy, told in (({"plan": "local", "clip": 0.5}, 0), ({"plan": "record", "bound": 0.5}, 70)):
        config = parse({"privacy": privacy, "levels": LEVELS, "method": {"name": "multitask"}})
        assert seat(config, "a", "private", 70).rows == told


@pytest.mark.parametrize("change", [{"inputs": (8, 8)}, {"inputs": (63,)}, {"classes": 9}, {"classes": 11}])
def test_what_a_row_is_and_how_many_classes_there_are_is_part_of_the_agreement(change: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=next(iter(change))):
        AGREED.check(replace(terms(), **change))


def test_a_large_delta_is_part_of_the_agreement() -> None:
    with pytest.raises(Refusal, match="allow_large_delta"):
        AGREED.check(terms(privacy={"plan": "local", "clip": 0.5, "allow_large_delta": True}))
