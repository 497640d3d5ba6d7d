"""How the hyper-parameters of the recipes were chosen: every setting that was tried, on validation images.

A sixth of the training images stands in for the test set, which stays unseen; the seed is none of the reported ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

from tacit.experiments.papers.fedhdp_cell import validate
from tacit.experiments.papers.fedhdp_recipe import (
    DP_FEDAVG,
    MNIST,
    NON_PRIVATE,
    WRITERS_AT_PAPERS_NOISE,
    Recipe,
    Tuned,
    at,
)
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part, Results

SEED: Final = 100
JUDGED_BY: Final = {NON_PRIVATE: NON_PRIVATE, DP_FEDAVG: DP_FEDAVG, "fedhdp": at(0.025)}
"""The arm by which a kind is judged; ratios are then compared at the settings that were chosen."""
RATIOS: Final = (0.01, 0.025, 0.1)

Change = Mapping[str, float]
GRIDS: Final[Mapping[str, tuple[Recipe, Mapping[str, Sequence[Change]]]]] = {
    "One-digit clients of MNIST": (
        MNIST,
        {
            NON_PRIVATE: [{"lr": 0.3}, {"server_lr": 0.5}],
            DP_FEDAVG: [
                {"server_lr": 0.1},
                {"server_lr": 0.4},
                {"decay": 1.0},
                {"decay": 0.995},
                {"target": 0.2},
                {"target": 0.7},
            ],
            "fedhdp": [{"server_lr": 0.5}, {"server_lr": 1.5}, {"decay": 1.0}, {"decay": 0.996}, {"target": 0.2}],
        },
    ),
    "Writers": (
        WRITERS_AT_PAPERS_NOISE,
        {
            NON_PRIVATE: [{"server_lr": 0.5}],
            DP_FEDAVG: [{"server_lr": 0.1}, {"server_lr": 0.4}],
            "fedhdp": [{"server_lr": 0.5}, {"server_lr": 2.0}],
        },
    ),
}
"""What was tried beside each chosen setting, one change at a time."""


def make(bench: Bench) -> list[Part]:
    return [part for name, (recipe, tried) in GRIDS.items() for part in tables(bench, name, recipe, tried)]


def tables(bench: Bench, name: str, recipe: Recipe, tried: Mapping[str, Sequence[Change]]) -> list[Part]:
    parts: list[Part] = [_settings(bench, name, recipe, kind, changes) for kind, changes in tried.items()]
    return [*parts, _ratios(bench, name, recipe)]


def _settings(bench: Bench, name: str, recipe: Recipe, kind: str, changes: Sequence[Change]) -> Results:
    """The chosen setting and each one beside it, best first."""
    settings = [recipe.tuned[kind], *(replace(recipe.tuned[kind], **change) for change in changes)]
    found = {each: accuracy(bench, recipe, kind, each) for each in dict.fromkeys(settings)}
    names = [field.name for field in fields(Tuned)]
    lines = [
        [*(f"{getattr(each, name):g}" for name in names), f"{value:.2f}", "chosen" if each == settings[0] else ""]
        for each, value in sorted(found.items(), key=lambda item: -item[1])
    ]
    arm = JUDGED_BY[kind]
    return Results(f"{name}: {kind}, judged by {arm}", [*names, "validation, %", ""], lines)


def accuracy(bench: Bench, recipe: Recipe, kind: str, setting: Tuned) -> float:
    changed = replace(recipe, tuned={**recipe.tuned, kind: setting})
    return validate(bench, changed, JUDGED_BY[kind], SEED)["accuracy"]


def _ratios(bench: Bench, name: str, recipe: Recipe) -> Results:
    lines = [[f"{r:g}", f"{validate(bench, recipe, at(r), SEED)['accuracy']:.2f}"] for r in RATIOS]
    return Results(f"{name}: the ratio, at the chosen setting", ["r", "validation, %"], lines)


REPRODUCTION = Reproduction(
    "fedhdp/selection",
    "How FedHDP's hyper-parameters were chosen",
    "A sixth of the training images stands in for the test set, which stays unseen; seed 100 is not reported.",
    make,
    seeds=1,
    cells="fedhdp",
)
