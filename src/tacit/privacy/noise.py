"""Sources of noise: seeded for simulation, the operating system's generator for deployment.

Gaussian noise on floats is not exactly the Gaussian of the theory (Mironov 2012); docs/pitfalls.md says what follows.
"""

import os
from collections.abc import Mapping
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit import rng, tree
from tacit.core import Tree
from tacit.privacy.integers import keyed_round, keyed_skellam, rounded, secure_skellam, secure_uniform


class Noise(Protocol):
    """A source of independent numbers: no two calls share one."""

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normals."""
        ...

    def skellam(self, size: int, variance: float) -> Tensor:
        """Integers: the difference of two Poisson numbers of mean variance / 2."""
        ...

    def round(self, values: Tensor, limit: float) -> Tensor:
        """Each value up or down to a whole number at random, until the squared norm is at most `limit`."""
        ...


def add(values: Mapping[str, Tensor], std: float | Tensor, noise: Noise) -> Tree:
    """`values` plus independent N(0, std^2) in every coordinate, 0-d leaves included."""
    if not values:
        return {}
    first = next(iter(values.values()))
    drawn = tree.unflatten(noise.normal(tree.size(values), first.dtype), values)
    return tree.axpy(std, drawn, values)


class Seeded:
    """Reproducible noise of one key (a [2] tensor, so that clients under `vmap` have one each)."""

    def __init__(self, key: Tensor) -> None:
        self._key = key
        self._calls = count()

    @classmethod
    def of(cls, seed: int, purpose: str, *parts: int) -> "Seeded":
        return cls(torch.tensor(rng.key(seed, purpose, *parts)))

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return _keyed_normal(self._key, next(self._calls), size, dtype)

    def next_call(self) -> tuple[Tensor, int]:
        """Its key, and the number of a call that is then taken: for `normal_rows`."""
        return self._key, next(self._calls)

    def skellam(self, size: int, variance: float) -> Tensor:
        return keyed_skellam(self._key, next(self._calls), size, variance)

    def round(self, values: Tensor, limit: float) -> Tensor:
        return keyed_round(values, self._key, next(self._calls), limit)


class Secure:
    """Noise from the operating system's cryptographic generator: nobody can draw it again."""

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        from scipy.special import ndtri

        words = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
        return torch.from_numpy(ndtri((words + 0.5) * 2.0**-53)).to(dtype)

    def skellam(self, size: int, variance: float) -> Tensor:
        return secure_skellam(size, variance)

    def round(self, values: Tensor, limit: float) -> Tensor:
        return torch.from_numpy(rounded(values.double().numpy(), secure_uniform, limit))


def _fill(row: np.ndarray[Any, Any], words: list[int], call: int) -> None:
    rng.stream((words[0], words[1]), call).standard_normal(out=row, dtype=row.dtype)


@torch.library.custom_op("tacit::keyed_normal", mutates_args=())
def _keyed_normal(key: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """Drawn on the CPU, whatever the device of the key: the same numbers everywhere."""
    out = torch.empty(size, dtype=dtype, device="cpu")
    _fill(out.numpy(), key.tolist(), call)
    return out.to(key.device)


def _keyed_normal_vmap(
    _info: Any, in_dims: tuple[int | None, ...], key: Tensor, call: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, int]:
    """One row a client, each from its own key: the same numbers as one client at a time."""
    return _keyed_normal_rows(key.movedim(in_dims[0] or 0, 0), call, size, dtype), 0


@torch.library.custom_op("tacit::keyed_normal_rows", mutates_args=())
def _keyed_normal_rows(keys: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """An operation of its own, so that a recorded program draws anew each time instead of repeating what it saw."""
    out = torch.empty(keys.shape[0], size, dtype=dtype, device="cpu")
    for row, words in zip(out.numpy(), keys.tolist(), strict=True):
        _fill(row, words, call)
    return out.to(keys.device)


_keyed_normal.register_vmap(_keyed_normal_vmap)


def normal_rows(keys: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """[clients, size]: what `Seeded` of each key draws in that call."""
    return _keyed_normal_rows(keys, call, size, dtype)
