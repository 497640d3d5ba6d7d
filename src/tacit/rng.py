"""Randomness that depends on what it is for, and on nothing else.

Every draw is keyed by (seed, purpose, round, client): the result does not depend on chunk size, number of
threads, or the order in which clients run. Distinct keys give independent streams (Philox, 128-bit keys).
"""

import hashlib
from typing import Final

import numpy as np

KEY_WORDS: Final = 2


def key(seed: int, purpose: str, *parts: int) -> tuple[int, int]:
    """A 128-bit key, as two signed 64-bit words so that it fits in an integer tensor."""
    text = "/".join([str(seed), purpose, *map(str, parts)])
    words = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), dtype=np.int64)
    return int(words[0]), int(words[1])


def stream(words: tuple[int, int], call: int = 0) -> np.random.Generator:
    """The generator of one key; each `call` has 2**128 numbers of its own."""
    low, high = (word & 0xFFFF_FFFF_FFFF_FFFF for word in words)
    return np.random.Generator(np.random.Philox(key=low | high << 64, counter=call << 128))


def generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    return stream(key(seed, purpose, *parts))
