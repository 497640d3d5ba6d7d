"""What would a client gain by opting out of a trained federation?

The same federation is trained twice from the same seed: as it was, and with a few private clients of each level
moved to the opted-out. What these same clients get in both worlds is compared, client by client, beside those that
stayed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.fedhdp.cell import federation, key, measure, own_accuracies, train
from papers.fedhdp.recipe import MENU, MNIST, OPTIMAL, WRITERS_AT_PAPERS_NOISE, Recipe
from papers.page import COLORS, Curve, Panel, Part, Picture, Results, plus_minus
from tacit.core import rng
from tacit.experiments.build import build_privacy
from tacit.experiments.config import parse
from tacit.report.wording import number

MOVED: Final = 0.01  # of all clients, from each private level
SHOWN: Final = {"global": "shared model", "personal": "personal model"}
Gains = Mapping[str, Mapping[str, np.ndarray]]
"""By group of clients, then by model: what each client gained, in points."""


def movers(recipe: Recipe, seed: int, levels: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Clients that opt out in the other world, drawn from each private level."""
    several = max(1, round(MOVED * recipe.clients))
    source = rng.generator(seed, "movers")
    return {name: sorted(source.permutation(held)[:several].tolist()) for name, held in levels.items()}


def after(bench: Runner, recipe: Recipe, arm: str, seed: int) -> Cell:
    """The other world: who moved, who stayed private, and what every client gets there."""
    config = recipe.experiment(arm, seed)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  {config.name}, some opt out, seed {seed}", style="dim")
        clients = federation(recipe, seed)
        choices = build_privacy(config).choose(clients, seed)
        private = {
            level.name: np.flatnonzero(choices.level == j).tolist()
            for j, level in enumerate(choices.menu.levels)
            if level.private
        }
        moved = movers(recipe, seed, private)
        gone = {who for several in moved.values() for who in several}
        chosen = {clients.ids[k]: choices.of(k).name for k in range(clients.clients) if k not in gone}
        chosen |= {clients.ids[k]: "open" for k in gone}
        result = train(recipe, parse({**config.model_dump(exclude_unset=True), "choices": chosen}), clients)
        stayed = {name: [k for k in held if k not in gone] for name, held in private.items()}
        seconds = time.perf_counter() - began
        return {"moved": moved, "stayed": stayed, "own": own_accuracies(result), "seconds": seconds}

    return bench.cell({**key(recipe, config, "some opt out"), "moved": MOVED}, compute)


def gains(bench: Runner, recipe: Recipe, arm: str) -> tuple[Gains, Gains]:
    """Of those that moved and of those that stayed, by level: accuracy afterwards less accuracy before, all seeds."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {"moved": {}, "stayed": {}}
    for seed in range(bench.seeds):
        now, then = measure(bench, recipe, arm, seed)["own"], after(bench, recipe, arm, seed)
        for group, by_level in found.items():
            for level, who in then[group].items():
                for model in SHOWN:
                    change = 100 * (np.array(then["own"][model])[who] - np.array(now[model])[who])
                    by_level.setdefault(level, {}).setdefault(model, []).extend(change.tolist())
    arrays = {
        group: {level: {model: np.array(each) for model, each in of.items()} for level, of in by_level.items()}
        for group, by_level in found.items()
    }
    return arrays["moved"], arrays["stayed"]


def make(bench: Runner) -> list[Part]:
    parts: list[Part] = [_ABOUT]
    for recipe, arm, title in (
        (MNIST, MENU, "One-digit clients of MNIST, three levels"),
        (WRITERS_AT_PAPERS_NOISE, OPTIMAL, "Writers, two levels"),
    ):
        moved, stayed = gains(bench, recipe, arm)
        parts += [_table(title, bench, recipe, arm, moved, stayed), _picture(recipe, title, moved, stayed)]
    return parts


def _table(title: str, bench: Runner, recipe: Recipe, arm: str, moved: Gains, stayed: Gains) -> Results:
    levels = [measure(bench, recipe, arm, seed)["levels"] for seed in range(bench.seeds)]
    lines = []
    for name in moved:
        spent = levels[0][name]["spent"]["pld"]
        lines.append(
            [
                f"{name} (epsilon {number(spent)})",
                *(f"{np.mean([each[name][model] for each in levels]):.2f}" for model in SHOWN),
                *(_mean(moved[name][model]) for model in SHOWN),
                *(_mean(stayed[name][model]) for model in SHOWN),
                str(len(moved[name]["global"])),
            ]
        )
    heads = [
        "level",
        "Acc_g now",
        "Acc_l now",
        "mover, Acc_g",
        "mover, Acc_l",
        "stayer, Acc_g",
        "stayer, Acc_l",
        "movers",
    ]
    note = "Changes in points, ± standard error over clients, the same ones in both worlds."
    return Results(title, heads, lines, note)


def _mean(values: np.ndarray) -> str:
    return plus_minus(float(values.mean()), _error(values), 2)


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _picture(recipe: Recipe, title: str, moved: Gains, stayed: Gains) -> Picture:
    groups = (("opts out", moved, COLORS[0]), ("stays private", stayed, COLORS[1]))
    caption = f"{title}: what changes for a client that opts out, and for one that stays."
    return Picture(recipe.name, caption, [_panel(model, label, groups) for model, label in SHOWN.items()])


def _panel(model: str, label: str, groups: Sequence[tuple[str, Gains, str]]) -> Panel:
    bars = []
    for name, group, color in groups:
        values = [each[model] for each in group.values()]
        means, errors = [float(each.mean()) for each in values], [_error(each) for each in values]
        bars.append(Curve(name, range(len(values)), means, color, errors))
    return Panel(label, "", "change, points", bars, bars=True, x_names=dict(enumerate(groups[0][1])))


_ABOUT: Final = (
    "What would a private client gain by opting out? Each federation is trained twice from the same seed: as it was, "
    "and with 1% of all clients, drawn from each private level, moved to those who opted out. Data, start and the draw "
    "of cohorts are the same; so is the noise of the rest but for its weight. In closed form, for point estimation: "
    "[theory](theory-fedhdp.md)."
)

REPRODUCTION = Reproduction(
    "fedhdp/incentive",
    "What opting out gains a client",
    "N. Aldaghri, H. Mahdavifar, A. Beirami: FeO2, section 4.4 and Appendix A.5 (there for point estimation).",
    make,
    seeds=3,
    cells="fedhdp",
)
