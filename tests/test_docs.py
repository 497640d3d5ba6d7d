"""What the documentation shows runs, and its links lead somewhere."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from tacit.experiments.config import parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SENSING = ROOT / "docs" / "how-to" / "personal-sensing.md"  # needs real data
HOW_TO = [page for page in sorted((ROOT / "docs" / "how-to").glob("*.md")) if page != SENSING]
RUNNABLE = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *(page for page in HOW_TO if "print(" in page.read_text()),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec("\n".join(blocks(page, "python")), {"__name__": "page"})
    assert "no guarantee" in capsys.readouterr().out


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
