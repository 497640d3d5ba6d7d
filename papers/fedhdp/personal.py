"""Personal models that are solved for in the end, beside the shared model they start from.

One shared model is trained; every variant's personal models are then solved for against it, which is exact: nothing
personal happens in rounds. The variant is chosen on validation images of one seed, and reported on the test images of
others.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from papers.bench import Cell, NotRun, Reproduction, Runner
from papers.fedhdp.cell import federation, key, train
from papers.fedhdp.open_clients import SEED, short
from papers.fedhdp.recipe import WRITERS_AT_PAPERS_NOISE, WRITERS_CNN, Recipe, at
from papers.page import Part, Results, over
from tacit.experiments.result import Result
from tacit.methods import Ditto, LocalSgd
from tacit.rounds.evaluate import alone

SAMPLE: Final = 60  # clients of each level that are looked at, at most
EPOCHS: Final = 5
BAR: Final = 93.0
VARIANTS: Final = {
    f"lambda {strength}, rate {rate:g}": Ditto(strength=strength, personal=LocalSgd(rate), solve_epochs=EPOCHS)
    for rate in (0.05, 0.15)
    for strength in (0.005, 0.05, 0.25, "optimal")
}
FEDERATIONS: Final[Mapping[str, tuple[Recipe, str]]] = {
    "Writers, at the paper's noise": (short(WRITERS_AT_PAPERS_NOISE), at(0.025)),
    "Writers, convolutional network": (short(WRITERS_CNN), at(0.01)),
}


def measure(bench: Runner, recipe: Recipe, arm: str) -> Cell:
    """By variant and level: mean accuracies of the shared and of the personal models, the error of their difference."""
    config = recipe.experiment(arm, SEED, personal=False)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  personal: {config.name}", style="dim")
        result = train(recipe, config, federation(recipe, SEED, validation=True), sample=1)
        found: Cell = {name: solved(result, method) for name, method in VARIANTS.items()}
        return {
            "variants": found,
            "common": 100 * (result.scores.common or 0.0),
            "seconds": time.perf_counter() - began,
        }

    return bench.cell(key(recipe, config, f"personal, {SAMPLE} clients, {EPOCHS} epochs"), compute)


def chosen(cell: Cell) -> str:
    """The variant that serves private clients best, by validation images."""
    return max(cell["variants"], key=lambda name: cell["variants"][name]["private"][1])


def report(bench: Runner, recipe: Recipe, arm: str, variant: str, seed: int) -> Cell:
    """By level, on the clients' own test images: means of both models, their difference's error, and the spread."""
    config = recipe.experiment(arm, seed, personal=False)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  personal, {variant}: {config.name}, seed {seed}", style="dim")
        result = train(recipe, config, federation(recipe, seed), sample=1)
        found: Cell = {name: _figures_of(pairs) for name, pairs in pairs_of(result, VARIANTS[variant]).items()}
        return {**found, "common": 100 * (result.scores.common or 0.0), "seconds": time.perf_counter() - began}

    what = f"personal, test, {SAMPLE} clients, {EPOCHS} epochs, {variant}"
    return bench.cell(key(recipe, config, what), compute)


def _figures_of(pairs: np.ndarray) -> list[float]:
    gain = pairs[:, 1] - pairs[:, 0]
    return [*pairs.mean(0).tolist(), float(gain.std(ddof=1) / len(gain) ** 0.5), float(pairs[:, 1].std(ddof=1))]


def solved(result: Result, method: Ditto) -> Cell:
    """By level: [shared, personal, error of the difference]."""
    return {name: _figures_of(pairs)[:3] for name, pairs in pairs_of(result, method).items()}


def pairs_of(result: Result, method: Ditto) -> dict[str, np.ndarray]:
    """By level, of clients by themselves, as members of a federation would be: shared and personal, in percent."""
    run = result.run
    engine, view = replace(run.engine, method=method), run.progress.server.view
    levels, names = engine.plan.setting.choices.level, engine.plan.setting.choices.menu.names
    found: dict[str, np.ndarray] = {}
    for j, name in enumerate(names):
        each = [alone(engine, view, {}, int(k), run.progress.round) for k in np.flatnonzero(levels == j)[:SAMPLE]]
        found[name] = 100 * np.array([pair for pair in each if pair is not None])
    return found


def make(bench: Runner) -> list[Part]:
    """Runs what is missing with `--full`; without it shows what there is."""
    some = bench if bench.full else replace(bench, only_kept=True)
    parts = [_part(some, name, *given) for name, given in FEDERATIONS.items()]
    lines, title = reported(some), "On test images, by the variant chosen above"
    return [_ABOUT, *parts, Results(title, REPORTED, lines, NOTE) if lines else f"**{title}.** Not run (`--full`)."]


REPORTED: Final = ["", "seeds", "private: shared", "private: personal", "gain", "open: personal", "Delta_l", "met"]
NOTE: Final = (
    "Mean ± standard deviation over seeds; gain with the mean standard error over clients in brackets; the standard "
    "deviation of personal accuracies over private clients in brackets behind them. Met: private personal models are "
    "at least as good as the shared one, and at 93% at least."
)


def reported(bench: Runner) -> list[list[str]]:
    """A line for each federation of which the test images have been looked at: as many seeds as there are."""
    lines = []
    for name, (recipe, arm) in FEDERATIONS.items():
        with suppress(NotRun):
            variant = chosen(measure(bench, recipe, arm))
            cells = [each for seed in range(bench.seeds) if (each := _there(bench, recipe, arm, variant, seed))]
            if cells:
                lines.append([f"{name}, {arm}, {variant}", str(len(cells)), *line(cells)])
    return lines


def _there(bench: Runner, recipe: Recipe, arm: str, variant: str, seed: int) -> Cell:
    with suppress(NotRun):
        return report(bench, recipe, arm, variant, seed)
    return {}


def line(cells: Sequence[Cell]) -> list[str]:
    private, opened = (np.array([cell[level] for cell in cells]) for level in ("private", "open"))
    shared, own, error, sd = private.mean(0)
    gains, delta = private[:, 1] - private[:, 0], opened[:, 1] - private[:, 1]
    met = own >= shared and own >= BAR
    return [
        over(private[:, 0].tolist()), f"{over(private[:, 1].tolist())} ({sd:.1f})",
        f"{over(gains.tolist())} ({error:.2f})", over(opened[:, 1].tolist()), over(delta.tolist()),
        "yes" if met else "**no**",
    ]  # fmt: skip


def _part(bench: Runner, name: str, recipe: Recipe, arm: str) -> Part:
    with suppress(NotRun):
        cell = measure(bench, recipe, arm)
        lines = [[variant, *_figures(by_level)] for variant, by_level in cell["variants"].items()]
        heads = [
            "",
            "private: shared",
            "private: personal",
            "gain",
            "open: shared",
            "open: personal",
            "gain",
            "Delta_l",
        ]
        note = f"The shared model on common validation images: {cell['common']:.2f}."
        return Results(f"{name}, {arm}", heads, lines, note)
    return f"**{name}, {arm}.** Not run (`--full`)."


def _figures(by_level: Mapping[str, list[float]]) -> list[str]:
    lines: list[str] = []
    for level in ("private", "open"):
        shared, personal, error = by_level[level]
        lines += [f"{shared:.2f}", f"{personal:.2f}", f"{personal - shared:+.2f} ± {error:.2f}"]
    return [*lines, f"{by_level['open'][1] - by_level['private'][1]:+.2f}"]


_ABOUT: Final = (
    f"Ditto's objective is solved on each client against the final shared model, by {EPOCHS} epochs of its own rows "
    '(`solve_epochs`); with "optimal" each client chooses lambda, or the shared model itself, on training rows that it '
    f"holds out. 200 rounds; for choosing one seed and validation images of up to {SAMPLE} clients of each level. Gain "
    "± standard error over clients. Delta_l is what open clients' personal models have more than private ones'. In "
    "rounds personal models of the convolutional network had ended at 36 to 61% where the shared one has 88 to 93."
)

REPRODUCTION: Final = Reproduction(
    "fedhdp/personal",
    "FedHDP: personal models solved for in the end",
    "N. Aldaghri, H. Mahdavifar, A. Beirami: Federated Learning with Heterogeneous Differential Privacy, eq. (5).",
    make,
    seeds=3,
    cells="fedhdp",
    fewest=1,
)
