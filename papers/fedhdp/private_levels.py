"""Two private levels, weights N1 : r N2 (FedHDP, section 4): closed forms beside training, nobody opted out."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.fedhdp.cell import federation, key, train
from papers.fedhdp.recipe import DELTA, DP_FEDAVG, MNIST, OPTIMAL, Recipe, Tuned
from papers.fedhdp.theory.multilevel import Group
from papers.fedhdp.theory.point import two_level_ratio
from papers.page import Part, Results, over
from tacit.experiments.result import Result
from tacit.privacy.levels import Choices, Level, LevelOptions
from tacit.privacy.mechanisms import Grouped
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.plan import CalibrationContext
from tacit.sampling.cohorts import Poisson, Shuffled

STRICT, MILD = 1.0, 8.0
EVERYBODY: Final = "everybody at the strict level"
RATIOS: Final = (1.0, 0.3, 0.1, 0.03, 0.0)


def at(ratio: float) -> str:
    return f"strict r={ratio:g}"


ARMS: Final = (EVERYBODY, *map(at, RATIOS), OPTIMAL)


@dataclass(frozen=True)
class PrivateLevels(Recipe):
    """The first half of the clients, drawn at random, has the strict level, the others the mild one."""

    def kind(self, arm: str) -> str:
        return DP_FEDAVG

    def privacy(self, arm: str, clip: Mapping[str, float]) -> dict[str, Any]:
        levels = {"strict": {"epsilon": STRICT, "delta": DELTA}, "mild": {"epsilon": MILD, "delta": DELTA}}
        ratio = {"strict": float(arm.removeprefix("strict r="))} if arm.startswith("strict r=") else OPTIMAL
        if arm == EVERYBODY:
            return {"privacy": {"plan": "central", "clip": clip}, "levels": {"strict": levels["strict"]}}
        return {
            "privacy": {"plan": "grouped", "clip": clip, "ratio": ratio},
            "levels": levels,
            "choices": {"mild": 0.5},
        }


_MNIST: Final = {each.name: getattr(MNIST, each.name) for each in fields(MNIST)}
RECIPE: Final = PrivateLevels(
    **_MNIST
    | {
        "name": "private-levels",
        "rounds": 200,
        "tuned": {DP_FEDAVG: Tuned(lr=0.1, server_lr=0.2, decay=0.997)},
    }
)


def make(bench: Runner, recipe: PrivateLevels = RECIPE) -> list[Part]:
    cells = {arm: [measure(bench, recipe, arm, seed) for seed in range(bench.seeds)] for arm in ARMS}
    shown = [[name, f"{noise:.4f}"] for name, noise in closed_form().items()]
    note = f"Epsilon {STRICT:g} and {MILD:g}, 1,000 clients each, 500 rounds, a twentieth asked in each."
    forms = Results("Merged noise in closed form, in clip bounds", ["", "noise"], shown, note)
    return [_about(recipe, cells), table(cells), forms, claims(cells)]


def closed_form() -> dict[str, float]:
    """Noise of the merged mean, in clip bounds, as the plan's own release has it."""
    ids, levels = [str(k) for k in range(2000)], (Level("strict", STRICT, DELTA), Level("mild", MILD, DELTA))
    choices = Choices(LevelOptions(levels), np.repeat([0, 1], 1000))
    setting = CalibrationContext(ids, np.full(2000, 30), choices, Poisson(0.05), Shuffled(30), 500)
    release = Grouped(Fixed(1.0)).plan(setting).release
    assert isinstance(release, GroupedRelease)
    precision = [(n / z) ** 2 for n, z in zip(release.expected, release.multipliers, strict=True)]
    return {
        "all clients alike": release.merged_noise((0.5, 0.5)),
        EVERYBODY: release.multipliers[0] / sum(release.expected),
        OPTIMAL: release.merged_noise([each / sum(precision) for each in precision]),
    }


def measure(bench: Runner, recipe: PrivateLevels, arm: str, seed: int) -> Cell:
    """The shared model's accuracy, and the weights and noise of the merged mean."""
    config = recipe.experiment(arm, seed, personal=False)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  {config.name}, seed {seed}", style="dim")
        result = train(recipe, config, federation(recipe, seed), sample=1)
        return {**figures(result), "seconds": time.perf_counter() - began}

    return bench.cell(key(recipe, config, "private levels"), compute)


def figures(result: Result) -> Cell:
    release = result.run.engine.plan.release
    assert isinstance(release, GroupedRelease)
    levels = [promise.level for promise in result.findings.facts.promises]
    table = result.metrics[result.metrics.metric == "weight"]
    if table.empty:
        weights = np.array([release.merge.weights])  # pyright: ignore[reportAttributeAccessIssue]
    else:
        weights = table.pivot(index="round", columns="level", values="value")[levels].to_numpy()
    spent = {name: result.findings.epsilons.get(name) for name in levels}
    return {
        "global": 100 * (result.scores.common or 0.0),
        "weights": weights.mean(0).tolist(),
        "noise": float(np.mean([release.merged_noise(row) for row in weights])),
        "multipliers": list(release.multipliers),
        "expected": list(release.expected),
        "spent": spent,
    }


def _about(recipe: PrivateLevels, cells: Mapping[str, list[Cell]]) -> str:
    one = cells[at(1.0)][0]
    spent = ", ".join(f"{name} {each['pld']:.2f}" for name, each in one["spent"].items() if each)
    z, n = one["multipliers"], one["expected"]
    noisy = [Group(round(clients), each**2) for each, clients in zip(z, n, strict=True)]
    best = two_level_ratio(0.0, noisy[1], noisy[0])
    return (
        f"{recipe.clients:,} one-digit clients, half of them at each level, {recipe.rounds} rounds, each client asked "
        f"with probability {recipe.rate:g}; nobody opted out. Epsilon by PLD, delta 1e-4, client-level, add/remove: "
        f"{spent}. "
        f"Noise multipliers {z[0]:.2f} and {z[1]:.2f}. The closed form's r* of a strict client beside a mild one is "
        f"{best:.3f} where noise is all that differs (sigma_c^2 small beside N gamma^2), which it is here: 50,890 "
        "coordinates have noise, and an upload's norm is at most one bound. Every arm has the same hyper-parameters."
    )


def table(cells: Mapping[str, list[Cell]]) -> Results:
    lines = []
    for arm, several in cells.items():
        weight = np.mean([cell["weights"][0] for cell in several])
        noise = np.mean([cell["noise"] for cell in several])
        accuracy = over([cell["global"] for cell in several])
        lines.append([arm, f"{weight:.3f}", f"{noise:.4f}", accuracy])
    heads = ["", "weight of the strict level", "merged noise, in clip bounds", "Acc_g, %"]
    note = "Weights and noise are means over rounds; noise in closed form. One seed."
    return Results("Two private levels, by the weight of a strict client", heads, lines, note)


def claims(cells: Mapping[str, list[Cell]]) -> Results:
    """Differences by seed: runs of one seed share clients, start and draws."""
    mean = {arm: float(np.mean([cell["global"] for cell in several])) for arm, several in cells.items()}
    top = max(map(at, RATIOS), key=mean.__getitem__)
    lines = []
    for name, other, least in (
        (f"optimal beside the best fixed weight, {top}", top, -1.0),
        ("optimal beside everybody at the strict level", EVERYBODY, 0.0),
        ("optimal beside all clients alike", at(1.0), 0.0),
    ):
        gaps = [a["global"] - b["global"] for a, b in zip(cells[OPTIMAL], cells[other], strict=True)]
        lines.append([name, f"above {least:g}", over(gaps), "yes" if np.mean(gaps) > least else "**no**"])
    long = closed_form()
    share = long[OPTIMAL] / long["all clients alike"]
    lines.append(["merged noise over 500 rounds, as a share of counts'", "at most 0.5", f"{share:.3f}",
                  "yes" if share <= 0.5 else "**no**"])  # fmt: skip
    note = "The best fixed weight is picked on the test set, which favours it."
    return Results("Claims", ["", "target", "ours, points", "met"], lines, note)


REPRODUCTION: Final = Reproduction(
    "fedhdp/private-levels",
    "FedHDP with two private levels on one-digit clients of MNIST",
    "N. Aldaghri, H. Mahdavifar, A. Beirami: Federated Learning with Heterogeneous Differential Privacy, section 4.",
    make,
    seeds=1,
    fewest=1,
    cells="fedhdp",
)
