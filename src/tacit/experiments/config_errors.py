"""What is wrong with a configuration, in one line: the key, its value and the remedy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from tacit.core.registry import nearest

_WORDS = {
    "greater_than": "give a number above {gt:g}",
    "greater_than_equal": "give at least {ge:g}",
    "less_than": "give a number below {lt:g}",
    "less_than_equal": "give at most {le:g}",
    "finite_number": "give a finite number",
    "int_type": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
    "string_type": 'give text in quotes, for example "text"',
    "list_type": "give a list, for example {key} = [...]",
    "dict_type": "write a table, for example [{key}]",
    "model_type": "write a table, for example [{key}]",
    "model_attributes_type": "write a table, for example [{key}]",
    "too_short": "give at least one",
    "string_too_long": "give at most {max_length} letters",
    "string_pattern_mismatch": "use letters, digits, '-', '_' and '.' only",
}


class Kinds(NamedTuple):
    """What may stand at a place: what does, in words, and the keys of each that could."""

    here: str
    keys: Mapping[str, Iterable[str]]


KindsAt = Callable[[Sequence[str]], Kinds | None]


def first_complaint(
    error: ValidationError, content: Mapping[str, Any], schema: type[BaseModel], kinds_at: KindsAt
) -> str:
    """Of the errors, the one that goes deepest into what was written: it is the most telling."""
    errors = error.errors(include_url=False)
    paths = [_path(each["loc"], content, each["type"]) for each in errors]
    place = max(range(len(errors)), key=lambda i: (_weight(errors[i]), len(paths[i]), -i))
    return _say(dict(errors[place]), paths[place], schema, kinds_at)


def _weight(error: Any) -> int:
    """Of a choice between kinds (number or table), what fails by value says more than what fails by kind."""
    return 0 if error["type"].endswith("_type") else 1


def _path(location: tuple[int | str, ...], content: Any, kind: str) -> list[str]:
    """The keys as written; pydantic's own marks for the branches of a choice are left out."""
    path: list[str] = []
    for at, part in enumerate(location):
        inside = isinstance(content, Mapping) and part in content
        if inside or (kind == "missing" and at == len(location) - 1):
            path.append(str(part))
            content = content.get(part) if isinstance(content, Mapping) else None
        elif isinstance(part, int) and isinstance(content, list) and part < len(content):
            content = content[part]
    return path


def _say(error: dict[str, Any], path: list[str], schema: type[BaseModel], kinds_at: KindsAt) -> str:
    key, value, kind = ".".join(path), error["input"], error["type"]
    if kind == "extra_forbidden":
        return _unknown(path, value, schema, kinds_at(path[:-1]) or Kinds("", {}))
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "missing":
        return f"{key} is missing: add it"
    if kind == "literal_error":
        return f"{key} is {value!r}: {nearest(str(value), _words(path, schema))}"
    remedy = _WORDS.get(kind)
    if remedy is None:
        return f"{key} is {value!r}: {error['msg'].removeprefix('Input ')}"
    return f"{key} is {value!r}: {remedy.format(**{'key': key, **error.get('ctx', {})})}"


def _unknown(path: list[str], value: Any, schema: type[BaseModel], kinds: Kinds) -> str:
    *above, name = path
    users = [kind for kind, keys in kinds.keys.items() if name in keys]
    if users:
        key, others = ".".join(path), ", ".join(users)
        return f"{key} is {value!r}, and {kinds.here} does not use it: leave it out, or use {others}"
    known = [field for place in _tables(schema, above) for field in place.model_fields]
    further = {key for keys in kinds.keys.values() for key in keys}
    near = get_close_matches(name, known, 1) or get_close_matches(name, further, 1)
    if not near:
        elsewhere = [f"{table}.{name}" for table, inner in _sections(schema) if name in inner.model_fields]
        near = elsewhere[:1] if elsewhere else (["rate"] if name in ("sampler", "share") and not above else [])
    hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}"
    return f"unknown key '{'.'.join(path)}': {hint}"


def _sections(schema: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in schema.model_fields.items():
        yield from ((name, kind) for kind in tables_in(field.annotation))


def _tables(schema: type[BaseModel], path: list[str]) -> Iterator[type[BaseModel]]:
    """The tables that may stand at `path`; a table of named tables (levels) takes any name."""
    if not path:
        yield schema
        return
    field = schema.model_fields.get(path[0])
    if field is None:
        return
    rest = path[2:] if getattr(field.annotation, "__origin__", None) is dict else path[1:]
    for kind in tables_in(field.annotation):
        yield from _tables(kind, rest)


def tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The tables that a value of this type may be or hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from tables_in(inner)


def _words(path: list[str], schema: type[BaseModel]) -> list[str]:
    *above, name = path
    fields = [table.model_fields[name] for table in _tables(schema, above) if name in table.model_fields]
    return [word for field in fields for word in _strings(field.annotation)]


def _strings(annotation: Any) -> Iterator[str]:
    if isinstance(annotation, str):
        yield annotation
    for inner in get_args(annotation):
        yield from _strings(inner)
