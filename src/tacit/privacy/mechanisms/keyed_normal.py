"""Standard normal numbers of a key, in single precision: what seeded noise is made of.

*Claim.* Number i of a call is a function of (key, call, i) and of nothing else: not of how many are drawn together, of
threads or of chunks. Distinct (key, call) never use the same block of the generator. *Proof.* Block b of a call is
Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), a permutation of counters for each
key, of the counter (b, call, high half of our key) under the low half. Where two keys have the same low half their
counters differ; where they have not, the permutation does.

A block is four words, two pairs of a radius and an angle (Box and Muller): four numbers, of at most 6.8 in size. They
are single-precision floats for *simulation*; a federation draws exact noise from the operating system
(`discrete_gaussian`).

The reference is NumPy. Where a C compiler is found `keyed_normal.c` does the same, equal to about 1e-6, at a tenth of
the time, and adds it to what it is for in the same trip through memory.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit import c_library
from tacit.core.tensors import from_array
from tacit.errors import TacitError

SOURCE: Final = Path(__file__).resolve().with_suffix(".c")
BLOCKS: Final = 16  # of a tile: its numbers are ordered by their place in a block, then by block
_WORDS: Final = 4
_ROUNDS: Final = 10
_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(32)
_MOST: Final = 1 << 32  # blocks and calls are counted in 32 bits

Array = np.ndarray[Any, Any]


@cache
def library() -> ctypes.CDLL | None:
    """The C version, or None where there is no compiler."""
    return c_library.load([SOURCE])


def draw(keys: Tensor, call: int, size: int) -> Tensor:
    """[rows, size] standard normals in single precision, each row of its own key; keys are [rows, 2] integers.

    Raises:
        TacitError: more numbers or calls than 32 bits count.
    """
    _check(call, size)
    if (compiled := library()) is None:
        return from_array(reference(keys.cpu().numpy(), call, size))
    keys, out = keys.cpu().contiguous(), torch.empty(len(keys), size)
    c_library.call(compiled, "normals", (out, keys), len(keys), size, call)
    return out


def add(values: Tensor, keys: Tensor, call: int, std: Tensor, divisor: Tensor) -> Tensor:
    """(values + std times what `draw` gives) / divisor: values [rows, size], std and divisor [rows]."""
    rows, size = values.shape
    _check(call, size)
    if (compiled := library()) is None:
        return (values + std.unsqueeze(1) * draw(keys, call, size)) / divisor.unsqueeze(1)
    parts = (values, keys, std.to(values.dtype), divisor.to(values.dtype))
    values, keys, std, divisor = (part.contiguous() for part in parts)
    out = torch.empty_like(values)
    c_library.call(compiled, "noisy", (out, values, keys, std, divisor), rows, size, call)
    return out


def _check(call: int, size: int) -> None:
    if not 0 <= call < _MOST or size >= _MOST * _WORDS:
        raise TacitError(
            f"call {call} for {size} numbers is more than a key's generator has: at most {_MOST:,} calls of "
            f"{_MOST * _WORDS:,} numbers"
        )


def philox(counters: Array, keys: Array) -> Array:
    """Philox4x32-10 of counters [..., 4] under keys [..., 2]: words in 64-bit integers, as they are multiplied."""
    c, k = [counters[..., i] for i in range(_WORDS)], [keys[..., i] for i in range(2)]
    for _ in range(_ROUNDS):
        first, second = c[0] * np.uint64(_FACTORS[0]), c[2] * np.uint64(_FACTORS[1])
        c = [(second >> _SHIFT) ^ c[1] ^ k[0], second & _LOW, (first >> _SHIFT) ^ c[3] ^ k[1], first & _LOW]
        k = [(word + np.uint64(step)) & _LOW for word, step in zip(k, _KEY_STEPS, strict=True)]
    return np.stack(c, -1)


def reference(keys: Array, call: int, size: int) -> Array:
    """What `draw` gives, in NumPy."""
    tiles = -(-size // (BLOCKS * _WORDS))
    low, high = (np.ascontiguousarray(keys).view(np.uint64)[:, i, None] for i in range(2))
    shape = len(keys), tiles * BLOCKS
    counter = (np.arange(shape[1], dtype=np.uint64), np.uint64(call), high & _LOW, high >> _SHIFT)
    counters = np.stack([np.broadcast_to(word, shape) for word in counter], -1)
    words = philox(counters, np.stack([np.broadcast_to(word, shape) for word in (low & _LOW, low >> _SHIFT)], -1))
    radius = np.sqrt(-2 * np.log((words[..., 0::2] + 0.5) / _MOST))
    angle = 2 * np.pi * words[..., 1::2] / _MOST
    numbers = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)  # [rows, blocks, pairs, 2]
    tiled = numbers.reshape(len(keys), tiles, BLOCKS, _WORDS).swapaxes(2, 3)
    return tiled.reshape(len(keys), -1)[:, :size].astype(np.float32)
