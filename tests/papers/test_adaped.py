"""AdaPeD's benches without their hours of training: splits, pages and verdicts from made-up cells."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from papers import bench as reproduce
from papers.adaped import cells, dp, few, selection, table_1
from papers.adaped.cells import EVERYBODY, MNIST, WRITERS_15, WRITERS_33, Setting, setting_of, validated
from papers.page import Page, Results, embed
from tacit.data.normalise import Projection
from tacit.errors import TacitError
from tests.worlds import ragged

FIGURES = {"FedAvg": (96.0, 93.0), "AdaPeD": (98.6, 97.0), "pFedMe": (97.0, 95.0), "local": (95.0, 10.0)}


def cell(name: str, seed: int, shift: float = 0.0) -> dict[str, Any]:
    personal, shared = FIGURES.get(name, (97.5, 90.0))
    return {
        "personal": personal + shift + 0.01 * seed,
        "worst": personal - 3,
        "shared": shared,
        "seconds": 0.5,
        "bytes": 177_708,
        "stopped": "",
        "psi": [4.0, 3.0, 2.5],
        "notes": ["as published (Theorem 7), level 'private': epsilon 0.123, which is not proved"],
    }


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> reproduce.Runner:
    names = {id(make): name for name, make in cells.METHODS.items() if name != "AdaPeD, random start"}

    def trained(data: Any, make: Any, world: Any, setting: Setting, seed: int, **options: Any) -> dict[str, Any]:
        privacy = options.get("privacy")
        noisy = privacy is not None and privacy.levels[0].private
        return cell(names.get(id(make), "AdaPeD"), seed, -2.0 * noisy)

    for room in (table_1, dp, selection):
        monkeypatch.setattr(room, "trained", trained)
        monkeypatch.setattr(room, "federation", lambda data, seed: ragged())
    return reproduce.Runner(Console(file=io.StringIO()), False, 3, None, "test")


def table(parts: list[Any], title: str) -> Results:
    return next(part for part in parts if isinstance(part, Results) and part.title.startswith(title))


def test_the_settings_are_the_papers() -> None:
    assert [world.rounds for world in (MNIST, WRITERS_33, WRITERS_15)] == [300, 240, 480]
    assert [world.cohort for world in (MNIST, WRITERS_33, WRITERS_15)] == [5, 22, 10]


def test_validation_rows_are_training_rows_of_the_same_client_and_of_nobody_else() -> None:
    data = ragged()
    split = validated(data, 0)
    assert len(split.y) + len(split.test_y) == len(data.y)
    for k in range(data.clients):
        own = np.concatenate([split.x[split.rows(k)], split.test_x[split.test_rows(k)]])
        assert sorted(map(tuple, own.tolist())) == sorted(map(tuple, data.x[data.rows(k)].tolist()))


def test_table_1_has_paper_and_measured_side_by_side_and_keeps_score(bench: reproduce.Runner) -> None:
    parts = table_1.make(bench)
    rows = {row[0]: row for row in table(parts, "Table 1").rows}
    assert rows["AdaPeD"][1:3] == ["98.53 ± 0.11", "98.61 ± 0.01"]
    assert rows["FedAvg"][2].startswith("93.00")
    assert rows["FedAvg + fine-tuning"][2].startswith("96.01")
    kept = {(row[0], row[1]): row[3] for row in table(parts, "The paper's claims as targets").rows}
    assert kept["MNIST, K/n = .1", "AdaPeD at least 98.53"] == "yes"
    assert kept["writers, K/n = .33", "AdaPeD above pFedMe by a standard error"] == "yes"


def test_the_selection_page_marks_the_setting_that_table_1_uses(bench: reproduce.Runner) -> None:
    tables = [part for part in selection.make(bench) if isinstance(part, Results)]
    for part, world in zip(tables, (WRITERS_33, MNIST, EVERYBODY, EVERYBODY), strict=True):
        used = {row[0]: float(row[1]) for row in part.rows if row[-1] == "used"}
        assert used == {name: setting_of(world, name).lr for name in used}
        assert "AdaPeD" in used or "60 rounds" in part.title


def test_a_random_start_of_adaped_is_on_mnist_always_and_on_the_writers_in_the_whole_table(
    bench: reproduce.Runner,
) -> None:
    tables = [table(table_1.make(replace(bench, full=full)), "Table 1") for full in (False, True)]
    assert [len(each.heads) for each in tables] == [7, 7]
    rows = [next(row for row in each.rows if row[0] == "AdaPeD, random start") for each in tables]
    assert [[bool(row[at]) for at in (2, 4, 6)] for row in rows] == [[True, False, False], [True, True, True]]


def test_one_seed_has_no_spread_to_show(bench: reproduce.Runner) -> None:
    parts = table_1.make(replace(bench, seeds=1))
    rows = {row[0]: row for row in table(parts, "Table 1").rows}
    assert rows["AdaPeD"][1:3] == ["98.53 ± 0.11", "98.60"]
    with pytest.raises(TacitError, match="--seeds 2"):
        reproduce.find("estimation/mixture").run(bench.console, False, 1)


def test_a_claim_that_fails_is_printed_as_failed(bench: reproduce.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURES, "AdaPeD", (94.0, 90.0))
    kept = {(row[0], row[1]): row[3] for row in table(table_1.make(bench), "The paper's claims as targets").rows}
    assert kept["MNIST, K/n = .1", "AdaPeD at least 98.53"] == "NO"
    assert kept["MNIST, K/n = .1", "AdaPeD is best within one standard error"] == "NO"
    assert kept["writers, K/n = .33", "AdaPeD above pFedMe by a standard error"] == "NO"


def test_the_private_page_measures_against_training_alone(bench: reproduce.Runner) -> None:
    parts = dp.make(bench)
    claims = table(parts, "Targets").rows
    assert claims[0][1] == "+1.60"
    assert claims[0][-1] == "yes"
    assert table(parts, "As published").rows[0][1] == "0.123"


def test_the_how_to_page_is_filled_with_what_was_measured(bench: reproduce.Runner, tmp_path: Path) -> None:
    asks = Path(__file__).parents[2] / "docs" / "how-to" / "which-personalization.md"
    (tmp_path / "which.md").write_text(asks.read_text())
    for stem, make in (("adaped-table-1", table_1.make), ("adaped-dp", dp.make)):
        assert embed(Page("", "", make(bench)), tmp_path, stem) == [tmp_path / "which.md"]
        assert embed(Page("", "", make(bench)), tmp_path, stem) == [], "once filled, there is nothing to change"
    text = (tmp_path / "which.md").read_text()
    assert "Not measured yet" not in text
    assert "| AdaPeD | none | 98.61 ± 0.01 |" in text
    assert "| DP-AdaPeD, messages seen | 1 |" in text
    assert text.count("<!-- end -->") == 2


@pytest.mark.parametrize(("full", "methods"), [(False, ["AdaPeD"]), (True, ["AdaPeD", "FedEM"])])
def test_full_participation_names_its_methods(bench: reproduce.Runner, full: bool, methods: list[str]) -> None:
    rows = table_1.make_everybody(replace(bench, full=full))[0].rows  # pyright: ignore[reportAttributeAccessIssue]
    assert [row[0] for row in rows] == methods


def test_a_teacher_on_few_numbers_and_a_student_each_speak_alone() -> None:
    student = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    both = few.Beside(student, Projection(torch.ones(4), torch.eye(4)[:, :2]), 3)
    with torch.no_grad():
        both.head.weight.copy_(torch.arange(6.0).view(3, 2))
    x, params = torch.randn(5, 4), dict(both.named_parameters())
    alone = torch.func.functional_call(both, few.only(params, "student"), (x,))
    assert torch.equal(alone, student(x))
    taught = torch.func.functional_call(both, few.only(params, "head"), (x,))
    assert torch.allclose(taught, (x - 1)[:, :2] @ both.head.weight.T)
