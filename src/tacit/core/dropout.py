"""Dropout masks that depend on what they are for, and on nothing else.

A mask is a pure function of (seed, round, client, step, row of the client, number of the draw): the same for any chunk
size, number of threads, engine and place in a batch, in a recorded program and after a resume. No data reach it, so a
bound that holds for every model holds for what a mask leaves of one. Masks need not be secret.

The bits are SplitMix64's (Steele, Lea and Flood 2014), from a state that is a hash of the key.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from threading import local
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tacit.core import rng
from tacit.core.tensors import register_vmap

_GOLDEN: Final = -0x61C8864680B583EB  # 2^64 / golden ratio, and the two factors of SplitMix64, as signed words
_FACTORS: Final = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


class Key(NamedTuple):
    """Whose masks: `words` [rows, n] are the integers that tell examples apart (round, client, row)."""

    words: Tensor
    seed: int = 0
    step: int = 0


class Draws:
    """The masks of one gradient, draw after draw."""

    def __init__(self, key: Key, calls: list[int] | None = None) -> None:
        self.key, self.calls = key, [] if calls is None else calls

    @property
    def rows(self) -> int:
        return self.key.words.shape[0]

    def keep(self, shape: tuple[int, ...], p: float) -> Tensor:
        """True with probability 1 - p, to 2^-32, all independent: [rows, *shape]."""
        begin, _ = rng.key(self.key.seed, "dropout", self.key.step, len(self.calls))
        self.calls.append(math.prod(shape))
        return _keep(self.key.words, begin, math.prod(shape), p).reshape(self.rows, *shape)

    def of_row(self, words: Tensor) -> "Draws":
        """The draws that follow, for one row of the words [n]."""
        return Draws(self.key._replace(words=words.unsqueeze(0)), self.calls)


_thread = local()


def draws() -> Draws | None:
    """Those of the gradient that this thread computes; None where nothing is trained, and nothing is dropped."""
    return getattr(_thread, "draws", None)


@contextmanager
def drawing(new: Draws | Key | None) -> Generator[None]:
    """Within, models drop what these draws (or the first draws of this key) say."""
    before, _thread.draws = draws(), Draws(new) if isinstance(new, Key) else new
    try:
        yield
    finally:
        _thread.draws = before


@torch.library.custom_op("tacit::dropout_keep", mutates_args=())
def _keep(words: Tensor, begin: int, numbers: int, p: float) -> Tensor:
    """[..., numbers] for words [..., n]. An operation of its own: a recorded program draws anew each time."""
    state = torch.full_like(words[..., 0], begin)
    for word in words.unbind(-1):
        state = _mix((state ^ word) + _GOLDEN)
    places = torch.arange(1, numbers // 2 + 2, device=words.device) * _GOLDEN
    bits = _mix(state.unsqueeze(-1) + places).view(torch.int32)  # two numbers of 32 bits from each
    return bits[..., :numbers] >= round(p * 2**32) - 2**31


def _keep_vmap(
    _info: Any, in_dims: tuple[int | None, ...], words: Tensor, begin: int, numbers: int, p: float
) -> tuple[Tensor, int]:
    return _keep(words.movedim(in_dims[0] or 0, 0), begin, numbers, p), 0


register_vmap(_keep, _keep_vmap)


def _mix(state: Tensor) -> Tensor:
    """A new tensor: every bit of a word depends on all of its bits."""
    state = state ^ (state >> 30 & (1 << 34) - 1)
    state.mul_(_FACTORS[0])
    state ^= state >> 27 & (1 << 37) - 1
    state.mul_(_FACTORS[1])
    state ^= state >> 31 & (1 << 33) - 1
    return state
