"""Solves the dual of a linear model near a centre, by coordinate ascent until its duality gap is as small as asked for.

For rows x_i with Gram matrix G, targets y_i and a curvature q: min over alpha of

    sum_i loss*(-alpha_i) + sum_i alpha_i m_i + q/2 alpha' G alpha,    m_i = centre . x_i,

whose gap at alpha is sum_i loss(u_i) + loss*(-alpha_i) + alpha_i u_i with margins u = m + q G alpha: every term is at
least zero (Fenchel and Young), and all are zero at the solution. Each pass over the rows sets every alpha to its best
in turn, so that the dual never gets worse; for a convex quadratic over a box passes converge (Luo and Tseng 1992).

A target of 0 leaves its row out of its column, whatever the loss.

Nothing rests on this module: whoever releases a solution computes the gap again (`certified_minimum`).
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tacit import c_library
from tacit.core.dual_losses import LOSSES, DualLoss, SmoothHinge
from tacit.core.tensors import register_vmap

SOURCE: Final = Path(__file__).resolve().with_suffix(".c")
PASSES: Final = 20_000  # at most: a hundred suffice where rows are of norm one
_SLOW_PASSES: Final = 2_000  # at most, without C


def ascend(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, wanted: Tensor
) -> Tensor:
    """alpha [rows, columns] of a gap of at most `wanted`, all columns together, or after so many passes.

    All in double precision: `gram` [rows, rows], `margins` at the centre, `start` and `y` [rows, columns].
    """
    return _ascend(loss, gram, margins, start, y, mask, curvature, wanted)


def gap_of(rule: DualLoss, margins: Tensor, alpha: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The duality gap, all columns together, for margins [..., rows, columns] of the solution that alpha gives."""
    terms = rule.value(margins, y) + rule.conjugate(alpha, y) + alpha * margins
    return torch.where(mask.unsqueeze(-1) & (y != 0), terms, 0.0).sum((-1, -2))


@torch.library.custom_op("tacit::dual_ascent", mutates_args=())
def _ascend(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, wanted: Tensor
) -> Tensor:
    one = (each.unsqueeze(0) for each in (gram, margins, start, y, mask, curvature, wanted))
    return _many(loss, *one).squeeze(0)


def _vmap(info: Any, in_dims: tuple[int | None, ...], loss: str, *given: Tensor) -> tuple[Tensor, int]:
    many = (
        each.movedim(dim, 0) if dim is not None else each.expand(info.batch_size, *each.shape)
        for each, dim in zip(given, in_dims[1:], strict=True)
    )
    return _many(loss, *many), 0


register_vmap(_ascend, _vmap)


def _many(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, wanted: Tensor
) -> Tensor:
    """The same for many clients, their dimension first: each from its own rows alone."""
    rule = LOSSES[loss]
    alpha = torch.where(mask.unsqueeze(-1) & start.isfinite(), rule.feasible(start, y), 0.0).contiguous()
    if isinstance(rule, SmoothHinge) and library() is not None:
        return _in_c(rule.smooth, gram, margins, y, mask, curvature, wanted, alpha)
    return _in_torch(rule, gram, margins, y, mask, curvature, wanted, alpha)


def _in_torch(
    rule: DualLoss, gram: Tensor, margins: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, wanted: Tensor, a: Tensor
) -> Tensor:
    """One row after the other, all clients at once; whoever has its gap already stays as it is."""
    q = curvature.reshape(-1, 1, 1)
    slopes = (q.squeeze(-1) * gram.diagonal(dim1=1, dim2=2)).clamp(min=torch.finfo(gram.dtype).tiny).unsqueeze(-1)
    now = margins + q * (gram @ a)
    for _ in range(_SLOW_PASSES):
        going = (gap_of(rule, now, a, y, mask) > wanted).unsqueeze(-1)
        if not bool(going.any()):
            break
        for i in range(gram.shape[1]):
            best = rule.step(a[:, i], now[:, i], slopes[:, i], y[:, i])
            moved = torch.where(going & mask[:, i, None] & (y[:, i] != 0), best - a[:, i], 0.0)
            a[:, i] += moved
            now += q * gram[:, i].unsqueeze(-1) * moved.unsqueeze(1)
    return a


def _in_c(
    smooth: float, gram: Tensor, margins: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, wanted: Tensor, a: Tensor
) -> Tensor:
    found = library()
    assert found is not None, "asked before"
    clients, rows, columns = a.shape
    known = [each.double().contiguous() for each in (gram, margins, y)]
    numbers = [each.double().contiguous() for each in (curvature, wanted)]
    real = mask.to(torch.bool).contiguous()
    assert known[0].shape == (clients, rows, rows)
    assert known[1].shape == known[2].shape == a.shape
    assert real.shape == (clients, rows)
    assert numbers[0].shape == numbers[1].shape == (clients,)
    scratch = torch.empty(columns, rows, dtype=torch.float64), torch.empty(rows, dtype=torch.int64)
    pointers = (*known, real, *numbers, a, *scratch)
    c_library.call(found, "dual_ascent", pointers, clients, rows, columns, PASSES, smooth)
    return a


@cache
def library() -> ctypes.CDLL | None:
    """The C version, or None where there is no compiler."""
    return c_library.load([SOURCE])
