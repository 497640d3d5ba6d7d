"""Every program that these tests record is verified after every pass."""

import pytest

from tacit.compile import pipeline
from tests.compile.verifier import verified


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSES", verified(pipeline.PASSES))
