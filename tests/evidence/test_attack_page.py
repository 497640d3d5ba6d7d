"""The page that shows what an attacker gets of a run."""

from pathlib import Path

import pytest
import torch

from tacit.errors import TacitError
from tacit.evidence.attack_page import _one_round, attack_page
from tacit.experiments.train import reopen_run
from tacit.report.summary import open_run
from tests.experiments.tiny import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attacked") / "run"
    run(place, "rounds=2")
    return place


def likeness(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


def test_an_upload_without_noise_shows_the_clients_pictures_and_one_with_noise_does_not(folder: Path) -> None:
    again, _ = reopen_run(folder)
    noise = open_run(folder).facts.promises[0].noise
    assert noise is not None
    seen = _one_round(again, 0, noise)
    assert likeness(seen["mean"], seen["bare"]) > 0.5
    assert abs(likeness(seen["mean"], seen["noisy"])) < 0.5
    assert likeness(seen["mean"], _one_round(again, 0, 0.0)["noisy"]) > 0.5  # the noise hides it, and nothing else


def test_the_page_shows_both_and_who_is_not_protected(folder: Path) -> None:
    page = attack_page(folder)
    assert "open: no limit" in page
    assert "simulation only" in page
    assert page.count("<svg") == 4
    with pytest.raises(TacitError, match="no client 'nobody'"):
        attack_page(folder, "nobody")


def test_reference_models_add_a_picture_for_each_level(folder: Path) -> None:
    page = attack_page(folder, references=4)
    assert page.count("<svg") == 6
    assert "by reference" in page
