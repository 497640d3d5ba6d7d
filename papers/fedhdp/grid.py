"""The whole grid of a table, ratio by lambda: a table for each lambda and a heat map of what each group gets."""

from collections.abc import Mapping, Sequence

import numpy as np

from papers.fedhdp.recipe import Recipe
from papers.fedhdp.views import Row, table
from papers.page import Panel, Part, Picture
from tacit.report.figures import Heat

_SHOWN = {"global": "Acc_g", "personal_private": "Acc_l,p", "personal_open": "Acc_l,np"}


def grid(recipe: Recipe, by_strength: Mapping[float, Sequence[Row]], seeds: int) -> list[Part]:
    parts: list[Part] = [table(recipe, rows, seeds) for rows in by_strength.values()]
    caption = "Accuracy in percent, mean over seeds, by the weight of private clients and Ditto's strength."
    return [*parts, Picture(f"{recipe.name}-grid", caption, heat_maps(by_strength))]


def heat_maps(by_strength: Mapping[float, Sequence[Row]]) -> list[Panel]:
    """One map a figure of `_SHOWN`: lambdas downwards, ratios to the right."""
    tuned = {lam: [row for row in rows if row.arm.startswith("r=")] for lam, rows in by_strength.items()}
    ratios = {at: row.arm.removeprefix("r=") for at, row in enumerate(next(iter(tuned.values())))}
    lambdas = {at: f"{lam:g}" for at, lam in enumerate(tuned)}
    panels = []
    for name, title in _SHOWN.items():
        values = np.array([[np.mean(row.values(name)) for row in rows] for rows in tuned.values()])
        heat = Heat(values, ("#f7fbff", "#08306b"), form=".1f", scale=False)
        panels.append(Panel(title, "ratio r", "lambda", x_names=ratios, y_names=lambdas, heat=heat, height=2.6))
    return panels
