"""Inputs made comparable, and short, by what is public: constants, statistics of a file, or rows that nobody holds.

Statistics of the clients' own rows would be a release that nobody accounted for, so there is no way to ask for them.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core.checked import require
from tacit.core.rng import generator
from tacit.data.dataset import as_input
from tacit.data.partition import Ids, Pool
from tacit.data.validate import at_least, unknown
from tacit.errors import TacitError

WAYS = {
    "shift": float,
    "scale": float,
    "statistics": str | Path,
    "public_rows": int,
    "public": str | Path,
    "project": int,
    "whiten": float,
}
_ROWS: Final = 4096  # projected at once


class Projection(NamedTuple):
    """Flat inputs x become (x - shift) @ matrix."""

    shift: Tensor
    matrix: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([(as_input(part).flatten(1) - self.shift) @ self.matrix for part in x.split(_ROWS)])


def normalised(pool: Pool, how: Mapping[str, Any], seed: int) -> Pool:
    """`pool` with inputs (x - shift) / scale: by two constants (0 and 1 if left out), by the `statistics` of a file
    with `mean` and `std` for each feature, or by those of `public_rows` rows that are taken out of the pool (with a
    `scale`, only by their mean), or of the rows of another file, `public`.

    With `project`, only so many numbers of each row remain: its first principal components, found on the public rows
    alone, divided by the length that those have in the mean (root mean square) or by `scale`; `whiten` from 0 to 1
    says how far components are made equally large. Without public rows it is a random projection, which looks at no
    data. A public file that has a row of the pool is refused.
    """
    for name in how:
        if name not in WAYS:
            raise unknown("way to normalise", name, WAYS)
    how = {name: require(f"normalise.{name}", WAYS[name], value) for name, value in how.items()}
    given = [name for name in ("statistics", "public_rows", "public") if name in how]
    if len(given) > 1:
        raise TacitError(f"normalise has {' and '.join(given)}: give one of the two")
    if "whiten" in how and ("project" not in how or not {"public_rows", "public"} & how.keys()):
        raise TacitError("normalise.whiten makes components of public rows alike: give project and public_rows, too")
    public, rest = _public(pool, how, seed)
    if "project" in how:
        return _projected(rest, public, how, seed)
    if "statistics" in how:
        return _scaled(rest, *read_statistics(Path(how["statistics"])))
    if public is not None:
        mean, std = statistics(public)
        return _scaled(rest, mean, torch.tensor(how["scale"]) if "scale" in how else std)
    return _scaled(rest, *_constants(how))


def _constants(how: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    shift, scale = (torch.tensor(float(how.get(name, usual))) for name, usual in (("shift", 0), ("scale", 1)))
    return shift, scale


def _public(pool: Pool, how: Mapping[str, Any], seed: int) -> tuple[Tensor | None, Pool]:
    """The rows that are public, if any, and the pool without them."""
    if "public_rows" in how:
        return set_aside(pool, how["public_rows"], seed)
    return (read_public(Path(how["public"]), pool) if "public" in how else None), pool


def read_public(path: Path, pool: Pool) -> Tensor:
    """The rows of a file (`x` or `x_train`), of the shape of the pool's; one that the pool has, too, is not public."""
    path = path if path.is_file() else Path(os.environ.get("TACIT_DATA", "")) / path
    try:
        with np.load(path) as file:
            x = as_input(torch.from_numpy(file["x"] if "x" in file else file["x_train"]))
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(f"{path} is no file of public rows ({error}): give an .npz with x or x_train") from None
    if x.shape[1:] != pool.x.shape[1:] or len(x) < 2:
        raise TacitError(
            f"{path} has rows of shape {tuple(x.shape[1:])}: give at least two like {tuple(pool.x.shape[1:])}"
        )
    held = _marks(pool.x) | (set() if pool.test is None else _marks(pool.test[0]))
    if shared := len(held & _marks(x)):
        raise TacitError(
            f"{path} has {shared:,} rows that clients of '{pool.name}' hold, so they are not public: name "
            "another file, or take rows out of the pool with public_rows"
        )
    return x


def _marks(x: Tensor) -> set[bytes]:
    return {row.tobytes() for row in np.asarray(as_input(x).flatten(1).numpy(), np.float32)}


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


def _projected(pool: Pool, public: Tensor | None, how: Mapping[str, Any], seed: int) -> Pool:
    short = find_projection(pool.x[0].numel(), public, how, seed)
    test = None if pool.test is None else (short(pool.test[0]), pool.test[1])
    return replace(pool, x=short(pool.x), test=test)


def find_projection(inputs: int, public: Tensor | None, how: Mapping[str, Any], seed: int) -> Projection:
    """To `how["project"]` numbers: principal components of the public rows, or orthonormal directions at random."""
    to = how["project"]
    most = inputs if public is None else min(inputs, len(public) - 1)
    at_least(to, 1, "the number of components to project to")
    if to > most:
        raise TacitError(f"normalise.project is {to}: {most} components are all there are")
    if public is None:
        drawn = torch.from_numpy(generator(seed, "projection").normal(size=(inputs, to)))
        mean, std = read_statistics(Path(how["statistics"])) if "statistics" in how else _constants(how)
        across = torch.linalg.qr(drawn)[0].float() * (inputs / to) ** 0.5  # lengths stay, in the mean
        return Projection(mean.flatten(), across / std.flatten().expand(inputs)[:, None])
    rows, power = public.flatten(1), how.get("whiten", 0.0)
    if not 0 <= power <= 1:
        raise TacitError(f"normalise.whiten is {power:g}: give a number from 0 to 1")
    mean = rows.mean(0)
    _, sizes, directions = torch.linalg.svd(rows - mean, full_matrices=False)
    matrix = directions[:to].T / (sizes[:to] / len(rows) ** 0.5).clamp(min=1e-6) ** power
    usual = float(((rows - mean) @ matrix).square().sum(1).mean().sqrt())
    return Projection(mean, matrix / how.get("scale", max(usual, 1e-6)))
