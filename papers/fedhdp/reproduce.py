"""FeO2's Tables 4 to 7, measured again: every arm beside the paper's row, mean and standard deviation over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from papers.bench import Reproduction, Runner
from papers.fedhdp import recipe as recipes
from papers.fedhdp import views
from papers.fedhdp.cell import measure
from papers.fedhdp.grid import grid
from papers.fedhdp.paper import printed, ratios
from papers.fedhdp.recipe import DP_FEDAVG, MENU, NON_PRIVATE, OPTIMAL, SEVERE, Recipe, at
from papers.fedhdp.views import Row
from papers.page import Part

STRENGTHS: Final = (0.005, 0.05, 0.25)
PAPER: Final = (
    "N. Aldaghri, H. Mahdavifar, A. Beirami: FeO2, Federated Learning with Opt-Out Differential Privacy, Tables "
    "4 to 7; Federated Learning with Heterogeneous Differential Privacy (FedHDP)."
)


@dataclass(frozen=True)
class Plan:
    """What a page shows of a recipe."""

    recipe: Recipe
    ratios: tuple[float, ...]
    note: str = ""
    skewed: bool = False  # why no ratio gains much where those who opted out are unlike the rest
    gap: bool = False  # how much of the gap between DP-FedAvg and non-private each step closes


def row(bench: Runner, recipe: Recipe, arm: str, strength: float | None = None) -> Row:
    """One arm over all seeds, beside the paper's row of the same lambda."""
    cells = [measure(bench, recipe, arm, seed, strength) for seed in range(bench.seeds)]
    lam = recipe.strength if strength is None else strength
    return Row(arm, lam, printed(recipe.table, lam, arm), cells)


def make(plans: Sequence[Plan], bench: Runner) -> list[Part]:
    return [part for plan in plans for part in _one(plan, bench)]


def _one(plan: Plan, bench: Runner) -> list[Part]:
    recipe = plan.recipe
    rows = {arm: row(bench, recipe, arm) for arm in arms(plan.ratios)}
    parts = [
        views.setting(recipe, rows[DP_FEDAVG], plan.note),
        views.table(recipe, list(rows.values()), bench.seeds),
        *([views.skew(recipe, rows)] if plan.skewed else []),
        views.papers_spread(recipe),
        views.order(rows),
        *([views.gap(rows)] if plan.gap else []),
        views.against_ratio(recipe, rows),
        *views.chosen_ratios(recipe, rows[OPTIMAL], views.best(rows)),
    ]
    if bench.full:
        parts += grid(recipe, {lam: _grid(bench, recipe, lam) for lam in STRENGTHS}, bench.seeds)
    return [*parts, views.recipe(recipe, [cell for each in rows.values() for cell in each.cells])]


def levels(bench: Runner, recipe: Recipe = recipes.MNIST) -> dict[str, Row]:
    """Three levels, beside the two federations that have only one of the private ones."""
    return {arm: row(bench, recipe, arm) for arm in (SEVERE, MENU, OPTIMAL)}


def _grid(bench: Runner, recipe: Recipe, strength: float) -> list[Row]:
    return [row(bench, recipe, arm, strength) for arm in arms(ratios(recipe.table))]


def arms(tried: Sequence[float]) -> list[str]:
    return [NON_PRIVATE, DP_FEDAVG, *map(at, tried), OPTIMAL]


_WRITERS: Final = (0.0, 0.025, 1.0)
_STAND_IN: Final = (
    "**Other data than the paper's.** The digits of 539 writers of MNIST stand in for those of 3,383 writers of "
    "EMNIST: figures of one column are not to be compared with the paper's, their order is."
)
_MNIST_PLANS: Final = (Plan(recipes.MNIST, (0.01, 0.025, 0.1, 1.0)),)
_SKEWED_PLANS: Final = (Plan(recipes.SKEWED, (0.0, 0.1, 0.5, 1.0), skewed=True),)
_WRITERS_PLANS: Final = (
    Plan(
        recipes.WRITERS_AT_PAPERS_NOISE,
        _WRITERS,
        note=f"{_STAND_IN} At the noise per mean of the paper; 27 writers opted out, where the paper's 5% are 169.",
        gap=True,
    ),
    Plan(recipes.WRITERS, _WRITERS, note="At the paper's epsilon, with a sixth of its clients."),
)
_CNN_PLANS: Final = (
    Plan(
        recipes.WRITERS_CNN,
        (0.01, 0.1, 1.0),
        note="**Other data and another task than the paper's.** Ten digits of 539 writers stand in for 62 classes of "
        "3,400 writers (FEMNIST), with a narrower network: figures are not to be compared with the paper's, their "
        "order is. A personal model takes one step whenever its client is asked, some fifteen in all, from the shared "
        "model that it met first: too few for this network. Since these cells were run a client keeps the shared model "
        "where that fits its training rows better, and `solve_epochs` solves for personal models in the end.",
    ),
)
PAGES: Final = {
    "fedhdp-mnist.md": _MNIST_PLANS,
    "fedhdp-mnist-skewed.md": _SKEWED_PLANS,
    "fedhdp-writers.md": _WRITERS_PLANS,
    "fedhdp-writers-cnn.md": _CNN_PLANS,
}
"""What each page shows, by its file."""


def _page(name: str, title: str, plans: Sequence[Plan]) -> Reproduction:
    return Reproduction(name, title, PAPER, partial(make, plans), seeds=3, cells="fedhdp")


MNIST_PAGE = _page("fedhdp/mnist", "FedHDP on one-digit clients of MNIST", _MNIST_PLANS)
LEVELS_PAGE = Reproduction(
    "fedhdp/levels",
    "FedHDP with three levels on one-digit clients of MNIST",
    PAPER,
    lambda bench: [views.menu(levels(bench))],
    seeds=3,
    cells="fedhdp",
)
SKEWED_PAGE = _page("fedhdp/mnist-skewed", "FedHDP where all who opted out hold the digit 7", _SKEWED_PLANS)
WRITERS_PAGE = _page("fedhdp/writers", "FedHDP on the digits of 539 writers", _WRITERS_PLANS)
WRITERS_CNN_PAGE = _page(
    "fedhdp/writers-cnn", "FedHDP with a convolutional network on the digits of 539 writers", _CNN_PLANS
)
