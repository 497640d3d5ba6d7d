"""Who holds what: flat tensors, client after client, with offsets; and the ways to build that from one's own data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tacit.core.checked import checked, shown
from tacit.core.rng import generator
from tacit.data.validate import proportion, validate
from tacit.errors import TacitError

Array = np.ndarray | Tensor
Pair = tuple[Tensor, Tensor]
PLAIN = (np.uint8, np.float32, np.float64)  # taken as they are; other numbers become float64 on the way


def as_input(x: Tensor) -> Tensor:
    """What a model sees: bytes scaled to [0, 1] as float32, floats as they are."""
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x


@checked
@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Who holds what. Once built: every number is finite, every label a class, every client has a training row."""

    name: str
    x: Tensor  # [rows, ...]: float32, float64, or uint8, which `as_input` scales when a batch is gathered
    y: Tensor  # [rows], int64; real targets (floating) if there is one class
    offsets: np.ndarray  # [clients + 1], int64
    test_x: Tensor  # each client's own test rows; a client may have none
    test_y: Tensor
    test_offsets: np.ndarray
    common_x: Tensor | None  # the common test set, for the global model
    common_y: Tensor | None
    ids: tuple[str, ...]
    classes: int

    def __post_init__(self) -> None:
        validate(self)

    @property
    def clients(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> np.ndarray:
        """Number of training rows of each client."""
        return np.diff(self.offsets)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    def rows(self, client: int) -> slice:
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def test_rows(self, client: int) -> slice:
        return slice(int(self.test_offsets[client]), int(self.test_offsets[client + 1]))

    def take(self, index: Tensor) -> Pair:
        """Training rows as a model sees them; `index` of any shape gives inputs [*index.shape, *input_shape]."""
        return as_input(self.x[index]), self.y[index]

    def class_counts(self) -> np.ndarray:
        """[clients, classes]: how many training rows of each class a client holds; real targets are one class."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        kind = 0 if self.y.is_floating_point() else self.y.numpy()
        flat = np.bincount(owner * self.classes + kind, minlength=self.clients * self.classes)
        return flat.reshape(self.clients, self.classes)

    def astype(self, dtype: torch.dtype) -> "FederatedDataset":
        """The same federation with inputs of a floating type; bytes are scaled to [0, 1]."""
        if not dtype.is_floating_point:
            raise TacitError(f"inputs cannot become {dtype}: use torch.float32 or torch.float64")
        common = None if self.common_x is None else _cast(self.common_x, dtype)
        return replace(self, x=_cast(self.x, dtype), test_x=_cast(self.test_x, dtype), common_x=common)

    def on(self, device: torch.device) -> "FederatedDataset":
        """The same federation with its rows on a device."""
        common = [part if part is None else part.to(device) for part in (self.common_x, self.common_y)]
        rows = {name: getattr(self, name).to(device) for name in ("x", "y", "test_x", "test_y")}
        return replace(self, **rows, common_x=common[0], common_y=common[1])


@dataclass(frozen=True, eq=False)
class LocalView(FederatedDataset):
    """A population as one party sees it: everybody's id, and its own rows. Others have theirs elsewhere, none here.

    Numbers of rows that the party does not hold are no part of it: where they matter, they are given beside it.
    """

    def __post_init__(self) -> None:
        validate(self, whole=False)


def local_view(ids: tuple[str, ...], classes: int, place: int, rows: Pair, test_rows: Pair) -> LocalView:
    """The rows of the client at `place` of a population, and nobody else's."""
    after = np.arange(len(ids) + 1) > place
    return LocalView(
        name="federation",
        x=rows[0],
        y=rows[1],
        offsets=len(rows[0]) * after.astype(np.int64),
        test_x=test_rows[0],
        test_y=test_rows[1],
        test_offsets=len(test_rows[0]) * after.astype(np.int64),
        common_x=None,
        common_y=None,
        ids=ids,
        classes=classes,
    )


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)


def features(value: Any, whose: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of `dtype`, except that bytes stay bytes (their scaling to [0, 1] is done when a batch is gathered)."""
    if not isinstance(value, Tensor):
        value = _numbers(value, whose)
        value = torch.from_numpy(value.astype(value.dtype if value.dtype in PLAIN else np.float64))
    if value.is_complex() or value.dim() == 0:
        raise TacitError(
            f"{whose} has {value.dtype} features of shape {tuple(value.shape)}: give real numbers, a row each"
        )
    return value.detach().cpu() if value.dtype == torch.uint8 else value.detach().cpu().to(dtype)


def labels(value: Any, whose: str) -> Tensor:
    """A flat int64 tensor; class numbers only, so that 1.5 or 'cat' is an error and not a silent class."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else _numbers(value, whose, "labels")
    if array.dtype.kind not in "iub" and array.size:
        raise TacitError(f"{whose} has labels of type {array.dtype}: number the classes with integers from 0")
    if array.ndim != 1:
        raise TacitError(f"{whose} has labels of shape {array.shape}: give one class number a row")
    return torch.from_numpy(array.astype(np.int64))


def _numbers(value: Any, whose: str, what: str = "features") -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TacitError(f"{whose} has {what} of unequal lengths: give every row the same shape") from error
    columns: Any = getattr(value, "dtypes", array.dtype)  # of a table, one each
    if any(each.kind not in "iufb" for each in np.atleast_1d(columns)):
        raise TacitError(f"{whose} has {what} of type {array.dtype}: convert them to numbers first")
    if array.dtype.kind == "O":  # a table of numbers and of truth values, as of `pandas.get_dummies`
        return array.astype(np.float64)
    return array


def hold_out(
    rows: int, fraction: float, seed: int, client: int, units: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A client's rows as (training, test), sorted and disjoint; depends on nothing but the arguments.

    About `fraction` of the rows are test rows, never all of them. Rows of one unit (overlapping windows of one
    recording) are never divided between the two.
    """
    proportion(fraction, "test_fraction", one=False)
    wanted = min(round(rows * fraction), rows - 1)
    order = generator(seed, "own test rows", client)
    if units is None:
        chosen = np.zeros(rows, bool)
        chosen[order.permutation(rows)[:wanted]] = True
    else:
        chosen = np.isin(units, _fitting(units, wanted, order))
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _fitting(units: np.ndarray, wanted: int, order: np.random.Generator) -> list[Any]:
    """Units in random order, each taken if it still fits into `wanted` rows."""
    names, sizes = np.unique(units, return_counts=True)
    taken: list[Any] = []
    for at in order.permutation(len(names)):
        if sizes[at] <= wanted:
            taken.append(names[at])
            wanted -= int(sizes[at])
    return taken


def offsets_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))]).astype(np.int64)


def count_classes(*groups: Tensor) -> int:
    """One more than the largest label; at least 1."""
    return max((int(group.max()) + 1 for group in groups if len(group)), default=1) or 1


@checked
def from_clients(
    clients: Annotated[Mapping[Any, Sequence[Any]], "a dict, id -> (x, y)"],
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    common: Sequence[Any] | None = None,
    classes: int | None = None,
    name: str = "clients",
    dtype: torch.dtype = torch.float32,
) -> FederatedDataset:
    """A federation of `id -> (x, y)` or `id -> (x, y, x_test, y_test)`, arrays or tensors.

    A client without test rows holds out `test_fraction` of its own; a client of one example keeps it for training.
    """
    proportion(test_fraction, "test_fraction", one=False)
    own = [_own(data, at, str(who), test_fraction, seed, dtype) for at, (who, data) in enumerate(clients.items())]
    if not own:
        raise TacitError("the federation has no clients: give at least one")
    _alike([x for x, *_ in own], [str(who) for who in clients])
    x, y, test_x, test_y = (torch.cat(column) for column in zip(*own, strict=True))
    shared = (
        None
        if common is None
        else (features(common[0], "the common test set", dtype), labels(common[1], "the common test set"))
    )
    return FederatedDataset(
        name=name,
        x=x,
        y=y,
        offsets=offsets_of([len(part[0]) for part in own]),
        test_x=test_x,
        test_y=test_y,
        test_offsets=offsets_of([len(part[2]) for part in own]),
        common_x=shared and shared[0],
        common_y=shared and shared[1],
        ids=tuple(str(who) for who in clients),
        classes=classes or _classes(y, test_y, *([shared[1]] if shared else [])),
    )


def _classes(*groups: Tensor) -> int:
    """The number of classes, where nobody gave it: labels that leave some out were perhaps numbered otherwise."""
    found, count = torch.cat(groups).unique(), count_classes(*groups)
    if len(found) and (found.min() > 0 or 2 * len(found) < count):
        known = ", ".join(map(str, found[:3].tolist())) + ", ..." * (len(found) > 3)
        raise TacitError(
            f"labels are {known} up to {count - 1}, so there would be {count} classes: number them from 0 without "
            f"gaps, or give classes={count}"
        )
    return count


def _own(
    data: Sequence[Any], at: int, who: str, fraction: float, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    whose = f"client '{who}'"
    if len(data) not in (2, 4):
        raise TacitError(f"{whose} has {len(data)} arrays: give (x, y) or (x, y, x_test, y_test)")
    x, y = _pair(data[0], data[1], whose, dtype)
    if len(data) == 4:
        return x, y, *_pair(data[2], data[3], whose, dtype, like=x)
    train, test = hold_out(len(x), fraction, seed, at) if len(x) else (np.arange(0),) * 2
    return x[train], y[train], x[test], y[test]


def _pair(x: Any, y: Any, whose: str, dtype: torch.dtype, like: Tensor | None = None) -> Pair:
    inputs, targets = features(x, whose, dtype), labels(y, whose)
    if len(inputs) != len(targets):
        raise TacitError(f"{whose} has {len(inputs)} rows and {len(targets)} labels: give one label a row")
    if like is not None and len(inputs) == 0:
        inputs = like[:0]
    if like is not None:
        _alike([like, inputs], [whose, f"{whose} (test)"])
    return inputs, targets


def _alike(parts: Sequence[Tensor], names: Sequence[str]) -> None:
    """Concatenation would otherwise turn bytes into floats without scaling them."""
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise TacitError(
                f"client '{name}' has {part.dtype} rows of shape {tuple(part.shape[1:])}, client '{names[0]}' "
                f"{first.dtype} of {tuple(first.shape[1:])}: give all clients the same"
            )


@runtime_checkable
class MapDataset(Protocol):
    """A map-style dataset of torch: knows its length, and item `i` is (x, y)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def grouped(ids: Sequence[Any] | np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(id, its rows) in the order of ids, numbers by value and text by letters."""
    array = np.asarray(ids)
    names, owner = np.unique(array if array.dtype.kind in "iu" else array.astype(str), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    bounds = np.cumsum(np.bincount(owner, minlength=len(names)))[:-1]
    return zip((str(name) for name in names), np.split(order, bounds), strict=True)


@checked
def from_dataset(dataset: MapDataset, ids: np.ndarray | Sequence[Any], **options: Any) -> FederatedDataset:
    """A federation of a torch dataset that yields (x, y), where row `i` belongs to client `ids[i]`.

    `options` are those of `from_clients`.
    """
    if len(dataset) != len(ids):
        raise TacitError(f"the dataset has {len(dataset)} rows and there are {len(ids)} client ids: give one a row")
    items = [dataset[row] for row in range(len(dataset))]
    odd = next((at for at, item in enumerate(items) if not isinstance(item, tuple | list) or len(item) != 2), None)
    if odd is not None:
        raise TacitError(f"row {odd} of the dataset is {shown(items[odd])}: give pairs (x, y)")
    x = _stack([item[0] for item in items])
    y = _numbers([np.asarray(item[1]) for item in items], "the dataset", "labels")
    return from_clients({who: (x[rows], y[rows]) for who, rows in grouped(ids)}, **{"name": "dataset", **options})


def _stack(rows: Sequence[Any]) -> Array:
    if rows and isinstance(rows[0], Tensor):
        if len({row.shape for row in rows}) > 1:
            raise TacitError("the dataset has features of unequal shapes: give every row the same shape")
        return torch.stack(list(rows))
    return _numbers([np.asarray(row) for row in rows], "the dataset")


@checked
def from_csv(path: str | Path, *, client: str = "client", label: str = "label", **options: Any) -> FederatedDataset:
    """A federation of a table: a column of client ids, one of class numbers, and numeric features.

    `options` are those of `from_clients`.
    """
    from tacit.data.loaders import read_csv

    table = read_csv(path, client=client, label=label)
    assert table.ids is not None
    rows = {who: (table.x[rows], table.y[rows]) for who, rows in grouped(table.ids)}
    return from_clients(rows, **{"name": Path(path).stem, **options})
