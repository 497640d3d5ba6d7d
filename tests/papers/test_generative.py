"""Reproductions: registered, cached by configuration, written as pages; the paper's bars."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from papers import bench as reproduce
from papers.generative import bernoulli, elections, gaussian
from papers.page import Curve, Page, Panel, Picture, Results, show, write
from tacit.errors import TacitError


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)


@pytest.mark.parametrize("name", reproduce.REGISTRY)
def test_every_registered_name_is_the_names_own(name: str) -> None:
    found = reproduce.find(name)
    assert found.name == name
    assert found.title
    assert found.paper


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TacitError, match="estimation/bernoulli"):
        reproduce.find("estimation/nothing")


def test_an_interrupted_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done: list[int] = []

    def cell(at: int) -> dict[str, Any]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(at)
        return {"value": at * 1.5}

    def bench() -> reproduce.Runner:
        return reproduce.Runner(quiet(), False, 3, tmp_path, "test")

    with pytest.raises(KeyboardInterrupt):
        bench().over_seeds({"a": 1}, cell)
    done.clear()
    assert bench().over_seeds({"a": 1}, cell)["value"] == [0.0, 1.5, 3.0]
    assert done == [2]
    assert not list(tmp_path.glob("*.part"))


def test_a_cell_of_another_version_is_computed_again(tmp_path: Path) -> None:
    for about, value in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        found = reproduce.Runner(quiet(), False, 1, tmp_path, about).cell({"a": 1}, lambda value=value: {"v": value})
        assert found["v"] == (1.0 if about == "one" else 2.0)


def test_repetitions_that_chose_the_settings_are_not_reported() -> None:
    made = reproduce.Reproduction("x", "X", "-", lambda bench: [str(list(bench.repetitions))], seeds=3, first=2)
    assert made.run(quiet(), False, None).parts == ["[2, 3, 4]"]


def test_a_broken_cache_is_computed_again(tmp_path: Path) -> None:
    bench = reproduce.Runner(quiet(), False, 1, tmp_path, "x")
    bench.cell({"a": 1}, lambda: {"v": 1})
    next(tmp_path.glob("*.json")).write_text("{ half")
    assert bench.cell({"a": 1}, lambda: {"v": 2})["v"] == 2


def test_a_page_is_written_with_its_tables_pictures_and_command(tmp_path: Path) -> None:
    panel = Panel("", "x", "y", [Curve("c", [1, 2], [3, 4], "#4477AA", [0.1, 0.1])], log="x")
    page = Page(
        "Title", "Paper", ["words", Results("T", ["a", "b"], [["1", "2"]], "note"), Picture("p", "seen", [panel])]
    )
    text = write(page, tmp_path, "some-page", "python -m papers run some/page").read_text()
    assert "| a | b |\n| :-- | --: |\n| 1 | 2 |" in text
    assert "`python -m papers run some/page`" in text
    assert (tmp_path / "some-page-p.png").stat().st_size > 1000
    console = quiet()
    show(page, console)
    assert isinstance(console.file, io.StringIO)
    assert "note" in console.file.getvalue()


@pytest.mark.parametrize("prior", list(bernoulli.PRIORS))
def test_the_papers_bernoulli_gains_come_out(prior: str) -> None:
    draw, paper, sd, oracle = bernoulli.PRIORS[prior]
    printed = [bernoulli.gain(draw, seed, moments="as-published")["gain"] for seed in range(20)]
    debiased = [bernoulli.gain(draw, seed)["gain"] for seed in range(20)]
    assert abs(np.mean(printed) - paper) <= sd
    assert (
        abs(np.mean(debiased) - oracle) <= 2 * np.std(debiased, ddof=1) / np.sqrt(20) + 0.05
    )  # oracle has one decimal


def test_private_gaussian_means_lie_between_personal_and_local() -> None:
    from tacit.estimation.messages import LocalGaussian

    local = gaussian.NOISE / gaussian.N
    free = gaussian.error(0, prior_variance=gaussian.PRIOR)["mse"]
    private = [
        gaussian.error(0, prior_variance=gaussian.PRIOR, message=LocalGaussian(e, 1e-5))["mse"] for e in (0.1, 1.0)
    ]
    assert free < private[1] < private[0] < local


def test_elections_need_the_data_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    with pytest.raises(TacitError, match="TACIT_DATA"):
        elections.load()


@pytest.mark.skipif("TACIT_DATA" not in os.environ, reason="TACIT_DATA is not set: the election data are not at hand")
def test_counties_gain_about_a_hundredth_and_not_the_printed_tenth() -> None:
    data = elections.load()
    gains = [elections.held_out(data, at, {"moments": "as-published"})["gain"] for at in range(6)]
    assert abs(np.mean(gains) - 1.0) < 1.0
