"""Every program that these tests record is verified after every pass."""

import pytest


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_VERIFY", "1")
