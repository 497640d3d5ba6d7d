"""What members agree on, everything that is sent in a round, and its bytes on the wire.

Each message names the terms it belongs to by their digest, so that one of another round, run or attempt is refused.

    stage             server to client        client to server
    advertise keys    Terms                   Offer
    share keys        Offers                  Shares
    masked input      Delivery                Masked
    consistency       Survivors               Confirmation
    unmask            Confirmations           Unmasking

`Terms` are agreed on before anything secret exists; `Refused` and `Discarded` are the ways in which a round can fail.

*Bytes.* Frozen dataclasses and back, by their fields' types: one encoding for each value, and no other is read.

Integers have eight bytes, texts and bytes their length before them, tuples their number of items: all little-endian.

Integers modulo 2^b, packed without gaps: b bits each, the lowest bit first.
"""

import hashlib
import math
import struct
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

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


MOST_BITS: Final = 32
_MOST_ID: Final = 2**64


class Refused(TacitError):
    """A message or a request that is not acceptable; whoever refused it is as it was before."""


class Discarded(TacitError):
    """The round has no sum. It is charged all the same: members may have sent what depends on their data."""


class TooFew(Discarded):
    """Fewer members than the terms demand."""


class Spoiled(Discarded):
    """Shares that do not fit together: somebody sent wrong ones."""


@dataclass(frozen=True)
class Terms:
    """One round's public parameters. Its digest enters every key, signature and message of the round.

    `threshold`: members who must stay to the end, more than half of all, so that no two sets of survivors can both be
    unmasked. `least`: survivors whose inputs must be in the sum, or no member helps to unmask it.
    """

    run: str
    round: int
    members: tuple[int, ...]  # the cohort, present or not, in rising order
    size: int  # numbers in an input
    bits: int
    threshold: int
    least: int
    attempt: int = 0  # distinguishes a repeated round

    def __post_init__(self) -> None:
        n = len(self.members)
        if not n or list(self.members) != sorted(set(self.members)):
            raise TacitError(f"members must be distinct and in rising order, not {_short(self.members)}")
        if self.members[0] < 0 or self.members[-1] >= _MOST_ID:
            raise TacitError(f"a member's number lies between 0 and 2^64 - 1, not {_short(self.members)}")
        if not 1 <= self.bits <= MOST_BITS:
            raise TacitError(f"bits must lie between 1 and {MOST_BITS}, not {self.bits}")
        if not n < 2 * self.threshold <= 2 * n:
            raise TacitError(f"threshold must be more than half of {n} members and no more than all: {self.threshold}")
        if not self.threshold <= self.least <= n:
            raise TacitError(f"least must lie between the threshold {self.threshold} and {n} members, not {self.least}")
        for name in ("round", "attempt", "size"):
            if not 0 <= getattr(self, name) < 2**63:
                raise TacitError(f"{name} must not be negative, but is {getattr(self, name)}")

    @classmethod
    def of(
        cls,
        run: str,
        round: int,
        members: tuple[int, ...],
        *,
        size: int,
        bits: int,
        least: int = 1,
        share: float = 0.5,
        attempt: int = 0,
    ) -> "Terms":
        """`share` of the members unmask, and a majority at the least; at least `least` inputs are in the sum."""
        threshold = threshold_of(len(members), share)
        return cls(run, round, tuple(sorted(members)), size, bits, threshold, max(least, threshold), attempt)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(b"tacit secagg 1 terms" + dump(self)).digest()

    @cached_property
    def points(self) -> dict[int, int]:
        """Where each member's shares lie on the polynomials: 1 to n, in the order of members."""
        return {member: place for place, member in enumerate(self.members, 1)}


def threshold_of(members: int, share: float = 0.5) -> int:
    """How many of so many members must stay to the end: a `share` of them, and always more than half."""
    return max(members // 2 + 1, math.ceil(share * members - 1e-9))  # 0.7 * 10 is a little more than 7


def _short(members: tuple[int, ...]) -> str:
    return str(list(members[:5]))[:-1] + (", ...]" if len(members) > 5 else "]")


MAGIC: Final = b"tacit-secagg\x01"  # the last byte is the version
KEY_BYTES: Final = 32
SHARE_BYTES: Final = 66
_SEALED_BYTES: Final = 12 + 2 * SHARE_BYTES + 16  # nonce, two shares, tag
_SIGNATURE_ROOM: Final = 256


@dataclass(frozen=True)
class Offer:
    """A member's two public keys of this round, signed with the key that the others know it by."""

    digest: bytes
    sender: int
    seal_key: bytes  # for sending shares
    mask_key: bytes  # for pairwise masks
    seed_check: bytes  # a one-way function of the seed of its own mask
    signature: bytes


@dataclass(frozen=True)
class Offers:
    digest: bytes
    offers: tuple[Offer, ...]


@dataclass(frozen=True)
class Sealed:
    """Two shares that only `other` can read; in a `Delivery`, that only `other` can have sealed."""

    other: int
    box: bytes


@dataclass(frozen=True)
class Shares:
    digest: bytes
    sender: int
    sealed: tuple[Sealed, ...]


@dataclass(frozen=True)
class Delivery:
    """The shares meant for `receiver`, of all who sent some: with itself they are the round's participants."""

    digest: bytes
    receiver: int
    sealed: tuple[Sealed, ...]


@dataclass(frozen=True)
class Masked:
    digest: bytes
    sender: int
    body: bytes  # `size` integers of `bits` bits, packed


@dataclass(frozen=True)
class Survivors:
    """Whose inputs are in the sum."""

    digest: bytes
    members: tuple[int, ...]


@dataclass(frozen=True)
class Confirmation:
    """The sender's signature over what it saw: everybody's keys, who shared, who survived."""

    digest: bytes
    sender: int
    signature: bytes


@dataclass(frozen=True)
class Confirmations:
    digest: bytes
    confirmations: tuple[Confirmation, ...]


@dataclass(frozen=True)
class Part:
    """One share of a secret of `owner`."""

    owner: int
    share: bytes


@dataclass(frozen=True)
class Unmasking:
    """Shares of the mask keys of those who dropped out, and of the seeds of those who survived."""

    digest: bytes
    sender: int
    keys: tuple[Part, ...]
    seeds: tuple[Part, ...]


FromClient = Offer | Shares | Masked | Confirmation | Unmasking
FromServer = Terms | Offers | Delivery | Survivors | Confirmations

KINDS: Final[tuple[type, ...]] = (
    Terms,
    Offer,
    Offers,
    Shares,
    Delivery,
    Masked,
    Survivors,
    Confirmation,
    Confirmations,
    Unmasking,
)


def encode(message: FromClient | FromServer) -> bytes:
    return MAGIC + bytes([KINDS.index(type(message))]) + dump(message)


def decode(blob: bytes, limit: int | None = None) -> Any:
    """The message that these bytes are; raises `Refused` for anything else, and before reading if it is too long."""
    if limit is not None and len(blob) > limit:
        raise Refused(f"a message of {len(blob):,} bytes, but none of this round has more than {limit:,}")
    head = len(MAGIC)
    if blob[:head] != MAGIC or len(blob) == head or blob[head] >= len(KINDS):
        raise Refused(f"not a message of this version of secure aggregation: it begins with {bytes(blob[:16])!r}")
    try:
        return load(KINDS[blob[head]], bytes(blob[head + 1 :]))
    except TacitError as error:
        raise Refused(f"a malformed {KINDS[blob[head]].__name__}: {error}") from None


def largest(terms: Terms) -> int:
    """No message from a client of this round has more bytes."""
    n = len(terms.members)
    frame = len(MAGIC) + 1 + 4 + 32 + 8 + 8  # head, digest, sender, lengths
    masked = packed_bytes(terms.size, terms.bits)
    return frame + max(masked, n * (12 + _SEALED_BYTES), n * (12 + SHARE_BYTES), 3 * (4 + KEY_BYTES) + _SIGNATURE_ROOM)
