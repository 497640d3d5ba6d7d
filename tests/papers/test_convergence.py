"""Section V of the multitask paper: what its lemmas and theorems say, and the bound with noise, on small problems."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from papers.multitask.blocks import Blocks
from papers.multitask.bounds import Constants, Noisy, contraction, followed, printed, printed_rounds
from tacit.methods.multitask.covariance import mean_regularised, safe_correction

TASKS = 4


@cache
def problem(loss: str = "hinge") -> Blocks:
    draw = torch.Generator().manual_seed(3)
    x = [torch.randn(6 + t, 3, generator=draw, dtype=torch.float64) for t in range(TASKS)]
    x = [rows / rows.norm(dim=1, keepdim=True) for rows in x]
    y = [torch.where(torch.rand(len(rows), generator=draw) < 0.5, -1.0, 1.0).double() for rows in x]
    return Blocks(loss, x, y, mean_regularised(TASKS, 0.5), 0.2)


def feasible(of: Blocks, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(len(y), generator=draw, dtype=torch.float64) * y for y in of.y]


@pytest.mark.parametrize("loss", ["hinge", "smooth-hinge"])
def test_the_optimum_has_no_gap_and_no_other_alpha_a_lower_dual(loss: str) -> None:
    of = problem(loss)
    best = of.solve()
    assert 0 <= of.gap(best) + 1e-9 < 1e-5 * of.primal(of.sums(best))
    assert all(of.dual(feasible(of, seed)) > of.dual(best) for seed in range(20))


def test_blocks_that_stay_are_the_dual_together_and_safe_steps_keep_lemma_1() -> None:
    of, beta = problem(), safe_correction(problem().omega)
    for seed in range(30):
        now, other = feasible(of, seed), feasible(of, 100 + seed)
        models = of.models(of.sums(now))
        stay = sum(of.block(t, a, models[t], 0 * a, beta) for t, a in enumerate(now))
        assert stay == pytest.approx(of.dual(now))
        moved = sum(of.block(t, a, models[t], b - a, beta) for t, (a, b) in enumerate(zip(now, other, strict=True)))
        for xi in (0.3, 1.0):
            step = [a + xi * (b - a) for a, b in zip(now, other, strict=True)]
            assert of.dual(step) <= (1 - xi) * of.dual(now) + xi * moved + 1e-9


def test_as_printed_full_steps_never_converge_and_by_lemma_2_they_do() -> None:
    about = Constants(1.0, 0.3, 4.0, 0.2, (10,) * TASKS, (0.5,) * TASKS, smooth=0.5)
    assert printed(about, 50)[-1] == printed(about, 50)[0] == 40
    assert printed_rounds(about, 0.1) == math.inf
    assert printed_rounds(replace(about, xi=0.5), 0.1) < math.inf
    assert followed(about, 40.0, 50)[-1] < 40 * (1 - about.rho * about.step) ** 49
    falls = followed(replace(about, smooth=0.0), 40.0, 5000)
    assert all(a >= b for a, b in pairwise(falls))
    assert falls[-1] < 1


def answers(of: Blocks, sums: Tensor, beta: float) -> Tensor:
    """T: every device's exact answer around what it has sent."""
    models, q = of.models(sums), beta * of.omega.diagonal() / (2 * of.strength)
    found = []
    for t, y in enumerate(of.y):
        centred = models[t] - q[t] * sums[t]
        found.append(of.solve_block(t, torch.zeros_like(y), centred, beta, gap=1e-13) @ of.x[t])
    return torch.stack(found)


def distance(of: Blocks, one: Tensor, other: Tensor, beta: float) -> float:
    q = beta * of.omega.diagonal() / (2 * of.strength)
    return float((q * (one - other).square().sum(1)).sum())


@pytest.mark.parametrize("loss", ["hinge", "smooth-hinge"])
def test_exact_answers_come_nearer_by_the_contraction_from_anywhere(loss: str) -> None:
    of = problem(loss)
    beta, best = safe_correction(of.omega), of.sums(of.solve())
    c = contraction(of, beta, 0.5 if loss == "smooth-hinge" else 0.0)
    assert c < 1
    for seed in range(20):
        anywhere = best + 3 * torch.randn(best.shape, generator=torch.Generator().manual_seed(seed)).double()
        after = distance(of, answers(of, anywhere, beta), best, beta)
        assert after <= c**2 * distance(of, anywhere, best, beta) + 0.05


@pytest.mark.parametrize("present", [1.0, 0.6])
def test_with_noise_and_drops_the_mean_distance_stays_below_the_bound_and_not_below_one_without_noise(
    present: float,
) -> None:
    of, rounds, noise = problem(), 8, 0.5
    beta, best, draw = safe_correction(of.omega), of.sums(of.solve()), torch.Generator().manual_seed(7)
    q = tuple((beta * of.omega.diagonal() / (2 * of.strength)).tolist())
    seen = torch.zeros(rounds + 1)
    for _ in range(10):
        sums = torch.zeros_like(best)
        seen[0] += distance(of, sums, best, beta) / 10
        for k in range(rounds):
            noisy = answers(of, sums, beta) + noise * torch.randn(best.shape, generator=draw, dtype=torch.float64)
            here = torch.rand(TASKS, 1, generator=draw) < present
            sums = torch.where(here, noisy, sums)
            seen[k + 1] += distance(of, sums, best, beta) / 10
    bound = Noisy(contraction(of, beta), q, noise, best.shape[1], present=present)
    assert all(a <= b for a, b in zip(seen.tolist(), bound.over(float(seen[0]), rounds), strict=True))
    quiet = replace(bound, noise=0.0).over(float(seen[0]), 400)
    assert float(seen[-1]) > quiet[-1]
