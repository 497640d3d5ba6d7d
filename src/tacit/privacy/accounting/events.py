"""Privacy events as text, in words, and reduced to what an accountant must know.

Everywhere in Tacit a noise multiplier is noise std / sensitivity, with the sensitivity of the neighbour relation in
force: the clip bound for add/remove and zero-out, twice the bound for replace and replace-one. So a Gaussian without
sampling costs the same under every relation, and no accountant doubles or halves anything behind our back.

A type of event is one file. It registers its class, an attrs class (`register`), and what accountants ask of it with
generic functions: `flatten` and `describe` here, `rdp.renyi_divergences`, `pld.loss` and `pld.loss_distribution`. An
event whose divergences nobody registered is refused. `skellam.py` is an example; those of dp-accounting are in
`library_events.py`.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tacit.errors import TacitError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FLOOR: Final = 0.01
"""Below this multiplier sampling is not credited: epsilon is in the thousands with or without it."""
_SUFFIX: Final = "DpEvent"
_NOTHING: Final = 1e-100  # a multiplier whose square would vanish in floating point: no noise
_KINDS: Final[dict[str, type]] = {}

Kind = TypeVar("Kind", bound=type)
Atoms = Iterator[tuple[Any, int]]


def register(kind: Kind) -> Kind:
    """Makes a class of events known to ledgers, which write it by its name. A decorator.

    Raises:
        TacitError: another class has this name, and a ledger could not tell them apart.
    """
    name = kind.__name__.removesuffix(_SUFFIX)
    if _KINDS.setdefault(name, kind) is not kind:
        raise TacitError(f"{kind.__module__}.{kind.__name__} has the name of another privacy event: choose its own")
    return kind


def handler(generic: Any, event: Any) -> Callable[..., Any] | None:
    """What was registered for an event's class; None for nothing.

    dp-accounting takes a second to import, so what its events do is registered once one of them is met.
    """
    from tacit.privacy.accounting import library_events  # noqa: F401  # pyright: ignore[reportUnusedImport]

    known = generic.dispatch(type(event))
    return None if known is generic.dispatch(object) else known


@singledispatch
def flatten(event: Any, times: int) -> Atoms:
    """What an event is made of, and how often, for an event that has parts; else itself."""
    known = handler(flatten, event)
    return iter(((event, times),)) if known is None else known(event, times)


@singledispatch
def describe(event: Any, unit: str = "client") -> str:
    """The event in words, for people who read reports."""
    known = handler(describe, event)
    return type(event).__name__ if known is None else known(event, unit)


def to_json(event: "DpEvent") -> str:
    """One line of JSON. Equal events give equal text; an event that Tacit cannot account for is refused."""
    try:
        return _text(event)
    except TypeError:  # a composed event that holds a list has no hash
        return json.dumps(_pack(event), sort_keys=True)


def from_json(text: str) -> "DpEvent":
    """The event written by `to_json`. Names that are not those of registered events are refused, not imported."""
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
    if _kind(name) is not type(event):
        raise TacitError(f"the ledger cannot hold a {type(event).__name__}: use one of {', '.join(sorted(_KINDS))}")
    return {"event": name} | {field: _pack_value(value, kind) for field, value, kind in _fields(event)}


def _kind(name: str) -> type | None:
    """The class of this name. Those of dp-accounting and of mechanisms are imported if it is none of those at hand."""
    if name not in _KINDS:
        from tacit.privacy.accounting import library_events  # noqa: F401  # pyright: ignore[reportUnusedImport]
    if name not in _KINDS:
        from tacit.privacy.mechanisms import MECHANISMS

        list(MECHANISMS.importable())  # those of other packages, too
    return _KINDS.get(name)


def _fields(event: "DpEvent") -> Iterator[tuple[str, Any, Any]]:
    import attr

    for field in attr.fields(type(event)):
        # a key of its own for the inner event: "event" names the kind
        yield ("of" if field.name == "event" else field.name), getattr(event, field.name), field.type


def _pack_value(value: Any, kind: Any) -> Any:
    if kind in (int, float):
        return kind(value)
    if isinstance(value, (list, tuple)):
        return [_pack(inner) for inner in cast(Sequence["DpEvent"], value)]
    return _pack(value)


def _unpack(data: dict[str, Any]) -> "DpEvent":
    kind = _kind(data["event"])
    if kind is None:
        raise KeyError(data["event"])
    return kind(**{("event" if key == "of" else key): _unpack_value(v) for key, v in data.items() if key != "event"})


def _unpack_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(inner) for inner in cast(list[dict[str, Any]], value))
    return _unpack(cast(dict[str, Any], value)) if isinstance(value, dict) else value


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
        for atom, times in flatten(event, count):
            flat[atom] += times
    flat = +flat
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
