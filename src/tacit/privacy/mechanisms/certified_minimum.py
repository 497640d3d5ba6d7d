"""The solution of a client's own problem as a private query: certified to be one, with noise for one record.

*The problem.* F(Z) = sum_i weight loss(Z x_i, y_i) + |Z - centre|^2 / (2 q) over a client's rows, with |x_i| <= bound
and a loss whose slope in each of its `columns` margins is at most 1. Centre, q and weight are public. Z = centre + q S,
where S = X alpha.

*Claim.* For whatever alpha is handed over, what is released before noise lies within slack weight bound / 2 of the
exact S*, or is `instead`, which is public. One record more or less moves S* by at most weight bound sqrt(columns). So
as long as a certificate is found, one record moves what is released by at most

    sensitivity = weight bound (sqrt(columns) + slack),

and the noise is z times that: one Gaussian query. The proof is in docs/proofs/certified-minimum.md, with what is owed
to the words "as long as": a solver that may give up would tell by that of its data, so `dual_ascent` ends in a method
whose steps are bounded for every data set.

The certificate is the duality gap, computed here in double precision from the clipped rows and alpha, plus an allowance
for rounding: at most q weight (slack bound / 2)^2 for the problem divided by weight. Whoever solved it is not trusted.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tacit.core.contract import Batch, Minimum, ProximalProblem
from tacit.core.dual_losses import LOSSES, DualLoss, targets, with_intercept
from tacit.errors import TacitError
from tacit.privacy.mechanisms import lattice
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.dual_ascent import ascend, gap_of
from tacit.privacy.mechanisms.gradient import BatchOf

_ROUNDING: Final = 1e-12  # of sums of some thousand products in double precision
_LARGEST: Final = 2.0**52  # an integer that a double holds


@dataclass(frozen=True)
class Exact:
    """Solves on whatever rows it is given, each `weight` times, without noise: what comes of it must not leave."""

    weight: Tensor

    def __call__(self, problem: ProximalProblem, rows: Batch) -> Minimum:
        weight = self.weight.double()
        sums, duals, _ = _solved(problem, rows, torch.inf, problem.curvature.double() * weight)
        return Minimum((weight * sums).to(problem.centre.dtype), duals.to(problem.start.dtype))


@dataclass(frozen=True)
class Certified:
    """The solution on the rows of a step, its weight times, with noise of `z` sensitivities; see this module."""

    batch: BatchOf
    bound: float
    z: Tensor  # noise multiplier of this client, 0-d
    weight: Tensor  # rows of the client for one row of an expected batch, 0-d, public
    noise: noises.Noise
    exact: bool = False  # on integers, with discrete noise

    def __call__(self, problem: ProximalProblem, step: int) -> Minimum:
        if not problem.slack > 0:
            raise TacitError(f"the slack of a certified solution is {problem.slack}: give a number above 0")
        weight = self.weight.double()
        curvature = problem.curvature.double() * weight
        solution, duals, certified = _solved(problem, self.batch(step), self.bound, curvature)
        sums = torch.where(certified, weight * solution, problem.instead.double())
        noisy = self._with_noise(sums, self.sensitivity(problem))
        return Minimum(noisy.to(problem.centre.dtype), duals.to(problem.start.dtype))

    def sensitivity(self, problem: ProximalProblem) -> Tensor:
        """How far one record more or less can move what is released, before noise."""
        columns = problem.centre.shape[0]
        return self.weight.double() * self.bound * (columns**0.5 + problem.slack)

    def _with_noise(self, sums: Tensor, sensitivity: Tensor) -> Tensor:
        if not self.exact:
            return sums + self.z.double() * sensitivity * self.noise.normal(sums.numel(), torch.float64).view_as(sums)
        # two roundings differ by at most sqrt(size) steps, which the steps of a sensitivity leave room for
        room = lattice.limits(self.z.double()).double() - sums.numel() ** 0.5 - 1
        size = sensitivity / room
        whole = (sums / size).clamp(-_LARGEST, _LARGEST).round().long()
        return (whole + self.noise.discrete(sums.numel(), self.z).view_as(whole)).double() * size


def _solved(problem: ProximalProblem, rows: Batch, bound: float, curvature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X alpha and alpha, in double precision, and whether the gap is what the slack asks for."""
    rule = _rule(problem.loss)
    x, y = clipped_rows(rows, problem, bound)
    record = 1.0 if bound == torch.inf else bound
    centre, allowed = problem.centre.double(), curvature * (problem.slack * record / 2) ** 2
    margins = x @ centre.T
    goal = allowed / 2  # solved better than what is asked for, so that rounding does not decide
    duals = ascend(problem.loss, x @ x.T, margins, problem.start.double(), y, rows.mask, curvature, goal)
    duals = torch.where(rows.mask.unsqueeze(-1), rule.feasible(duals, y), 0.0)
    sums = duals.T @ x
    return sums, duals, certified_gap(rule, x, y, rows.mask, duals, centre + curvature * sums) <= allowed


def certified_gap(rule: DualLoss, x: Tensor, y: Tensor, mask: Tensor, duals: Tensor, model: Tensor) -> Tensor:
    """An upper bound of the duality gap at `duals`, whose model is centre + curvature X' duals; NaN where one is."""
    margins = x @ model.T
    size = torch.where(mask.unsqueeze(-1), 1 + margins.abs() + _lengths(x) * _lengths(model.reshape(1, -1)), 0.0)
    return gap_of(rule, margins, duals, y, mask) + _ROUNDING * size.sum()


def _lengths(rows: Tensor) -> Tensor:
    """Of each row, [rows, 1]."""
    return rows.square().sum(1, keepdim=True).sqrt()


def clipped_rows(rows: Batch, problem: ProximalProblem, bound: float) -> tuple[Tensor, Tensor]:
    """Rows with their constant, of norm at most `bound`, and targets between -1 and 1; zero where nothing is real."""
    x = with_intercept(rows.x, problem.intercept).double()
    norm = _lengths(x)
    fine = rows.mask.unsqueeze(-1) & norm.isfinite()
    x = torch.where(fine, x * (bound / norm.clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1.0), 0.0)
    y = targets(rows.y, problem.centre.shape[0], x.dtype)
    return x, torch.where(fine, y.clamp(-1, 1), 1.0)


def _rule(loss: str) -> DualLoss:
    rule = LOSSES[loss]
    if not rule.lipschitz <= 1:
        raise TacitError(f"the slope of loss '{loss}' has no bound, so nothing bounds a record: use 'hinge'")
    return rule
