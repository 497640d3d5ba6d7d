"""The problem of Algorithm 1 for a fixed covariance, in double precision: its dual, its primal, and its blocks.

    D(alpha) = sum_t sum_i loss*(-alpha_ti) + |X alpha|^2_Omega / (4 lambda)                        (5), as a minimum
    P(W) = sum_t sum_i loss(w_t x_ti, y_ti) + lambda tr(W Omega^-1 W'),  w(alpha) = Omega X alpha / (2 lambda)  (4), (6)
    G_t(d) = sum_i loss*(-alpha_ti - d_i) + w_t X_t d + beta / (4 lambda) Omega_tt |X_t d|^2 + c_t              (7)

with c_t = w_t X_t alpha_t / 2, which the paper leaves out: with it sum_t G_t(0) = D(alpha), as Lemma 1 needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tacit.core.dual_losses import LOSSES
from tacit.privacy.mechanisms.dual_ascent import ascend

_TINY = 1e-7  # of a row's loss


@dataclass(frozen=True, eq=False)
class Blocks:
    """Every device's rows and targets (one column), the covariance of tasks and lambda. All functions are exact."""

    loss: str
    x: Sequence[Tensor]  # [rows, features] of each device
    y: Sequence[Tensor]  # [rows], -1 or 1
    omega: Tensor
    strength: float

    @cached_property
    def grams(self) -> list[Tensor]:
        return [rows @ rows.T for rows in self.x]

    @cached_property
    def tops(self) -> Tensor:
        """The largest eigenvalue of each device's X_t' X_t."""
        return torch.stack([torch.linalg.eigvalsh(gram)[-1] for gram in self.grams])

    @property
    def rows(self) -> int:
        return sum(map(len, self.y))

    def sums(self, alpha: Sequence[Tensor]) -> Tensor:
        """X alpha, a row for each device."""
        return torch.stack([each @ rows for each, rows in zip(alpha, self.x, strict=True)])

    def models(self, sums: Tensor) -> Tensor:
        return self.omega @ sums / (2 * self.strength)

    def squared(self, sums: Tensor) -> float:
        """|v|^2_Omega / (4 lambda), which is lambda tr(W Omega^-1 W') of the models that v makes."""
        return float((sums * (self.omega @ sums)).sum()) / (4 * self.strength)

    def conjugates(self, t: int, alpha: Tensor) -> float:
        return float(LOSSES[self.loss].conjugate(alpha, self.y[t]).sum())

    def dual(self, alpha: Sequence[Tensor]) -> float:
        """To be made small; infinite for an alpha that is not feasible is not checked here."""
        return sum(self.conjugates(t, each) for t, each in enumerate(alpha)) + self.squared(self.sums(alpha))

    def primal(self, sums: Tensor) -> float:
        """Of the models that these sums make."""
        models, rule = self.models(sums), LOSSES[self.loss]
        fits = sum(float(rule.value(x @ w, y).sum()) for x, y, w in zip(self.x, self.y, models, strict=True))
        return fits + self.squared(sums)

    def gap(self, alpha: Sequence[Tensor]) -> float:
        return self.dual(alpha) + self.primal(self.sums(alpha))

    def slopes(self, t: int, model: Tensor) -> Tensor:
        """u of Lemma 2: minus the derivative of the loss at every row's margin."""
        margins = (self.x[t] @ model).requires_grad_()
        (slope,) = torch.autograd.grad(LOSSES[self.loss].value(margins, self.y[t]).sum(), margins)
        return -slope

    def block(self, t: int, alpha: Tensor, model: Tensor, change: Tensor, beta: float) -> float:
        """G_t(change) at alpha, for the model that the device received."""
        moved = change @ self.x[t]
        curve = beta * float(self.omega[t, t]) / (4 * self.strength) * float(moved @ moved)
        here = float((alpha @ self.x[t]) @ model) / 2
        return self.conjugates(t, alpha + change) + float(model @ moved) + curve + here

    def solve_block(self, t: int, alpha: Tensor, model: Tensor, beta: float, gap: float = _TINY) -> Tensor:
        """The exact minimiser's change of alpha, to a gap of at most so much for each row."""
        q = beta * self.omega[t, t] / (2 * self.strength)
        centre = model - q * (alpha @ self.x[t])
        margins, y = (self.x[t] @ centre).unsqueeze(1), self.y[t].unsqueeze(1)
        mask = torch.ones(len(alpha), dtype=torch.bool)
        wanted = torch.tensor(gap * len(alpha), dtype=torch.float64)
        found = ascend(self.loss, self.grams[t], margins, alpha.unsqueeze(1), y, mask, q, wanted)
        return found.squeeze(1) - alpha

    def solve(self, relative: float = 1e-6, most: int = 1000) -> list[Tensor]:
        """The optimal alpha: one device after the other, each exactly, until the gap is so small beside the primal."""
        alpha = [torch.zeros(len(y), dtype=torch.float64) for y in self.y]
        sums = self.sums(alpha)
        for turn in range(most):
            for t in range(len(alpha)):
                model = self.omega[t] @ sums / (2 * self.strength)
                change = self.solve_block(t, alpha[t], model, 1.0)
                alpha[t] = alpha[t] + change
                sums[t] = alpha[t] @ self.x[t]
            if turn % 5 == 4 and self.gap(alpha) < relative * self.primal(sums):
                break
        return alpha
