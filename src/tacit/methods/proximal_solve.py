"""Ditto's objective solved on one client, against a shared model that no longer moves; nothing of it leaves.

min over theta of f(theta) + strength / 2 |theta - centre|^2, where f is the mean loss of the client's own rows.
"""

from typing import Final

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Losses, Site, Tree
from tacit.methods.optimizers import LocalSgd

STRENGTHS: Final = (0.01, 0.1, 1.0)
"""What a client chooses among, beside keeping the shared model as it is."""
_HELD_OUT: Final = 4  # one row in so many


def solve(centre: Tree, strength: float | Tensor, site: Site, optimizer: LocalSgd, part: bool = False) -> Tree:
    """The minimiser, by proximal steps from the centre at a rate that falls to zero; `part`: without held-out rows.

    A step is theta <- (theta - rate g + rate strength centre) / (1 + rate strength): it has the same fixed point as a
    gradient step, and is stable for every strength.
    """
    params, speed = centre, tree.zeros(centre)
    for step in range(site.steps):
        slope = site.grad(params, step, _without_held_out(site, step) if part else None)
        slope = tree.axpy(optimizer.weight_decay, params, slope) if optimizer.weight_decay else slope
        fresh = tree.axpy(optimizer.momentum, speed, slope) if optimizer.momentum else slope
        rate = optimizer.lr * (1 - step / site.steps)
        ahead = tree.axpy(rate * strength, centre, tree.axpy(-rate, fresh, params))
        moved = tree.scale(ahead, 1 / (1 + rate * strength))
        speed = site.advance(step, fresh, speed) if optimizer.momentum else speed
        params = site.advance(step, moved, params)
    return params


def solve_and_choose(centre: Tree, site: Site, optimizer: LocalSgd) -> Tree:
    """The minimiser at the strength that does best on the client's own held-out training rows; or the centre.

    One row in four is held out to choose, and used again to solve at the chosen strength. Only the client's training
    rows are looked at, and only by itself: nothing is sent and nothing is charged.
    """
    trials = [solve(centre, strength, site, optimizer, part=True) for strength in STRENGTHS]
    losses = torch.stack([mean_loss(params, site, held_out=True) for params in (centre, *trials)])
    best = losses.nan_to_num(nan=torch.inf).argmin()
    strength = torch.tensor((1.0, *STRENGTHS), dtype=losses.dtype)[best]
    return tree.where(best > 0, solve(centre, strength, site, optimizer), centre)


def mean_loss(params: Tree, site: Site, held_out: bool = False) -> Tensor:
    """Over the rows of the site's steps; `held_out`: over those alone that choosing is by. 0 without any."""
    total, rows = torch.zeros(()), torch.zeros(())
    for step in range(site.steps):
        x, y, mask = site.batch(step)
        real = mask & site.live[step]
        real = real & _held_out(site, step) if held_out else real
        losses = site.task.losses(params, x, y)
        total, rows = total + torch.where(real, losses, 0.0).sum(), rows + real.sum()
    return total / rows.clamp(min=1)


def _held_out(site: Site, step: int) -> Tensor:
    return site.rows(step) % _HELD_OUT == _HELD_OUT - 1


def _without_held_out(site: Site, step: int) -> Losses:
    """Losses of the other rows, weighed so that their mean over a batch is what it would be without held-out ones."""
    mask = site.batch(step).mask
    kept = mask & ~_held_out(site, step)
    weight = kept * (mask.sum() / kept.sum().clamp(min=1))

    def losses(params: object, x: Tensor, y: Tensor) -> Tensor:
        return torch.where(kept, site.task.losses(params, x, y), 0.0) * weight  # pyright: ignore[reportArgumentType]

    return losses
