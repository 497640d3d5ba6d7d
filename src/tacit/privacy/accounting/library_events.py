"""What accountants are told of dp-accounting's own events. Imported when one of them is first met: a slow import."""

import math
from collections.abc import Iterator
from typing import Any, Final

import attr
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from tacit.errors import TacitError
from tacit.privacy.accounting.events import FLOOR, Atoms, atoms, describe, flatten, register
from tacit.privacy.accounting.pld import Loss, LossDistribution, loss, loss_distribution
from tacit.privacy.accounting.rdp import ORDERS, SLACK, divergences, renyi_divergences, sampled_gaussian

_SLOW_ABOVE: Final = 1024  # fixed-size sampling costs time quadratic in the order

for _kind in (
    dp.NoOpDpEvent,
    dp.NonPrivateDpEvent,
    dp.GaussianDpEvent,
    dp.LaplaceDpEvent,
    dp.RandomizedResponseDpEvent,
    dp.ZCDpEvent,
    dp.PoissonSampledDpEvent,
    dp.SampledWithoutReplacementDpEvent,
    dp.SelfComposedDpEvent,
    dp.ComposedDpEvent,
    RepeatAndSelectDpEvent,
):
    register(_kind)


# --- in the fewest terms


@flatten.register(dp.NoOpDpEvent)
def _(event: Any, times: int) -> Atoms:
    return iter(())


@flatten.register(dp.RandomizedResponseDpEvent)
def _(event: Any, times: int) -> Atoms:
    if not 0 <= event.noise_parameter <= 1:
        raise TacitError(f"randomised response with noise {event.noise_parameter}: it is a probability")
    if event.num_buckets > 1 and event.noise_parameter < 1:
        yield (event if event.noise_parameter > 0 else dp.NonPrivateDpEvent()), times


@flatten.register(dp.LaplaceDpEvent)
def _(event: Any, times: int) -> Atoms:
    yield (event if event.noise_multiplier > 0 else dp.NonPrivateDpEvent()), times


@flatten.register(dp.SelfComposedDpEvent)
def _(event: Any, times: int) -> Atoms:
    return flatten(event.event, times * event.count)


@flatten.register(dp.ComposedDpEvent)
def _(event: Any, times: int) -> Atoms:
    for inner in event.events:
        yield from flatten(inner, times)


@flatten.register(dp.PoissonSampledDpEvent)
def _(event: Any, times: int) -> Atoms:
    return _flatten_sample(event, event.sampling_probability, times)


@flatten.register(dp.SampledWithoutReplacementDpEvent)
def _(event: Any, times: int) -> Atoms:
    return _flatten_sample(event, event.sample_size / max(event.source_dataset_size, 1), times)


def _flatten_sample(event: Any, rate: float, times: int) -> Iterator[tuple[Any, int]]:
    if not 0 <= rate <= 1:
        raise TacitError(f"a sample of {rate:g} of the whole does not exist: the rate lies between 0 and 1")
    inner = atoms({event.event: 1})
    only = next(iter(inner)) if len(inner) == 1 else None
    if rate == 0 or not inner:
        return
    if rate == 1 or dp.NonPrivateDpEvent() in inner:
        yield from ((atom, n * times) for atom, n in inner.items())
    elif isinstance(only, dp.GaussianDpEvent):
        yield (only if only.noise_multiplier < FLOOR else attr.evolve(event, event=only)), times
    else:
        yield event, times  # no accountant here knows it; they say so


# --- in words


@describe.register(dp.PoissonSampledDpEvent)
def _(event: Any, unit: str = "client") -> str:
    share = f"{100 * event.sampling_probability:.4g}%"
    return f"{_describe_queries(event.event, unit)} Poisson sample of {share} of the {unit}s"


def _describe_queries(event: Any, unit: str) -> str:
    """What is done to a sample, up to the words for it."""
    if isinstance(event, dp.SelfComposedDpEvent) and event.count > 1:
        return f"{event.count:,} queries with {describe(event.event, unit)}, of one"
    return f"{describe(event, unit)}, on a"


@describe.register(dp.SampledWithoutReplacementDpEvent)
def _(event: Any, unit: str = "client") -> str:
    drawn = f"{event.sample_size:,} of {event.source_dataset_size:,} {unit}s, drawn without replacement"
    return f"{describe(event.event, unit)}, on {drawn}"


@describe.register(dp.SelfComposedDpEvent)
def _(event: Any, unit: str = "client") -> str:
    often = "" if event.count == 1 else f"{event.count:,} times "
    return f"{often}{describe(event.event, unit)}"


@describe.register(dp.ComposedDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return " and ".join(describe(inner, unit) for inner in event.events)


@describe.register(dp.GaussianDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return f"Gaussian noise, multiplier {event.noise_multiplier:#.4g}"


@describe.register(dp.LaplaceDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return f"Laplace noise, multiplier {event.noise_multiplier:#.4g}"


@describe.register(dp.RandomizedResponseDpEvent)
def _(event: Any, unit: str = "client") -> str:
    share = f"{100 * event.noise_parameter:.4g}%"
    return f"randomised response over {event.num_buckets} values, {share} of them random"


@describe.register(dp.ZCDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return f"concentrated noise, rho {event.rho:.4g}" + (f", xi {event.xi:.4g}" if event.xi else "")


@describe.register(RepeatAndSelectDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return f"the best of a random number of trials, {event.mean:g} on average, of {describe(event.event, unit)}"


@describe.register(dp.NonPrivateDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return "a release without noise: no guarantee"


@describe.register(dp.NoOpDpEvent)
def _(event: Any, unit: str = "client") -> str:
    return "nothing released"


# --- by Renyi divergences


@renyi_divergences.register(dp.GaussianDpEvent)
def _(event: Any, relation: str) -> np.ndarray:
    return ORDERS / (2 * event.noise_multiplier**2)


@renyi_divergences.register(dp.PoissonSampledDpEvent)
def _(event: Any, relation: str) -> np.ndarray:
    if not isinstance(event.event, dp.GaussianDpEvent):
        return _by_library(event, relation)
    if relation not in ("add/remove", "zero-out"):
        raise TacitError(f"Poisson sampling is not accounted for {relation!r} neighbours: use add/remove")
    return sampled_gaussian(event.sampling_probability, event.event.noise_multiplier) + SLACK


@renyi_divergences.register(RepeatAndSelectDpEvent)
def _(event: Any, relation: str) -> np.ndarray:
    """The best of a geometric number of trials (Papernot and Steinke 2022, Theorem 2 with eta 1), at the best order."""
    if event.shape != 1 or not event.mean > 1:
        raise TacitError(
            f"{event.mean:g} trials of shape {event.shape:g}: a geometric number (shape 1) above 1 is known"
        )
    trial = np.sum([n * divergences(atom, relation) for atom, n in atoms({event.event: 1}).items()], axis=0)
    often = math.log(event.mean)
    return trial + float(np.min(2 * (1 - 1 / ORDERS) * trial + 2 * often / ORDERS)) + often / (ORDERS - 1) + SLACK


@renyi_divergences.register(dp.DpEvent)
def _by_library(event: Any, relation: str) -> np.ndarray:
    highest = _SLOW_ABOVE if isinstance(event, dp.SampledWithoutReplacementDpEvent) else math.inf
    known = highest >= ORDERS
    out = np.full_like(ORDERS, math.inf)
    out[known] = np.maximum(_library(event, relation, ORDERS[known]), 0) + SLACK
    return out


def _library(event: Any, relation: str, orders: np.ndarray) -> np.ndarray:
    from dp_accounting.rdp import RdpAccountant

    neighbours = {"add/remove": "ADD_OR_REMOVE_ONE", "zero-out": "REPLACE_SPECIAL"}.get(relation, "REPLACE_ONE")
    try:
        return RdpAccountant(orders.tolist(), dp.NeighboringRelation[neighbours]).compose(event).rdp
    except dp.UnsupportedEventError as error:
        raise TacitError(
            f"{type(event).__name__} is not accounted for {relation!r} neighbours: use Poisson sampling with "
            "add/remove, or a fixed-size sample with replace-one"
        ) from error


# --- by privacy loss distributions


@loss.register(dp.GaussianDpEvent)
def _(event: Any, relation: str) -> Loss | None:
    z = event.noise_multiplier
    return Loss(math.inf, 1 / z, 20 / z + 1 / z**2)  # one event, all Gaussians together: no reason for a finer grid


@loss.register(dp.LaplaceDpEvent)
def _(event: Any, relation: str) -> Loss | None:
    largest = 1 / event.noise_multiplier
    return Loss(largest, largest, 2 * largest, largest)


@loss.register(dp.RandomizedResponseDpEvent)
def _(event: Any, relation: str) -> Loss | None:
    if relation == "add/remove":
        return None
    largest = math.log1p(event.num_buckets * (1 / event.noise_parameter - 1))
    return Loss(largest / 16, largest, 2 * largest, largest)  # losses are rounded up one by one, hence finer


@loss.register(dp.PoissonSampledDpEvent)
def _(event: Any, relation: str) -> Loss | None:
    """Much noise: a loss of variance chi-square. Little noise: nothing, or rarely a whole Gaussian's loss."""
    if relation not in ("add/remove", "zero-out") or not isinstance(event.event, dp.GaussianDpEvent):
        return None
    rate, z = event.sampling_probability, event.event.noise_multiplier
    smooth = rate * math.sqrt(math.expm1(min(z**-2, 700)))
    largest = 0.5 / z**2 + 10 / z
    widest = largest + math.log(rate) if largest > 600 else math.log1p(rate * math.expm1(largest))
    rare = math.sqrt(rate)
    return Loss(min(smooth, rare / z), min(smooth, rare * (0.5 / z**2 + 1 / z)), widest)


@loss_distribution.register(dp.GaussianDpEvent)
def _(event: Any, relation: str, interval: float) -> LossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(event.noise_multiplier, value_discretization_interval=interval)


@loss_distribution.register(dp.LaplaceDpEvent)
def _(event: Any, relation: str, interval: float) -> LossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_laplace_mechanism(event.noise_multiplier, value_discretization_interval=interval)


@loss_distribution.register(dp.RandomizedResponseDpEvent)
def _(event: Any, relation: str, interval: float) -> LossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    neighbours = dp.NeighboringRelation["REPLACE_SPECIAL" if relation == "zero-out" else "REPLACE_ONE"]
    return pld.from_randomized_response(
        event.noise_parameter,
        event.num_buckets,
        value_discretization_interval=interval,
        neighboring_relation=neighbours,
    )


@loss_distribution.register(dp.PoissonSampledDpEvent)
def _(event: Any, relation: str, interval: float) -> LossDistribution:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        event.event.noise_multiplier, value_discretization_interval=interval, sampling_prob=event.sampling_probability
    )
