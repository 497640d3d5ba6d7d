"""The distributed plan from a file to a report."""

from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.experiments.build import build
from tests.experiments.tiny import run, tiny

CHANGES = ("method.name=fedavg", "choices=", "levels.open=", "privacy.plan=distributed", "privacy.clip=1.0")


@pytest.mark.parametrize(
    ("budget", "against", "beside"),
    [
        ("server", "the server included, as long as it sees only the sum", "who see only released models"),
        ("released", "but not who took part in which round", "the server, which knows who took part: epsilon"),
    ],
)
def test_both_figures_are_told_and_the_named_one_is_kept(
    budget: str, against: str, beside: str, tmp_path: Path
) -> None:
    result = run(tmp_path, *CHANGES, f"privacy.budget={budget}", "privacy.bits=20")
    said = "\n".join(result.guarantees())
    assert against in said
    assert beside in said
    assert "of a budget of 6" in said
    assert "a client's contribution or zero" in said


def test_a_moving_clip_bound_is_refused_in_one_line() -> None:
    with pytest.raises(TacitError, match="fixed clip bound"):
        build(tiny(*CHANGES[:-1], "privacy.clip.start=0.1"))
