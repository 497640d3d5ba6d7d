"""What the owner of the data said yes to is what the client takes part in, whatever the terms say."""

from dataclasses import replace

import pytest

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.deployment.experiment import text_of
from tacit.deployment.home import Agreement
from tacit.engine.flower.client import Refusal
from tacit.engine.flower.terms import Seat, Terms
from tacit.experiments.config import parse

LEVELS = {"private": {"epsilon": 8.0, "delta": 1e-3}, "open": {}}
AGREED = Agreement("a", "private", "local", 8.0, 1e-3)


def terms(level: str = "private", **more: object) -> Terms:
    content = {"privacy": {"plan": "local", "clip": 0.5}, "levels": LEVELS, **more}
    return Terms("run", text_of(parse(content)), (64,), 10, (Seat("a", level), Seat("b", level)))


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
    with pytest.raises(Refusal, match="agreement"):
        AGREED.check(other)
