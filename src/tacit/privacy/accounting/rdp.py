"""Renyi accounting: the divergence of each event at many orders, and epsilon from their sum."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.special import gammaln

from tacit.errors import TacitError
from tacit.privacy.accounting.events import handler

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_FRACTIONAL: Final = np.array([1.005, 1.01, 1.02, 1.035, 1.05, 1.075, *(1 + k / 10 for k in range(1, 100))])
_WHOLE: Final = np.array([*range(11, 64), *(round(64 * 2 ** (k / 2)) for k in range(17))])
ORDERS: Final = np.concatenate([_FRACTIONAL, _WHOLE])
"""From just above 1 (epsilon of a thousand) to 16384 (epsilon of a hundredth)."""

SLACK: Final = 1e-13  # more than rounding can take off a divergence


def rdp_epsilon(history: Mapping["DpEvent", int], delta: float, relation: str) -> float:
    """An upper bound on epsilon (Canonne, Kamath and Steinke 2020, Proposition 12), at the best of all orders."""
    costs = _composed(history, relation) + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.min(costs)))


def rdp_profile(history: Mapping["DpEvent", int], relation: str) -> Callable[[np.ndarray], np.ndarray]:
    """An upper bound on delta at each epsilon: the same proposition, solved for delta."""
    divergence = _composed(history, relation)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        exponents = (ORDERS - 1) * (divergence + np.log1p(-1 / ORDERS) - np.asarray(epsilons)[..., None])
        return np.exp(np.minimum(np.min(exponents - np.log(ORDERS), axis=-1), 0.0))

    return deltas


def _composed(history: Mapping["DpEvent", int], relation: str) -> np.ndarray:
    return np.sum([count * divergences(event, relation) for event, count in history.items()], axis=0)


@lru_cache(maxsize=1 << 12)
def divergences(event: Any, relation: str) -> np.ndarray:
    """As `renyi_divergences`, remembered."""
    return renyi_divergences(event, relation)


@singledispatch
def renyi_divergences(event: Any, relation: str) -> np.ndarray:
    """An upper bound on the Renyi divergence of one event at each of `ORDERS`; an unknown event is refused."""
    known = handler(renyi_divergences, event)
    if known is None:
        raise TacitError(f"no accountant knows a {type(event).__name__}: register its `renyi_divergences`")
    return known(event, relation)


def sampled_gaussian(rate: float, z: float) -> np.ndarray:
    """The Gaussian on a Poisson sample (Mironov, Talwar and Zhang 2019): log E[(1 - q + q L)^a] / (a - 1)."""
    moments = np.concatenate([_fractional_moments(rate, z), [_whole_moment(rate, z, int(a)) for a in _WHOLE]])
    return np.maximum(moments, 0) / (ORDERS - 1)


def _fractional_moments(rate: float, z: float) -> np.ndarray:
    """By the trapezoidal rule, which converges exponentially here: peaks of width z at 0 and near the order."""
    step = z / 16
    x = np.arange(-12 * z, _FRACTIONAL[-1] + 12 * z, step)
    log_density = -((x / z) ** 2) / 2 - math.log(z * math.sqrt(2 * math.pi))
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (x - 0.5) / z**2)
    return _log_sum(log_density + np.outer(_FRACTIONAL, log_ratio)) + math.log(step)


def _whole_moment(rate: float, z: float, order: int) -> float:
    """By the binomial theorem."""
    i = np.arange(order + 1)
    log_binomial = _LOG_FACTORIAL[order] - _LOG_FACTORIAL[i] - _LOG_FACTORIAL[order - i]
    terms = log_binomial + i * math.log(rate) + (order - i) * math.log1p(-rate) + i * (i - 1) / (2 * z**2)
    return float(_log_sum(terms))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log of the sum of exponentials, along the last axis."""
    top = logs.max(axis=-1)
    return top + np.log(np.exp(logs - top[..., None]).sum(axis=-1))


_LOG_FACTORIAL: Final = gammaln(np.arange(1, _WHOLE[-1] + 2))
