"""Who learns from whom: an m x m covariance of tasks, positive, of trace one."""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["learned", "low-rank", "clustered", "identity", "mean"]
_PASSES = 20  # of k-means


def identity(tasks: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Nobody learns from anybody: separate models."""
    return torch.eye(tasks, dtype=dtype) / tasks


def mean_regularised(tasks: int, ridge: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """All ones plus `ridge` on the diagonal: every model is held near the mean of all, the nearer the smaller ridge."""
    return (torch.ones(tasks, tasks, dtype=dtype) + ridge * torch.eye(tasks, dtype=dtype)) / (tasks * (1 + ridge))


def learned(weights: Tensor, floor: float, rank: int | None = None) -> Tensor:
    """(W'W)^(1/2) / tr (3), mixed with a share `floor` of the identity, for models as rows [tasks, numbers].

    Symmetric, of trace one, and no eigenvalue is below floor / tasks: the penalty, which has the inverse, stays finite,
    and a task whose model is still zero can begin to learn. Models that are all zero give the identity. With `rank`
    only so many directions of the tasks are kept, the strongest: all models are mixtures of so many.
    """
    rows = weights.double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    roots = values.clamp(min=0).sqrt()
    if rank is not None:
        roots = torch.where(torch.arange(len(roots)) >= len(roots) - rank, roots, 0.0)
    shares = torch.where(roots.sum() > 0, roots / roots.sum().clamp(min=1e-300), 1 / len(rows))
    shares = (1 - floor) * shares + floor / len(rows)
    omega = (vectors * shares) @ vectors.T
    return ((omega + omega.T) / 2).to(weights.dtype)


def clustered(weights: Tensor, clusters: int, ridge: float) -> Tensor:
    """Tasks in groups by their models' directions: within a group as `mean_regularised`, between groups nothing."""
    group = _groups(weights.double(), clusters)
    same = (group[:, None] == group[None, :]).to(torch.float64)
    omega = same + ridge * torch.eye(len(group), dtype=torch.float64)
    return (omega / omega.trace()).to(weights.dtype)


def _groups(rows: Tensor, clusters: int) -> Tensor:
    """k-means of the rows' directions, begun at rows far from one another: no chance is in it."""
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    centres = rows.mean(0, keepdim=True)
    while len(centres) < min(clusters, len(rows)) + 1:
        centres = torch.cat([centres, rows[torch.cdist(rows, centres).amin(1).argmax()].unsqueeze(0)])
    centres = centres[1:]
    for _ in range(_PASSES):
        member = torch.nn.functional.one_hot(torch.cdist(rows, centres).argmin(1), len(centres)).to(rows.dtype)
        counts = member.sum(0).unsqueeze(1)
        centres = torch.where(counts > 0, member.T @ rows / counts.clamp(min=1), centres)
    return torch.cdist(rows, centres).argmin(1)


def correlation(omega: Tensor) -> Tensor:
    """The covariance with ones on its diagonal."""
    scale = omega.diagonal().clamp(min=1e-300).rsqrt()
    return omega * scale[:, None] * scale[None, :]


def safe_correction(omega: Tensor, rate: float = 1.0) -> float:
    """A beta / xi for which all devices' steps may be added: the dual does not fall, if each is asked with `rate` in
    expectation.

    With everybody, the largest eigenvalue of the correlation: between 1 (separate tasks) and the number of tasks (all
    the same), which is the paper's value for every covariance. E|sum over S|^2 <= rate (1 + rate (that - 1)) times the
    sum of squares for independently drawn S.
    """
    largest = float(torch.linalg.eigvalsh(correlation(omega.double()))[-1])
    return 1 + rate * (largest - 1)
