"""Federated linear regression x_j = F_j phi_j + v_j (FeO2, appendix A).

With F_j^T F_j = n_s I every coordinate is a point estimation of its own with alpha^2 = beta^2 / n_s: ratios and
strengths are the same, errors add up over the coordinates. The covariances at the end hold for any full-rank designs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from papers.fedhdp.theory import point
from papers.fedhdp.theory.multilevel import require
from papers.fedhdp.theory.point import Problem
from tacit.errors import TacitError

Matrix = np.ndarray


@dataclass(frozen=True)
class Regression:
    """`samples` is n_s (here also the number of rows), `beta2` the variance of a response's noise."""

    clients: int
    private: int
    dim: int
    samples: int
    beta2: float
    tau2: float
    gamma2: float

    def __post_init__(self) -> None:
        if self.dim < 1 or self.samples < self.dim:
            raise TacitError(f"samples must be at least dim and dim at least 1, not {self.samples} and {self.dim}")
        require("beta2", self.beta2, positive=True)
        _ = self.coordinate

    @property
    def coordinate(self) -> Problem:
        """The point estimation that each coordinate is."""
        return Problem(self.clients, self.private, self.beta2 / self.samples, self.tau2, self.gamma2)

    @classmethod
    def of(cls, problem: Problem, dim: int, samples: int) -> "Regression":
        """The regression whose coordinates are `problem`."""
        beta2 = problem.alpha2 * samples
        return cls(problem.clients, problem.private, dim, samples, beta2, problem.tau2, problem.gamma2)


def optimal_ratio(regression: Regression) -> float:
    """Eq. (22) of FeO2."""
    return point.optimal_ratio(regression.coordinate)


def server_error(regression: Regression, ratio: float | None = None) -> float:
    """E |theta - phi|^2, the trace of the covariance; None: at r*, the trace of eq. (23) of FeO2."""
    r = optimal_ratio(regression) if ratio is None else ratio
    return regression.dim * point.server_variance(regression.coordinate, r)


def personal_error(
    regression: Regression, *, private: bool, strength: float, ratio: float | None = None, knows_noise: bool = False
) -> float:
    """E |theta_j - phi_j|^2 for any lambda and r (None: r*)."""
    one = point.personal_mse(
        regression.coordinate, private=private, strength=strength, ratio=ratio, knows_noise=knows_noise
    )
    return regression.dim * one


def best_strength(
    regression: Regression, *, private: bool, ratio: float | None = None, knows_noise: bool = False
) -> float:
    return point.best_strength(regression.coordinate, private=private, ratio=ratio, knows_noise=knows_noise)


def best_error(
    regression: Regression, *, private: bool, ratio: float | None = None, knows_noise: bool = False
) -> float:
    one = point.best_mse(regression.coordinate, private=private, ratio=ratio, knows_noise=knows_noise)
    return regression.dim * one


def bayes_error(regression: Regression, *, private: bool) -> float:
    """The trace of eq. (36) of FeO2."""
    return regression.dim * point.bayes_mse(regression.coordinate, private=private)


def message_covariance(design: Matrix, beta2: float, tau2: float, message_noise: float = 0.0) -> Matrix:
    """Eq. (16) of FeO2 for any design of full column rank."""
    gram = design.T @ design
    return beta2 * np.linalg.inv(gram) + (tau2 + message_noise) * np.eye(len(gram))


def bayes_covariance(covariances: Sequence[Matrix]) -> Matrix:
    """Eq. (19) of FeO2: no average of the messages, with matrices for weights, has a smaller covariance."""
    return np.linalg.inv(np.sum([np.linalg.inv(each) for each in covariances], axis=0))


def weighted_covariance(covariances: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    """Of the average with one number for each client; the weights add up to 1."""
    if not np.isclose(sum(weights), 1):
        raise TacitError(f"weights must add up to 1, not {sum(weights):g}")
    return np.sum([w**2 * each for w, each in zip(weights, covariances, strict=True)], axis=0)
