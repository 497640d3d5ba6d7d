"""What no estimator can beat: van Trees' bound (Section 5.1.3), and the errors of Theorems 1, 2, 3, 4 and 5.

Everything is for one client's squared error, summed over the dimension d.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import TacitError

Array = NDArray[np.float64]


def gaussian_mse(
    prior_variance: float, noise_variance: float, n: int, m: int, dimension: int = 1, message_variance: float = 0.0
) -> float:
    """Theorems 1 and 2, an equality where the message adds exactly this variance: d v ((1 - a) / m + a)."""
    own = noise_variance / n
    total = prior_variance + (message_variance / (m - 1) if m > 1 else math.inf * bool(message_variance))
    keep = 1.0 if math.isinf(total) else (total / (total + own) if total + own else 1.0)
    return dimension * own * ((1 - keep) / m + keep)


def van_trees_gaussian(
    prior_variance: float, noise_variance: float, sizes: ArrayLike, dimension: int = 1, mean_known: bool = False
) -> Array:
    """Of each client, whatever is sent: equations (46), the mean known, and (47), the mean learned, for any sizes.

    The inverse of the information of all truths and of the mean together: t v / (t + v) + (v / (t + v))^2 / sum of
    1 / (t + v_k). With equal sizes this is Theorem 1's error.
    """
    own = noise_variance / np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    total = prior_variance + own
    if not (prior_variance >= 0 and (own > 0).all()):
        raise TacitError("van Trees' bound needs a prior variance of at least 0 and noise above 0")
    learned = 0.0 if mean_known else np.square(own / total) / (1 / total).sum()
    return dimension * (prior_variance * own / total + learned)


def van_trees_bernoulli(alpha: float, beta: float, n: int) -> float:
    """Of any estimate of p ~ Beta(alpha, beta) from n trials: 1 / (n E[1 / (p (1 - p))] + E[score^2])."""
    if not min(alpha, beta) > 2:
        raise TacitError(f"Beta({alpha}, {beta}): the information of the prior is finite for parameters above 2")
    total = alpha + beta
    sample = (total - 1) * (total - 2) / (alpha - 1) / (beta - 1)
    squares = (total - 1) * (total - 2) * np.array([1 / (alpha - 2) / (alpha - 1), 1 / (beta - 2) / (beta - 1)])
    score = (alpha - 1) ** 2 * squares[0] + (beta - 1) ** 2 * squares[1] - 2 * (alpha - 1) * (beta - 1) * sample
    return 1 / (n * sample + score)


def bernoulli_mse(alpha: float, beta: float, n: int) -> float:
    """Of the posterior mean with the prior known: local error times a = n / (alpha + beta + n)."""
    total = alpha + beta
    return alpha * beta / (n * total * (total + 1)) * n / (total + n)


def bernoulli_bound(
    weights: ArrayLike, alpha: float, beta: float, n: int, m: int, epsilon: float | None = None
) -> float:
    """Theorems 3 and 4 (with epsilon): an upper bound, from the weights that the clients used."""
    keep, total = np.asarray(weights, dtype=np.float64), alpha + beta
    own, prior = alpha * beta / (n * total * (total + 1)), alpha * beta / (total**2 * (total + 1))
    scale = 3.0 if epsilon is None else 1 / (3 * math.tanh(epsilon / 2) ** 2)
    centre = scale * math.log(4 * m**2 * n) / (m - 1)
    return float(np.mean(keep**2) * own + np.mean((1 - keep) ** 2) * (prior + centre))


def mixture_mse(centres: ArrayLike, weights: ArrayLike, noise_variance: float, n: int, points: int = 4001) -> float:
    """Theorem 5's least error in one dimension, by numerical integration of the posterior's variance (trapezoid)."""
    mu, p = np.asarray(centres, dtype=np.float64).ravel(), np.asarray(weights, dtype=np.float64)
    std = math.sqrt(noise_variance / n)
    x = np.linspace(mu.min() - 10 * std, mu.max() + 10 * std, points)
    joint = p * np.exp(-0.5 * np.square((x[:, None] - mu) / std)) / (std * math.sqrt(2 * math.pi))
    density = joint.sum(1)
    mean = joint @ mu / np.maximum(density, 1e-300)
    return float(np.trapezoid((joint * np.square(mu - mean[:, None])).sum(1), x))
