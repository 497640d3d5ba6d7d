"""Frozen dataclasses as bytes and back, by their fields' types: one encoding for each value, and no other is read.

Integers have eight bytes, texts and bytes their length before them, tuples their number of items: all little-endian.

Integers modulo 2^b, packed without gaps: b bits each, the lowest bit first.
"""

import struct
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from tacit.errors import TacitError


def residues(values: np.ndarray, bits: int) -> np.ndarray:
    """Any integers, as numbers of 0 to 2^b - 1."""
    if values.dtype.kind not in "iu":
        raise TacitError(f"only integers can be summed modulo 2^{bits}, not {values.dtype}: round them first")
    return (values & ((1 << bits) - 1)).astype(np.uint32)


def add_signed(total: np.ndarray, mask: np.ndarray, plus: bool) -> np.ndarray:
    """Modulo 2^32, and so modulo every smaller power of two."""
    return total + mask if plus else total - mask


def packed_bytes(size: int, bits: int) -> int:
    return (size * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """`values` are residues of 32 bits."""
    if bits == 32:
        return values.astype("<u4").tobytes()
    single = np.unpackbits(values.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, count=bits, bitorder="little")
    return np.packbits(single, bitorder="little").tobytes()


def unpack(body: bytes, size: int, bits: int) -> np.ndarray | None:
    """What was packed; None if nothing of this size packs to these bytes."""
    if len(body) != packed_bytes(size, bits):
        return None
    if bits == 32:
        return np.frombuffer(body, "<u4")
    single = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
    if single[size * bits :].any():
        return None
    wide = np.zeros((size, 32), np.uint8)
    wide[:, :bits] = single[: size * bits].reshape(size, bits)
    return np.packbits(wide, axis=1, bitorder="little").view("<u4").reshape(size)


Value = TypeVar("Value")


class Malformed(TacitError):
    """Bytes that no value encodes to."""


def dump(value: Any) -> bytes:
    """Two values of one type have the same bytes only if they are equal."""
    parts: list[bytes] = []
    _write(type(value), value, parts.append)
    return b"".join(parts)


def load(kind: type[Value], blob: bytes) -> Value:
    """The value whose `dump` is exactly `blob`."""
    value, end = _read(kind, blob, 0)
    if end != len(blob):
        raise Malformed(f"{len(blob) - end:,} bytes follow the end of a {kind.__name__}")
    return value


def _write(kind: Any, value: Any, out: Callable[[bytes], None]) -> None:
    if kind is int:
        out(struct.pack("<Q", value))
    elif kind is bytes or kind is str:
        raw = value.encode() if kind is str else value
        out(struct.pack("<I", len(raw)))
        out(raw)
    elif get_origin(kind) is tuple:
        out(struct.pack("<I", len(value)))
        for each in value:
            _write(get_args(kind)[0], each, out)
    else:
        for name, of in _fields(kind):
            _write(of, getattr(value, name), out)


def _read(kind: Any, blob: bytes, at: int) -> tuple[Any, int]:
    if kind is int:
        return int.from_bytes(_take(blob, at, 8), "little"), at + 8
    if kind is bytes or kind is str:
        end = at + 4 + (length := _count(blob, at))
        raw = _take(blob, at + 4, length)
        return (_text(raw) if kind is str else raw), end
    values, of = [], _items(kind, blob, at)
    at += 4 if get_origin(kind) is tuple else 0
    for each in of:
        value, at = _read(each, blob, at)
        values.append(value)
    return (tuple(values) if get_origin(kind) is tuple else _made(kind, values)), at


def _items(kind: Any, blob: bytes, at: int) -> list[Any]:
    """The types of what follows: a tuple's items, or a dataclass's fields."""
    if get_origin(kind) is not tuple:
        return [of for _, of in _fields(kind)]
    count = _count(blob, at)
    if count > len(blob) - at:  # an item has at least a byte
        raise Malformed(f"{count:,} items are announced in {len(blob) - at:,} bytes")
    return [get_args(kind)[0]] * count


def _count(blob: bytes, at: int) -> int:
    return int.from_bytes(_take(blob, at, 4), "little")


def _take(blob: bytes, at: int, length: int) -> bytes:
    if at + length > len(blob):
        raise Malformed(f"the message ends after {len(blob):,} bytes, but {at + length:,} are needed")
    return bytes(blob[at : at + length])


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Malformed(f"a text is not UTF-8: {raw[:20]!r}") from None


def _made(kind: Any, values: list[Any]) -> Any:
    return kind(*values)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(kind, types.GenericAlias) or not is_dataclass(kind):
        raise TypeError(f"no encoding for {kind}")
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))
