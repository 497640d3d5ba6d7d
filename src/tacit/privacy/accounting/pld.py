"""Accounting by privacy loss distributions: each event's losses on a grid, composed by Fourier transforms.

A grid only ever adds to epsilon: distributions are rounded so that the guarantee stays an upper bound for any
interval, and the interval decides tightness, time and memory. Composition is spelled out here because the accountant
of dp-accounting 0.6 counts repeated randomised response once, and doubles a Gaussian's sensitivity for replace-one.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tacit.privacy.accounting.gaussian import gaussian_epsilon, least

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

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
    import dp_accounting as dp

    if all(isinstance(event, dp.GaussianDpEvent) for event in history):
        (gaussian,) = history
        return gaussian_epsilon(gaussian.noise_multiplier, delta)  # type: ignore[attr-defined]
    losses = [(_loss(event, relation), count) for event, count in history.items()]
    known = [(loss, count) for loss, count in losses if loss is not None]
    events = sum(history.values())
    left = delta - _ROUNDING * max(100, events)
    if len(known) < len(losses) or left < delta / 2 or events > _MOST_EVENTS:
        return None
    interval = _interval(known)
    plds = [_pld(event, relation, interval).self_compose(count) for event, count in history.items()]
    value = _epsilon(reduce(lambda one, other: one.compose(other), plds), left)
    value = min(value, sum(count * loss.pure for loss, count in known))
    return value if math.isfinite(value) else None


def _epsilon(pld: "PrivacyLossDistribution", delta: float) -> float:
    """By bisection on delta(epsilon), which neither overflows nor underflows at any epsilon."""
    if not pld.get_delta_for_epsilon(math.inf) <= delta:
        return math.inf
    return least(lambda epsilon: float(pld.get_delta_for_epsilon(epsilon)) <= delta, guess=1.0, precision=1e-8)


class _Loss(NamedTuple):
    """The scales of one event's privacy loss."""

    fine: float  # below this a grid tells losses apart well enough
    spread: float  # standard deviation, about
    widest: float  # between the smallest and the largest loss that matter
    pure: float = math.inf  # a bound that no loss exceeds


def _loss(event: Any, relation: str) -> _Loss | None:
    import dp_accounting as dp

    if isinstance(event, dp.GaussianDpEvent):  # one event, all Gaussians together: no reason for a finer grid
        z = event.noise_multiplier
        return _Loss(math.inf, 1 / z, 20 / z + 1 / z**2)
    if isinstance(event, dp.LaplaceDpEvent):
        largest = 1 / event.noise_multiplier
        return _Loss(largest, largest, 2 * largest, largest)
    if isinstance(event, dp.RandomizedResponseDpEvent) and relation != "add/remove":
        largest = math.log1p(event.num_buckets * (1 / event.noise_parameter - 1))
        return _Loss(largest / 16, largest, 2 * largest, largest)  # losses are rounded up one by one, hence finer
    if not isinstance(event, dp.PoissonSampledDpEvent) or relation not in ("add/remove", "zero-out"):
        return None
    inner = event.event
    return (
        _sampled_loss(event.sampling_probability, inner.noise_multiplier)
        if isinstance(inner, dp.GaussianDpEvent)
        else None
    )


def _sampled_loss(rate: float, z: float) -> _Loss:
    """Much noise: a loss of variance chi-square. Little noise: nothing, or rarely a whole Gaussian's loss."""
    smooth = rate * math.sqrt(math.expm1(min(z**-2, 700)))
    largest = 0.5 / z**2 + 10 / z
    widest = largest + math.log(rate) if largest > 600 else math.log1p(rate * math.expm1(largest))
    rare = math.sqrt(rate)
    return _Loss(min(smooth, rare / z), min(smooth, rare * (0.5 / z**2 + 1 / z)), widest)


def _interval(losses: Sequence[tuple[_Loss, int]]) -> float:
    """A power of two, so that grids are nested: a coarser one, taken as counts grow, never lowers epsilon."""
    finest = max(min(loss.fine for loss, _ in losses) / _FINENESS, _FINEST)
    interval = 2.0 ** math.floor(math.log2(finest))
    variance = sum(count * loss.spread**2 for loss, count in losses)
    # what the composition will span: eight deviations to each side, or what the library's tail bounds leave of it
    total = max(16 * math.sqrt(variance), sum(n * loss.spread**2 / loss.widest for loss, n in losses))
    while max(loss.widest for loss, _ in losses) > _EVENT_POINTS * interval or total > _TOTAL_POINTS * interval:
        interval *= 2
    return interval


@lru_cache(maxsize=256)
def _pld(event: Any, relation: str, interval: float) -> "PrivacyLossDistribution":
    import dp_accounting as dp
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(event, dp.GaussianDpEvent):
        return pld.from_gaussian_mechanism(event.noise_multiplier, value_discretization_interval=interval)
    if isinstance(event, dp.LaplaceDpEvent):
        return pld.from_laplace_mechanism(event.noise_multiplier, value_discretization_interval=interval)
    if isinstance(event, dp.RandomizedResponseDpEvent):
        neighbours = dp.NeighboringRelation["REPLACE_SPECIAL" if relation == "zero-out" else "REPLACE_ONE"]
        return pld.from_randomized_response(
            event.noise_parameter,
            event.num_buckets,
            value_discretization_interval=interval,
            neighboring_relation=neighbours,
        )
    return pld.from_gaussian_mechanism(
        event.event.noise_multiplier, value_discretization_interval=interval, sampling_prob=event.sampling_probability
    )
