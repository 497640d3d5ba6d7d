"""Who learns from whom: an m x m covariance of tasks, positive, of trace one."""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["learned", "identity", "mean"]


def identity(tasks: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Nobody learns from anybody: separate models."""
    return torch.eye(tasks, dtype=dtype) / tasks


def mean_regularised(tasks: int, ridge: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """All ones plus `ridge` on the diagonal: every model is held near the mean of all, the nearer the smaller ridge."""
    return (torch.ones(tasks, tasks, dtype=dtype) + ridge * torch.eye(tasks, dtype=dtype)) / (tasks * (1 + ridge))


def learned(weights: Tensor, floor: float) -> Tensor:
    """(W'W)^(1/2) / tr (3), mixed with a share `floor` of the identity, for models as rows [tasks, numbers].

    Symmetric, of trace one, and no eigenvalue is below floor / tasks: the penalty, which has the inverse, stays finite,
    and a task whose model is still zero can begin to learn. Models that are all zero give the identity.
    """
    rows = weights.double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    roots = values.clamp(min=0).sqrt()
    shares = torch.where(roots.sum() > 0, roots / roots.sum().clamp(min=1e-300), 1 / len(rows))
    shares = (1 - floor) * shares + floor / len(rows)
    omega = (vectors * shares) @ vectors.T
    return ((omega + omega.T) / 2).to(weights.dtype)


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
