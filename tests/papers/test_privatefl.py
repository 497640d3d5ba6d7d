"""PrivateFL's pages: recipes are files of experiments, accuracies are named, and the verdict tells what it rests on."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from papers.bench import REGISTRY, Runner, find
from papers.page import Picture, Results
from papers.privatefl import encoding, few_numbers, table_pages
from papers.privatefl import reproduce as pages
from papers.privatefl.as_published import renyi_epsilon, true_epsilon
from papers.privatefl.cell import ALONE, HEAD, measure
from papers.privatefl.curves import LAYERED, OWN, PLAIN, Figure, Series, View, make, told
from papers.privatefl.figures import FIGURES
from papers.privatefl.recipe import LAYER, Arm, Tuned, World, experiment
from papers.privatefl.table_6 import ENCODERS
from papers.privatefl.tables import TABLES
from papers.privatefl.tuned import TRIED
from papers.privatefl.views import Line, Row, choose
from tacit.experiments.build import build_privacy, method_of

SMALL = World("digits", {"source": "digits", "test": "matched"}, {"name": "softmax"}, clients=10)
QUICK = Tuned(rounds=2, lr=0.5)


@pytest.fixture
def bench(tmp_path: Path) -> Runner:
    return Runner(Console(file=StringIO()), False, 1, tmp_path, "test")


def test_every_setting_that_was_tried_is_an_experiment() -> None:
    for world, arm, tried in TRIED.values():
        for tuned in tried:
            config = experiment(world, arm, tuned, 0)
            assert config.privacy.plan == arm.kind
            assert (config.model.get("transform") is None) == (arm.transform is None)


def test_every_row_of_a_table_is_an_experiment_that_its_plan_accepts() -> None:
    for tables in TABLES.values():
        for line in (line for each in tables for line in each.lines):
            config = experiment(line.world, line.arm, line.tuned, 0)
            assert method_of(config) is not None
            assert build_privacy(config).levels[0].epsilon == line.arm.epsilon


def test_every_point_of_a_figure_is_an_experiment() -> None:
    for figure in FIGURES.values():
        for line in (line for view in (*figure.views, *figure.few) for series in view.series for line in series.lines):
            config = experiment(line.world, line.arm, line.tuned, 0)
            assert (config.privacy.plan or "open") == line.arm.kind


def test_a_figure_has_a_table_and_a_curve_for_each_series(bench: Runner) -> None:
    arm = Arm("open", heterogeneity=True, every=1)
    lines = [Line(f"{n}", replace(SMALL, clients=n), arm, QUICK) for n in (5, 10)]
    several = [Series("one", lines), Series("other", lines)]
    views = [
        View("over", "clients", (5, 10), "emd", [*several, Series("level", lines[:1])]),
        View("against", "emd", "emd", "own", several),
        View("loss", "round", (1, 2), "loss", [Series("one", lines[:1])]),
    ]
    parts = make(Figure("a figure", views), bench)
    over, against, loss = (part for part in parts if isinstance(part, Results) and part.title != "Settings")
    assert [len(table.rows) for table in (over, against, loss)] == [3, 4, 1]
    assert len(loss.rows[0]) == 3
    (picture,) = (part for part in parts if isinstance(part, Picture))
    assert len(picture.panels) == 3


def test_a_figure_says_how_much_of_the_gain_training_alone_has_too() -> None:
    line = Line("", SMALL, Arm("central", heterogeneity=True), QUICK)
    own = {PLAIN: (0.5, 0.6), LAYERED: (0.4, 0.9), OWN: (0.8,)}
    emd = {PLAIN: 0.2, LAYERED: 0.1, OWN: 0.0}
    rows = [[Row(line, [{"own": each, "emd": emd[name]}]) for each in own[name]] for name in own]
    view = View("digits", "", "emd", "own", [Series(name, [line] * len(own[name])) for name in own])
    alike, gains = told([(view, rows)])
    assert "lower in 2 of 2 points" in alike
    assert "above FedAvg in 1, above training alone in 1 of 2 points" in gains


def test_encoding_is_timed_on_one_thread_which_is_given_back() -> None:
    before = torch.get_num_threads()
    assert all(seconds > 0 for seconds in encoding.measure(1000).values())
    assert torch.get_num_threads() == before


def test_a_page_says_whether_encoding_is_fast_enough(bench: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "measure", lambda size: {"encode": size * 4e-7, "decode": size * 2e-7})
    times, said = encoding.parts(bench)
    assert isinstance(times, Results)
    assert [row[0] for row in times.rows] == ["100,000", "1,000,000", "10,000,000"]
    assert said == "Encode and decode of 1,000,000 numbers: 0.600 s; target: 0.5 s at most: NOT met."


def test_every_page_is_registered_by_its_own_name() -> None:
    for name in (each for each in REGISTRY if each.startswith("privatefl/")):
        assert find(name).name == name


def test_a_random_head_learns_its_transform_alone(bench: Runner) -> None:
    head, alone = (measure(bench, SMALL, arm, QUICK, 0) for arm in (HEAD, ALONE))
    assert 0 <= head["own"] <= 1
    assert alone["own"] > head["own"]  # with so few rounds
    assert not alone["spent"]


@pytest.mark.parametrize("kind", ["central", "record"])
def test_a_cell_tells_what_was_spent(bench: Runner, kind: str) -> None:
    arm = Arm(kind, 4.0, 1e-2, transform=LAYER, privacy={"allow_large_delta": True})  # pyright: ignore[reportArgumentType]
    cell = measure(bench, SMALL, arm, QUICK, 0)
    assert 3.8 < cell["spent"]["pld"] <= 4.0
    assert measure(bench, SMALL, arm, QUICK, 0) == cell  # from the cache


@pytest.mark.parametrize(("alone", "said"), [(0.95, "personalization alone"), (0.85, "worth more than either alone")])
def test_the_verdict_credits_the_federation_only_beyond_training_alone(alone: float, said: str) -> None:
    line = Line("", SMALL, Arm("central"), QUICK)
    rows = [Row(line, [{"own": own, "whole": 0.8}]) for own in (0.8, 0.9)]
    other = [Row(replace(line, arm=ALONE), [{"own": own, "whole": 0.1}]) for own in (alone, 0.6)]
    assert said in pages.verdict(rows, other)


@pytest.mark.parametrize(("alone", "said"), [(0.95, "No row"), (0.85, "1 of 2"), (0.75, "Every row")])
def test_a_table_says_how_many_rows_are_above_training_alone(alone: float, said: str) -> None:
    lines = [Line(f"{own}", SMALL, Arm("central", transform=LAYER), QUICK) for own in (0.8, 0.9)]
    rows = [Row(line, [{"own": own}]) for line, own in zip(lines, (0.8, 0.9), strict=True)]
    (baseline,) = table_pages.baselines(lines[:1])
    assert baseline.name == "(c) training alone"
    assert said in table_pages.verdict(rows, [Row(baseline, [{"own": alone}])])


def test_a_table_says_what_the_transform_adds_to_the_same_row_without_it() -> None:
    lines = [Line(f"{layer}", SMALL, Arm("central", transform=layer), QUICK) for layer in (None, LAYER)]
    rows = [Row(line, [{"own": own, "whole": 0.5}]) for line, own in zip(lines, (0.7, 0.8), strict=True)]
    said = "The transform raises (a) in 1 of 1 rows (+0.100 in the mean) and (b) in 0 of 1 rows (+0.000 in the mean)."
    assert table_pages.gained(rows) == said
    assert table_pages.gained(rows[1:]) == ""


def test_tables_over_worlds_have_training_alone_in_each_of_them() -> None:
    for table, worlds in zip(TABLES["table-9"][:2], (2, 5), strict=True):  # on few numbers, and by the paper's network
        names = {line.name.partition(",")[0] for line in table.lines}
        assert len(table_pages.baselines(table.lines)) == len(names) == worlds


def test_the_overview_runs_nothing_and_says_so(bench: Runner) -> None:
    overview = find("privatefl").make(bench)
    tables = [part for part in overview if isinstance(part, Results)]
    assert [table.title for table in tables] == ["Client-level", "Record-level"]
    assert {row[1] for table in tables for row in table.rows} == {"not run"}


def test_one_tensor_costs_no_more_than_claimed_and_several_cost_more() -> None:
    assert true_epsilon(2.0, 1) < 2.0 < true_epsilon(2.0, 2) < true_epsilon(2.0, 22)
    assert (round(true_epsilon(8.0, 3), 2), round(true_epsilon(2.0, 22), 1)) == (15.14, 12.6)
    assert renyi_epsilon(0.5) > 0


def test_a_row_takes_the_settings_of_the_option_that_is_best_on_validation_rows(bench: Runner) -> None:
    world = few_numbers.projected(SMALL, 8, public=200)
    arm = Arm("central", 8.0)
    poor, good = (few_numbers.prototypes(arm, world, Tuned(1, 0.1, clip, 1024), 0.3) for clip in (1000.0, 0.5))
    plain, layered = few_numbers.prototype_pair("row", SMALL, (None, None), poor, [poor, good])
    assert choose(bench, plain).tuned == good.tuned
    assert (plain.layered, layered.layered) == (False, True)
    assert plain.beside == SMALL


def test_every_figure_of_table_6_is_there_and_is_an_experiment() -> None:
    assert sum(len(row) - 1 for each in ENCODERS for block in (each.central, each.record) for row in block) == 120
    for encoder in ENCODERS:
        line = few_numbers.prototypes(Arm("record", 2.0), encoder.world, QUICK, 0.3)
        assert experiment(line.world, line.arm, line.tuned, 0).method.get("base") == "prototypes"


def test_one_run_of_a_small_network_gives_the_row_without_the_transform_and_the_one_with_it() -> None:
    arm = Arm("central", 2.0, privacy={"project": True})
    plain, layered = few_numbers.trained("row", SMALL, arm, (0.1, 0.2), "tanh")
    assert (plain.world, plain.arm) == (layered.world, layered.arm)
    assert (plain.layered, layered.layered) == (False, True)
    assert all(option.arm == arm for option in plain.options)
