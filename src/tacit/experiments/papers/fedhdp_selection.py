"""How the hyper-parameters of the recipes were chosen: every setting that was tried, on validation images.

A sixth of the training images stands in for the test set, which stays unseen; the seed is none of the reported ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from tacit.experiments.papers.fedhdp_cell import validate
from tacit.experiments.papers.fedhdp_recipe import (
    DP_FEDAVG,
    MNIST,
    NON_PRIVATE,
    OPTIMAL,
    SKEWED,
    WRITERS_AT_PAPERS_NOISE,
    WRITERS_CNN,
    Recipe,
    Tuned,
    at,
)
from tacit.experiments.reproduce import Bench, Reproduction
from tacit.experiments.reproduce_page import Part, Results

SEED: Final = 100

Change = Mapping[str, float]


@dataclass(frozen=True)
class Search:
    """What was tried beside the chosen settings of a recipe, one change at a time, by kind of arm.

    FedHDP's setting is judged by the arm of one ratio; ratios are then compared at the setting that was chosen.
    """

    title: str
    recipe: Recipe
    tried: Mapping[str, Sequence[Change]]
    ratio: float
    ratios: tuple[float, ...]
    personal_lrs: tuple[float, ...] = ()
    widths: tuple[int, ...] = ()  # of the hidden layer, chosen by FedHDP's arm

    def arm(self, kind: str) -> str:
        """The arm by which a kind is judged."""
        return at(self.ratio) if kind == "fedhdp" else kind


SEARCHES: Final = (
    Search(
        "One-digit clients of MNIST",
        MNIST,
        {
            NON_PRIVATE: [{"lr": 0.1}, {"lr": 0.1, "server_lr": 0.5}],
            DP_FEDAVG: [{"server_lr": 0.1}, {"server_lr": 0.4}],
            "fedhdp": [{"server_lr": 0.4}, {"server_lr": 1.2}],
        },
        ratio=0.025,
        ratios=(0.01, 0.025, 0.1),
        personal_lrs=(0.3, 1.0, 3.0),
        widths=(32, 64),
    ),
    Search(
        "All who opted out hold the digit 7",
        SKEWED,
        {
            "fedhdp": [{"server_lr": 0.15}],
            OPTIMAL: [{"server_lr": 0.15}, {"server_lr": 0.6}],
        },
        ratio=0.1,
        ratios=(0.1, 0.5),
    ),
    Search(
        "Writers",
        WRITERS_AT_PAPERS_NOISE,
        {
            NON_PRIVATE: [{"server_lr": 0.5}],
            DP_FEDAVG: [{"server_lr": 0.05}, {"server_lr": 0.2}, {"decay": 1.0}],
            "fedhdp": [{"server_lr": 0.3}, {"server_lr": 1.5}],
        },
        ratio=0.01,
        ratios=(0.001, 0.01, 0.1),
    ),
    Search(
        "Writers, convolutional network",
        WRITERS_CNN,
        {
            NON_PRIVATE: [{"server_lr": 0.5}],
            DP_FEDAVG: [{"server_lr": 0.05}, {"server_lr": 0.2}],
            "fedhdp": [{"server_lr": 0.3}, {"server_lr": 1.5}],
        },
        ratio=0.01,
        ratios=(0.01, 0.1),
    ),
)


def make(bench: Bench) -> list[Part]:
    return [part for search in SEARCHES for part in tables(bench, search)]


def tables(bench: Bench, search: Search) -> list[Part]:
    parts: list[Part] = [_settings(bench, search, kind) for kind in search.tried]
    parts += [_widths(bench, search)] if search.widths else []
    parts += [_ratios(bench, search)] if search.ratios else []
    return [*parts, _personal(bench, search)] if search.personal_lrs else parts


def _settings(bench: Bench, search: Search, kind: str) -> Results:
    """The chosen setting and each one beside it, best first."""
    chosen = search.recipe.tuned[kind]
    settings = [chosen, *(replace(chosen, **change) for change in search.tried[kind])]
    found = {each: accuracy(bench, search, kind, each) for each in dict.fromkeys(settings)}
    names = [field.name for field in fields(Tuned)]
    lines = [
        [*(f"{getattr(each, name):g}" for name in names), f"{value:.2f}", "chosen" if each == chosen else ""]
        for each, value in sorted(found.items(), key=lambda item: -item[1])
    ]
    return Results(f"{search.title}: {kind}, judged by {search.arm(kind)}", [*names, "validation, %", ""], lines)


def accuracy(bench: Bench, search: Search, kind: str, setting: Tuned) -> float:
    changed = replace(search.recipe, tuned={**search.recipe.tuned, kind: setting})
    return validate(bench, changed, search.arm(kind), SEED)["accuracy"]


def _widths(bench: Bench, search: Search) -> Results:
    """Widths of the hidden layer, at the settings that were chosen; FedHDP's arm decides."""
    lines = []
    for width in search.widths:
        changed = replace(search.recipe, hidden=(width,))
        found = validate(bench, changed, at(search.ratio), SEED)["accuracy"]
        lines.append([str(width), f"{found:.2f}", "chosen" if changed.hidden == search.recipe.hidden else ""])
    heads = ["width", "validation, %", ""]
    return Results(f"{search.title}: width of the hidden layer, judged by {at(search.ratio)}", heads, lines)


def _ratios(bench: Bench, search: Search) -> Results:
    lines = [[f"{r:g}", f"{validate(bench, search.recipe, at(r), SEED)['accuracy']:.2f}"] for r in search.ratios]
    return Results(f"{search.title}: the ratio, at the chosen setting", ["r", "validation, %"], lines)


def _personal(bench: Bench, search: Search) -> Results:
    """Personal learning rates, by the clients' mean accuracy on validation images of their own digit."""
    lines = []
    for lr in search.personal_lrs:
        found = validate(bench, replace(search.recipe, personal_lr=lr), at(search.ratio), SEED, personal=True)
        chosen = "chosen" if lr == search.recipe.personal_lr else ""
        lines.append([f"{lr:g}", f"{found['personal']:.3f}", chosen])
    heads = ["personal learning rate", "personal models, validation, %", ""]
    return Results(f"{search.title}: personal models, at {at(search.ratio)}", heads, lines)


REPRODUCTION = Reproduction(
    "fedhdp/selection",
    "How FedHDP's hyper-parameters were chosen",
    "A sixth of the training images stands in for the test set, which stays unseen; seed 100 is not reported.",
    make,
    seeds=1,
    cells="fedhdp",
)
