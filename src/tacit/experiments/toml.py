"""Plain values as TOML, written so that `tomllib` reads the same values back; and single values set by hand."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from tacit.errors import TacitError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(content: Mapping[str, Any]) -> str:
    """`tomllib.loads` of the text gives `content` back. Values: text, numbers, truth values, lists and tables of them.

    Keys without a value (None) are left out, since TOML has no word for nothing.
    """
    plain = {key: value for key, value in content.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for name, table in content.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
        return f"{{ {inner} }}" if inner else "{}"
    raise TacitError(f"{value!r} cannot be written as TOML: use text, numbers, lists or tables")


def _float(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    text = repr(value)
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _text(value: str) -> str:
    # JSON's escapes are TOML's but for DEL, and for surrogate pairs, which ensure_ascii would make
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def assign(content: dict[str, Any], path: list[str], text: str) -> None:
    """Sets the value at `path` of nested tables to what `text` says; an empty text takes it away."""
    *above, last = path
    for part in above:
        inner = content.setdefault(part, {})
        if not isinstance(inner, dict):  # a number gives way to a table: clip=0.1, then clip.start=0.2
            inner = content[part] = {}
        content = inner
    if text:
        content[last] = read_value(".".join(path), text)
    else:
        content.pop(last, None)


def read_value(key: str, text: str) -> Any:
    """A value as TOML; a bare word, a path or a name with dots and colons is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"-?\.\d+", text):  # .5, which TOML does not know
            return float(text)
        if re.fullmatch(r"[A-Za-z0-9_./:-]+", text):
            return text
        raise TacitError(f"the value of {key}={text} is not TOML: quote text, for example {key}='\"text\"'") from None
