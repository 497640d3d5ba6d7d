"""The page of `tacit estimate`: a guarantee looks like one, no guarantee does not; epsilons are the ledger's."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    rows = "\n".join(f"{k:03d},{k % 7},{7 + k % 5}" for k in range(60))
    (tmp_path / "counts.csv").write_text(f"county,yes,asked\n{rows}\n")
    return tmp_path / "counts.csv"


def page(counts: Path, *more: str) -> str:
    out = counts.with_name("o.csv")
    told = ["estimate", "rates", str(counts), "--id", "county", "--successes", "yes", "--trials", "asked"]
    found = CliRunner().invoke(app, [*told, "-o", str(out), "--force", *more])
    assert found.exit_code == 0, found.output
    return out.with_suffix(".html").read_text()


def test_without_privacy_the_page_says_no_guarantee_in_its_own_look(counts: Path) -> None:
    text = page(counts)
    assert '<div class="card bare">' in text
    assert "no guarantee" in text
    assert "card guaranteed" not in text.split("</style>")[1]


def test_every_question_counts_on_the_page_and_its_epsilon_has_a_meaning_in_words(counts: Path) -> None:
    page(counts, "--epsilon", "1")
    text = page(counts, "--epsilon", "1")
    assert '<p class="figure">epsilon 2</p>' in text
    assert "Asked 2 times so far: epsilon 2 in all" in text
    assert "In words: an attacker" in text
    assert "nobody is protected" not in text


def test_seeded_messages_are_marked_and_the_head_says_where_it_comes_from(counts: Path) -> None:
    text = page(counts, "--epsilon", "1", "--seed", "1", "--purpose", "where to ask again")
    assert "simulation: the noise is seeded, nobody is protected by this run" in text
    head = text.split("</header>")[0]
    for part in ("<dt>Date</dt>", "<dd>counts.csv</dd>", "<dd>Tacit ", "<dd>where to ask again</dd>"):
        assert part in head
    assert len(text) < 1_500_000
