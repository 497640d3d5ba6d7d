"""Solves the dual of a linear model near a centre, by coordinate ascent until its duality gap is as small as asked for.

For rows x_i with Gram matrix G, targets y_i and a curvature q: min over alpha of

    sum_i loss*(-alpha_i) + sum_i alpha_i m_i + q/2 alpha' G alpha,    m_i = centre . x_i,

whose gap at alpha is sum_i loss(u_i) + loss*(-alpha_i) + alpha_i u_i with margins u = m + q G alpha: every term is at
least zero (Fenchel and Young), and all are zero at the solution. Each pass over the rows sets every alpha to its best
in turn, so that the dual never gets worse; for a convex quadratic over a box passes converge (Luo and Tseng 1992), but
may take very many where rows are nearly the same. Whoever has no gap after `PASSES` of them is solved anew by a
primal-dual interior-point method, whose iterations have a bound for every data set (about the root of the rows times
the digits wanted) and do not mind rows that are alike. Of the logistic loss there are passes alone.

A target of 0 leaves its row out of its column, whatever the loss.

Nothing rests on this module: whoever releases a solution computes the gap again (`certified_minimum`).
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tacit import c_library
from tacit.core.dual_losses import LOSSES, DualLoss, SmoothHinge
from tacit.core.tensors import register_vmap

SOURCE: Final = Path(__file__).resolve().with_suffix(".c")
PASSES: Final = 500  # at most: a hundred suffice where rows are of norm one and not alike
_SLOW_PASSES: Final = 2_000  # of the logistic loss, and without C
_NEWTON_STEPS: Final = 200  # some twenty suffice
_CENTRING, _TO_THE_WALL = 0.1, 0.99


def ascend(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, allowed: Tensor
) -> Tensor:
    """alpha [rows, columns] of a gap of at most `wanted`, all columns together, or after so many passes.

    All in double precision: `gram` [rows, rows], `margins` at the centre, `start` and `y` [rows, columns].
    """
    return _ascend(loss, gram, margins, start, y, mask, curvature, allowed)


def gap_of(rule: DualLoss, margins: Tensor, alpha: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The duality gap, all columns together, for margins [..., rows, columns] of the solution that alpha gives."""
    terms = rule.value(margins, y) + rule.conjugate(alpha, y) + alpha * margins
    return torch.where(mask.unsqueeze(-1) & (y != 0), terms, 0.0).sum((-1, -2))


@torch.library.custom_op("tacit::dual_ascent", mutates_args=())
def _ascend(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, allowed: Tensor
) -> Tensor:
    one = (each.unsqueeze(0) for each in (gram, margins, start, y, mask, curvature, allowed))
    return _ascend_all(loss, *one).squeeze(0)


def _vmap(info: Any, in_dims: tuple[int | None, ...], loss: str, *operands: Tensor) -> tuple[Tensor, int]:
    batched = (
        each.movedim(dim, 0) if dim is not None else each.expand(info.batch_size, *each.shape)
        for each, dim in zip(operands, in_dims[1:], strict=True)
    )
    return _ascend_all(loss, *batched), 0


register_vmap(_ascend, _vmap)


def _ascend_all(
    loss: str, gram: Tensor, margins: Tensor, start: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, allowed: Tensor
) -> Tensor:
    """The same for many clients, their dimension first: each from its own rows alone."""
    rule = LOSSES[loss]
    alpha = torch.where(mask.unsqueeze(-1) & start.isfinite(), rule.feasible(start, y), 0.0).contiguous()
    problem = gram, margins, y, mask, curvature, allowed
    if not isinstance(rule, SmoothHinge):
        return _in_torch(rule, *problem, alpha)
    alpha = _in_c(rule.smooth, *problem, alpha) if library() is not None else _in_torch(rule, *problem, alpha)
    reached = margins + curvature.reshape(-1, 1, 1) * (gram @ alpha)
    short = ~(gap_of(rule, reached, alpha, y, mask) <= allowed)
    for k in (place for place in range(len(short)) if bool(short[place])):
        for column in range(y.shape[2]):
            present = mask[k] & (y[k, :, column] != 0)
            column_problem = gram[k][present][:, present], margins[k, present, column], y[k, present, column]
            alpha[k, present, column] = interior(rule, *column_problem, curvature[k], allowed[k] / (2 * y.shape[2]))
    return alpha


class _OnPath(NamedTuple):
    """alpha strictly inside its box, and the multipliers of both of its bounds, above zero."""

    alpha: Tensor
    below: Tensor
    above: Tensor


class _Box(NamedTuple):
    """min over alpha in [low, high] of alpha' hessian alpha / 2 + (slope - target) alpha + smooth |alpha|^2 / 2."""

    hessian: Tensor
    slope: Tensor
    target: Tensor
    low: Tensor
    high: Tensor
    smooth: float

    def step(self, now: _OnPath) -> _OnPath:
        """A Newton step towards a point nearer to the end of the central path, short of every bound."""
        left, right = now.alpha - self.low, self.high - now.alpha
        centre = _CENTRING * (now.below @ left + now.above @ right) / (2 * len(left))
        matrix = self.hessian + torch.diag(self.smooth + now.below / left + now.above / right)
        pull = self.target - self.slope - self.hessian @ now.alpha - self.smooth * now.alpha
        move = _solved(matrix, pull + centre / left - centre / right)
        below = centre / left - now.below * (1 + move / left)
        above = centre / right - now.above * (1 - move / right)
        walls = ((left, move), (right, -move), (now.below, below), (now.above, above))
        far = min(_TO_THE_WALL * _to_zero(value, change) for value, change in walls)
        return _OnPath(now.alpha + far * move, now.below + far * below, now.above + far * above)


def interior(rule: SmoothHinge, gram: Tensor, margins: Tensor, y: Tensor, curvature: Tensor, allowed: Tensor) -> Tensor:
    """alpha [rows] of one column of one client, of whose rows all take part: by Newton steps along the central path."""
    box, ones = _Box(curvature * gram, margins, y, *rule.bounds(y), rule.smooth), torch.ones_like(y)
    now, real = _OnPath((box.low + box.high) / 2, ones, ones), ones.bool()[:, None]
    for _ in range(_NEWTON_STEPS if len(y) else 0):
        reached = margins + box.hessian @ now.alpha
        if bool(gap_of(rule, reached[:, None], now.alpha[:, None], y[:, None], real[:, 0]) <= allowed):
            break
        now = box.step(now)
    return now.alpha


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Of a symmetric matrix that is positive definite but for rounding."""
    return torch.linalg.solve(matrix, right)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _to_zero(value: Tensor, step: Tensor) -> float:
    """How many steps until a positive value is zero somewhere, at most one and a bit."""
    falling = torch.where(step < 0, -value / step, torch.inf)
    return min(float(falling.min()), 1 / _TO_THE_WALL)


def _in_torch(
    rule: DualLoss,
    gram: Tensor,
    margins: Tensor,
    y: Tensor,
    mask: Tensor,
    curvature: Tensor,
    allowed: Tensor,
    a: Tensor,
) -> Tensor:
    """One row after the other, all clients at once; whoever has its gap already stays as it is."""
    q = curvature.reshape(-1, 1, 1)
    slopes = (q.squeeze(-1) * gram.diagonal(dim1=1, dim2=2)).clamp(min=torch.finfo(gram.dtype).tiny).unsqueeze(-1)
    now = margins + q * (gram @ a)
    for _ in range(_SLOW_PASSES):
        going = (gap_of(rule, now, a, y, mask) > allowed).unsqueeze(-1)
        if not bool(going.any()):
            break
        for i in range(gram.shape[1]):
            best = rule.step(a[:, i], now[:, i], slopes[:, i], y[:, i])
            moved = torch.where(going & mask[:, i, None] & (y[:, i] != 0), best - a[:, i], 0.0)
            a[:, i] += moved
            now += q * gram[:, i].unsqueeze(-1) * moved.unsqueeze(1)
    return a


def _in_c(
    smooth: float, gram: Tensor, margins: Tensor, y: Tensor, mask: Tensor, curvature: Tensor, allowed: Tensor, a: Tensor
) -> Tensor:
    compiled = library()
    assert compiled is not None, "asked before"
    clients, rows, columns = a.shape
    known = [each.double().contiguous() for each in (gram, margins, y)]
    numbers = [each.double().contiguous() for each in (curvature, allowed)]
    real = mask.to(torch.bool).contiguous()
    assert known[0].shape == (clients, rows, rows)
    assert known[1].shape == known[2].shape == a.shape
    assert real.shape == (clients, rows)
    assert numbers[0].shape == numbers[1].shape == (clients,)
    scratch = torch.empty(columns, rows, dtype=torch.float64), torch.empty(rows, dtype=torch.int64)
    pointers = (*known, real, *numbers, a, *scratch)
    c_library.call(compiled, "dual_ascent", pointers, clients, rows, columns, PASSES, smooth)
    return a


@cache
def library() -> ctypes.CDLL | None:
    """The C version, or None where there is no compiler."""
    return c_library.load([SOURCE])
