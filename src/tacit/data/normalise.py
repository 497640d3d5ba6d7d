"""Inputs made comparable by what is public: constants, a file of statistics, or rows that nobody holds.

Statistics of the clients' own rows would be a release that nobody accounted for, so there is no way to ask for them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.checked import require
from tacit.core.rng import generator
from tacit.data.dataset import as_input
from tacit.data.partition import Ids, Pool
from tacit.data.validate import at_least, unknown
from tacit.errors import TacitError

WAYS = {"shift": float, "scale": float, "statistics": str | Path, "public_rows": int}


def normalised(pool: Pool, how: Mapping[str, Any], seed: int) -> Pool:
    """`pool` with inputs (x - shift) / scale: by two constants (0 and 1 if left out), by the `statistics` of a file
    with `mean` and `std` for each feature, or by those of `public_rows` rows that are taken out of the pool (with a
    `scale`, only by their mean).
    """
    for name in how:
        if name not in WAYS:
            raise unknown("way to normalise", name, WAYS)
    how = {name: require(f"normalise.{name}", WAYS[name], value) for name, value in how.items()}
    if "statistics" in how and "public_rows" in how:
        raise TacitError("normalise has statistics and public_rows: give one of the two")
    if "statistics" in how:
        return _scaled(pool, *read_statistics(Path(how["statistics"])))
    if "public_rows" in how:
        public, rest = set_aside(pool, how["public_rows"], seed)
        mean, std = statistics(public)
        return _scaled(rest, mean, torch.tensor(how["scale"]) if "scale" in how else std)
    return _scaled(pool, *(torch.tensor(float(how.get(name, usual))) for name, usual in (("shift", 0), ("scale", 1))))


def set_aside(pool: Pool, rows: int, seed: int) -> tuple[Tensor, Pool]:
    """So many training inputs, drawn at random, and the pool without them: they are taken to be public."""
    at_least(rows, 2, "the number of public rows")
    if rows >= len(pool.y):
        raise TacitError(f"{rows} public rows of {len(pool.y)}: leave some to the clients")
    drawn = np.sort(generator(seed, "public rows").permutation(len(pool.y))[:rows])
    rest = np.setdiff1d(np.arange(len(pool.y)), drawn)
    ids = {name: Ids(each.train[rest], each.test) for name, each in pool.ids.items()}
    units = None if pool.units is None else pool.units[rest]
    return as_input(pool.x[drawn]), replace(pool, x=pool.x[rest], y=pool.y[rest], ids=ids, units=units)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each feature, and one standard deviation for all: what is large stays large beside the others."""
    return x.mean(0), (x - x.mean(0)).std()


def read_statistics(path: Path) -> tuple[Tensor, Tensor]:
    try:
        with np.load(path) as file:
            mean, std = (torch.as_tensor(file[name], dtype=torch.float32) for name in ("mean", "std"))
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(
            f"{path} is no file of statistics ({error}): write it with tacit encode --statistics"
        ) from None
    return mean, std


def _scaled(pool: Pool, shift: Tensor, scale: Tensor) -> Pool:
    if not bool((scale > 0).all()) or not bool(shift.isfinite().all()):
        raise TacitError(f"inputs are divided by {float(scale.min()):g}: give a scale above 0")
    if shift.dim() and shift.shape != pool.x.shape[1:]:
        raise TacitError(f"statistics are of shape {tuple(shift.shape)} and inputs of {tuple(pool.x.shape[1:])}")

    def scaled(x: Tensor) -> Tensor:
        return (as_input(x) - shift) / scale

    test = None if pool.test is None else (scaled(pool.test[0]), pool.test[1])
    return replace(pool, x=scaled(pool.x), test=test)
