"""Sources of noise: seeded for simulation, the operating system's generator for deployment.

*Fast* noise is Gaussian and added to floats: not exactly the Gaussian of the theory (Mironov 2012), see
docs/pitfalls.md. *Exact* noise is discrete Gaussian and added to integers (`lattice`, `discrete_gaussian`): what
a federation's plans use, and a simulation's if it is asked for. Shares of noise are Skellam, on integers that were
rounded at random within a norm.

Each draw is an operation of its own, keyed: under `vmap` every client draws from its own key, and a recorded program
draws anew each time.
"""

import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng, tree
from tacit.core.contract import Tree
from tacit.core.tensors import from_array, register_vmap, to_list
from tacit.errors import TacitError
from tacit.privacy.mechanisms import keyed_normal
from tacit.privacy.mechanisms.discrete_gaussian import WordSource, keyed_words, sample, secure_words
from tacit.privacy.mechanisms.lattice import NO_NOISE, log_stds, place, step

NoiseKind = Literal["fast", "exact"]
_TRIES: Final = 10_000
_REACH: Final = 12.0  # standard deviations of a table of the Skellam distribution


class Noise(Protocol):
    """A source of independent numbers: no two calls share one."""

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normals."""
        ...

    def noisy(self, values: Tensor, std: Tensor, divisor: Tensor) -> Tensor:
        """(values + std times standard normals) / divisor."""
        ...

    def discrete(self, size: int, multiplier: Tensor) -> Tensor:
        """Integers: discrete Gaussian numbers of `lattice(multiplier).log_std`, exactly; zeros for no noise."""
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


def add_exactly(clipped: Mapping[str, Tensor], bound: float | Tensor, multiplier: Tensor, noise: Noise) -> Tree:
    """A clipped tree with noise of `multiplier` bounds: integers with discrete Gaussian noise, then in its own units.

    Two trees are at most 2 `lattice.limit` apart in integers, whatever they are; the rest is post-processing.
    """
    noisy = tree.unflatten(noisy_integers(clipped, bound, multiplier, noise), clipped)
    size = step(bound, multiplier)
    return tree.each(lambda leaf, original: (leaf.double() * size).to(original.dtype), noisy, clipped)


def noisy_integers(clipped: Mapping[str, Tensor], bound: float | Tensor, multiplier: Tensor, noise: Noise) -> Tensor:
    """A clipped tree as one vector on its lattice, with its noise. After `place` there are integers alone."""
    if not clipped:
        return torch.zeros(0, dtype=torch.int64)
    return place(tree.flatten(clipped), bound, multiplier) + noise.discrete(tree.size(clipped), multiplier)


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

    def noisy(self, values: Tensor, std: Tensor, divisor: Tensor) -> Tensor:
        return _keyed_noisy(values, self._key, next(self._calls), std, divisor)

    def discrete(self, size: int, multiplier: Tensor) -> Tensor:
        return _keyed_discrete(self._key, next(self._calls), size, log_stds(multiplier))

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

        return from_array(ndtri(rng.secure_open_uniform(size))).to(dtype)

    def noisy(self, values: Tensor, std: Tensor, divisor: Tensor) -> Tensor:
        drawn = self.normal(values.numel(), values.dtype).reshape(values.shape)
        return (values + std.to(values.dtype) * drawn) / divisor.to(values.dtype)

    def discrete(self, size: int, multiplier: Tensor) -> Tensor:
        log_std = int(log_stds(multiplier))
        return from_array(_drawn(size, log_std, secure_words))

    def skellam(self, size: int, variance: float) -> Tensor:
        return secure_skellam(size, variance)

    def round(self, values: Tensor, limit: float) -> Tensor:
        return from_array(rounded(values.double().numpy(), secure_uniform, limit))


@torch.library.custom_op("tacit::keyed_normal", mutates_args=())
def _keyed_normal(key: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """Drawn on the CPU, whatever the device of the key: the same numbers everywhere."""
    return _rows(key.unsqueeze(0), call, size, dtype).squeeze(0).to(key.device)


def _rows(keys: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """One row a key: from our own generator in single precision, from NumPy's in double."""
    if dtype == torch.float32:
        return keyed_normal.draw(keys, call, size)
    out = torch.empty(len(keys), size, dtype=dtype, device="cpu")
    for row, words in zip(out.numpy(), to_list(keys), strict=True):
        rng.stream((words[0], words[1]), call).standard_normal(out=row, dtype=row.dtype)
    return out


def _keyed_normal_vmap(
    _info: Any, in_dims: tuple[int | None, ...], key: Tensor, call: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, int]:
    """One row a client, each from its own key: the same numbers as one client at a time."""
    return _keyed_normal_rows(key.movedim(in_dims[0] or 0, 0), call, size, dtype), 0


@torch.library.custom_op("tacit::keyed_normal_rows", mutates_args=())
def _keyed_normal_rows(keys: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """An operation of its own, so that a recorded program draws anew each time instead of repeating what it saw."""
    return _rows(keys, call, size, dtype).to(keys.device)


register_vmap(_keyed_normal, _keyed_normal_vmap)


@torch.library.custom_op("tacit::keyed_noisy", mutates_args=())
def _keyed_noisy(values: Tensor, keys: Tensor, call: int, std: Tensor, divisor: Tensor) -> Tensor:
    """(values + std times the numbers of `tacit::keyed_normal`) / divisor, with a row of values for each row of keys.

    In single precision on the CPU the numbers are added as they are drawn, and are never stored.
    """
    rows = values.reshape(len(keys) if keys.dim() == 2 else 1, -1)
    keys, std, divisor = keys.reshape(-1, 2), std.reshape(-1).expand(len(rows)), divisor.reshape(-1).expand(len(rows))
    if values.dtype == torch.float32 and values.device.type == "cpu":
        return keyed_normal.add(rows, keys, call, std, divisor).reshape(values.shape)
    drawn = _rows(keys, call, rows.shape[1], rows.dtype).to(rows.device)
    std, divisor = (each.to(rows.dtype).unsqueeze(1) for each in (std, divisor))
    return ((rows + std * drawn) / divisor).reshape(values.shape)


def _keyed_noisy_vmap(
    info: Any,
    in_dims: tuple[int | None, ...],
    values: Tensor,
    keys: Tensor,
    call: int,
    std: Tensor,
    divisor: Tensor,
) -> tuple[Tensor, int]:
    def rows(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    parts = (rows(each, in_dims[at]) for each, at in ((values, 0), (keys, 1), (std, 3), (divisor, 4)))
    values, keys, std, divisor = parts
    return _keyed_noisy(values, keys, call, std, divisor), 0


register_vmap(_keyed_noisy, _keyed_noisy_vmap)


def _drawn(size: int, log_std: int, words: WordSource) -> np.ndarray[Any, Any]:
    return np.zeros(size, np.int64) if log_std == NO_NOISE else sample(size, log_std, words)


@torch.library.custom_op("tacit::keyed_discrete", mutates_args=())
def _keyed_discrete(keys: Tensor, call: int, size: int, log_std: Tensor) -> Tensor:
    """One row for each key, from that key alone."""
    rows = np.empty((*keys.shape[:-1], size), np.int64)
    exponents = to_list(log_std.expand(keys.shape[:-1]).reshape(-1))
    for row, words, each in zip(rows.reshape(-1, size), to_list(keys.reshape(-1, 2)), exponents, strict=True):
        row[:] = _drawn(size, each, keyed_words(rng.stream((words[0], words[1]), call)))
    return from_array(rows).to(keys.device)


def _keyed_discrete_vmap(
    info: Any, in_dims: tuple[int | None, ...], keys: Tensor, call: int, size: int, log_std: Tensor
) -> tuple[Tensor, int]:
    def rows(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    return _keyed_discrete(rows(keys, in_dims[0]), call, size, rows(log_std, in_dims[3])), 0


register_vmap(_keyed_discrete, _keyed_discrete_vmap)


def normal_rows(keys: Tensor, call: int, size: int, dtype: torch.dtype) -> Tensor:
    """[clients, size]: what `Seeded` of each key draws in that call."""
    return _keyed_normal_rows(keys, call, size, dtype)


def exact_rows(clipped: Tensor, bound: float, multipliers: Tensor, keys: Tensor, call: int) -> Tensor:
    """[clients, size] with exact noise of each client's own multiplier and key: `add_exactly`, row by row."""
    integers = place(clipped, torch.full_like(multipliers, bound), multipliers)
    noisy = integers + _keyed_discrete(keys, call, clipped.shape[1], log_stds(multipliers))
    return (noisy.double() * step(bound, multipliers).unsqueeze(1)).to(clipped.dtype)


def rounded(values: np.ndarray, draw: Callable[[int], np.ndarray], limit: float) -> np.ndarray:
    """Each coordinate up or down at random, unbiased; all of them again until the squared norm is at most `limit`."""
    low = np.floor(values)
    share = values - low
    for _ in range(_TRIES):
        candidate = low + (draw(len(values)) < share)
        if candidate @ candidate <= limit:
            return candidate.astype(np.int64)
    raise TacitError(f"no rounding has a squared norm of at most {limit:g}: the values were not clipped before")


def secure_uniform(size: int) -> np.ndarray:
    """From the operating system's cryptographic generator, on a grid of 2^-53."""
    return (np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)) * 2.0**-53


def secure_skellam(size: int, variance: float) -> Tensor:
    """From the operating system's generator, by the inverse of the distribution function: exact to about 2^-52."""
    from scipy.special import ive

    reach = int(_REACH * variance**0.5 + 40)
    below = np.cumsum(ive(np.abs(np.arange(-reach, reach + 1)), variance))
    return from_array(np.searchsorted(below / below[-1], secure_uniform(size), side="right") - reach)


@torch.library.custom_op("tacit::keyed_skellam", mutates_args=())
def keyed_skellam(keys: Tensor, call: int, size: int, variance: float) -> Tensor:
    """Differences of two Poisson numbers of mean variance / 2, one row for each key."""
    rows = np.empty((*keys.shape[:-1], size), np.int64)
    for row, words in zip(rows.reshape(-1, size), to_list(keys.reshape(-1, 2)), strict=True):
        draw = rng.stream((words[0], words[1]), call)
        row[:] = draw.poisson(variance / 2, size)
        row -= draw.poisson(variance / 2, size)
    return from_array(rows).to(keys.device)


def _skellam_vmap(
    _info: Any, in_dims: tuple[int | None, ...], keys: Tensor, call: int, size: int, variance: float
) -> tuple[Tensor, int]:
    return keyed_skellam(keys.movedim(in_dims[0] or 0, 0), call, size, variance), 0


register_vmap(keyed_skellam, _skellam_vmap)


@torch.library.custom_op("tacit::keyed_round", mutates_args=())
def keyed_round(values: Tensor, keys: Tensor, call: int, limit: float) -> Tensor:
    """`rounded`, one row for each key."""
    rows = np.empty(tuple(values.shape), np.int64)
    size = values.shape[-1]
    numbers = values.double().cpu().numpy().reshape(-1, size)
    for row, value, words in zip(rows.reshape(-1, size), numbers, to_list(keys.reshape(-1, 2)), strict=True):
        row[:] = rounded(value, rng.stream((words[0], words[1]), call).random, limit)
    return from_array(rows).to(values.device)


def _round_vmap(
    info: Any, in_dims: tuple[int | None, ...], values: Tensor, keys: Tensor, call: int, limit: float
) -> tuple[Tensor, int]:
    def rows(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    return keyed_round(rows(values, in_dims[0]), rows(keys, in_dims[1]), call, limit), 0


register_vmap(keyed_round, _round_vmap)
