"""Dual coordinate ascent over the rows of a batch, one row after the other, for many devices at once.

A custom operator: under `vmap` its batching rule runs one loop over rows on tensors of all devices, which costs a tenth
of mapping every small operation of the loop. What it computes for a device does not depend on the others.
"""

from typing import Any

import torch
from torch import Tensor

from tacit.methods.multitask.dual_losses import LOSSES, Quadratic


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
