"""What a federation must satisfy, and what a user is told when it does not."""

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core.columns import Rows, leaves
from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.data.dataset import FederatedDataset

INPUTS = (torch.uint8, torch.float32, torch.float64, torch.int64, torch.bool)
IGNORE = -100  # among labels of positions: none


def unknown(what: str, name: str, known: Iterable[str]) -> TacitError:
    """An error that suggests the nearest known name, or lists all of them when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(names)}"
    return TacitError(f"unknown {what} '{name}': {hint}")


def at_least(value: int, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise TacitError(f"{what} is {value!r}: give a whole number of at least {least}")


def proportion(value: float, what: str, *, zero: bool = True, one: bool = True) -> None:
    """A proportion lies in [0, 1], without the ends that are not allowed; NaN lies nowhere."""
    low, high = (value >= 0 if zero else value > 0), (value <= 1 if one else value < 1)
    if not (low and high):
        raise TacitError(f"{what} is {value}: give a number in {'[' if zero else '('}0, 1{']' if one else ')'}")


class Part(NamedTuple):
    """Rows to check, and whose they are."""

    label: str
    x: Rows
    y: Tensor
    owner: Callable[[int], str]


def validate(federation: "FederatedDataset", whole: bool = True) -> None:
    """Raises a `TacitError` that names the client, the value and the remedy; runs once, at construction.

    `whole`: every client's rows are here, so that each has one at least.
    """
    _ids(federation.ids)
    at_least(federation.classes, 1, "the number of classes")
    _offsets(federation.offsets, len(federation.ids), len(federation.x), "training")
    _offsets(federation.test_offsets, len(federation.ids), len(federation.test_x), "test")
    empty = np.flatnonzero(np.diff(federation.offsets) == 0)
    if whole and empty.size:
        raise TacitError(f"client '{federation.ids[empty[0]]}' has no training example: give it one or leave it out")
    for part in _parts(federation):
        _rows(part, federation)


def _parts(federation: "FederatedDataset") -> list[Part]:
    parts = [
        Part("training data", federation.x, federation.y, _owner(federation.ids, federation.offsets)),
        Part("test data", federation.test_x, federation.test_y, _owner(federation.ids, federation.test_offsets)),
    ]
    if (federation.common_x is None) != (federation.common_y is None):
        raise TacitError("the common test set has only one of x and y: give both or neither")
    if federation.common_x is not None and federation.common_y is not None:
        parts.append(Part("common test set", federation.common_x, federation.common_y, lambda _: "the federation"))
    return parts


def _owner(ids: tuple[str, ...], offsets: np.ndarray) -> Callable[[int], str]:
    return lambda row: f"client '{ids[int(np.searchsorted(offsets, row, side='right')) - 1]}'"


def _ids(ids: tuple[str, ...]) -> None:
    if not ids:
        raise TacitError("the federation has no clients: give at least one")
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))
        raise TacitError(f"client id '{twice}' is used twice: give every client its own id (ids are compared as text)")


def _offsets(offsets: np.ndarray, clients: int, rows: int, part: str) -> None:
    if offsets.dtype != np.int64 or offsets.shape != (clients + 1,):
        raise TacitError(
            f"{part} offsets are {offsets.dtype} of shape {offsets.shape}: "
            f"{clients} clients need int64 of shape ({clients + 1},)"
        )
    if offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
        raise TacitError(f"{part} offsets do not rise from 0 to the {rows} rows: build the federation by a builder")


def _rows(part: Part, federation: "FederatedDataset") -> None:
    _types(part, federation)
    for leaf, where in [*((x, f"in its {part.label}") for x in leaves(part.x)), (part.y, "among its targets")]:
        if leaf.is_floating_point() and (row := _first(~torch.isfinite(leaf))) is not None:
            raise TacitError(f"{part.owner(row)} has NaN or infinity {where}: drop or impute these values")
    if part.y.dtype == torch.int64:
        _classes(part, federation.classes)


def _first(bad: Tensor) -> int | None:
    """The first row of which something is true."""
    rows = bad.flatten(1).any(1) if bad.dim() > 1 else bad
    return int(rows.nonzero()[0]) if rows.any() else None


def _classes(part: Part, classes: int) -> None:
    outside = (part.y < 0) | (part.y >= classes)
    if part.y.dim() > 1:
        outside &= part.y != IGNORE
    if (row := _first(outside)) is not None:
        label = int(part.y[row][outside[row]].flatten()[0])
        raise TacitError(
            f"{part.owner(row)} has label {label} in its {part.label}, "
            f"outside 0..{classes - 1}: number the classes from 0 or raise `classes`"
        )


def _types(part: Part, federation: "FederatedDataset") -> None:
    if any(leaf.dtype not in INPUTS for leaf in leaves(part.x)) or part.x.dtype != federation.x.dtype:
        raise TacitError(
            f"{part.label} is {part.x.dtype}: give uint8 (images), floats, int64 or bool, the same in all parts"
        )
    if part.y.dtype != federation.y.dtype or part.y.shape[1:] != federation.y.shape[1:] or not _is_target(
        part.y, federation.classes
    ):  # fmt: skip
        raise TacitError(
            f"labels of the {part.label} are {part.y.dtype} of shape {tuple(part.y.shape)} for {federation.classes} "
            "classes: give int64, one a row; real targets or truth values, as many a row as there are classes"
        )
    if len(part.x) != len(part.y):
        raise TacitError(f"{part.label} has {len(part.x)} rows and {len(part.y)} labels: give one label a row")
    if part.x.shape[1:] != federation.x.shape[1:]:
        raise TacitError(
            f"rows of the {part.label} have shape {tuple(part.x.shape[1:])}, "
            f"training rows {tuple(federation.x.shape[1:])}: give all rows one shape"
        )


def _is_target(y: Tensor, classes: int) -> bool:
    """Classes of rows or of positions; or real numbers or truth values, as many a row as `classes` says."""
    if y.dtype == torch.int64:
        return y.dim() > 0
    one_each = y.shape[1:].numel() == classes
    return one_each and (y.is_floating_point() or (y.dtype == torch.bool and y.dim() > 1))
