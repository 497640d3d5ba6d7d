"""One device's part of the dual (7), with the others' parts as they stand in the model that it received.

Classes and targets as columns of a linear model: one for two classes or a real target, else one a class.

Dual coordinate ascent over the rows of a batch, one row after the other, for many devices at once.

A custom operator: under `vmap` its batching rule runs one loop over rows on tensors of all devices, which costs a tenth
of mapping every small operation of the loop. What it computes for a device does not depend on the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tacit.core.contract import Batch, ProximalProblem, Site, Tree
from tacit.core.dual_losses import LOSSES, Quadratic, targets, with_intercept
from tacit.errors import TacitError


@dataclass(frozen=True, eq=False)
class Columns:
    """A linear layer's leaves as one block [columns, features + 1], and back; `scale` is that of the constant."""

    weight: str
    bias: str | None
    classes: int
    zeros: Tensor
    scale: float

    @classmethod
    def of(cls, params: Tree, scale: float = 1.0) -> "Columns":
        matrices = [name for name, leaf in params.items() if leaf.dim() == 2]
        vectors = [name for name, leaf in params.items() if leaf.dim() != 2]
        if len(matrices) != 1 or len(vectors) > 1:
            raise TacitError(
                f"Multitask learns linear models, and this one has {', '.join(params)}: use model 'softmax'"
            )
        leaf = params[matrices[0]]
        classes, features = leaf.shape
        zeros = leaf.new_zeros(classes if classes > 2 else 1, features + 1)
        return cls(matrices[0], vectors[0] if vectors else None, classes, zeros, scale)

    def leaves(self, block: Tensor) -> Tree:
        whole = torch.cat([-block / 2, block / 2]) if self.classes == 2 else block
        return {self.weight: whole[:, :-1]} | ({self.bias: whole[:, -1] * self.scale} if self.bias else {})

    def block(self, leaves: Tree) -> Tensor:
        bias = leaves[self.bias] if self.bias else leaves[self.weight].new_zeros(self.classes)
        whole = torch.cat([leaves[self.weight], bias.unsqueeze(1) / self.scale], 1)
        return whole[1:] - whole[:1] if self.classes == 2 else whole

    def outputs(self, scores: Tensor) -> Tensor:
        """One number a class."""
        return torch.cat([-scores / 2, scores / 2], 1) if self.classes == 2 else scores


def sweep(loss: str, gram: Tensor, margins: Tensor, alpha: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The change of every alpha [rows, columns] after each row was set to its best in turn.

    `gram` [rows, rows] tells how a unit of one row's alpha moves the margin of another; rows without `mask` stay.
    """
    return _sweep(loss, gram, margins, alpha, y, mask)


def _rows_first(loss: str, gram: Tensor, margins: Tensor, alpha: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """gram [rows, rows, devices], the others [rows, devices, columns]; may overwrite `margins`."""
    rule = LOSSES[loss]
    curvature = gram.diagonal(dim1=0, dim2=1).T.clamp(min=torch.finfo(gram.dtype).tiny).unsqueeze(-1)
    real = mask.unsqueeze(-1)
    if isinstance(rule, Quadratic):
        return _clipped_steps(rule, gram.unsqueeze(-1), curvature, margins, alpha, y, real)
    deltas, effect, real = torch.zeros_like(alpha), gram.unsqueeze(-1), real.to(alpha.dtype)
    for i in range(len(alpha)):
        delta = torch.mul(rule.step(alpha[i], margins[i], curvature[i], y[i]) - alpha[i], real[i], out=deltas[i])
        margins[i + 1 :].addcmul_(effect[i, i + 1 :], delta)
    return deltas


def _clipped_steps(
    rule: Quadratic, effect: Tensor, curvature: Tensor, margins: Tensor, alpha: Tensor, y: Tensor, real: Tensor
) -> Tensor:
    """The same, where a row's best alpha is linear in the margins but for its bounds: three operations a row.

    What is carried from row to row is every row's best alpha without bounds, instead of the margins.
    """
    low, high = (torch.where(real, bound, alpha) for bound in rule.bounds(y))  # rows without mask stay
    best = rule.free(alpha, margins, curvature, y)
    effect = effect / (curvature + rule.smooth)  # on the rows of the second dimension
    deltas = torch.empty_like(alpha)
    rows = zip(
        best.unbind(), low.unbind(), high.unbind(), alpha.unbind(), deltas.unbind(), effect.unbind(), strict=True
    )
    for i, (free, least, most, old, delta, moves) in enumerate(rows, start=1):
        torch.sub(torch.clamp(free, least, most), old, out=delta)
        best[i:].addcmul_(moves[i:], delta, value=-1)
    return deltas


@torch.library.custom_op("tacit::dual_sweep", mutates_args=())
def _sweep(loss: str, gram: Tensor, margins: Tensor, alpha: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    one = (each.unsqueeze(1) for each in (margins.clone(), alpha, y, mask))
    return _rows_first(loss, gram.unsqueeze(-1), *one).squeeze(1)


def _sweep_vmap(info: Any, in_dims: tuple[int | None, ...], loss: str, *given: Tensor) -> tuple[Tensor, int]:
    """Devices become the second dimension of everything, the last of `gram`."""
    many = [
        each.movedim(dim, 0) if dim is not None else each.expand(info.batch_size, *each.shape)
        for each, dim in zip(given, in_dims[1:], strict=True)
    ]
    gram, *rest = many
    margins, alpha, y, mask = (each.movedim(0, 1).contiguous() for each in rest)
    margins = margins.clone() if margins.data_ptr() == rest[0].data_ptr() else margins
    return _rows_first(loss, gram.permute(1, 2, 0).contiguous(), margins, alpha, y, mask), 1


_sweep.register_vmap(_sweep_vmap)


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

    @property
    def centre(self) -> Tensor:
        """Of the block's problem in its new alpha, where X alpha is what was sent: public, as w, q and `sent` are."""
        return self.w - self.q * self.sent

    def solve(self, alpha: Tensor, site: Site, slack: float) -> tuple[Tensor, Tensor]:
        """The new alpha, and X alpha as it may be sent: the mean over the live steps, each the solution on its rows."""
        now: Tree = {"alpha": alpha, "sums": torch.zeros_like(self.w)}
        for step in range(site.steps):
            rows, mask = site.rows(step), site.batch(step).mask.unsqueeze(1)
            old = now["alpha"][rows]
            asked = ProximalProblem(self.loss, self.centre, self.q, self.intercept, slack, self.sent, old)
            found = site.private_minimum(asked, step)
            moved = now["alpha"].index_add(0, rows, torch.where(mask, found.duals - old, 0.0))
            now = site.advance(step, {"alpha": moved, "sums": now["sums"] + found.sums}, now)
        live = site.live.sum().to(self.w.dtype)
        return now["alpha"], torch.where(live > 0, now["sums"] / live.clamp(min=1), self.sent)

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
