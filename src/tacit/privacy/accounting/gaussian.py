"""The Gaussian mechanism in closed form (Balle and Wang 2018): the exact epsilon, delta and noise of one release.

Computed in logarithms, so that neither tail over- or underflows. Where a root is searched for, the end of the
bracket that keeps the promise is returned.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.special import log_ndtr

from tacit.errors import TacitError

_PRECISION: Final = 1e-10


def gaussian_delta(epsilon: float, z: float) -> float:
    """The smallest delta at which noise of `z` times the sensitivity is (epsilon, delta)-private. No noise: 1."""
    if not (epsilon >= 0 and z >= 0):
        raise TacitError(f"epsilon {epsilon} and noise multiplier {z} must be numbers of at least 0")
    return math.exp(_log_delta(epsilon, z))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier of one Gaussian release that is (epsilon, delta)-private, to ten digits."""
    if not (epsilon >= 0 and 0 < delta < 1):
        raise TacitError(f"epsilon {epsilon} must be at least 0 and delta {delta} between 0 and 1")
    return least(lambda z: _log_delta(epsilon, z) <= math.log(delta), guess=1.0)


def gaussian_epsilon(z: float, delta: float) -> float:
    """The smallest epsilon at which noise of `z` times the sensitivity is (epsilon, delta)-private, to ten digits."""
    if not (z > 0 and 0 < delta < 1):
        raise TacitError(f"noise multiplier {z} must be above 0 and delta {delta} between 0 and 1")
    return least(lambda epsilon: _log_delta(epsilon, z) <= math.log(delta), guess=1.0)


def gaussian_deltas(epsilons: np.ndarray, mu: np.ndarray | float) -> np.ndarray:
    """`gaussian_delta` of many at once, by mu = 1 / z: the privacy profile of Gaussian differential privacy."""
    above, below = log_ndtr(mu / 2 - epsilons / mu), epsilons + log_ndtr(-mu / 2 - epsilons / mu)
    return np.exp(above) * -np.expm1(np.minimum(below - above, 0.0))


def least(holds: Callable[[float], bool], guess: float, precision: float = _PRECISION) -> float:
    """The least x >= 0 that holds, to a relative precision and never below it; whatever is larger must hold, too."""
    if holds(0.0):
        return 0.0
    high = guess
    while not holds(high):
        high *= 2
    low = high / 2
    while low > 0 and holds(low):
        high, low = low, low / 2
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_delta(epsilon: float, z: float) -> float:
    if z == 0:
        return 0.0
    above = float(log_ndtr(0.5 / z - epsilon * z))
    below = epsilon + float(log_ndtr(-0.5 / z - epsilon * z))
    return above + math.log(-math.expm1(below - above)) if below < above else -math.inf
