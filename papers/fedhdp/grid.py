"""The whole grid of a table, ratio by lambda: a table for each lambda and a heat map of what each group gets."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.fedhdp.recipe import Recipe
from papers.fedhdp.views import Row, table
from papers.page import Part, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = {"global": "Acc_g", "personal_private": "Acc_l,p", "personal_open": "Acc_l,np"}


def grid(recipe: Recipe, by_strength: Mapping[float, Sequence[Row]], seeds: int) -> list[Part]:
    parts: list[Part] = [table(recipe, rows, seeds) for rows in by_strength.values()]
    caption = "Accuracy in percent, mean over seeds, by the weight of private clients and Ditto's strength."
    return [*parts, Picture(f"{recipe.name}-grid", caption, figure=heat_maps(by_strength))]


def heat_maps(by_strength: Mapping[float, Sequence[Row]]) -> "Figure":
    """One map a figure of `_SHOWN`: lambdas downwards, ratios to the right."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(4.6 * len(_SHOWN), 2.6), layout="constrained", facecolor="white")
    tuned = {lam: [row for row in rows if row.arm.startswith("r=")] for lam, rows in by_strength.items()}
    arms = [row.arm for row in next(iter(tuned.values()))]
    for axes, (name, title) in zip(whole.subplots(1, len(_SHOWN)), _SHOWN.items(), strict=True):
        values = np.array([[np.mean(row.values(name)) for row in rows] for rows in tuned.values()])
        axes.imshow(values, aspect="auto", cmap="Blues")
        axes.set_xticks(range(len(arms)), [arm.removeprefix("r=") for arm in arms], fontsize=8)
        axes.set_yticks(range(len(tuned)), [f"{lam:g}" for lam in tuned], fontsize=8)
        axes.set_xlabel("ratio r", fontsize=9)
        axes.set_ylabel("lambda", fontsize=9)
        axes.set_title(title, fontsize=9, loc="left")
        middle = (values.min() + values.max()) / 2
        for (down, right), value in np.ndenumerate(values):
            color = "white" if value > middle else "#222222"
            axes.text(right, down, f"{value:.1f}", ha="center", va="center", fontsize=7, color=color)
    return whole
