"""Shamir's secret sharing over the prime field of 2^521 - 1.

A secret of 256 bits is the constant term of a random polynomial of degree t - 1; member x has its value at x.
Any t of these shares give the polynomial, and with fewer every secret is as likely as before. Whoever puts
shares together must check the secret: wrong shares give a wrong one (the server does, by what its owner had signed).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from tacit.secagg.messages import SHARE_BYTES

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
    found = {}
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found[x] = above * pow(below, -1, PRIME) % PRIME
    return MappingProxyType(found)


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
