"""Accounting by privacy loss distributions: each event's losses on a grid, composed by Fourier transforms.

A grid only ever adds to epsilon: distributions are rounded so that the guarantee stays an upper bound for any
interval, and the interval decides tightness, time and memory. Composition is spelled out here because the accountant
of dp-accounting 0.6 counts repeated randomised response once, and doubles a Gaussian's sensitivity for replace-one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce, singledispatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tacit.errors import TacitError
from tacit.privacy.accounting.events import handler
from tacit.privacy.accounting.gaussian import gaussian_deltas, gaussian_epsilon, least

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as LossDistribution
else:
    LossDistribution = Any  # dp-accounting takes a second to import

_FINENESS: Final = 32  # grid points in one standard deviation of an event's loss: adds less than 0.01% to epsilon
_EVENT_POINTS: Final = 1 << 15
_TOTAL_POINTS: Final = 1 << 20
_MOST_EVENTS: Final = 1 << 18  # beyond, the library's composition slows down and its tails grow loose
_FINEST: Final = 2.0**-40
_ROUNDING: Final = 1e-16  # error of the Fourier transform in delta, for each composition (measured: 3e-17)


def pld_epsilon(history: Mapping["DpEvent", int], delta: float, relation: str) -> float | None:
    """An upper bound on epsilon, exact for Gaussians alone.

    None where PLD has no good answer: for an event that it does not model, for more than 262,144 of them, or for
    a delta that is lost in rounding.
    """
    if (z := _only_gaussian(history)) is not None:
        return gaussian_epsilon(z, delta)
    known = _losses(history, relation)
    left = delta - rounding(history)
    if known is None or left < delta / 2:
        return None
    value = _epsilon(_compose(history, known, relation), left)
    value = min(value, sum(count * each.pure for each, count in known))
    return value if math.isfinite(value) else None


def pld_profile(history: Mapping["DpEvent", int], relation: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """An upper bound on delta at each epsilon, exact for Gaussians alone; None where `pld_epsilon` has no answer."""
    if (z := _only_gaussian(history)) is not None:
        return lambda epsilons: gaussian_deltas(epsilons, 1 / z)
    known = _losses(history, relation)
    if known is None:
        return None
    pld, slack = _compose(history, known, relation), rounding(history)
    return lambda epsilons: np.minimum(
        np.asarray(pld.get_delta_for_epsilon(np.asarray(epsilons).tolist())) + slack, 1.0
    )


def rounding(history: Mapping["DpEvent", int]) -> float:
    """What Fourier transforms may take off delta."""
    return _ROUNDING * max(100, sum(history.values()))


def _only_gaussian(history: Mapping["DpEvent", int]) -> float | None:
    """The noise multiplier of a history that is one Gaussian."""
    import dp_accounting as dp

    if not all(isinstance(event, dp.GaussianDpEvent) for event in history):
        return None
    (gaussian,) = history
    return gaussian.noise_multiplier  # type: ignore[attr-defined]


def _losses(history: Mapping["DpEvent", int], relation: str) -> "list[tuple[Loss, int]] | None":
    losses = [(loss(event, relation), count) for event, count in history.items()]
    known = [(each, count) for each, count in losses if each is not None]
    return None if len(known) < len(losses) or sum(history.values()) > _MOST_EVENTS else known


def _compose(history: Mapping["DpEvent", int], known: "Sequence[tuple[Loss, int]]", relation: str) -> LossDistribution:
    interval = _interval(known)
    plds = [_distribution(event, relation, interval).self_compose(count) for event, count in history.items()]
    return reduce(lambda one, other: one.compose(other), plds)


def _epsilon(pld: LossDistribution, delta: float) -> float:
    """By bisection on delta(epsilon), which neither overflows nor underflows at any epsilon."""
    if not pld.get_delta_for_epsilon(math.inf) <= delta:
        return math.inf
    return least(lambda epsilon: float(pld.get_delta_for_epsilon(epsilon)) <= delta, guess=1.0, precision=1e-8)


class Loss(NamedTuple):
    """The scales of one event's privacy loss."""

    fine: float  # below this a grid tells losses apart well enough
    spread: float  # standard deviation, about
    widest: float  # between the smallest and the largest loss that matter
    pure: float = math.inf  # a bound that no loss exceeds


@singledispatch
def loss(event: Any, relation: str) -> Loss | None:
    """The scales of an event's loss; None where privacy loss distributions do not model it."""
    known = handler(loss, event)
    return None if known is None else known(event, relation)


@singledispatch
def loss_distribution(event: Any, relation: str, interval: float) -> LossDistribution:
    """An upper bound on an event's loss, on a grid of this interval. For events that have a `loss`."""
    known = handler(loss_distribution, event)
    if known is None:
        raise TacitError(f"{type(event).__name__} has scales of a loss and no distribution: register both or neither")
    return known(event, relation, interval)


def _interval(losses: Sequence[tuple[Loss, int]]) -> float:
    """A power of two, so that grids are nested: a coarser one, taken as counts grow, never lowers epsilon."""
    finest = max(min(each.fine for each, _ in losses) / _FINENESS, _FINEST)
    interval = 2.0 ** math.floor(math.log2(finest))
    variance = sum(count * each.spread**2 for each, count in losses)
    # what the composition will span: eight deviations to each side, or what the library's tail bounds leave of it
    total = max(16 * math.sqrt(variance), sum(n * each.spread**2 / each.widest for each, n in losses))
    while max(each.widest for each, _ in losses) > _EVENT_POINTS * interval or total > _TOTAL_POINTS * interval:
        interval *= 2
    return interval


@lru_cache(maxsize=256)
def _distribution(event: Any, relation: str, interval: float) -> LossDistribution:
    return loss_distribution(event, relation, interval)
