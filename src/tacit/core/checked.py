"""What a caller gives, checked against the annotations, and the same value however it was written.

`checked` stands above a public class or function. What does not fit its annotation is an `ArgumentError` of one line:
the call, the value, the remedy. What fits is read in one way: an int where a float is wanted becomes one, numpy's
numbers become Python's, a list becomes a tuple, one value where several may stand a tuple of it. True is no number and
"4" is no 4. Ranges are the business of `__post_init__`, which finds the right types.

The metadata of a dataclass's field say how else it can be written: {"short": Fixed} makes its value of a number or a
text (`clip=1.0`), {"keywords": {"rate": Poisson}} of another keyword (`rate=0.1`), and with `INLINE` the class takes
what the field's default takes, and hands it on (`lr=0.5`).
"""

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, Field
from difflib import get_close_matches
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

import numpy as np

from tacit.errors import ArgumentError

Target = TypeVar("Target", bound=Callable[..., Any])
Fields = Mapping[str, "Field[Any]"]

_PLAIN: Final[Mapping[Any, tuple[Any, str]]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "text"),
}
INLINE: Final = MappingProxyType({"inline": True})
_LONGEST: Final = 70  # letters of a value that are shown


class Unfit(Exception):
    """A value that its annotation does not allow."""


def checked(target: Target) -> Target:
    """A class or a function that checks what it is given. Raises `ArgumentError` before anything else happens."""
    if not isinstance(target, type):
        return _checking(target, {})
    kind: Any = target
    kind.__init__ = _checking(kind.__init__, getattr(kind, "__dataclass_fields__", {}))
    return kind


def checked_names(kind: Target) -> Target:
    """A class that checks which arguments it is given, and takes their values as they are.

    For estimators in scikit-learn's manner, which keep what they were given and look at it when they are fitted.
    """
    target: Any = kind
    call, signature = target.__init__, inspect.signature(target.__init__)

    @functools.wraps(call)
    def check(*args: Any, **kwargs: Any) -> None:
        owner, known = type(args[0]).__name__, [name for name in signature.parameters if name != "self"]
        if strange := [key for key in kwargs if key not in known]:
            raise ArgumentError(_unknown(owner, strange[0], kwargs[strange[0]], known, {}))
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            value = shown(args[-1]) if len(args) > 1 else "..."
            raise ArgumentError(f"{owner}({value}): name each argument: {', '.join(known)}") from None
        call(*args, **kwargs)

    target.__init__ = check
    return kind


def _checking(call: Any, fields: Fields) -> Any:
    signature, hints = inspect.signature(call), functools.cache(lambda: _hints(call))

    @functools.wraps(call)
    def check(*args: Any, **kwargs: Any) -> Any:
        owner = type(args[0]).__name__ if call.__name__ == "__init__" else call.__name__
        kwargs = _expanded(owner, signature, fields, len(args), kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(name for name in signature.parameters if name != "self")
            raise ArgumentError(f"{owner}(...): {error}: it takes {known}") from None
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                value.update({key: _given(owner, key, hints(), each, parameter) for key, each in value.items()})
            else:
                bound.arguments[name] = _given(owner, name, hints(), value, fields.get(name, parameter))
        return call(*bound.args, **bound.kwargs)

    return check


def _hints(call: Any) -> dict[str, Any]:
    """The annotations, and those of the keywords of `**options: Unpack[...]`."""
    hints = get_type_hints(call, include_extras=True)
    for hint in [*hints.values()]:
        if get_origin(hint) is Unpack:
            hints |= get_type_hints(get_args(hint)[0], include_extras=True)
    return hints


def _given(owner: str, name: str, hints: Mapping[str, Any], value: Any, declared: Any) -> Any:
    """The value of one argument; `declared` is its field or parameter."""
    hint = hints.get(name, Any)
    if value is declared.default:
        return value
    try:
        return read(hint, value)
    except Unfit:
        short = getattr(declared, "metadata", {}).get("short")
        if short is not None and not isinstance(value, bool) and isinstance(value, str | numbers.Real):
            return short(value)
        raise unfit(f"{owner}({name}={shown(value)})", hint, value, _default(declared)) from None


def _default(declared: Any) -> Any:
    """What stands where nothing is given; None if something must be."""
    factory: Any = getattr(declared, "default_factory", MISSING)
    if factory is not MISSING:
        return factory()
    default: Any = declared.default
    return None if default is MISSING or default is inspect.Parameter.empty else default


def require(what: str, hint: Any, value: Any) -> Any:
    """`value` as the annotation has it, where no signature says so."""
    try:
        return read(hint, value)
    except Unfit:
        raise unfit(f"{what} is {shown(value)}", hint, value) from None


def unfit(what: str, hint: Any, value: Any, usual: Any = None) -> ArgumentError:
    """What was given, and what would have fitted; `usual` is an example of it."""
    near = get_close_matches(value, _words(hint), 1) if isinstance(value, str) else []
    if near:
        return ArgumentError(f"{what}: did you mean {near[0]!r}?")
    if isinstance(value, type):
        needed = any(each.default is each.empty for each in inspect.signature(value).parameters.values())
        return ArgumentError(f"{what}: write {value.__name__}({'...' if needed else ''})")
    if value is None and usual is not None:
        return ArgumentError(f"{what}: leave it out, or give {describe(hint)}")
    example = f", for example {shown(usual)}" if isinstance(usual, numbers.Real) or usual else ""
    return ArgumentError(f"{what}: give {describe(hint)}{example}")


def shown(value: Any) -> str:
    """A value in an error: on one line, and no longer than that of a number or a few of them."""
    if isinstance(value, type):
        return value.__name__
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{type(value).__name__}(...)"


# short forms


def _expanded(
    owner: str, signature: inspect.Signature, fields: Fields, positional: int, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Keywords that no parameter has, made into values of the fields that take them."""
    names = signature.parameters
    strange = [key for key in kwargs if key not in names]
    if not strange or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in names.values()):
        return kwargs
    set_names = {*list(names)[:positional], *kwargs}
    kept = {key: value for key, value in kwargs.items() if key in names}
    nested: dict[str, dict[str, Any]] = {}
    for key in strange:
        takers = [name for name, each in fields.items() if key in _keywords(each)]
        if not takers:
            raise ArgumentError(_unknown(owner, key, kwargs[key], names, fields))
        free = [name for name in takers if name not in set_names]
        if not free:
            raise ArgumentError(f"{owner}({key}={shown(kwargs[key])}): {takers[0]} is given, too: give one of the two")
        for name in free:
            nested.setdefault(name, {})[key] = kwargs[key]
    return kept | {name: _built(fields[name], values) for name, values in nested.items()}


def _keywords(declared: "Field[Any]") -> Sequence[str]:
    """The further keywords that stand for a field, those of fields in it included."""
    extra = tuple(declared.metadata.get("keywords", ()))
    kind: Any = declared.default_factory
    kind = kind.func if isinstance(kind, functools.partial) else kind  # a class with another default of its own here
    if not declared.metadata.get("inline") or not isinstance(kind, type):
        return extra
    inner: Fields = getattr(kind, "__dataclass_fields__", {})
    return (*extra, *inner, *(key for each in inner.values() for key in _keywords(each)))


def _built(declared: "Field[Any]", values: Mapping[str, Any]) -> Any:
    makers: Mapping[str, Callable[[Any], Any]] = declared.metadata.get("keywords", {})
    if len(values) == 1 and (key := next(iter(values))) in makers:
        return makers[key](values[key])
    if any(key in makers for key in values):
        raise ArgumentError(f"{' and '.join(values)} are given: give one of them")
    make: Any = declared.default_factory
    return make(**values)


def _unknown(owner: str, key: str, value: Any, names: Iterable[str], fields: Fields) -> str:
    known = [*dict.fromkeys([*names, *(key for each in fields.values() for key in _keywords(each))])]
    known = [name for name in known if name != "self"]
    near = get_close_matches(key, known, 1)
    if key in ("epsilon", "delta") and not near:  # the first thing that newcomers write, to a plan or to a privacy
        budget = ", ".join(f"{name}={shown(value) if name == key else '...'}" for name in ("epsilon", "delta"))
        return f"{owner}({key}={shown(value)}): a budget is a level's: Privacy(plan, levels=Level('private', {budget}))"
    remedy = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}" if known else "leave it out"
    return f"{owner}({key}={shown(value)}): there is no '{key}': {remedy}"


# annotations


def read(hint: Any, value: Any) -> Any:
    """`value` as an annotation has it; raises `Unfit` where it is of another kind."""
    if hint in _PLAIN:
        if not isinstance(value, _PLAIN[hint][0]) or (isinstance(value, bool) and hint is not bool):
            raise Unfit
        return value if type(value) is hint else hint(value)
    return _READERS.get(get_origin(hint), _instance)(hint, value)


def _instance(hint: Any, value: Any) -> Any:
    """Of a class or a protocol. A class is no instance, though it has all the names that a protocol asks for."""
    if hint is Any or not isinstance(hint, type):
        return value
    if not isinstance(value, hint) or (isinstance(value, type) and hint is not type):
        raise Unfit
    return value


def _first(hint: Any, value: Any) -> Any:
    for each in get_args(hint):
        try:
            return read(each, value)
        except Unfit:
            continue
    raise Unfit


def _word(hint: Any, value: Any) -> Any:
    for word in get_args(hint):
        if isinstance(value, type(word)) and value == word:
            return word
    raise Unfit


def _several(hint: Any, value: Any) -> Any:
    kinds = get_args(hint) or (Any,)
    if isinstance(value, str | bytes | Mapping | Set | type) or not isinstance(value, Iterable):
        return (read(kinds[0], value),)
    plain = type(cast(object, value)) is tuple and kinds[0] in _PLAIN
    items = cast(Iterable[Any], value)
    if plain and all(type(each) is kinds[0] for each in items):
        return items  # of a million clients' names, too
    return tuple(read(kinds[0], each) for each in items)


def _mapping(hint: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Unfit
    key, each = get_args(hint)
    return {read(key, name): read(each, item) for name, item in cast(Mapping[Any, Any], value).items()}


def _callable(hint: Any, value: Any) -> Any:
    if not callable(value):
        raise Unfit
    return value


_READERS: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    Union: _first,
    UnionType: _first,
    Literal: _word,
    tuple: _several,
    Sequence: _several,
    Mapping: _mapping,
    Callable: _callable,
    Annotated: lambda hint, value: read(get_args(hint)[0], value),
}


def describe(hint: Any) -> str:
    """An annotation in words. `Annotated[kind, "words"]` brings its own."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    if origin is Annotated:
        return str(inner[1])
    if origin in (Union, UnionType):
        return " or ".join(describe(each) for each in inner if each is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (tuple, Sequence):
        return f"a tuple (each {describe(inner[0])})"
    if origin is Mapping:
        return f"a dict ({describe(inner[0])}: {describe(inner[1])})"
    name = getattr(hint, "__name__", "function")
    return "anything" if hint is Any else f"a{'n' * (name[0] in 'AEIO')} {name}"


def _words(hint: Any) -> list[str]:
    """The texts that an annotation knows."""
    if get_origin(hint) is Literal:
        return [word for word in get_args(hint) if isinstance(word, str)]
    return (
        [word for inner in get_args(hint) for word in _words(inner)] if get_origin(hint) in (Union, UnionType) else []
    )
