"""FedHDP on one page: every table's main figures, the targets and what came of them. From the pages' own cells."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from papers.bench import NotRun, Reproduction, Runner
from papers.fedhdp import views
from papers.fedhdp.personal import NOTE, REPORTED, reported
from papers.fedhdp.recipe import (
    DP_FEDAVG,
    MENU,
    MNIST,
    NON_PRIVATE,
    OPTIMAL,
    SEVERE,
    SKEWED,
    WRITERS_AT_PAPERS_NOISE,
    WRITERS_CNN,
)
from papers.fedhdp.reproduce import PAGES, Plan, arms, levels, row
from papers.fedhdp.views import Row
from papers.page import Part, Results

Rows = Mapping[str, Row]
_OUTDATED: Final = (WRITERS_CNN.name,)
"""Pages whose personal models were trained in rounds, by what `solve_epochs` has replaced."""
_SOLVED: Final = "Personal models solved for in the end, 200 rounds, test images"


def make(bench: Runner) -> list[Part]:
    plans = {plan.recipe.name: (page, plan) for page, several in PAGES.items() for plan in several}
    found = {name: rows for name, (_, plan) in plans.items() if (rows := _rows(bench, plan))}
    missing = [name for name in plans if name not in found]
    summary = [_summary(*plans[name], rows) for name, rows in found.items()]
    heads = ["", "seeds", NON_PRIVATE, DP_FEDAVG, "r=1", "best r", "at it", OPTIMAL, "gap closed", "personal"]
    note = f"Not run: {', '.join(missing)}." if missing else ""
    title = "The shared model's accuracy, and that of personal models at the best r, in percent"
    solved = reported(replace(bench, seeds=3, only_kept=True))
    return [
        _ABOUT,
        Results(title, heads, summary, note),
        _targets(found, kept(bench, levels)),
        *([Results(_SOLVED, REPORTED, solved, NOTE)] if solved else []),
        _BESIDE,
    ]


def _rows(bench: Runner, plan: Plan) -> Rows:
    return kept(bench, lambda some: {arm: row(some, plan.recipe, arm) for arm in arms(plan.ratios)})


def kept(bench: Runner, ask: Callable[[Runner], Rows]) -> Rows:
    """What was asked for over as many seeds as have been run; nothing is run here."""
    for seeds in range(bench.seeds, 0, -1):
        with suppress(NotRun):
            return ask(replace(bench, seeds=seeds, only_kept=True))
    return {}


def _summary(page: str, plan: Plan, rows: Rows) -> list[str]:
    top = views.best(rows)
    shown = (rows[NON_PRIVATE], rows[DP_FEDAVG], rows["r=1"])
    accuracies = [views.mean_of(each.values("global")) for each in shown]
    after = [views.mean_of(each.values("global")) for each in (top, rows[OPTIMAL])]
    closed = f"{100 * views.closed(rows):.0f}%"
    personal = "-" if plan.recipe.name in _OUTDATED else f"{np.mean(top.values('personal_private')):.2f}"
    name, seeds = f"[{plan.recipe.name}]({page})", str(len(top.cells))
    return [name, seeds, *accuracies, top.arm.removeprefix("r="), *after, closed, personal]


def _targets(found: Mapping[str, Rows], menu: Rows) -> Results:
    """Targets beside our figure, mean over seeds, met or not."""
    lines = [
        *(_uniform(rows) if (rows := found.get(MNIST.name)) else []),
        *([_between(menu)] if menu else []),
        *(_skewed(rows, found.get(MNIST.name)) if (rows := found.get(SKEWED.name)) else []),
        *(_writers(rows) if (rows := found.get(WRITERS_AT_PAPERS_NOISE.name)) else []),
    ]
    return Results("Targets", ["", "target", "ours", "met"], lines)


def _uniform(rows: Rows) -> list[list[str]]:
    top = views.best(rows)
    return [
        _least("MNIST, non-private", rows[NON_PRIVATE].accuracy, 93.8),
        _least("MNIST, DP-FedAvg", rows[DP_FEDAVG].accuracy, 88.75),
        _least(f"MNIST, FedHDP at the best r, {top.arm}", top.accuracy, 92.6),
        _least("MNIST, personal models of private clients", float(np.mean(top.values("personal_private"))), 99.9),
        _holds("MNIST, max(DP-FedAvg, r=1) < best r < non-private", _ordered(rows), "every seed"),
        _holds("MNIST, the best r lies in (0, .1]; r = 0 and r < .01 were not run", 0 < _ratio(top) <= 0.1, top.arm),
        _least("MNIST, gap closed, percent (paper 75)", 100 * views.closed(rows), 60),
        *_incentive("MNIST", top),
        *_optimal("MNIST", rows),
    ]


def _skewed(rows: Rows, uniform: Rows | None) -> list[list[str]]:
    top = views.best(rows)
    larger = uniform is not None and _ratio(top) > _ratio(views.best(uniform))
    return [
        _least(f"Skewed, FedHDP at the best r, {top.arm}", top.accuracy, 90.36),
        _holds("Skewed, the best r is larger than the uniform one", larger, top.arm),
        _least("Skewed, the best r in (0, 1) less DP-FedAvg (paper .97 ± .58)", _inside(rows), 0.5),
        _near("Skewed, r=0", rows["r=0"].accuracy, 10.0),
        *_optimal("Skewed", rows),
    ]


def _writers(rows: Rows) -> list[list[str]]:
    top = views.best(rows)
    gap = _least("Writers at the paper's noise: gap closed, percent (paper 78)", 100 * views.closed(rows), 40)
    return [gap, *_incentive("Writers", top)]


def _inside(rows: Rows) -> float:
    """What the best ratio that is neither 0 nor 1 gains over DP-FedAvg, mean over seeds."""
    inner = [row.accuracy for arm, row in views.tuned(rows).items() if arm not in ("r=0", "r=1")]
    return max(inner) - rows[DP_FEDAVG].accuracy


def _incentive(name: str, found: Row) -> list[list[str]]:
    """Delta_l, what opting out gains a client's personal model: the papers' headline, up to 3.49 points."""
    values = found.values("personal_gain")
    shown = views.mean_of(values)
    clear = float(np.mean(values)) > 2 * views.spread(values) / np.sqrt(len(values))
    return [[f"{name}, Delta_l at {found.arm}", "above 0 by two standard errors", shown, _yes(clear)]]


def _optimal(name: str, rows: Rows) -> list[list[str]]:
    found, top = rows[OPTIMAL].accuracy, views.best(rows)
    return [
        _least(f"{name}, optimal beside the best r, {top.arm}", found - top.accuracy, -1.0),
        _least(f"{name}, optimal beside r=1", found - rows["r=1"].accuracy, -0.3),
    ]


def _least(name: str, value: float, target: float) -> list[str]:
    return [name, f"at least {target:.4g}", f"{value:.2f}", _yes(value >= target)]


def _near(name: str, value: float, target: float) -> list[str]:
    return [name, f"about {target:g}", f"{value:.2f}", _yes(abs(value - target) < 1)]


def _holds(name: str, held: bool, shown: str) -> list[str]:
    return [name, "holds", shown if held else f"not for {shown}", _yes(held)]


def _between(rows: Rows) -> list[str]:
    severe, several, mild = (rows[arm].accuracy for arm in (SEVERE, MENU, OPTIMAL))
    inside = min(severe, mild) <= several <= max(severe, mild)
    return ["MNIST, three levels", f"between {severe:.2f} and {mild:.2f}", f"{several:.2f}", _yes(inside)]


def _ordered(rows: Rows) -> bool:
    several = (rows[arm].values("global") for arm in (DP_FEDAVG, "r=1", views.best(rows).arm, NON_PRIVATE))
    return all(max(private, uniform) < best < free for private, uniform, best, free in zip(*several, strict=True))


def _ratio(found: Row) -> float:
    return float(found.arm.removeprefix("r="))


def _yes(held: bool) -> str:
    return "yes" if held else "**no**"


_ABOUT: Final = (
    "Five per cent of the clients opted out and have no guarantee; all others are private, client-level, add/remove, "
    "delta 1e-4, and pay for the clip bound's bits. Mean ± standard deviation over seeds, on the common test set. "
    "Each row has a page with all its figures beside the paper's. The best r is the best of those run, by the test "
    "set. Writers of MNIST stand in for the papers' two data sets by writer, so that only the order of arms can "
    "be compared. Personal models of the convolutional network were trained too briefly in these cells: see "
    "`python -m papers run fedhdp/personal` for those that are solved for in the end."
)
_BESIDE: Final = (
    "Beside these: how the [hyper-parameters were chosen](fedhdp-selection.md), what opting out gains a "
    "client (`python -m papers run fedhdp/incentive`), three levels (`python -m papers run fedhdp/levels`), "
    "[two private levels](fedhdp-private-levels.md), and "
    "[closed forms](theory-fedhdp.md)."
)

REPRODUCTION: Final = Reproduction(
    "fedhdp",
    "FedHDP: every client chooses its privacy",
    "N. Aldaghri, H. Mahdavifar, A. Beirami: FeO2, and Federated Learning with Heterogeneous Differential Privacy.",
    make,
    seeds=3,
    cells="fedhdp",
)
