import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from tacit.errors import TacitError
from tacit.report import wording
from tacit.report.charts import MEASURED, figures
from tacit.report.facts import Facts, Promise
from tacit.report.html import open_all, page, places, tell, write_html, write_png
from tacit.report.metrics import frame
from tacit.report.summary import RunSummary, open_run
from tests.experiments.tiny import run

PRIVATE = Promise("private", 18, "protected", 4.0, 1e-3, "add/remove", 1.2, "noise")
OPEN = Promise("open", 2, "opted out")
FACTS = Facts("x", "Ditto", "grouped", "client", "pld", 10, 0.2, 20, (PRIVATE, OPEN))
SPENT = {"private": {"pld": 3.601, "rdp": 3.9}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("runs")
    run(parent / "tiny-0", "rounds=4")
    run(parent / "record-0", "rounds=4", "privacy.plan=record", "batch=100")  # whole batches: quick to calibrate
    run(parent / "alone-0", "rounds=4", "method.name=local-only", "privacy.plan=open")
    return [parent / name for name in ("tiny-0", "record-0", "alone-0")]


def text(*parts: object, width: int = 200) -> str:
    console = Console(width=width, color_system=None, markup=False)
    with console.capture() as caught:
        console.print(*parts, sep="\n")
    return caught.get()


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_needs_no_other_file_and_no_network(folders: list[Path], tmp_path: Path, count: int) -> None:
    page = write_html(open_all(folders[:count]), tmp_path / "a" / "page.html").read_text()
    assert not re.search(r"src\s*=|href\s*=\s*[\"'][^#]|url\([^#]|@import|https?://|<link|<image", page)
    assert "simulation only" in page
    assert len(page) < 1_500_000


def test_a_level_without_a_guarantee_does_not_look_like_one_that_has_one(folders: list[Path], tmp_path: Path) -> None:
    page = write_html(open_all(folders[:1]), tmp_path / "page.html").read_text()
    looks = dict(re.findall(r'<div class="(card[^"]*)"><h3>.*?</span>(\w+)</h3>', page))
    assert looks == {"card guaranteed": "private", "card bare": "open"}


def test_a_guarantee_says_in_words_what_an_attacker_gets_and_no_other_card_does(folders: list[Path]) -> None:
    run = open_all(folders[:1])[0]
    assert run.spending is not None
    meant = run.spending.risk("private")
    assert meant is not None
    text = page([run])
    assert text.count(f"In words: {meant.words}") == text.count("In words:") == 1


def test_a_level_that_nobody_chose_does_not_keep_a_run_from_being_shown(tmp_path: Path) -> None:
    run(tmp_path / "a", "rounds=1", "levels.nobody.epsilon=8.0", "levels.nobody.delta=1e-2")
    assert ">nobody<" not in write_html(open_all([tmp_path / "a"]), tmp_path / "page.html").read_text()


def test_the_head_of_a_page_says_when_on_what_by_which_version_and_what_for(tmp_path: Path) -> None:
    run(tmp_path / "a", "rounds=1", "purpose='a try'")
    head = write_html(open_all([tmp_path / "a"]), tmp_path / "page.html").read_text().split("</header>")[0]
    today = datetime.now(UTC).date().isoformat()
    for name, text in {"Date": today, "Data": "digits", "Version": "Tacit ", "Purpose": "a try"}.items():
        assert f"<dt>{name}</dt><dd>{text}" in head


def test_the_page_says_what_was_guaranteed_spent_and_run(folders: list[Path], tmp_path: Path) -> None:
    page = write_html(open_all(folders[:1]), tmp_path / "page.html").read_text()
    for expected in ("these clients opted out", "level:private", "delta 0.01", "rounds = 4", "dp-accounting"):
        assert expected in page


def test_names_cannot_break_out_of_the_page(folders: list[Path], tmp_path: Path) -> None:
    found = open_run(folders[0])
    evil = "</script><b>x"
    promises = tuple(replace(promise, level=evil) for promise in found.facts.promises[:1])
    odd = replace(found, title=evil, facts=replace(found.facts, promises=promises))
    page = write_html([odd], tmp_path / "page.html").read_text()
    assert evil not in page


def test_the_image_is_written(folders: list[Path], tmp_path: Path) -> None:
    for count in (1, 3):
        path = write_png(open_all(folders[:count]), tmp_path / str(count) / "image.png")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_figures_can_be_shown(folders: list[Path], tmp_path: Path) -> None:
    found = open_run(folders[0])
    empty = replace(
        found, metrics=frame([]), clients=pd.DataFrame(columns=found.clients.columns), statement=(), rounds_done=0
    )
    write_png([empty], tmp_path / "image.png")
    write_html([empty], tmp_path / "page.html")
    assert "Ended after 0 of 4 rounds: it was interrupted." in text(*tell([empty]))


def test_units_never_share_an_axis_or_a_column(folders: list[Path]) -> None:
    several = open_all(folders)
    about = [section for section in figures(several) if "epsilon" in section.title]
    assert [section.title.split()[0] for section in about] == ["Client-level", "Record-level"]
    for section in about:
        unit = section.title.split("-")[0].lower()
        assert all(unit in panel.y_title for panel in section.panels)
        assert section.mark != MEASURED
    metrics = {metric for each in several for metric in each.metrics["metric"] if "epsilon" in metric}
    assert all(metric.startswith(("client_", "record_")) for metric in metrics)


def test_every_accuracy_is_marked_as_simulation(folders: list[Path]) -> None:
    measured = [figure for figure in figures(open_all(folders)) if figure.name in ("accuracy", "spread")]
    assert [figure.mark for figure in measured] == [MEASURED, MEASURED]
    for count in (1, 3):
        assert "simulation only" in text(*tell(open_all(folders[:count])))


def test_a_run_that_shares_nothing_has_no_shared_model_to_show(folders: list[Path]) -> None:
    alone = open_run(folders[2])
    assert alone.value("all", "shared_mean") is None
    assert alone.value("all", "common") is None
    assert alone.value("all", "personal_mean") is not None
    assert alone.guarantees()[-1] == "The federation as a whole: nothing is uploaded, so nothing is spent."


def test_the_tables_fit_a_terminal_of_80_columns(folders: list[Path]) -> None:
    for count in (1, 3):
        shown = text(*tell(open_all(folders[:count])), width=80)
        assert "…" not in shown
        assert "private" in shown


def test_a_run_on_disk_says_what_the_run_itself_said(tmp_path: Path) -> None:
    result = run(tmp_path / "a", "rounds=2")
    found = open_run(tmp_path / "a")
    assert found.guarantees() == result.guarantees()
    assert found.metrics.equals(result.metrics)
    assert found.clients.equals(result.findings.clients)
    assert list(found.statement) == list(result.findings.statement)


def test_a_record_plan_says_what_it_treats_as_public(folders: list[Path]) -> None:
    said = open_run(folders[1]).guarantees()
    assert said[0].startswith("private: record-level differential privacy (add/remove one record)")
    assert "Each client's number of rows is treated as public." in said


def test_runs_of_one_name_cannot_be_told_apart(folders: list[Path]) -> None:
    with pytest.raises(TacitError, match="two of the runs are called 'tiny-0'"):
        open_all([folders[0], folders[0]])


def test_reports_go_into_the_run_or_beside_the_first_of_several() -> None:
    assert places([Path("runs/a")])[0] == Path("runs/a/report.html")
    assert places([Path("runs/a"), Path("runs/b")])[1] == Path("runs/comparison.png")


def test_what_is_no_run_is_named(tmp_path: Path, folders: list[Path]) -> None:
    with pytest.raises(TacitError, match="there is no run at"):
        open_run(tmp_path / "none")
    with pytest.raises(TacitError, match="is not the folder of a run"):
        open_run(tmp_path)
    (tmp_path / "config.toml").write_text("rounds = 3")
    with pytest.raises(TacitError, match="ended before its first round"):
        open_run(tmp_path)
    (tmp_path / "facts.json").write_text("{}")
    with pytest.raises(TacitError, match="cannot be read"):
        open_run(tmp_path)


def test_facts_outlive_the_run() -> None:
    assert Facts.from_json(FACTS.to_json()) == FACTS


def test_an_epsilon_is_never_rounded_down() -> None:
    assert wording.number(3.601) == "3.61"
    assert wording.number(3.6) == "3.60"
    assert wording.number(7.9999) == "8.00"
    assert wording.number(1234.1) == "1,235"
    assert wording.number(float("inf")) == "infinite"


def test_every_epsilon_comes_with_unit_neighbours_delta_and_accountant() -> None:
    said = wording.sentence(PRIVATE, FACTS, SPENT["private"])
    for expected in ("client-level", "add/remove one client", "3.61 (PLD; RDP 3.90)", "delta 0.001", "budget of 4"):
        assert expected in said


def test_the_whole_has_no_more_than_its_least_protected_part() -> None:
    assert wording.whole(FACTS, SPENT).endswith("no guarantee, because 2 of 20 clients opted out.")
    stricter = replace(PRIVATE, level="stricter", budget=1.0, delta=1e-4)
    both = replace(FACTS, promises=(stricter, PRIVATE, replace(OPEN, clients=0)))
    said = wording.whole(both, {**SPENT, "stricter": {"pld": 1.0}})
    assert "epsilon 3.61 (PLD; RDP 3.90) at delta 0.001, that of level 'private'" in said


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        ("opted out", "no guarantee: these clients opted out"),
        ("no noise", "no guarantee: the plan is open"),
        ("never asked", "never asked"),
        ("nothing leaves", "nothing leaves these clients"),
    ],
)
def test_levels_without_noise_are_told_why(standing: str, said: str) -> None:
    promise = replace(PRIVATE, standing=standing)
    assert said in wording.sentence(promise, FACTS, None)
    assert "epsilon" not in wording.sentence(promise, FACTS, None)


def test_a_large_epsilon_is_warned_of() -> None:
    assert wording.warning(SPENT) is None
    assert "promises little" in (wording.warning({"private": {"pld": 12.0}}) or "")


def test_findings_of_nothing_spent_say_so() -> None:
    fresh = RunSummary("x", FACTS, frame([]), pd.DataFrame(columns=["client", "level", "shared", "personal"]))
    assert "nothing spent yet" in fresh.guarantees()[0]
