"""What the documentation shows runs, and its links lead somewhere."""

import os
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from tacit.experiments.config import parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = {
    "README.md": "no guarantee",
    "docs/tutorial.md": "no guarantee",
    "docs/tutorial-estimation.md": "epsilon 1 (client-level, local, replace, pure)",
    "docs/how-to/choose-privacy.md": "no guarantee",
    "docs/how-to/use-the-trained-model.md": "",
    "docs/how-to/language-models.md": "perplexity (smaller is better) after round 5",
    "docs/how-to/your-data-and-task.md": "mae (smaller is better) after round 5",
    "docs/how-to/which-trust-model.md": "the server, which knows who took part: epsilon",
}
"""Pages whose Python is run, with something that it prints."""
SENSING = ROOT / "docs" / "how-to" / "personal-sensing.md"  # needs real data


NOTEBOOKS = runpy.run_path(str(ROOT / "docs" / "make_notebooks.py"), run_name="make_notebooks")


ONLY_AS_NOTEBOOK = {"sweeps-and-trackers"}  # it starts processes, which take long


def test_every_page_with_python_is_run_here_or_says_why_not() -> None:
    run_here = {Path(page).stem for page in RUNNABLE} | ONLY_AS_NOTEBOOK
    for page in NOTEBOOKS["PAGES"]:
        assert (
            not NOTEBOOKS["has_code"](page)
            or page.stem in run_here
            or NOTEBOOKS["needs_data"](page)
            or (page.stem in NOTEBOOKS["NEEDS"])
        ), page


def test_the_shortest_page_runs_as_a_notebook() -> None:
    pytest.importorskip("jupytext", reason="needs jupytext: pip install 'tacit-fl[notebooks]'")
    pytest.importorskip("nbclient", reason="needs nbclient: pip install 'tacit-fl[notebooks]'")
    notebook = NOTEBOOKS["convert"](ROOT / "docs" / "how-to" / "your-data-and-task.md")
    NOTEBOOKS["execute"](notebook)
    assert any(cell.get("outputs") for cell in notebook.cells)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # pages are read in a checkout
    exec("\n".join(blocks(ROOT / page, "python")), {"__name__": "page"})
    assert RUNNABLE[page] in capsys.readouterr().out


@pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="needs real data: set TACIT_DATA")
def test_the_python_of_the_sensing_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks(SENSING, "python")), {"__name__": "page"})
    assert "no guarantee" in capsys.readouterr().out
    assert (tmp_path / "who-learns-from-whom.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_experiments_in_a_page_are_valid(page: Path) -> None:
    for text in blocks(page, "toml"):
        parse(tomllib.loads(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_page_of_the_trusted_base_has_every_file_of_the_privacy_room_and_about_its_size() -> None:
    """Rewritten by `python -m benchmarks.trusted_base`."""
    text = (ROOT / "docs" / "what-the-guarantee-rests-on.md").read_text()
    told = {name: int(count) for name, count in re.findall(r"^\| `([\w/.]+)` \| (\d+) \|", text, re.MULTILINE)}
    room = ROOT / "src" / "tacit" / "privacy"
    files = {f"privacy/{file.relative_to(room)}" for file in room.rglob("*") if file.suffix in (".py", ".c")}
    assert {name for name in files if name.rpartition("/")[2] != "__init__.py"} - {"privacy/audit.py"} <= set(told)
    for name, count in told.items():
        file = ROOT / "src" / "tacit" / name
        if file.is_file():
            assert abs(len(file.read_text().splitlines()) - count) <= 0.15 * count + 5, name
