"""Privacy events as text, in words, and reduced to what an accountant must know.

Everywhere in Tacit a noise multiplier is noise std / sensitivity, with the sensitivity of the neighbour relation in
force: the clip bound for add/remove and zero-out, twice the bound for replace and replace-one. So a Gaussian without
sampling costs the same under every relation, and no accountant doubles or halves anything behind our back.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tacit.errors import TacitError
from tacit.privacy.accounting.skellam import SampledSkellamDpEvent, SkellamDpEvent

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FLOOR: Final = 0.01
"""Below this multiplier sampling is not credited: epsilon is in the thousands with or without it."""

_KNOWN: Final = frozenset(
    [
        "NoOp",
        "NonPrivate",
        "Gaussian",
        "Laplace",
        "RandomizedResponse",
        "ZC",
        "PoissonSampled",
        "SampledWithoutReplacement",
        "SelfComposed",
        "Composed",
        "Skellam",
        "SampledSkellam",
    ]
)
_SUFFIX: Final = "DpEvent"
_OURS: Final[Mapping[str, type]] = {"Skellam": SkellamDpEvent, "SampledSkellam": SampledSkellamDpEvent}
_NOTHING: Final = 1e-100  # a multiplier whose square would vanish in floating point: no noise


def to_json(event: "DpEvent") -> str:
    """One line of JSON. Equal events give equal text; an event that Tacit cannot account for is refused."""
    try:
        return _text(event)
    except TypeError:  # a composed event that holds a list has no hash
        return json.dumps(_pack(event), sort_keys=True)


def from_json(text: str) -> "DpEvent":
    """The event written by `to_json`. Names that are not events of the list are refused, not imported."""
    try:
        return _event(text)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TacitError(f"{text[:80]!r} is not a privacy event: the ledger was written by something else") from error


@lru_cache(maxsize=1 << 14)
def _text(event: "DpEvent") -> str:
    return json.dumps(_pack(event), sort_keys=True)


@lru_cache(maxsize=1 << 14)
def _event(text: str) -> "DpEvent":
    return _unpack(json.loads(text))


def _pack(event: "DpEvent") -> dict[str, Any]:
    name = type(event).__name__.removesuffix(_SUFFIX)
    if name not in _KNOWN:
        raise TacitError(f"the ledger cannot hold a {type(event).__name__}: use one of {', '.join(sorted(_KNOWN))}")
    return {"event": name} | {field: _pack_value(value, kind) for field, value, kind in _fields(event)}


def _fields(event: "DpEvent") -> Iterator[tuple[str, Any, Any]]:
    import attr

    for field in attr.fields(type(event)):
        # a key of its own for the inner event: "event" names the kind
        yield ("of" if field.name == "event" else field.name), getattr(event, field.name), field.type


def _pack_value(value: Any, kind: Any) -> Any:
    if kind in (int, float):
        return kind(value)
    return [_pack(inner) for inner in value] if isinstance(value, (list, tuple)) else _pack(value)


def _unpack(data: dict[str, Any]) -> "DpEvent":
    import dp_accounting as dp

    name = data["event"]
    if name not in _KNOWN:
        raise KeyError(name)
    values = {("event" if key == "of" else key): _unpack_value(v) for key, v in data.items() if key != "event"}
    return (_OURS.get(name) or getattr(dp, name + _SUFFIX))(**values)


def _unpack_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(inner) for inner in value)
    return _unpack(value) if isinstance(value, dict) else value


def atoms(history: Mapping["DpEvent", int]) -> dict["DpEvent", int]:
    """The same cost in the fewest terms: nothing nested, all unsampled Gaussians as one, free events left out.

    Exact: adaptive composition of Gaussians z1, z2 is one Gaussian with z^-2 = z1^-2 + z2^-2, and several Gaussian
    queries of one sample are one query of it. A multiplier of zero becomes `NonPrivateDpEvent`.
    """
    import dp_accounting as dp

    flat: Counter[DpEvent] = Counter()
    for event, count in history.items():
        if count < 0:
            raise TacitError(f"an event cannot happen {count} times: give a count of at least 0")
        for atom, times in _flat(event, count):
            flat[atom] += times
    precision = sum(n * _precision(event) for event, n in flat.items())
    rest = {event: n for event, n in flat.items() if not isinstance(event, dp.GaussianDpEvent)}
    if precision == math.inf or dp.NonPrivateDpEvent() in rest:
        return {dp.NonPrivateDpEvent(): 1}
    return rest | ({dp.GaussianDpEvent(precision**-0.5): 1} if precision > 0 else {})


def _precision(event: "DpEvent") -> float:
    """z^-2 of an unsampled Gaussian, 0 for every other event."""
    import dp_accounting as dp

    if not isinstance(event, dp.GaussianDpEvent):
        return 0.0
    z = event.noise_multiplier
    if not z >= 0:
        raise TacitError(f"noise multiplier {z} is not a number of at least 0")
    return math.inf if z < _NOTHING else z**-2


def _flat(event: "DpEvent", times: int) -> Iterator[tuple["DpEvent", int]]:
    import dp_accounting as dp

    if times == 0 or isinstance(event, dp.NoOpDpEvent):
        return
    if isinstance(event, dp.RandomizedResponseDpEvent):
        yield from _response(event, times)
    elif isinstance(event, dp.LaplaceDpEvent):
        yield (event if event.noise_multiplier > 0 else dp.NonPrivateDpEvent()), times
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from _flat(event.event, times * event.count)
    elif isinstance(event, dp.ComposedDpEvent):
        for inner in event.events:
            yield from _flat(inner, times)
    elif isinstance(event, dp.PoissonSampledDpEvent):
        yield from _sampled(event, event.sampling_probability, times)
    elif isinstance(event, dp.SampledWithoutReplacementDpEvent):
        yield from _sampled(event, event.sample_size / max(event.source_dataset_size, 1), times)
    else:
        yield event, times


def _response(event: Any, times: int) -> Iterator[tuple["DpEvent", int]]:
    import dp_accounting as dp

    if not 0 <= event.noise_parameter <= 1:
        raise TacitError(f"randomised response with noise {event.noise_parameter}: it is a probability")
    if event.num_buckets > 1 and event.noise_parameter < 1:
        yield (event if event.noise_parameter > 0 else dp.NonPrivateDpEvent()), times


def _sampled(event: Any, rate: float, times: int) -> Iterator[tuple["DpEvent", int]]:
    import attr
    import dp_accounting as dp

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


def describe(event: "DpEvent", unit: str = "client") -> str:
    """The event in words, for people who read reports."""
    import dp_accounting as dp

    if isinstance(event, dp.PoissonSampledDpEvent):
        share = f"{100 * event.sampling_probability:.4g}%"
        return f"{_describe_queries(event.event, unit)} Poisson sample of {share} of the {unit}s"
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        drawn = f"{event.sample_size:,} of {event.source_dataset_size:,} {unit}s, drawn without replacement"
        return f"{describe(event.event, unit)}, on {drawn}"
    if isinstance(event, dp.SelfComposedDpEvent):
        often = "" if event.count == 1 else f"{event.count:,} times "
        return f"{often}{describe(event.event, unit)}"
    if isinstance(event, dp.ComposedDpEvent):
        return " and ".join(describe(inner, unit) for inner in event.events)
    return _describe_mechanism(event)


def _describe_queries(event: "DpEvent", unit: str) -> str:
    """What is done to a sample, up to the words for it."""
    import dp_accounting as dp

    if isinstance(event, dp.SelfComposedDpEvent) and event.count > 1:
        return f"{event.count:,} queries with {describe(event.event, unit)}, of one"
    return f"{describe(event, unit)}, on a"


def _describe_mechanism(event: "DpEvent") -> str:
    import dp_accounting as dp

    if isinstance(event, dp.GaussianDpEvent):
        return f"Gaussian noise, multiplier {event.noise_multiplier:#.4g}"
    if isinstance(event, SkellamDpEvent | SampledSkellamDpEvent):
        return _describe_skellam(event)
    if isinstance(event, dp.LaplaceDpEvent):
        return f"Laplace noise, multiplier {event.noise_multiplier:#.4g}"
    if isinstance(event, dp.RandomizedResponseDpEvent):
        share = f"{100 * event.noise_parameter:.4g}%"
        return f"randomised response over {event.num_buckets} values, {share} of them random"
    if isinstance(event, dp.ZCDpEvent):
        return f"concentrated noise, rho {event.rho:.4g}" + (f", xi {event.xi:.4g}" if event.xi else "")
    if isinstance(event, dp.NonPrivateDpEvent):
        return "a release without noise: no guarantee"
    return "nothing released" if isinstance(event, dp.NoOpDpEvent) else type(event).__name__


def _describe_skellam(event: SkellamDpEvent | SampledSkellamDpEvent) -> str:
    words = f"Skellam noise of many shares, multiplier {math.sqrt(event.variance) / event.l2:#.4g}"
    if isinstance(event, SkellamDpEvent):
        return words
    return f"{words}, on a Poisson sample of {100 * event.rate:.4g}% of the clients"
