"""FedHDP's reproductions: recipes, cells and pages, on tiny data."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from papers.bench import REGISTRY, Reproduction, Runner, find
from papers.fedhdp import cell as fedhdp_cell
from papers.fedhdp import incentive, open_clients, personal, private_levels, reproduce, selection, views
from papers.fedhdp import overview as fedhdp_overview
from papers.fedhdp.paper import printed, ratios, tables
from papers.fedhdp.recipe import DP_FEDAVG, MENU, MNIST, NON_PRIVATE, OPTIMAL, SEVERE, SKEWED, Recipe, at
from papers.page import Page, Results, show, write
from tacit.data.partition import Ids, Pool
from tacit.experiments.build import build_privacy, build_training, method_of
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.release import Totals
from tacit.rounds.assemble import assemble

RECIPES = tuple(plan.recipe for plans in reproduce.PAGES.values() for plan in plans)
ARMS = (NON_PRIVATE, DP_FEDAVG, at(0), at(0.01), at(1), OPTIMAL, SEVERE, MENU)
TINY = replace(MNIST, clients=40, rate=0.5, rounds=4, hidden=(8,), noise=1.0)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Images of 28x28 whose class is the row that is lit; forty rows of each class, by twenty writers."""
    source = np.random.default_rng(0)
    y = torch.arange(400) % 10
    x = torch.from_numpy(source.integers(0, 40, (400, 28, 28)).astype(np.uint8))
    x[torch.arange(400), 2 * y] = 255
    writers = source.integers(20, size=400)
    made = Pool("mnist", x[:300], y[:300], 10, (x[300:], y[300:]), {"writer": Ids(writers[:300], None)})
    monkeypatch.setattr(fedhdp_cell, "npz_pool", lambda name: made)
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Runner:
    return Runner(Console(quiet=True), False, 2, tmp_path / "cells")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("arm", ARMS)
def test_every_recipe_makes_a_valid_experiment_of_every_arm(recipe: Recipe, arm: str) -> None:
    config = recipe.experiment(arm, seed=1)
    for part in (method_of(config), build_privacy(config), build_training(config)):
        assert part is not None
    assert config.rounds == 500


def test_the_papers_tables_are_whole() -> None:
    assert len(tables()) == 105
    assert printed("mnist", 0.005, at(0.01))["global"] == 92.48
    assert printed("mnist-skewed", 0.005, at(0.1))["personal_open_variance"] == 0.003
    assert printed("mnist", 0.005, OPTIMAL) == {}
    assert ratios("mnist") == [0, 0.001, 0.01, 0.025, 0.1, 1]
    for figures in tables().values():
        if {"global_open", "global_private"} <= figures.keys():
            assert "global_gain" in figures


def test_ratio_one_has_the_noise_of_dp_fedavg(pool: Pool) -> None:
    """The same event in the ledger, and the same standard deviation in what is released when nobody has moved."""
    stds, events = [], []
    for arm in (DP_FEDAVG, at(1)):
        config = TINY.experiment(arm, seed=0)
        clients = fedhdp_cell.federation(TINY, 0)
        made = assemble(
            clients,
            fedhdp_cell.start(TINY, config, clients),
            method_of(config),
            build_privacy(config),
            build_training(config),
        )
        plan = made.engine.plan
        assert isinstance(plan.release, GroupedRelease)
        levels = len(plan.multipliers)
        body = {name: torch.zeros(levels, *leaf.shape) for name, leaf in made.shapes.upload.items()}
        nothing = Totals(body, torch.zeros(levels), torch.zeros(levels), torch.zeros(levels))
        mean, _ = plan.release.decode(plan.release.start(), nothing, Seeded.of(0, "server", 0))
        stds.append(float(torch.cat([leaf.flatten() for leaf in mean.model.values()]).std()))
        events += [account.event for account in plan.levels]
    z, start = 1.0 / math.sqrt(1 - 5**-2), TINY.tuned[DP_FEDAVG].start
    assert events[0] == events[1]
    assert stds == pytest.approx([z * start / (0.5 * 40)] * 2, rel=0.05)
    assert TINY.kind(at(1)) == DP_FEDAVG  # and its hyper-parameters


def test_a_cell_has_every_figure_of_the_papers_tables(pool: Pool, bench: Runner) -> None:
    cell = fedhdp_cell.measure(bench, TINY, OPTIMAL, seed=0)
    assert {"global", "global_private", "global_open", "global_gain"} <= cell.keys()
    assert {"personal_private_variance", "personal_open_variance", "personal_gain"} <= cell.keys()
    assert cell["global_gain"] == pytest.approx(cell["global_open"] - cell["global_private"])
    assert len(cell["own"]["personal"]) == 40


def test_private_clients_that_are_not_asked_keep_the_shared_model(pool: Pool, bench: Runner) -> None:
    cell = fedhdp_cell.measure(bench, TINY, at(0), seed=0)
    assert cell["personal_private"] == pytest.approx(cell["global_private"])
    assert cell["levels"]["private"]["noise"] is None


def test_three_levels_have_an_epsilon_each(pool: Pool, bench: Runner) -> None:
    recipe = replace(TINY, noise=None, epsilon=3.6)
    levels = fedhdp_cell.measure(bench, recipe, MENU, seed=0)["levels"]
    assert levels["severe"]["spent"]["pld"] == pytest.approx(1.0, rel=0.01)
    assert levels["mild"]["spent"]["pld"] == pytest.approx(3.6, rel=0.01)
    assert levels["open"]["spent"] is None
    assert levels["severe"]["noise"] > levels["mild"]["noise"]


def test_the_page_of_levels_says_who_has_no_guarantee(pool: Pool, bench: Runner, tmp_path: Path) -> None:
    rows = reproduce.levels(bench, replace(TINY, noise=None, epsilon=3.6))
    text = write(Page("t", "p", [views.menu(rows)]), tmp_path, "tiny", "-").read_text()
    assert "| - severe | 19 | 1 | 1.00 |" in text
    assert "| - open | 2 | no guarantee |" in text


def test_optimal_reports_its_ratio_in_every_round(pool: Pool, bench: Runner) -> None:
    found = fedhdp_cell.measure(bench, TINY, OPTIMAL, seed=0)["ratios"]
    assert len(found) == TINY.rounds
    assert all(ratio >= 0 for ratio in found)


def test_cells_are_kept_by_what_decides_their_figures(pool: Pool, bench: Runner) -> None:
    first = fedhdp_cell.measure(bench, TINY, DP_FEDAVG, seed=0)
    assert fedhdp_cell.measure(bench, replace(TINY, name="other", opted_out=0.2), DP_FEDAVG, seed=0) == first
    assert len(list((bench.cache or Path()).iterdir())) == 1
    for changed in (replace(TINY, shift=0.5), replace(TINY, head=1.0), replace(TINY, personal_lr=0.2)):
        fedhdp_cell.measure(bench, changed, DP_FEDAVG, seed=0)
    assert len(list((bench.cache or Path()).iterdir())) == 4


def test_validation_never_sees_the_test_set(pool: Pool) -> None:
    split = fedhdp_cell.set_aside(pool, 1 / 3, seed=1)
    assert split.test is not None
    rows = torch.cat([split.x, split.test[0]]).flatten(1)
    trained = {tuple(row) for row in pool.x.flatten(1).tolist()}
    assert len(rows) == len(pool.x)
    assert all(tuple(row) in trained for row in rows.tolist())
    assert len(split.ids["writer"].train) == len(split.x)


def test_one_digit_clients_are_tested_on_their_digit(pool: Pool) -> None:
    clients = fedhdp_cell.federation(TINY, 0)
    for k in range(clients.clients):
        own = clients.test_y[clients.test_rows(k)]
        assert set(own.tolist()) == set(clients.y[clients.rows(k)].tolist())


def pages() -> dict[str, Callable[[Runner], Any]]:
    plan = reproduce.Plan(TINY, (0.0, 0.1, 1.0))
    return {"table": lambda bench: reproduce.make([plan], bench)}


@pytest.mark.parametrize("full", [False, True])
def test_a_page_shows_paper_and_measured_side_by_side(
    pool: Pool, tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "STRENGTHS", (0.005, 0.05))
    made = Reproduction("tiny", "Tiny", "a paper", pages()["table"], seeds=2)
    page = made.run(Console(quiet=True), full, None, tmp_path / "cells")
    text = write(page, tmp_path, "tiny", "python -m papers run tiny").read_text()
    assert "| dp-fedavg | paper | 88.75 | 88.64 (0.39) | - |" in text
    assert "| dp-fedavg | ours |" in text
    assert ("tiny-mnist-grid.png" in text) == full
    show(page, Console(quiet=True))


def test_what_opting_out_gains_is_compared_client_by_client(pool: Pool, bench: Runner) -> None:
    recipe = replace(TINY, noise=None, epsilon=3.6)
    moved, stayed = incentive.gains(bench, recipe, MENU)
    assert moved.keys() == stayed.keys() == {"severe", "mild"}
    assert len(moved["mild"]["global"]) == bench.seeds  # 1% of 40, at least one, of each seed
    assert len(stayed["mild"]["personal"]) == bench.seeds * 18


def test_the_record_of_the_selection_names_what_was_chosen(pool: Pool, tmp_path: Path) -> None:
    tried = {NON_PRIVATE: [{"lr": 0.2}], "fedhdp": [{"server_lr": 0.1}, {"ratio": 0.3, "width": 4}]}
    bench = Runner(Console(quiet=True), False, 1, tmp_path / "cells")
    search = selection.Search("tiny", TINY, tried, 0.1, personal_lrs=(0.5, TINY.personal_lr))
    parts = selection.tables(bench, search)
    text = write(Page("t", "p", parts), tmp_path, "tiny", "-").read_text()
    assert text.count("chosen |") == 3
    assert "| r=0.3 | 4 |" in text
    assert "| r=0.1 | 8 |" in text


def test_optimal_weights_may_have_a_setting_of_their_own() -> None:
    own = replace(MNIST, tuned={**MNIST.tuned, OPTIMAL: replace(MNIST.tuned["fedhdp"], server_lr=0.123)})
    for arm in (OPTIMAL, MENU, SEVERE):
        assert MNIST.kind(arm) == "fedhdp"
        assert own.kind(arm) == OPTIMAL
    assert own.kind(at(0.1)) == "fedhdp"


def test_the_gap_is_shared_out_between_dp_fedavg_and_non_private() -> None:
    found = {DP_FEDAVG: 80.0, at(0): 85.0, at(0.01): 88.0, at(1): 80.0, NON_PRIVATE: 90.0}
    rows = {arm: views.Row(arm, 0.05, printed("writers", 0.05, arm), [{"global": g}]) for arm, g in found.items()}
    shares = {line[0]: line[2] for line in views.gap(rows).rows}
    assert shares == {"DP-FedAvg": "0%", "opted-out alone": "50%", "best ratio, r=0.01": "80%", "non-private": "100%"}
    paper = {line[0]: line[-1] for line in views.gap(rows).rows}
    assert paper["best ratio, r=0.01"] == "77%"


def overview(bench: Runner) -> list[Results]:
    return [part for part in fedhdp_overview.make(bench) if isinstance(part, Results)]


def test_the_overview_says_which_targets_were_met(pool: Pool, bench: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = (reproduce.Plan(TINY, (0.0, 0.1, 1.0)),)
    monkeypatch.setattr(fedhdp_overview, "PAGES", {"tiny.md": plans})
    for name in ("MNIST", "SKEWED", "WRITERS_AT_PAPERS_NOISE"):
        monkeypatch.setattr(fedhdp_overview, name, TINY)
    none, _ = overview(bench)
    assert none.note == "Not run: mnist."
    reproduce.make(plans, bench)
    tables = overview(bench)
    assert [line[0] for line in tables[0].rows] == ["[mnist](tiny.md)"]
    assert {line[-1] for line in tables[1].rows} <= {"yes", "**no**"}


def test_every_page_of_fedhdp_is_registered() -> None:
    names = [name for name in REGISTRY if name.startswith("fedhdp")]
    assert [find(name).name for name in names] == names
    assert len({find(name).cells for name in names}) == 1  # they share cells


def test_the_papers_lambda_blocks_are_repetitions_of_the_shared_model() -> None:
    """On one-digit clients the gain is clear; where all who opted out hold one digit it is not."""
    clear, unclear = (views.papers_spread(recipe).markdown() for recipe in (MNIST, SKEWED))
    assert "4.12 ± 0.23" in clear
    assert "75%" in clear
    assert "0.97 ± 0.58" in unclear


def test_two_private_levels_in_closed_form() -> None:
    found = private_levels.closed_form()
    assert list(found.values()) == pytest.approx([0.0380, 0.0369, 0.0175], abs=2e-4)


def test_a_page_of_trials_names_those_that_were_not_run(pool: Pool, bench: Runner) -> None:
    values = open_clients.run(bench, TINY, 0.1)
    assert set(values.values()) == {None}
    assert "not run" in open_clients.table("Tiny", values).markdown()


def test_personal_models_are_reported_by_the_variant_that_validation_chose() -> None:
    cell = {"variants": {"a": {"private": [90, 94.0, 0.1]}, "b": {"private": [90, 93.0, 0.1]}}}
    assert personal.chosen(cell) == "a"
    good, low = [88.0, 93.5, 0.2, 4.0], [88.0, 92.9, 0.2, 4.0]
    line = personal.line([{"private": good, "open": [90.0, 94.0, 0.3, 3.0]}] * 2)
    assert line[-1] == "yes"
    assert line[-2] == "0.50 ± 0.00"  # Delta_l
    assert personal.line([{"private": low, "open": good}])[-1] == "**no**"


def test_a_share_of_the_gap_is_met_or_not_and_nothing_is_said_of_what_was_not_run() -> None:
    first, second, third = open_clients.BARS
    some = {DP_FEDAVG: 80.0, at(0): 82.0, at(0.025): 85.0, NON_PRIVATE: 90.0}
    none = dict.fromkeys(some)
    lines = open_clients.reached({first: some, second: {**some, at(0.025): 86.0}, third: none}).rows
    assert [line[2:] for line in lines] == [
        ["20%", "50%", "r=0.025", "yes"],
        ["20%", "60%", "r=0.025", "**no**"],
        ["not run", "not run", "", ""],
    ]
