"""One device's part of the dual (7), with the others' parts as they stand in the model that it received."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core.contract import Batch, Site, Tree
from tacit.methods.multitask.coordinate_ascent import sweep
from tacit.methods.multitask.dual_losses import LOSSES
from tacit.methods.multitask.linear_task import targets, with_intercept

_PASSES = 5


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """min over dalpha of sum_i loss*(-alpha_i - dalpha_i) + w X dalpha + q/2 |X dalpha|^2.

    q = beta Omega_tt / (2 lambda): what a unit of X dalpha moves the device's own model by, times beta.
    """

    loss: str
    w: Tensor  # [columns, features + 1], as received
    q: Tensor
    sent: Tensor  # v_t: what the server has of this device
    size: Tensor  # n_t
    intercept: float

    def ascend(self, alpha: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """Dual coordinate ascent over the live steps' rows, one after the other: the new alpha, and X dalpha."""
        now: Tree = {"alpha": alpha, "moved": torch.zeros_like(self.w)}
        for step in range(site.steps):
            now = site.advance(step, self._sweep(now, site.batch(step), site.rows(step)), now)
        return now["alpha"], now["moved"]

    def _sweep(self, now: Tree, batch: Batch, rows: Tensor) -> Tree:
        x = with_intercept(batch.x, self.intercept)
        y = targets(batch.y, self.w.shape[0], x.dtype)
        margins = x @ (self.w + self.q * now["moved"]).T
        delta = sweep(self.loss, self.q * (x @ x.T), margins, now["alpha"][rows], y, batch.mask)
        return {"alpha": now["alpha"].index_add(0, rows, delta), "moved": now["moved"] + delta.T @ x}

    def descend(self, site: Site, lr: float) -> Tensor:
        """What v_t moves to: at the optimum v_t is minus the gradient of the device's loss, so steps go towards it.

        A step of w along Omega times the gradient of the primal; `lr` is a multiple of what is safe for |x| <= 1.
        """
        loss, moved = LOSSES[self.loss], {"sums": torch.zeros_like(self.w)}

        def losses(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            scores = with_intercept(x, self.intercept) @ params["sums"].T
            return loss.value(scores, targets(y, self.w.shape[0], scores.dtype)).sum(1)

        n = self.size.to(self.w.dtype)
        rate = lr / (1 + 2 * n * self.q * _CURVATURE[self.loss])
        for step in range(site.steps):
            at = {"sums": self.w + self.q * moved["sums"]}
            slope = site.private_grad(at, step, losses)["sums"]
            change = rate * (-n * slope - self.sent - moved["sums"])
            moved = site.advance(step, {"sums": moved["sums"] + change}, moved)
        return moved["sums"]

    def finished(self, alpha: Tensor, site: Site) -> Tensor:
        """The device's model after passes over its own block, from its true X alpha instead of what it has sent."""
        own = torch.zeros_like(self.w)
        for step in range(site.steps):
            batch = site.batch(step)
            rows = torch.where(batch.mask.unsqueeze(1), alpha[site.rows(step)], 0.0)
            own = site.advance(step, {"own": own + rows.T @ with_intercept(batch.x, self.intercept)}, {"own": own})[
                "own"
            ]
        here = replace(self, w=self.w + self.q * (own - self.sent))
        for _ in range(_PASSES):
            alpha, moved = here.ascend(alpha, site)
            here = replace(here, w=here.w + here.q * moved)
        return here.w


_CURVATURE = {"hinge": float("inf"), "smooth-hinge": 2.0, "squared": 1.0, "logistic": 0.25}
"""Largest second derivative of each loss."""
