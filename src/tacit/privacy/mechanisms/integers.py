"""Random integers on a client: stochastic rounding within a norm, and shares of Skellam noise.

Each draw is an operation of its own, keyed like the Gaussian ones: under `vmap` every client draws from its own key,
and a recorded program draws anew each time.
"""

import os
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng
from tacit.errors import TacitError

_TRIES: Final = 10_000
_REACH: Final = 12.0  # standard deviations of a table of the Skellam distribution


def rounded(values: np.ndarray, draw: Any, limit: float) -> np.ndarray:
    """Each coordinate up or down at random, unbiased; all of them again until the squared norm is at most `limit`."""
    low = np.floor(values)
    share = values - low
    for _ in range(_TRIES):
        found = low + (draw(len(values)) < share)
        if found @ found <= limit:
            return found.astype(np.int64)
    raise TacitError(f"no rounding has a squared norm of at most {limit:g}: the values were not clipped before")


def secure_uniform(size: int) -> np.ndarray:
    """From the operating system's cryptographic generator, on a grid of 2^-53."""
    return (np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)) * 2.0**-53


def secure_skellam(size: int, variance: float) -> Tensor:
    """From the operating system's generator, by the inverse of the distribution function: exact to about 2^-52."""
    from scipy.special import ive

    reach = int(_REACH * variance**0.5 + 40)
    below = np.cumsum(ive(np.abs(np.arange(-reach, reach + 1)), variance))
    return torch.from_numpy(np.searchsorted(below / below[-1], secure_uniform(size), side="right") - reach)


@torch.library.custom_op("tacit::keyed_skellam", mutates_args=())
def keyed_skellam(keys: Tensor, call: int, size: int, variance: float) -> Tensor:
    """Differences of two Poisson numbers of mean variance / 2, one row for each key."""
    rows = np.empty((*keys.shape[:-1], size), np.int64)
    for row, words in zip(rows.reshape(-1, size), keys.reshape(-1, 2).tolist(), strict=True):
        draw = rng.stream((words[0], words[1]), call)
        row[:] = draw.poisson(variance / 2, size)
        row -= draw.poisson(variance / 2, size)
    return torch.from_numpy(rows).to(keys.device)


def _skellam_vmap(
    _info: Any, in_dims: tuple[int | None, ...], keys: Tensor, call: int, size: int, variance: float
) -> tuple[Tensor, int]:
    return keyed_skellam(keys.movedim(in_dims[0] or 0, 0), call, size, variance), 0


keyed_skellam.register_vmap(_skellam_vmap)


@torch.library.custom_op("tacit::keyed_round", mutates_args=())
def keyed_round(values: Tensor, keys: Tensor, call: int, limit: float) -> Tensor:
    """`rounded`, one row for each key."""
    rows = np.empty(tuple(values.shape), np.int64)
    size = values.shape[-1]
    given = values.double().cpu().numpy().reshape(-1, size)
    for row, value, words in zip(rows.reshape(-1, size), given, keys.reshape(-1, 2).tolist(), strict=True):
        row[:] = rounded(value, rng.stream((words[0], words[1]), call).random, limit)
    return torch.from_numpy(rows).to(values.device)


def _round_vmap(
    info: Any, in_dims: tuple[int | None, ...], values: Tensor, keys: Tensor, call: int, limit: float
) -> tuple[Tensor, int]:
    def rows(value: Tensor, dim: int | None) -> Tensor:
        return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)

    return keyed_round(rows(values, in_dims[0]), rows(keys, in_dims[1]), call, limit), 0


keyed_round.register_vmap(_round_vmap)
