"""FeO2's Tables 4 to 7, measured again: every arm beside the paper's row, mean and standard deviation over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tacit.experiments.papers import fedhdp_views as views
from tacit.experiments.papers.fedhdp_cell import measure
from tacit.experiments.papers.fedhdp_grid import grid
from tacit.experiments.papers.fedhdp_paper import printed, ratios
from tacit.experiments.papers.fedhdp_recipe import (
    DP_FEDAVG,
    MENU,
    MNIST,
    NON_PRIVATE,
    OPTIMAL,
    SEVERE,
    SKEWED,
    WRITERS,
    WRITERS_AT_PAPERS_NOISE,
    WRITERS_CNN,
    Recipe,
    at,
)
from tacit.experiments.papers.fedhdp_views import Row
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part

STRENGTHS: Final = (0.005, 0.05, 0.25)
PAPER: Final = (
    "N. Aldaghri, H. Mahdavifar, A. Beirami: FeO2, Federated Learning with Opt-Out Differential Privacy, Tables "
    "4 to 7; Federated Learning with Heterogeneous Differential Privacy (FedHDP)."
)


@dataclass(frozen=True)
class Plan:
    """What a page shows of a recipe: ratios by default; menus of three levels only where asked for."""

    recipe: Recipe
    ratios: tuple[float, ...]
    menu: bool = False
    note: str = ""


def row(bench: Bench, recipe: Recipe, arm: str, strength: float | None = None) -> Row:
    """One arm over all seeds, beside the paper's row of the same lambda."""
    cells = [measure(bench, recipe, arm, seed, strength) for seed in range(bench.seeds)]
    lam = recipe.strength if strength is None else strength
    return Row(arm, lam, printed(recipe.table, lam, arm), cells)


def make(plans: Sequence[Plan], bench: Bench) -> list[Part]:
    return [part for plan in plans for part in _one(plan, bench)]


def _one(plan: Plan, bench: Bench) -> list[Part]:
    recipe = plan.recipe
    rows = {arm: row(bench, recipe, arm) for arm in _arms(plan.ratios)}
    parts = [
        views.setting(recipe, rows[DP_FEDAVG], plan.note),
        views.table(recipe, list(rows.values()), bench.seeds),
        views.order(rows),
        views.against_ratio(recipe, rows),
        *views.chosen_ratios(recipe, rows[OPTIMAL], views.best(rows)),
    ]
    if plan.menu:
        several = {arm: row(bench, recipe, arm) for arm in (SEVERE, MENU)} | {OPTIMAL: rows[OPTIMAL]}
        parts.append(views.menu(several))
    if bench.full:
        parts += grid(recipe, {lam: _grid(bench, recipe, lam) for lam in STRENGTHS}, bench.seeds)
    return [*parts, views.recipe(recipe, [cell for each in rows.values() for cell in each.cells])]


def _grid(bench: Bench, recipe: Recipe, strength: float) -> list[Row]:
    return [row(bench, recipe, arm, strength) for arm in _arms(ratios(recipe.table))]


def _arms(tried: Sequence[float]) -> list[str]:
    return [NON_PRIVATE, DP_FEDAVG, *map(at, tried), OPTIMAL]


_USUAL: Final = (0.01, 0.025, 0.1, 1.0)
_WRITERS: Final = (0.01, 0.1, 1.0)

MNIST_PAGE = Reproduction(
    "fedhdp/mnist",
    "FedHDP on one-digit clients of MNIST",
    PAPER,
    partial(make, [Plan(MNIST, _USUAL, menu=True)]),
    seeds=3,
    cells="fedhdp",
)
SKEWED_PAGE = Reproduction(
    "fedhdp/mnist-skewed",
    "FedHDP where all who opted out hold the digit 7",
    PAPER,
    partial(make, [Plan(SKEWED, (0.0, 0.1, 0.5, 1.0))]),
    seeds=3,
    cells="fedhdp",
)
WRITERS_PAGE = Reproduction(
    "fedhdp/writers",
    "FedHDP on the digits of 539 writers",
    PAPER,
    partial(
        make,
        [
            Plan(WRITERS_AT_PAPERS_NOISE, _WRITERS, note="At the noise per mean of the paper."),
            Plan(WRITERS, _WRITERS, note="At the paper's epsilon, with a sixth of its clients."),
        ],
    ),
    seeds=3,
    cells="fedhdp",
)
WRITERS_CNN_PAGE = Reproduction(
    "fedhdp/writers-cnn",
    "FedHDP with a convolutional network on the digits of 539 writers",
    PAPER,
    partial(make, [Plan(WRITERS_CNN, _WRITERS)]),
    seeds=3,
    cells="fedhdp",
)
