"""Figures 1 to 4 of the papers, with Monte Carlo points on the curves of the formulas."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from papers.fedhdp.theory import linear, point, simulate
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.point import Hold, Problem
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series

DEFAULT: Final = Problem(clients=40, private=36, alpha2=1.0, tau2=0.1, gamma2=0.2)
"""The papers do not print theirs. With these, opting out with gamma^2 held improves the best personal error by 2.4%
(r = 1) and 1.2% (r*), as FeO2 says of its Figure 2."""

SIMULATED: Final = "Monte Carlo"
_BLUE, _RED, _GREEN = PALETTE[0], PALETTE[1], PALETTE[2]
_RATIOS = np.geomspace(1e-3, 1, 121)
_SOME_RATIOS = (0.003, 0.03, 0.3, 1.0)
_SERVER, _PERSONAL = "server error", "personal error"


def figures(problem: Problem = DEFAULT, dim: int = 5, samples: int = 10, hold: Hold = "gamma2",
            repetitions: int = 20_000, seed: int = 0) -> list[Figure]:  # fmt: skip
    """Figures 1 to 4, in order."""
    return [
        server_by_ratio(problem, repetitions, seed),
        personal_by_strength(problem, hold, repetitions, seed),
        regression_by_strength(Regression.of(problem, dim, samples), hold, max(repetitions // 4, 2), seed),
        server_by_opted_out(problem, repetitions, seed),
    ]


def server_by_ratio(problem: Problem, repetitions: int = 20_000, seed: int = 0) -> Figure:
    noises = [replace(problem, gamma2=problem.gamma2 * factor) for factor in (0.25, 1, 4)]
    spreads = [replace(problem, alpha2=problem.alpha2 * f, tau2=problem.tau2 * f) for f in (0.25, 1, 4)]
    return Figure(
        "theory-figure-1",
        title="Figure 1. Server error against the ratio r: filled points are r*",
        note="Small r ignores the private clients, r = 1 is FedAvg. r* falls as their noise grows and rises as clients "
        "differ more. Hollow points: Monte Carlo.",
        panels=_aligned([
            _ratio_panel("three noises of the private mean", noises, [f"γ² = {p.gamma2:g}" for p in noises],
                         repetitions, seed),
            _ratio_panel("three variances of a client's estimate", spreads,
                         [f"σ² = {p.sigma2:g}" for p in spreads], repetitions, seed),
        ]),
    )  # fmt: skip


def _ratio_panel(title: str, several: Sequence[Problem], names: Sequence[str], repetitions: int, seed: int) -> Panel:
    lines, best, measured = [], [], []
    for name, problem, color in zip(names, several, PALETTE, strict=False):
        lines.append(Series(name, list(_RATIOS), [point.server_variance(problem, r) for r in _RATIOS], color))
        best.append(_dot(point.optimal_ratio(problem), point.optimal_variance(problem), color))
        measured += _measured_server(problem, _SOME_RATIOS, repetitions, seed)
    return Panel(title, "ratio r", _SERVER, [*lines, _simulated(measured), *best], log="xy")


def _dot(x: float, y: float, color: str) -> Series:
    """A point with a meaning of its own."""
    return Series("", [x], [y], color, style="none", mark="filled")


def _simulated(pairs: Sequence[tuple[float, float]]) -> Series:
    return Series(SIMULATED, [x for x, _ in pairs], [y for _, y in pairs], NEUTRAL, style="none", mark="hollow")


def _measured_server(
    problem: Problem, ratios: Sequence[float], repetitions: int, seed: int
) -> list[tuple[float, float]]:
    """(ratio, error) for each."""
    draws = simulate.point_draws(problem.menu, repetitions, seed)
    return [(r, simulate.server(draws, point.shares(problem, r)).value) for r in ratios]


def personal_by_strength(problem: Problem, hold: Hold = "gamma2", repetitions: int = 20_000, seed: int = 0) -> Figure:
    before, after = problem, problem.with_private(problem.private - 1, hold)
    held = _choices(before, after)
    drawn = [simulate.point_draws(p.menu, repetitions, seed) for p in (before, after)]
    return Figure(
        "theory-figure-2",
        title="Figure 2. Point estimation: personal error of a client that stays private or opts out",
        note="Left of the minimum a client trusts itself too much, right of it the others. Filled points: the exact "
        f"best lambda. Hollow: Monte Carlo. {_HELD[hold]}",
        panels=_aligned([_strength_panel(title, ratio, held, drawn, 1) for title, ratio in _RULES]),
    )


def regression_by_strength(
    regression: Regression, hold: Hold = "gamma2", repetitions: int = 5_000, seed: int = 0
) -> Figure:
    before = regression.coordinate
    after = before.with_private(before.private - 1, hold)
    opted = Regression.of(after, regression.dim, regression.samples)
    drawn = [simulate.regression_draws(each, repetitions, seed) for each in (regression, opted)]
    panels = [_strength_panel(title, r, _choices(before, after), drawn, regression.dim) for title, r in _RULES]
    return Figure(
        "theory-figure-3",
        title=f"Figure 3. Linear regression with {regression.dim} coefficients: stays private or opts out",
        note=f"As Figure 2, summed over {regression.dim} coefficients; Monte Carlo from raw rows by least squares.",
        panels=_aligned(panels),
    )


Choice = tuple[str, Problem, bool, str]


def _choices(before: Problem, after: Problem) -> list[Choice]:
    return [("stays private", before, True, _BLUE), ("opts out", after, False, _RED)]


_RULES: Final[list[tuple[str, float | None]]] = [
    ("the server averages all alike (FedAvg, r = 1)", 1.0),
    ("the server weighs by r* (FedHDP)", None),
]
_HELD: Final[dict[Hold, str]] = {
    "z": "When the client leaves, the others keep their z, hence their epsilon.",
    "message": "When the client leaves, the others keep the noise of their messages, as under local privacy.",
    "gamma2": "When the client leaves, the others keep gamma^2, the noise of their mean, so that their z falls.",
}


def _strength_panel(
    title: str, ratio: float | None, choices: Sequence[Choice], drawn: Sequence[simulate.Draws], dim: int
) -> Panel:
    lines, dots, measured = [], [], []
    strengths = _strengths(choices)
    for (name, problem, private, color), draws in zip(choices, drawn, strict=True):
        errors = [dim * point.personal_mse(problem, private=private, strength=s, ratio=ratio) for s in strengths]
        best = point.best_strength(problem, private=private, ratio=ratio)
        least = dim * point.best_mse(problem, private=private, ratio=ratio)
        lines.append(Series(f"{name}: best {least:#.4g}", strengths, errors, color))
        dots.append(_dot(best, least, color))
        measured += _measured_personal(problem, private, ratio, draws, strengths[6::18])
    return Panel(title, "strength λ", _PERSONAL, [*lines, _simulated(measured), *dots], log="x")


def _strengths(choices: Sequence[Choice]) -> list[float]:
    """Around the best ones of all panels; at most 1000, where a personal estimate is as good as the shared one."""
    rules = [(choice, ratio) for choice in choices for _, ratio in _RULES]
    best = [point.best_strength(problem, private=private, ratio=r) for (_, problem, private, _), r in rules]
    low, high = max(min(best) / 4, 1e-4), 12 * max(best)
    return [float(s) for s in np.geomspace(min(low, 100), min(max(high, 20 * low), 1000), 121)]


def _measured_personal(
    problem: Problem, private: bool, ratio: float | None, draws: simulate.Draws, strengths: Sequence[float]
) -> list[tuple[float, float]]:
    shares = point.shares(problem, point.optimal_ratio(problem) if ratio is None else ratio)
    level = point.PRIVATE if private else point.OPEN
    return [(s, simulate.personal(draws, shares, level, s).value) for s in strengths]


def server_by_opted_out(problem: Problem, repetitions: int = 20_000, seed: int = 0) -> Figure:
    return Figure(
        "theory-figure-4",
        title="Figure 4. Server error against the share of clients that opted out",
        note="Left, as in the papers' limits: the noise of the private mean stays, however few are in it. Right: every "
        "private client keeps its z; then FedAvg gains nothing from those who leave, DP-FedAvg is the same as FedAvg, "
        "and r* gains most from the first ones. Hollow points: Monte Carlo.",
        panels=_aligned([
            _share_panel("γ² held: the noise of the private mean", problem, "gamma2", repetitions, seed),
            _share_panel("z held: the same ε for all who stay", problem, "z", repetitions, seed),
        ], zero=True),
    )  # fmt: skip


def _share_panel(title: str, problem: Problem, hold: Hold, repetitions: int, seed: int) -> Panel:
    several = [problem.with_private(n, hold) for n in range(problem.clients, 0, -1)]
    rho = [each.rho for each in several]
    lines = [
        Series("FedAvg, r = 1", rho, [point.fedavg_variance(each) for each in several], _BLUE),
        Series("FedHDP, r*", rho, [point.optimal_variance(each) for each in several], _RED),
        Series("nobody private", rho, [problem.sigma2 / problem.clients] * len(rho), _GREEN, style="dot"),
    ]
    some = several[problem.clients // 20 :: max(problem.clients // 8, 1)]
    found = [(p, _measured_server(p, (1.0, point.optimal_ratio(p)), repetitions, seed)) for p in some]
    measured = [(p.rho, error) for p, pairs in found for _, error in pairs]
    return Panel(title, "share opted out", _SERVER, [*lines, _simulated(measured)])


def _aligned(panels: Sequence[Panel], *, zero: bool = False) -> list[Panel]:
    """All with the same vertical range, from 0 or from just below the least."""
    every = [y for panel in panels for line in panel.series if line.style != "none" for y in line.y]
    least = 0.0 if zero else 0.93 * min(every)
    return [replace(panel, y_range=(least, 1.05 * max(every))) for panel in panels]


def describe(regression: Regression) -> str:
    """The numbers behind all figures, in a sentence."""
    p = regression.coordinate
    return (
        f"{p.clients} clients, {p.opted_out} of them opted out; alpha^2 = {p.alpha2:g}, tau^2 = {p.tau2:g}, "
        f"gamma^2 = {p.gamma2:g}: r* = {linear.optimal_ratio(regression):.4g}."
    )
