"""The formulas beside their Monte Carlo, as tables."""

import math
from dataclasses import replace

from papers.fedhdp.theory import point, simulate
from papers.fedhdp.theory.point import OPEN, PRIVATE, Problem
from papers.fedhdp.theory.simulate import Measured
from tacit.report.page import Table


def server_table(problem: Problem, repetitions: int = 20_000, seed: int = 0) -> Table:
    best = point.optimal_ratio(problem)
    draws = simulate.point_draws(problem.menu, repetitions, seed)
    everybody = problem.with_private(problem.clients)
    apart = replace(problem, private=problem.clients, gamma2=problem.message_noise / problem.clients)
    rows = [
        _row(f"FedHDP, r* = {best:.4g}, eq. 11", point.optimal_variance(problem), problem, best, draws),
        _row("FedAvg, r = 1, eq. 12", point.fedavg_variance(problem), problem, 1.0, draws),
        _row("DP-FedAvg, the same z", point.dp_fedavg_variance(problem), everybody, 1.0, None, repetitions, seed),
        _row("DP-FedAvg as published, eq. 14", point.dp_fedavg_variance_as_published(problem), apart, 1.0, None,
             repetitions, seed),
    ]  # fmt: skip
    gap, printed = point.fedavg_gap(problem), point.dp_fedavg_gap_as_published(problem)
    return Table(
        "Server error",
        note=f"Gaps to r*: FedAvg {gap:.4g} (eq. 13), DP-FedAvg {gap:.4g} at the same z, {printed:.4g} as published "
        "(eq. 14: there each message keeps the noise that it had among fewer). Off: the difference in standard errors.",
        heads=("server", "formula", "Monte Carlo", "off"),
        rows=rows,
    )


def _row(
    name: str, formula: float, problem: Problem, ratio: float, draws: simulate.Draws | None,
    repetitions: int = 0, seed: int = 0,
) -> list[str]:  # fmt: skip
    drawn = draws or simulate.point_draws(problem.menu, repetitions, seed)
    return [name, f"{formula:.4f}", *_beside(formula, simulate.server(drawn, point.shares(problem, ratio)))]


def _beside(formula: float, measured: Measured) -> list[str]:
    return [f"{measured.value:.4f} ± {measured.error:.4f}", f"{(measured.value - formula) / measured.error:+.1f}"]


def personal_table(problem: Problem, repetitions: int = 20_000, seed: int = 0) -> Table:
    """Best strengths and errors; a kind of client that nobody is of is left out."""
    draws = simulate.point_draws(problem.menu, repetitions, seed)
    published, exact = point.strength_private_as_published(problem), point.strength_private(problem)
    rules: list[tuple[str, int, float, float | None, bool]] = [
        ("exact", PRIVATE, exact, None, False),
        ("eq. 16", PRIVATE, published, None, False),
        ("knowing", PRIVATE, published, None, True),
        ("eq. 15", OPEN, point.strength_open(problem), None, False),
        *(("exact", level, math.nan, 1.0, False) for level in (PRIVATE, OPEN)),
    ]
    here = [rule for rule in rules if problem.menu.groups[rule[1]].clients]
    return Table(
        "Personal error",
        note="Limit: the least possible (Bayes) for who sees its own estimate and the others' messages. Open clients "
        "reach it at r*; private ones only if they take their own noise out of what they receive (knowing; "
        "then eq. 16 is their best). All rows have the same draws.",
        heads=("client", "r", "λ by", "λ", "formula", "limit", "Monte Carlo", "off"),
        rows=[_personal_row(problem, draws, *rule) for rule in here],
        words=3,
    )


def _personal_row(
    problem: Problem, draws: simulate.Draws, name: str, level: int, strength: float, ratio: float | None, knows: bool
) -> list[str]:
    private = level == PRIVATE
    if math.isnan(strength):
        strength = point.best_strength(problem, private=private, ratio=ratio)
    formula = point.personal_mse(problem, private=private, strength=strength, ratio=ratio, knows_noise=knows)
    shares = point.shares(problem, point.optimal_ratio(problem) if ratio is None else ratio)
    measured = simulate.personal(draws, shares, level, strength, knows_noise=knows)
    limit = point.bayes_mse(problem, private=private)
    who, r = "private" if private else "open", "r*" if ratio is None else f"{ratio:g}"
    return [who, r, name, f"{strength:.4g}", f"{formula:.4f}", f"{limit:.4f}", *_beside(formula, measured)]
