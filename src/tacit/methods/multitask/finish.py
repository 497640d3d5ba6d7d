"""The last step on a device: its own linear model near what it received, as near as its own rows say. Nothing leaves.

What others know of a device's task is a direction, mixed with noise: how far to go along it is not known to them. So
the device tries several lengths of the centre it received, among them zero, which is its local model. Each is held
against the local model on rows that it was not trained on; the best is taken where it is better by more than a standard
error, else the local model stays.
"""

from typing import Final

import torch
from torch import Tensor

from tacit.core.contract import Batch, ProximalProblem, Site
from tacit.core.dual_losses import LOSSES, targets, with_intercept
from tacit.methods.multitask.local_dual import LocalProblem

LENGTHS: Final = (0.0, 8.0, 16.0, 24.0)  # of the centre, for rows of norm one; the first is the local model
CURVATURE: Final = 10.0
_SLACK: Final = 0.1


def chosen_model(problem: LocalProblem, site: Site, folds: int) -> Tensor:
    """The device's model [columns, features + 1]: with `folds` as its own rows choose, else around the centre as is."""
    rows, shift = _centred(site.own())
    y = targets(rows.y, problem.centre.shape[0], problem.w.dtype)
    if not folds:
        model = _solved(problem, site, rows._replace(y=y), problem.centre, problem.q)
        return _shifted(model, shift, problem.intercept)
    direction = torch.cat([problem.centre[:, :-1], torch.zeros_like(problem.centre[:, :1])], 1)
    size = _size(rows)  # lengths and curvature are those of rows of norm one
    direction = direction / (size * direction.norm()).clamp(min=1e-30)
    lengths = direction.new_tensor(LENGTHS)[:, None, None, None]
    left_out = torch.stack([_folds(rows, folds) == fold for fold in (*range(folds), -1)])  # by the last: nothing
    models = _of_all(problem, site, rows, y, lengths * direction.expand(len(LENGTHS), folds + 1, -1, -1), left_out)
    best = _better(_held_out(problem, rows, y, models, left_out), rows.mask)
    return _shifted(models[:, -1][best], shift, problem.intercept)


def _of_all(problem: LocalProblem, site: Site, rows: Batch, y: Tensor, centres: Tensor, left_out: Tensor) -> Tensor:
    """A model for every length and fold, as columns of one problem: they share the rows. [lengths, folds, ...]."""
    several, folds, columns = centres.shape[:3]
    kept = torch.where(left_out.T[:, None, :, None], 0.0, y[:, None, None, :])  # rows, lengths, folds, columns
    kept = kept.expand(-1, several, -1, -1).reshape(len(y), several * folds * columns)
    curvature = CURVATURE / _size(rows).square()
    models = _solved(problem, site, rows._replace(y=kept), centres.flatten(0, 2), curvature)
    return models.reshape(centres.shape)


def _held_out(problem: LocalProblem, rows: Batch, y: Tensor, models: Tensor, left_out: Tensor) -> Tensor:
    """[lengths, rows]: each row's loss by the model that was trained without it."""
    x = with_intercept(rows.x, problem.intercept)
    scores = torch.einsum("lfcd,rd->lfrc", models[:, :-1], x)
    losses = LOSSES[problem.loss].value(scores, y).sum(-1)
    return torch.where(left_out[:-1], losses, 0.0).sum(1)


def _better(losses: Tensor, mask: Tensor) -> Tensor:
    """Which of [lengths, rows] to take: the first, unless the best beats it by more than a standard error."""
    several = mask.sum().clamp(min=2)
    gains = torch.where(mask, losses[:1] - losses, 0.0)
    mean = gains.sum(1) / several
    spread = torch.where(mask, gains - mean.unsqueeze(1), 0.0).square().sum(1) / (several - 1)
    best = mean.argmax()
    return torch.where(mean[best] > (spread[best] / several).sqrt(), best, torch.zeros_like(best))


def _centred(rows: Batch) -> tuple[Batch, Tensor]:
    """Rows less their mean, and the mean."""
    flat, real = rows.x.flatten(1), rows.mask.unsqueeze(1).to(rows.x.dtype)
    mean = (real * flat).sum(0) / real.sum().clamp(min=1)
    return rows._replace(x=flat - mean), mean


def _size(rows: Batch) -> Tensor:
    """The root of the rows' mean squared norm."""
    real = rows.mask.to(rows.x.dtype)
    return ((real * rows.x.square().sum(1)).sum() / real.sum().clamp(min=1)).sqrt().clamp(min=1e-6)


def _shifted(model: Tensor, mean: Tensor, intercept: float) -> Tensor:
    """The model of rows less their mean as one of the rows themselves: the intercept takes the mean's part."""
    constant = model[:, -1:] - (model[:, :-1] @ mean).unsqueeze(1) / intercept
    return torch.cat([model[:, :-1], constant], 1)


def _solved(problem: LocalProblem, site: Site, rows: Batch, centre: Tensor, curvature: Tensor) -> Tensor:
    start = centre.new_zeros(rows.mask.shape[0], centre.shape[0])
    slack = _SLACK * centre.shape[0] ** 0.5  # of all columns together
    asked = ProximalProblem(problem.loss, centre, curvature, problem.intercept, slack, centre, start)
    return centre + curvature * site.minimum(asked, rows).sums


def _folds(rows: Batch, folds: int) -> Tensor:
    """A part for each row, of neighbours in time: rows that overlap are seldom apart. Each class by itself."""
    parts = torch.zeros_like(rows.mask, dtype=torch.int64)
    kinds = rows.y > 0
    for kind in (kinds, ~kinds):
        real = (kind & rows.mask).to(torch.int64)
        place = real.cumsum(0) - 1
        parts = torch.where(real > 0, (place * folds).div(real.sum().clamp(min=1), rounding_mode="floor"), parts)
    return parts
