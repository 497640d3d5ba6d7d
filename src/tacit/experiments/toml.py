"""Plain values as TOML, written so that `tomllib` reads the same values back."""

import json
import math
import re
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
