"""The Skellam mechanism (Agarwal, Kairouz and Liu 2021): integers plus the difference of two Poisson numbers.

Its Renyi divergence for a shift of norms D2 and D1 and noise of variance v, at whole orders a > 1 (their Theorem 3.5):

    D(a) <= a D2^2 / (2v) + min(((2a - 1) D2^2 + 6 D1) / (4 v^2), 3 D1 / (2v))

Between whole orders, (a - 1) D(a) is convex in a, so the chord is an upper bound.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attr
import numpy as np
from scipy.special import gammaln

from tacit.errors import TacitError
from tacit.privacy.accounting.events import describe, register
from tacit.privacy.accounting.rdp import ORDERS, SLACK, renyi_divergences

if TYPE_CHECKING:
    from dp_accounting import DpEvent
else:
    DpEvent = object  # dp-accounting takes a second to import, and asks nothing of an event


class _Skellam(DpEvent):
    variance: float
    l2: float

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity, as for a Gaussian."""
        return math.sqrt(self.variance) / self.l2


@register
@attr.frozen
class SkellamDpEvent(_Skellam):
    """Noise of this variance on a sum of integer vectors that one client moves by at most these norms."""

    variance: float
    l2: float
    l1: float


@register
@attr.frozen
class SampledSkellamDpEvent(_Skellam):
    """The same on a Poisson sample, seen by who does not know the cohort.

    `edge`: the probability, over the other clients' draws, that what is released tells whether the client was drawn
    (too few for a release without it, or so many that the noise grows with their number). No sampling is credited
    there.
    """

    rate: float
    edge: float
    variance: float
    l2: float
    l1: float


Event = SkellamDpEvent | SampledSkellamDpEvent
_FREE: Final = 1e-300


@describe.register(SkellamDpEvent)
def _(event: SkellamDpEvent, unit: str = "client") -> str:
    return f"Skellam noise of many shares, multiplier {event.multiplier:#.4g}"


@describe.register(SampledSkellamDpEvent)
def _(event: SampledSkellamDpEvent, unit: str = "client") -> str:
    sample = f"a Poisson sample of {100 * event.rate:.4g}% of the clients"
    return f"Skellam noise of many shares, multiplier {event.multiplier:#.4g}, on {sample}"


@renyi_divergences.register(SkellamDpEvent)
@renyi_divergences.register(SampledSkellamDpEvent)
def _(event: Event, relation: str) -> np.ndarray:
    if relation != "zero-out":
        raise TacitError(f"Skellam noise in shares is not accounted for {relation!r} neighbours: use zero-out")
    return divergences(event, ORDERS) + SLACK


def divergences(event: Event, orders: np.ndarray) -> np.ndarray:
    """An upper bound on the Renyi divergence at each order, which may be fractional. Without noise infinite."""
    whole = np.unique(np.concatenate([[2.0], np.floor(orders), np.ceil(orders)]))
    whole = whole[whole > 1]
    moments = np.concatenate([[0.0], _moments(event, tuple(whole.astype(int)))])
    return np.interp(orders, np.concatenate([[1.0], whole]), moments) / (orders - 1)


@lru_cache(maxsize=256)
def _moments(event: Event, orders: tuple[int, ...]) -> np.ndarray:
    """(a - 1) D(a) at whole orders."""
    if not event.variance > _FREE:
        return np.full(len(orders), math.inf)
    if isinstance(event, SkellamDpEvent):
        return _log_moment(event, np.array(orders, dtype=float))
    return np.array([_sampled_moment(event, a) for a in orders])


def _log_moment(event: Event, a: np.ndarray) -> np.ndarray:
    """log E[L^a] = (a - 1) D(a) of the likelihood ratio L, by the theorem."""
    square, v = event.l2**2, event.variance
    excess = np.minimum(((2 * a - 1) * square + 6 * event.l1) / (4 * v**2), 3 * event.l1 / (2 * v))
    return (a - 1) * (a * square / (2 * v) + excess)


def _sampled_moment(event: SampledSkellamDpEvent, order: int) -> float:
    """log E[(1 - q + q L)^a], by the binomial theorem from E[L^i], which holds for every mechanism.

    That is the divergence of "perhaps drawn" from "not drawn". The noise is symmetric, so x -> shift - x exchanges the
    two distributions, and the divergence the other way round is no larger (Mironov, Talwar and Zhang 2019, Theorem 5).
    Beside the edge the released noise does not depend on who was drawn. At the edge: E = 1 - q + q E[L^a].
    """
    q, i = event.rate, np.arange(order + 1)
    logs = np.zeros(order + 1)
    logs[2:] = _log_moment(event, i[2:].astype(float))
    binomial = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    inside = _log_sum(binomial + i * math.log(q) + (order - i) * math.log1p(-q) + logs)
    if event.edge == 0:
        return max(inside, 0.0)
    at_edge = np.logaddexp(math.log1p(-q), math.log(q) + logs[-1])
    beside = math.log1p(-event.edge) + inside if event.edge < 1 else -math.inf
    return max(float(np.logaddexp(beside, math.log(event.edge) + at_edge)), 0.0)


def _log_sum(logs: np.ndarray) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))
