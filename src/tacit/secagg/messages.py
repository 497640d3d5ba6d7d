"""Everything that is sent in a round, and its bytes on the wire.

Each message names the terms it belongs to by their digest, so that one of another round, run or attempt is refused.

    stage             server to client        client to server
    advertise keys    Terms                   Offer
    share keys        Offers                  Shares
    masked input      Delivery                Masked
    consistency       Survivors               Confirmation
    unmask            Confirmations           Unmasking
"""

from dataclasses import dataclass
from typing import Any, Final

from tacit.errors import TacitError
from tacit.secagg.codec import dump, load, packed_bytes
from tacit.secagg.terms import Refused, Terms

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
