"""The files and the command: written, readable, complete, the same for the same seed."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from papers.cli import app
from papers.fedhdp.theory.figures import DEFAULT, figures
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.point import Problem
from papers.fedhdp.theory.report import Report, make, write
from tacit.errors import StorageError
from tacit.report.figures import write_png

IMAGES = {f"theory-{name}.png" for name in ("figure-1", "figure-2", "figure-3", "figure-4", "incentive", "price")}
FILES = IMAGES | {"theory-fedhdp.html", "theory-fedhdp.md"}


@pytest.fixture(scope="module")
def report() -> Report:
    return make(Regression.of(DEFAULT, dim=2, samples=4), repetitions=200)


@pytest.fixture(scope="module")
def folder(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("theory") / "made"
    assert {path.name for path in write(report, place)} == FILES
    return place


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_images_are_pngs_with_something_in_them(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000


def test_the_page_holds_every_panel_and_fetches_nothing(folder: Path, report: Report) -> None:
    text = (folder / "theory-fedhdp.html").read_text(encoding="utf-8")
    charts = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert len(charts) == sum(len(figure.panels) for figure in report.figures) == 12
    assert all(json.loads(chart)["series"] for chart in charts)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert all(figure.title in text for figure in report.figures)


def test_the_tables_are_written_as_markdown(folder: Path, report: Report) -> None:
    text = (folder / "theory-fedhdp.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| :-- \|", text, re.MULTILINE)) == len(report.tables) == 3
    assert "what one private client would gain" in text.lower()


def test_every_row_of_a_table_has_as_many_cells_as_heads(report: Report) -> None:
    assert all(len(row) == len(table.heads) for table in report.tables for row in table.rows)


def test_figures_are_the_same_for_the_same_seed() -> None:
    first, again, other = (figures(DEFAULT, 2, 4, repetitions=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "problem",
    [Problem(3, 2, 1.0, 100.0, 0.0), Problem(30, 2, 1e-6, 1.0, 1e6)],
    ids=["no noise", "sure clients"],
)
def test_extreme_problems_are_drawn_without_a_warning(problem: Problem, tmp_path: Path) -> None:
    made = make(Regression.of(problem, 1, 1), repetitions=8)
    for figure in (made.figures[1], made.figures[-1]):  # whose ranges follow from the problem
        assert write_png([figure], tmp_path / "image.png").stat().st_size > 20_000


def test_the_command_prints_tables_and_says_where_the_files_are(tmp_path: Path) -> None:
    asked = ["theory", "--out", str(tmp_path), "--clients", "10", "--opted-out", "2", "--tau2", "0"]
    result = CliRunner().invoke(app, [*asked, "--repetitions", "50"])
    assert result.exit_code == 0, result.output
    assert "10 clients, 2 of them opted out" in result.output
    assert "Monte Carlo" in result.output
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_help_teaches_the_quantities() -> None:
    shown = CliRunner().invoke(app, ["theory", "--help"]).output
    assert all(word in shown for word in ("--clients", "--opted-out", "--gamma2", "Example"))


def test_a_folder_that_cannot_be_made_is_one_clear_line(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose another --out"):
        write(report, tmp_path / "file" / "below")
