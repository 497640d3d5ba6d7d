"""The keys of a table are the parameters of what it makes: their names, types and defaults, declared there alone.

A new field of a method's dataclass is a new key of a file, with its type checked. Parameters that are made of options
themselves are `PARTS`: what trains on a client, a server's step, a method to build upon, a prior. A parameter of a type
that no file can say (a function, a tensor) keeps its default; a field with the metadata {"option": False} does, too.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

from tacit import methods
from tacit.core.contract import Method
from tacit.core.registry import nearest
from tacit.errors import TacitError
from tacit.methods.optimizers import ServerOptimizer
from tacit.privacy.mechanisms.clipping import Clip, Fixed, Quantile

Finite = Annotated[float, Field(allow_inf_nan=False)]
Keys = dict[str, Any]
"""By key, the type of its value."""


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    if TYPE_CHECKING:  # the keys of what a table makes

        def __getattr__(self, item: str) -> Any: ...

    def get(self, key: str) -> Any:
        """The value of a key, None where it has none or where this table does not have the key."""
        return getattr(self, key, None)


class Part(NamedTuple):
    """A parameter that is made of options. `key` names which of several kinds it is; in a table of its own if `nested`.

    Without a key there is one kind. Options of parts that are not nested stand beside those of the whole, and one that
    several parts have is the same for all of them.
    """

    key: str | None
    kinds: Mapping[str, Callable[..., Any]]
    nested: bool = False


PARTS: Final[Mapping[Any, Part]] = {
    Method: Part("base", {"fedavg": methods.FedAvg, "scaffold": methods.Scaffold, "prototypes": methods.Prototypes}),
    methods.Prior: Part("prior", methods.PRIORS),
    ServerOptimizer: Part("server", {"sgd": methods.ServerSgd, "adam": methods.ServerAdam}, nested=True),
    methods.ServerSgd: Part("server", {"sgd": methods.ServerSgd}, nested=True),
}
_PERSONAL: Final = {"personal_lr": "lr", "personal_decay": "decay"}  # for what trains a personal model
_START: Final = {"bound": "start"}  # of a bound that moves


def parameters(kind: Any) -> dict[str, Any]:
    """What a class or a function takes, by name, with its type; of one that cannot be asked, nothing."""
    call = kind.func if isinstance(kind, functools.partial) else kind.__init__ if isinstance(kind, type) else kind
    try:
        hints, takes = get_type_hints(call, include_extras=True), inspect.signature(kind).parameters
    except (NameError, TypeError, ValueError):  # somebody else's: names that are not there at run time, C code
        return {}
    fields = getattr(kind, "__dataclass_fields__", {})
    unsaid = {name for name, field in fields.items() if not field.metadata.get("option", True)}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [name for name, each in takes.items() if each.kind in named]
    return {name: hints.get(name, Any) for name in known if name not in unsaid}


def keys_of(kind: Any, content: Mapping[str, Any] = {}) -> Keys:
    """The keys of a table that makes a `kind`, where `content` names the kinds of its parts."""
    keys: Keys = {}
    for name, hint in parameters(kind).items():
        part = _part(hint)
        if part is None:
            said = said_as(hint)
            keys |= {} if said is None else {name: said}
        elif part.nested:
            inner, which = _nested(content, part)
            keys[part.key or name] = table(f"{part.key}", {"name": Literal[*part.kinds], **keys_of(which, inner)})
        else:
            which = _chosen(part, content, kind, name)
            keys |= {part.key: str} if part.key else {}
            keys |= {key: said for key, said in keys_of(which, content).items() if key not in keys}
            keys |= dict.fromkeys(_PERSONAL, Finite) if which is methods.LocalSgd and name != "local" else {}
    return keys


def said_as(hint: Any) -> Any:
    """The type of a value in a file, None if there is none for it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Clip:
        return Finite | table("clip", {_START.get(key, key): said for key, said in keys_of(Quantile).items()})
    if hint in (int, str, bool, NoneType, Any) or origin is Literal:
        return hint
    if hint is float:
        return Finite
    if origin is Annotated:
        said = said_as(inner[0])
        return None if said is None else Annotated[said, *hint.__metadata__]
    if origin in (Union, UnionType):
        words = [said for each in inner if (said := said_as(each)) is not None]
        return Union[*words] if words not in ([], [NoneType]) else None
    if origin in (tuple, list, Sequence) and inner:
        said = said_as(inner[0])
        return None if said is None else list[said]
    if origin is Mapping and inner and inner[0] is str:
        said = said_as(inner[1])
        return None if said is None else dict[str, said]
    return None


def table(name: str, keys: Keys, base: type[Table] = Table) -> type[Table]:
    """A table with these keys, none of which must be given; `base` has further ones."""
    further: dict[str, Any] = {key: (kind | None, None) for key, kind in keys.items() if key not in base.model_fields}
    return create_model(name, __base__=base, **further)


def _part(hint: Any) -> Part | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in PARTS and Method not in hint.__mro__:
        return Part(None, {"": hint})
    return PARTS.get(hint) if isinstance(hint, type) else None


def _chosen(part: Part, content: Mapping[str, Any], kind: Any, name: str) -> Any:
    """Which kind of a part the content names; without a word, that of the parameter's default."""
    if part.key is not None and isinstance(said := content.get(part.key), str):
        if said not in part.kinds:
            raise TacitError(f"method.{part.key} is '{said}': {nearest(said, [*part.kinds])}")
        return part.kinds[said]
    field = getattr(kind, "__dataclass_fields__", {}).get(name)
    usual = getattr(field, "default_factory", None)
    return usual if usual in part.kinds.values() else next(iter(part.kinds.values()))


def _nested(content: Mapping[str, Any], part: Part) -> tuple[Mapping[str, Any], Any]:
    inner = content.get(part.key or "")
    inner = inner if isinstance(inner, Mapping) else {}
    return inner, part.kinds.get(inner.get("name", ""), next(iter(part.kinds.values())))


def make(kind: Any, values: Mapping[str, Any], **fixed: Any) -> Any:
    """A `kind` from the values of its table and `fixed` arguments. What is not among them has its default."""
    arguments: dict[str, Any] = {}
    for name, hint in parameters(kind).items():
        part = _part(hint)
        if name in fixed:
            arguments[name] = fixed[name]
        elif part is None:
            arguments |= {name: _value(hint, values[name])} if values.get(name) is not None else {}
        elif part.nested:
            inner, which = _nested(values, part)
            arguments |= {name: make(which, inner)} if inner else {}
        else:
            which, beside = _chosen(part, values, kind, name), values
            if which is methods.LocalSgd and name != "local":
                own = {key: values[said] for said, key in _PERSONAL.items() if values.get(said) is not None}
                beside = {**values, **own}
            if any(beside.get(key) is not None for key in (part.key or "", *keys_of(which, beside))):
                arguments[name] = make(which, beside)
    return kind(**arguments)


def _value(hint: Any, value: Any) -> Any:
    if hint is Clip:
        if not isinstance(value, Mapping):
            return Fixed(value)
        return Quantile(**{"bound" if key == "start" else str(key): each for key, each in value.items()})
    return _tupled(value)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def build(kind: Any, values: Mapping[str, Any], where: str, **fixed: Any) -> Any:
    """As `make`; what is wrong with a value is said of its key, which stands in the table `where`."""
    try:
        return make(kind, values, **fixed)
    except (TypeError, ValueError) as error:
        raise blame(error, lambda alone: make(kind, alone, **fixed), values, where) from None


def blame(error: Exception, make: Callable[[Any], object], values: Mapping[str, Any], where: str) -> TacitError:
    """Says of the key whose value is at fault what a class says of it: of the one that fails alike by itself, or of the
    one that is named.
    """
    text = str(error)
    leaves = [(path, value) for path, value in _leaves(values) if _concerns(text, value)]
    for path, value in leaves:
        try:
            make(_only(values, path))
        except (TypeError, ValueError) as again:
            if str(again) == text:
                return _complain(where, path, value, text)
    named = [(path, value) for path, value in leaves if re.match(rf"{re.escape(path[-1])}\b", text)]
    return _complain(where, *named[0], text) if named else TacitError(text)


_BOUND: Final = re.compile(r".+? must (?:be|lie) (.+?), not ([^;:]+?)(?:[;:] (.+))?")
_REMEDY: Final = re.compile(r".+? is .+?: (.+)")


def _concerns(text: str, value: Any) -> bool:
    """'lr must be above 0, not -1' is not about 0.5."""
    said = _BOUND.fullmatch(text)
    return said is None or said[2] in map(str, value if isinstance(value, list) else [value])


def _complain(where: str, path: tuple[str, ...], value: Any, text: str) -> TacitError:
    key = ".".join([*([where] if where else []), *path])
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    if said := _BOUND.fullmatch(text):
        bound = re.sub(r"(a )?positive( number)?", "above 0", said[1])
        words = "" if bound.startswith("at ") else "a number "
        return TacitError(f"{key} is {shown}: give {words}{bound}" + (f"; {said[3]}" if said[3] else ""))
    remedy = _REMEDY.fullmatch(text)
    return TacitError(f"{key} is {shown}: {remedy[1] if remedy else text}")


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from (((key, *path), inner) for path, inner in _leaves(value))
        elif value is not None:
            yield (key,), value


def _only(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The value at `path`, and the names of kinds beside it."""
    naming = {part.key for part in PARTS.values()} | {"name"}
    kept = {key: value for key, value in values.items() if key in naming and isinstance(value, str)}
    inner = values[path[0]]
    return kept | {path[0]: _only(inner, path[1:]) if len(path) > 1 else inner}
