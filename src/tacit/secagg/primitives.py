# pyright: reportMissingImports=false
"""The cryptography of a round, all of it from the package `cryptography` (extra `secagg`).

X25519 agrees on a secret, HKDF-SHA256 makes a key of it that is good for one purpose between two members in one round,
ChaCha20 stretches a key to a mask, ChaCha20-Poly1305 seals shares. Every key is used once.

Shamir's secret sharing over the prime field of 2^521 - 1.

A secret of 256 bits is the constant term of a random polynomial of degree t - 1; member x has its value at x.
Any t of these shares give the polynomial, and with fewer every secret is as likely as before. Whoever puts
shares together must check the secret: wrong shares give a wrong one (the server does, by what its owner had signed).
"""

import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.secagg.messages import SHARE_BYTES, Refused

PRIME: Final = 2**521 - 1
SECRET_BYTES: Final = 32


def split(secret: bytes, threshold: int, points: Sequence[int], source: Callable[[int], bytes]) -> dict[int, bytes]:
    """A share for each point; any `threshold` of them give the secret back, and fewer say nothing about it."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points) or len(set(points)) < len(points) or min(points) < 1:
        raise ValueError(f"{threshold} of the distinct positive points {list(points)[:5]} cannot be shared among")
    polynomial = [int.from_bytes(secret, "big"), *(_element(source) for _ in range(threshold - 1))]
    return {x: _value(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in points}


@lru_cache(maxsize=64)
def weights(points: tuple[int, ...]) -> Mapping[int, int]:
    """Lagrange's coefficients at zero: the secret is the sum of weight times share. Kept, because secrets are many."""
    coefficients = {}
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        coefficients[x] = above * pow(below, -1, PRIME) % PRIME
    return MappingProxyType(coefficients)


def combine(shares: Mapping[int, bytes], by: Mapping[int, int]) -> bytes | None:
    """The secret from shares by point, with `weights` of these points; None if there is none of its length."""
    secret = sum(weight * element(shares[x]) for x, weight in by.items()) % PRIME
    return secret.to_bytes(SECRET_BYTES, "big") if secret >> (8 * SECRET_BYTES) == 0 else None


def element(share: bytes) -> int:
    return int.from_bytes(share, "big")


def is_share(share: bytes) -> bool:
    return len(share) == SHARE_BYTES and element(share) < PRIME


def _value(polynomial: Sequence[int], x: int) -> int:
    """By Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _element(source: Callable[[int], bytes]) -> int:
    """Uniform: 521 random bits, again in the one case that they are the prime itself."""
    while True:
        drawn = int.from_bytes(source(SHARE_BYTES), "big") & PRIME
        if drawn < PRIME:
            return drawn


Source = Callable[[int], bytes]
"""So many secret, uniform bytes. Anything but `system` is for test vectors alone."""

system: Final[Source] = os.urandom

_ZERO_NONCE: Final = bytes(16)  # of a key that is used once
_SEAL_NONCE: Final = 12


class KeyPair(NamedTuple):
    private: bytes
    public: bytes


def key_pair(source: Source) -> KeyPair:
    private = source(32)
    return KeyPair(private, public_key(private))


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal_key(private: bytes, public: bytes, digest: bytes, sender: int, receiver: int) -> bytes:
    """For shares from `sender` to `receiver`: the other direction has another key."""
    return _derive(_agree(private, public), digest, b"seal" + struct.pack("<QQ", sender, receiver))


def pair_key(private: bytes, public: bytes, digest: bytes, one: int, other: int) -> bytes:
    """Of the mask that two members have in common: the same whoever of them asks."""
    return _derive(_agree(private, public), digest, b"pair" + struct.pack("<QQ", *sorted((one, other))))


def self_key(seed: bytes, digest: bytes, member: int) -> bytes:
    """Of a member's own mask."""
    return _derive(seed, digest, b"self" + struct.pack("<Q", member))


def seed_check(seed: bytes, digest: bytes, member: int) -> bytes:
    """Tells a right seed from a wrong one; it says nothing about the key of the mask."""
    return _derive(seed, digest, b"check" + struct.pack("<Q", member))


def mask(key: bytes, size: int) -> np.ndarray:
    """Uniform integers of 32 bits; their low bits are uniform, too."""
    stream = Cipher(algorithms.ChaCha20(key, _ZERO_NONCE), None).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), dtype="<u4")


def seal(key: bytes, plain: bytes, digest: bytes, source: Source) -> bytes:
    nonce = source(_SEAL_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, digest)


def unseal(key: bytes, box: bytes, digest: bytes) -> bytes | None:
    """What was sealed with this key in this round; None if nothing was."""
    try:
        return ChaCha20Poly1305(key).decrypt(box[:_SEAL_NONCE], box[_SEAL_NONCE:], digest)
    except (InvalidTag, ValueError):
        return None


def checksum(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of parts that cannot be confused: each has its length before it."""
    digest = hashlib.sha256(b"tacit secagg 1 " + label)
    for part in parts:
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.digest()


def _agree(private: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order, or not a key at all
        raise Refused(f"no secret can be agreed on with the public key {public.hex()[:16]}...") from None


def _derive(secret: bytes, digest: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=digest, info=b"tacit secagg 1 " + purpose).derive(secret)
