"""Without privacy the method finds the optimum that a centralised solver finds, and can tell how far it is."""

from functools import partial

import numpy as np
import pytest
import torch

from tacit.core.dual_losses import LOSSES
from tacit.estimation.multitask import objective
from tacit.methods import Multitask
from tacit.methods.multitask.covariance import (
    clustered,
    correlation,
    identity,
    learned,
    mean_regularised,
    safe_correction,
)
from tacit.methods.multitask.local_dual import sweep
from tacit.rounds.loop import Run
from tests.estimation.multitask.problems import Arrays, centralised, tasks, trained

STRENGTH = 1.0


def weights(run: Run) -> np.ndarray:
    extra = run.progress.server.view.extra
    method = run.engine.method
    assert isinstance(method, Multitask)
    return method.weights(extra["sums"], extra["covariance"])[:, 0].numpy()


def kind_of(loss: str) -> str:
    return "real" if loss == "squared" else "classes"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sweep_is_one_step_after_the_other(loss: str) -> None:
    """For several devices at once, and rows without mask stay where they are."""
    draw = torch.Generator().manual_seed(0)
    x, start, rule = torch.randn(3, 6, 4, generator=draw), torch.rand(3, 6, 2, generator=draw), LOSSES[loss]
    gram, margins = x @ x.mT, torch.randn(3, 6, 2, generator=draw)
    y = torch.randint(2, (3, 6, 2), generator=draw) * 2.0 - 1
    mask, alpha = torch.arange(6) < torch.tensor([6, 4, 1]).unsqueeze(1), start * y
    found = torch.func.vmap(partial(sweep, loss))(gram, margins, alpha, y, mask)
    for k in range(3):
        now, deltas = margins[k].clone(), torch.zeros(6, 2)
        for i in range(int(mask[k].sum())):
            deltas[i] = rule.step(alpha[k, i], now[i], gram[k, i, i], y[k, i]) - alpha[k, i]
            now += gram[k, i].unsqueeze(1) * deltas[i]
        assert torch.allclose(found[k], deltas, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_it_agrees_with_a_centralised_solver_of_the_same_objective(loss: str) -> None:
    data = tasks(kind_of(loss))
    run = trained(data, Multitask(loss, STRENGTH, covariance="mean", ridge=0.5), rounds=120)
    run.go()
    found, value = centralised(data, loss, STRENGTH, mean_regularised(5, 0.5).numpy())
    got = objective(run)
    assert got.primal == pytest.approx(value, abs=1e-4)
    assert got.dual == pytest.approx(value, abs=1e-4)
    assert np.abs(weights(run) - found).max() < 1e-4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["mean", "learned"])
def test_the_gap_is_never_negative_and_shrinks(loss: str, kind: str) -> None:
    run = trained(tasks(kind_of(loss)), Multitask(loss, STRENGTH, covariance=kind, inner=10), rounds=60)  # pyright: ignore[reportArgumentType]
    gaps = []
    for _ in range(59):  # the sixtieth round changes the covariance
        run.step()
        gaps.append(objective(run).gap)
    assert min(gaps) > -1e-9
    assert gaps[58] < 1e-2 * max(gaps)
    for changed in range(9, 49, 10):
        assert gaps[changed + 9] <= gaps[changed] + 1e-6  # the precision of a coordinate's step, see below


def test_the_dual_rises_in_every_round_as_long_as_the_covariance_stays() -> None:
    run = trained(tasks(), Multitask("hinge", STRENGTH, covariance="mean"), rounds=40)
    duals = []
    for _ in range(40):
        run.step()
        duals.append(objective(run).dual)
    assert (np.diff(duals) > -1e-9).all()


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_the_best_for_their_coordinate(seed: int) -> None:
    """Against a fine grid, for every loss and any margin, curvature and start."""
    draw = np.random.default_rng(seed)
    for name, loss in LOSSES.items():
        y = torch.tensor(draw.choice([-1.0, 1.0]))
        old, g, s = y * draw.random(), torch.tensor(3 * draw.normal()), torch.tensor(np.exp(2 * draw.normal()))
        new = loss.step(old, g, s, y)
        grid = torch.linspace(-6, 6, 200_001) if name == "squared" else y * torch.linspace(1e-7, 1 - 1e-7, 200_001)

        def cost(a: torch.Tensor, loss=loss, old=old, g=g, s=s, y=y) -> torch.Tensor:
            return loss.conjugate(a, y) + (a - old) * g + s * (a - old).square() / 2

        assert float(cost(new)) <= float(cost(grid).min()) + 1e-6


@pytest.mark.parametrize("xi", [0.3, 1.0])
def test_any_share_of_the_steps_converges_and_so_does_the_correction_of_the_paper(xi: float) -> None:
    data = tasks()
    _, value = centralised(data, "smooth-hinge", STRENGTH, mean_regularised(5, 0.5).numpy())
    for beta in (None, 5 * xi):
        run = trained(data, Multitask("smooth-hinge", STRENGTH, "mean", 0.5, xi=xi, beta=beta), rounds=150)
        run.go()
        assert objective(run).primal == pytest.approx(value, abs=1e-4)


def test_the_safe_correction_lies_between_one_and_the_number_of_tasks() -> None:
    assert safe_correction(identity(7)) == pytest.approx(1)
    assert safe_correction(mean_regularised(7, 1e-9)) == pytest.approx(7, rel=1e-6)
    assert safe_correction(mean_regularised(7, 1e-9), rate=1e-9) == pytest.approx(1)


def test_a_learned_covariance_is_symmetric_positive_and_has_trace_one() -> None:
    for seed in range(5):
        draw = torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 2)))
        for rows in (draw, draw * 1e-9, draw * 0):
            omega = learned(rows, floor=0.05)
            assert torch.equal(omega, omega.T)
            assert float(torch.linalg.eigvalsh(omega)[0]) >= 0.05 / 6 - 1e-12
            assert float(omega.trace()) == pytest.approx(1)


def test_the_learned_covariance_is_the_closed_form_of_the_paper_but_for_its_floor() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 9)))
    omega = learned(rows, floor=1e-12)
    square = omega @ omega
    assert torch.allclose(square / square.trace(), rows @ rows.T / (rows @ rows.T).trace(), atol=1e-9)


def test_the_penalty_of_the_learned_covariance_is_the_squared_trace_norm() -> None:
    """min over Omega of tr(W Omega^-1 W') is the square of the sum of W's singular values: no covariance is better."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 9)))
    omega = learned(rows, floor=1e-12)
    assert float((rows.T @ torch.linalg.inv(omega) @ rows).trace()) == pytest.approx(
        float(torch.linalg.svdvals(rows).sum()) ** 2
    )


def test_learning_both_finds_the_joint_optimum() -> None:
    """Alternation ends where sum of losses + lambda (trace norm)^2 is least; found by descent from many starts."""
    data = tasks("real")
    run = trained(data, Multitask("squared", STRENGTH, inner=3, floor=1e-6), rounds=300)
    run.go()
    got = objective(run).primal
    x = [torch.from_numpy(np.hstack([a, np.ones((len(a), 1))])) for a, _ in data]
    y = [torch.from_numpy(b) for _, b in data]
    w = torch.from_numpy(weights(run)).clone().requires_grad_()

    def joint(rows: torch.Tensor) -> torch.Tensor:
        fit = sum(((a @ own - b).square().sum() / 2 for a, b, own in zip(x, y, rows, strict=True)), torch.zeros(()))
        return fit + STRENGTH * torch.linalg.matrix_norm(rows, "nuc") ** 2

    descent = torch.optim.LBFGS([w], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def closure() -> torch.Tensor:
        descent.zero_grad()
        value = joint(w)
        value.backward()
        return value

    descent.step(closure)
    assert got == pytest.approx(float(joint(w).detach()), rel=1e-3)


def groups(run: Run) -> tuple[float, float]:
    """Mean correlation within and between the groups of the first two and the last three tasks."""
    found = correlation(run.progress.server.view.extra["covariance"])
    first = torch.arange(5) < 2
    same = (first[:, None] == first[None, :]) & ~torch.eye(5, dtype=torch.bool)
    other = first[:, None] != first[None, :]
    return float(found[same].mean()), float(found[other].abs().mean())


@pytest.mark.parametrize("seed", range(3))
def test_two_groups_of_related_tasks_are_recovered(seed: int) -> None:
    run = trained(tasks(features=8, seed=seed, rows=40), Multitask("smooth-hinge", 1.0, inner=10), rounds=60)
    run.go()
    within, between = groups(run)
    assert within > between + 0.3


def test_the_identity_gives_separate_models() -> None:
    data = tasks()
    together = trained(data, Multitask("smooth-hinge", STRENGTH, covariance="identity"), rounds=40)
    together.go()
    for t, own in enumerate(data):
        # alone, a task's covariance is the number one: five times the share it has among five
        alone = trained([own], Multitask("smooth-hinge", STRENGTH * 5, covariance="identity"), rounds=40)
        alone.go()
        assert np.abs(weights(together)[t] - weights(alone)[0]).max() < 1e-5


def test_a_mean_regularised_covariance_with_a_small_ridge_gives_one_model_for_all() -> None:
    run = trained(tasks(), Multitask("smooth-hinge", STRENGTH, covariance="mean", ridge=1e-4), rounds=100)
    run.go()
    found = weights(run)
    assert np.abs(found - found.mean(0)).max() < 1e-2 * np.abs(found).max()


def test_a_covariance_of_the_users_own_is_kept() -> None:
    given = (np.eye(5) + 0.5).tolist()
    run = trained(tasks(), Multitask("logistic", STRENGTH, covariance=tuple(map(tuple, given))), rounds=30)
    run.go()
    held = run.progress.server.view.extra["covariance"]
    assert torch.allclose(held * 7.5, torch.tensor(given, dtype=held.dtype))


def test_several_classes_are_learned_one_against_the_rest() -> None:
    draw = np.random.default_rng(0)
    centres = 2 * draw.normal(size=(3, 4))
    data: Arrays = []
    for _ in range(4):
        y = draw.integers(3, size=30)
        data.append((centres[y] + 0.5 * draw.normal(size=(30, 4)), y))
    run = trained(data, Multitask("smooth-hinge", 0.5, inner=20), rounds=79)
    scores = run.go().scores
    assert scores is not None
    assert scores.personal.mean() > 0.95
    assert objective(run).gap < 1e-2


def test_gradients_of_the_primal_lead_to_the_same_optimum() -> None:
    data = tasks()
    run = trained(data, Multitask("logistic", STRENGTH, "mean", 0.5, solver="gradient"), rounds=200, epochs=5)
    run.go()
    found, _ = centralised(data, "logistic", STRENGTH, mean_regularised(5, 0.5).numpy())
    assert np.abs(weights(run) - found).max() < 1e-3


def test_a_low_rank_covariance_keeps_the_strongest_directions_and_a_whole_one_is_the_learned_one() -> None:
    models = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.linalg.eigvalsh(learned(models, 0.06, rank=2))
    assert values[:4] == pytest.approx(np.full(4, 0.01))
    assert float(values.sum()) == pytest.approx(1)
    assert torch.allclose(learned(models, 0.05, rank=6), learned(models, 0.05))


def test_clusters_are_those_that_the_models_fall_into() -> None:
    data = tasks(groups=(3, 4), features=8, rows=30)
    run = trained(data, Multitask("smooth-hinge", 0.5, "clustered", 0.1, clusters=2, inner=5), rounds=15)
    run.go()
    omega = run.progress.server.view.extra["covariance"]
    assert float(omega.trace()) == pytest.approx(1)
    related = omega > 0
    assert torch.equal(related, torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).bool())
    alone = clustered(torch.eye(3, dtype=torch.float64), 3, 0.5)
    assert torch.allclose(alone, identity(3))
