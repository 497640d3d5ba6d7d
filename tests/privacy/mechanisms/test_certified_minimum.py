"""A client's solution of its own problem as a query: how far one record moves it, and what is not believed."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from benchmarks.certified_minimum import NOTHING, attack, tried
from tacit.core.contract import Batch, ProximalProblem
from tacit.core.dual_losses import LOSSES
from tacit.errors import TacitError
from tacit.privacy.mechanisms import certified_minimum, dual_ascent
from tacit.privacy.mechanisms.certified_minimum import Certified, Exact
from tacit.privacy.mechanisms.noise import Seeded


def problem_of(seed: int, slack: float = 0.1, rows: int = 12) -> tuple[ProximalProblem, Batch]:
    draw = torch.Generator().manual_seed(seed)
    x, centre = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((rows, 4), (1, 5)))
    y = torch.randint(0, 2, (rows,), generator=draw)
    start = torch.zeros(rows, 1, dtype=torch.float64)
    asked = ProximalProblem("hinge", centre, torch.tensor(2.0), 0.5, slack, torch.zeros_like(centre), start)
    return asked, Batch(x, y, torch.ones(rows, dtype=torch.bool))


def query(rows: Batch) -> Certified:
    return Certified(lambda _: rows, 1.0, NOTHING, torch.tensor(1.0), Seeded.of(0, "q"))


def test_one_record_moves_no_solution_by_more_than_is_stated_not_even_where_the_solver_lies() -> None:
    found = tried(300, seed=7, at_once=30)
    assert found.max() <= 1
    assert found[:, 0].max() > 0.7
    assert found[:, 1].max() > 0.8  # lies are worth something: the slack is needed


def test_a_certificate_bounds_the_distance_to_the_exact_solution() -> None:
    """Claim 2, with the constant of both halves of the gap, at alphas that are anything."""
    draw = np.random.default_rng(0)
    for seed in range(40):
        asked, rows = problem_of(seed, slack=1e-3)
        rule, (x, y) = LOSSES["hinge"], certified_minimum.clipped_rows(rows, asked, 1.0)
        best = query(rows)(asked, 0)
        alpha = rule.feasible(best.duals.double() + torch.from_numpy(draw.normal(size=y.shape)) * 0.1, y)
        sums = alpha.T @ x
        gap = dual_ascent.gap_of(rule, x @ (asked.centre + 2.0 * sums).T, alpha, y, rows.mask)
        assert float((sums - best.sums).norm()) <= float((gap / 2.0).sqrt()) + 1e-3


def test_a_solution_without_a_certificate_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, rows = problem_of(3)
    instead = torch.full_like(asked.centre, 7.0)
    for lie in (torch.zeros_like, lambda start: torch.full_like(start, torch.nan), lambda start: start + 1e9):
        monkeypatch.setattr(certified_minimum, "ascend", lambda loss, g, m, start, *_, lie=lie: lie(start))
        assert torch.equal(query(rows)(asked._replace(instead=instead), 0).sums, instead)


def test_the_noise_is_what_is_stated_and_rows_are_clipped() -> None:
    x = torch.tensor([[30.0, 40.0]], dtype=torch.float64)
    rows = Batch(x, torch.tensor([1]), torch.ones(1, dtype=torch.bool))
    zero = torch.zeros(1, 3, dtype=torch.float64)
    asked = ProximalProblem("hinge", zero, torch.tensor(1e-4), 1.0, 0.2, zero, torch.zeros(1, 1, dtype=torch.float64))

    def drawn(z: float, exact: bool) -> Tensor:
        def one(key: Tensor) -> Tensor:
            return Certified(lambda _: rows, 2.0, torch.tensor(z), torch.tensor(3.0), Seeded(key), exact)(asked, 0).sums

        return vmap(one)(torch.randint(0, 2**62, (4000, 2), generator=torch.Generator().manual_seed(1)))

    alone = drawn(1e-9, False)[0, 0]
    assert float(alone.norm()) == pytest.approx(3.0 * 2.0, rel=1e-6)  # alpha is 1, the row has norm 2, the weight is 3
    for exact in (False, True):
        noisy = drawn(1.5, exact)[:, 0]
        assert float(noisy.std(0).mean()) == pytest.approx(1.5 * 3 * 2 * 1.2, rel=0.03)
        assert noisy.mean(0) == pytest.approx(alone, abs=0.6)


def test_the_solver_in_c_and_the_one_in_torch_agree_and_others_rows_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 9, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 2, (3, 9), generator=draw)
    mask = torch.rand(3, 9, generator=draw) < 0.8
    centre = torch.randn(1, 5, generator=draw, dtype=torch.float64)

    def sums(loss: str, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        start = torch.zeros(9, 1, dtype=torch.float64)
        asked = ProximalProblem(loss, centre, torch.tensor(2.0), 0.5, 1e-2, centre, start)
        return Exact(torch.ones(()))(asked, Batch(x, y, mask)).sums

    for loss in ("hinge", "smooth-hinge", "logistic"):
        together = vmap(partial(sums, loss))(x, y, mask)
        alone = torch.stack([sums(loss, *rows) for rows in zip(x, y, mask, strict=True)])
        assert torch.allclose(together, alone, atol=0.02)
        with monkeypatch.context() as without:
            without.setattr(dual_ascent, "library", lambda: None)
            plain = vmap(partial(sums, loss))(x, y, mask)
        assert torch.allclose(together, plain, atol=0.02)


def test_rows_that_are_nearly_the_same_get_their_certificate_too() -> None:
    """Coordinate ascent alone gives up here, and giving up would tell of the data."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, generator=draw, dtype=torch.float64)
    x = x + 0.01 * torch.randn(20, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (20,), generator=draw)
    zero, start = torch.zeros(3, 7, dtype=torch.float64), torch.zeros(20, 3, dtype=torch.float64)
    rows = Batch(x, y, torch.arange(20) < 19)
    for curvature in (0.1, 10.0, 1000.0):
        asked = ProximalProblem("hinge", zero, torch.tensor(curvature), 0.5, 0.01, torch.full_like(zero, 7.0), start)
        assert not (query(rows)(asked, 0).sums == 7.0).any()


def test_a_loss_without_a_bounded_slope_and_a_slack_of_zero_are_refused() -> None:
    asked, rows = problem_of(0)
    with pytest.raises(TacitError, match="slope of loss 'squared'"):
        query(rows)(asked._replace(loss="squared"), 0)
    with pytest.raises(TacitError, match="slack"):
        query(rows)(asked._replace(slack=0.0), 0)


def test_an_attack_over_rounds_stays_below_epsilon_2_and_finds_planted_bugs() -> None:
    true = attack(trials=4000)
    assert true.lower_bound > 0.5  # an attack that sees nothing proves nothing
    assert not true.disproved
    assert attack(trials=4000, noise=0.25).disproved
    assert attack(trials=4000, bound=5.0).disproved
