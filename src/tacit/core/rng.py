"""Randomness that depends on what it is for, and on nothing else.

Every draw is keyed by (seed, purpose, round, client): the result does not depend on chunk size, number of
threads, or the order in which clients run. Distinct keys give independent streams (Philox, 128-bit keys).
"""

import hashlib
import math
import os
from collections.abc import Iterable
from threading import local
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEY_WORDS: Final = 2
_DIGEST: Final = 8 * KEY_WORDS  # bytes
_NOTHING: Final = np.zeros(4, np.uint64)


def key(seed: int, purpose: str, *parts: int) -> tuple[int, int]:
    """A 128-bit key, as two signed 64-bit words so that it fits in an integer tensor."""
    words = np.frombuffer(_digest(seed, purpose, *parts), dtype=np.int64)
    return int(words[0]), int(words[1])


def keys(seed: int, purpose: str, round: int, clients: Iterable[int]) -> np.ndarray:
    """`key(seed, purpose, round, client)` of each client [clients, 2]."""
    begun = hashlib.blake2b(f"{seed}/{purpose}/{round}/".encode(), digest_size=_DIGEST)
    digests: list[bytes] = []
    for client in clients:
        one = begun.copy()
        one.update(str(client).encode())
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), np.int64).reshape(-1, KEY_WORDS)


def _digest(seed: int, purpose: str, *parts: int) -> bytes:
    text = "/".join([str(seed), purpose, *map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()


def stream(words: tuple[int, int], call: int = 0) -> np.random.Generator:
    """The generator of one key; each `call` has 2**128 numbers of its own."""
    low, high = (word & 0xFFFF_FFFF_FFFF_FFFF for word in words)
    return np.random.Generator(np.random.Philox(key=low | high << 64, counter=call << 128))


def generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    return stream(key(seed, purpose, *parts))


def uniforms(shape: tuple[int, ...], seed: int, purpose: str, *parts: int) -> np.ndarray:
    """The first numbers of `generator(seed, purpose, *parts)`, uniform in [0, 1), in a tenth of its time.

    A new generator asks the operating system for a seed that it then does not use; a thread's own is taken back to the
    start of a stream instead.
    """
    if not hasattr(_own, "draw"):
        _own.draw = np.random.Generator(np.random.Philox(key=0))
    words = np.frombuffer(_digest(seed, purpose, *parts), np.uint64)
    _own.draw.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _NOTHING, "key": words},
        "buffer": _NOTHING,
        "buffer_pos": len(_NOTHING),
        "has_uint32": 0,
        "uinteger": 0,
    }
    return _own.draw.random(shape)


_own = local()


def secure_open_uniform(size: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Odd multiples of 2^-53 from the operating system's generator: as fine near 1 as near 0, and neither of them.

    52 random bits and one more place are exact in a float; with 53 the largest would be rounded to 1.
    """
    words = np.frombuffer(os.urandom(8 * math.prod(np.atleast_1d(size).tolist())), dtype=np.uint64) >> np.uint64(12)
    return np.asarray((2 * words + np.uint64(1)) * 2.0**-53, dtype=np.float64).reshape(size)
