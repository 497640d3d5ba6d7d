"""Who holds what: flat tensors, client after client, with offsets; and the ways to build that from one's own data.

Inputs are one tensor, or several by name or in order (`Columns`). Floats are numbers; integers and truth values stay
what they are until it is known whether the model takes them so (`FederatedDataset.fitted`); bytes (uint8) are images,
scaled to [0, 1] when a batch is gathered, and builders make bytes of an array only where they are told that it is one.

Targets are classes ([rows], int64), real numbers ([rows] or [rows, outputs], floating), yes/no labels ([rows, labels],
bool), or a class at each position ([rows, ...], int64, -100 where none counts).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tacit.core import columns
from tacit.core.checked import checked, shown
from tacit.core.columns import Columns, Rows
from tacit.core.rng import generator
from tacit.data.tables import NO_NAMES, Encoding, encode_table, is_text, names_in
from tacit.data.validate import proportion, unknown, validate
from tacit.errors import TacitError

Array = np.ndarray | Tensor
Pair = tuple[Rows, Tensor]
Readers = tuple[Callable[[Any, str], Rows], Callable[[Any, str], Tensor]]
PLAIN = (np.uint8, np.float32, np.float64, np.int64, np.bool_)  # taken as they are
_WIDER = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}
WHOLE = (torch.int64, torch.bool)


def as_input(x: Rows) -> Rows:
    """What a model sees: bytes scaled to [0, 1] as float32, all else as it is."""
    if isinstance(x, Columns):
        return columns.each(as_input, x)
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x


@checked
@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Who holds what. Once built: every number is finite, every label a class, every client has a training row."""

    name: str
    x: Rows  # [rows, ...]: floating, int64, bool, or uint8, which are images: `as_input` scales them
    y: Tensor  # [rows], int64: classes; or other targets
    offsets: np.ndarray  # [clients + 1], int64
    test_x: Rows  # each client's own test rows; a client may have none
    test_y: Tensor
    test_offsets: np.ndarray
    common_x: Rows | None  # the common test set, for the global model
    common_y: Tensor | None
    ids: tuple[str, ...]
    classes: int  # or outputs of a regression, or yes/no labels
    encoding: Encoding = NO_NAMES  # public: what columns and classes are called

    def __post_init__(self) -> None:
        validate(self)

    def __repr__(self) -> str:
        """Who holds how much, never what: no row and no label."""
        return describe(self)

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

    @property
    def one_class_each(self) -> bool:
        """Whether a target is the number of a class."""
        return self.y.dim() == 1 and self.y.dtype == torch.int64

    def rows(self, client: int) -> slice:
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def test_rows(self, client: int) -> slice:
        return slice(int(self.test_offsets[client]), int(self.test_offsets[client + 1]))

    def take(self, index: Tensor) -> Pair:
        """Training rows as a model sees them; `index` of any shape gives inputs [*index.shape, *input_shape]."""
        return as_input(self.x[index]), self.y[index]

    def class_counts(self) -> np.ndarray:
        """[clients, classes]: how many training rows of each class a client holds.

        Rows with several labels count once for each; with real targets, all for the first.
        """
        owner = np.repeat(np.arange(self.clients), self.sizes)
        owner, kind = _held(owner, self.y)
        flat = np.bincount(owner * self.classes + kind, minlength=self.clients * self.classes)
        return flat.reshape(self.clients, self.classes)

    def astype(self, dtype: torch.dtype) -> "FederatedDataset":
        """The same federation with numbers of a floating type; bytes are scaled to [0, 1], integers stay integers."""
        if not dtype.is_floating_point:
            raise TacitError(f"inputs cannot become {dtype}: use torch.float32 or torch.float64")
        return self._cast(lambda x: x if x.dtype in WHOLE else _cast(x, dtype))

    def as_numbers(self, dtype: torch.dtype) -> "FederatedDataset":
        """The same federation with all inputs as numbers of a floating type, integers too."""
        return self._cast(lambda x: _cast(x, dtype))

    def _cast(self, f: Callable[[Tensor], Tensor]) -> "FederatedDataset":
        cast = {name: None if part is None else columns.each(f, part)
                for name in ("x", "test_x", "common_x") for part in (getattr(self, name),)}  # fmt: skip
        return replace(self, **cast)

    def on(self, device: torch.device) -> "FederatedDataset":
        """The same federation with its rows on a device."""
        common = [part if part is None else part.to(device) for part in (self.common_x, self.common_y)]
        rows = {name: getattr(self, name).to(device) for name in ("x", "y", "test_x", "test_y")}
        return replace(self, **rows, common_x=common[0], common_y=common[1])


@dataclass(frozen=True, eq=False, repr=False)
class LocalView(FederatedDataset):
    """A population as one party sees it: everybody's id, and its own rows. Others have theirs elsewhere, none here.

    Numbers of rows that the party does not hold are no part of it: where they matter, they are given beside it.
    """

    def __post_init__(self) -> None:
        validate(self, whole=False)


def describe(data: FederatedDataset) -> str:
    """Clients, sizes, inputs, targets and skew, in a few lines. Of a simulation: these numbers are the clients' own."""
    sizes, common = data.sizes, 0 if data.common_y is None else len(data.common_y)
    each = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    kinds = (
        repr(data.x) if isinstance(data.x, Columns) else f"{data.x.dtype} {list(data.input_shape)}".partition(".")[2]
    )
    lines = [
        f"{data.name}: {data.clients:,} clients, {len(data.y):,} training rows ({each} a client), "
        f"{len(data.test_y):,} test rows, {common:,} common test rows",
        f"inputs: {kinds}; targets: {_targets(data)}",
    ]
    return "\n".join([*lines, *([_skew(data)] if not data.y.is_floating_point() else [])])


def _targets(data: FederatedDataset) -> str:
    names = ", ".join(data.encoding.classes[:4]) + ", ..." * (len(data.encoding.classes) > 4)
    if data.y.is_floating_point():
        return f"{data.classes} number{'s' * (data.classes > 1)} a row"
    if data.y.dtype == torch.bool:
        return f"{data.classes} yes/no labels a row"
    each = "" if data.y.dim() == 1 else f" at {list(data.y.shape[1:])} positions a row"
    return f"{data.classes} classes{each}" + (f" ({names})" if names else "")


def _skew(data: FederatedDataset) -> str:
    counts = data.class_counts()
    held = (counts > 0).sum(1).mean()
    shares = counts.sum(0) / max(1, counts.sum())
    return (
        f"skew: a client holds {held:.1f} classes on average; the most common class is {shares.max():.0%} of the labels"
    )


def _held(owner: np.ndarray, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(client, class) of every label."""
    if y.is_floating_point():
        return owner, np.zeros(len(owner), np.int64)
    if y.dtype == torch.bool:
        row, kind = y.nonzero(as_tuple=True)
        return owner[row.numpy()], kind.numpy()
    flat = y.flatten(1).numpy() if y.dim() > 1 else y.unsqueeze(1).numpy()
    real = flat >= 0
    return np.repeat(owner, real.sum(1)), flat[real]


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


def inputs(value: Any, whose: str, dtype: torch.dtype = torch.float32, images: bool | None = None) -> Rows:
    """One tensor of features, or several: of a dict of arrays, or of a tuple of them."""
    if isinstance(value, Columns):
        return _rows(value.each(lambda part: features(part, whose, dtype, images)))
    if isinstance(value, tuple) and value and all(hasattr(part, "shape") for part in value):
        return _rows(Columns.of([features(part, whose, dtype, images) for part in value]))
    if isinstance(value, Mapping):
        return _rows(Columns.of({str(name): features(part, whose, dtype, images) for name, part in value.items()}))
    return features(value, whose, dtype, images)


def _rows(several: Columns) -> Rows:
    return several  # pyright: ignore[reportReturnType]


def features(value: Any, whose: str, dtype: torch.dtype = torch.float32, images: bool | None = None) -> Tensor:
    """Floats as `dtype`, integers as int64, truth values as they are. Bytes of `images` stay bytes; others are numbers.

    Raises `TacitError` for bytes above 1 of which nobody said whether they are an image's.
    """
    if not isinstance(value, Tensor):
        array = _numbers(value, whose)
        value = torch.from_numpy(
            np.require(array, array.dtype if array.dtype in PLAIN else _WIDER[array.dtype.kind], "W")
        )
    if value.is_complex() or value.dim() == 0:
        raise TacitError(
            f"{whose} has {value.dtype} features of shape {tuple(value.shape)}: give real numbers, a row each"
        )
    value = value.detach().cpu()
    if value.dtype == torch.uint8 and images is None and value.numel() and int(value.max()) > 1:
        raise TacitError(
            f"{whose} has bytes (uint8) up to {int(value.max())}: say images=True if they are pixels, which are scaled "
            "to [0, 1], or images=False if they are numbers or tokens"
        )
    if value.dtype == torch.uint8 and images:
        return value
    if value.is_floating_point():
        return value.to(dtype)
    return value if value.dtype == torch.bool else value.to(torch.int64)


def labels(value: Any, whose: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets: classes (int64), real numbers (`dtype`), or yes/no for each of several labels (bool)."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else _numbers(value, whose, "labels")
    if array.ndim == 0 or (array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind != "f"):
        raise TacitError(f"{whose} has labels of shape {array.shape}: give one class number a row")
    if array.dtype.kind == "f" and array.size:
        return torch.from_numpy(array.astype(np.float64)).to(dtype)
    return torch.from_numpy(array.astype(bool if array.dtype.kind == "b" and array.ndim > 1 else np.int64))


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
    classes: int | Sequence[str] | None = None,
    name: str = "clients",
    dtype: torch.dtype = torch.float32,
    images: bool | None = None,
) -> FederatedDataset:
    """A federation of `id -> (x, y)` or `id -> (x, y, x_test, y_test)`, arrays or tensors.

    A client without test rows holds out `test_fraction` of its own; a client of one example keeps it for training.

    Args:
        clients: `x` may be a dict or a tuple of arrays, for a model with several inputs. `y`: integers are classes
            (with several columns, a class at each position, -100 where none counts), floats are real targets, truth
            values with several columns are yes/no labels.
        test_fraction: of the rows of a client that has no test rows.
        seed: of what is held out.
        common: (x, y) of the common test set.
        classes: how many there are, where labels do not tell; or their names, where labels are names. These are public.
        name: in reports.
        dtype: of floats.
        images: whether bytes (uint8) are pixels, which are scaled to [0, 1], or numbers.

    Example:
        >>> two = {"a": ([[0.5], [1.5]], [1.0, 2.0]), "b": ([[2.5], [3.5]], [3.0, 4.0])}
        >>> from_clients(two, test_fraction=0.5).sizes.tolist()
        [1, 1]
    """
    proportion(test_fraction, "test_fraction", one=False)
    clients, named = _numbered(clients, classes)
    read = take, _ = partial(inputs, dtype=dtype, images=images), partial(labels, dtype=dtype)
    own = [_own(data, at, str(who), test_fraction, seed, read) for at, (who, data) in enumerate(clients.items())]
    if not own:
        raise TacitError("the federation has no clients: give at least one")
    parts = [_promoted(column) for column in zip(*own, strict=True)]
    for column in parts[:2]:
        _alike(column, [str(who) for who in clients])
    x, y, test_x, test_y = map(columns.concatenate, parts)
    whose = "the common test set"
    if common is not None and named:
        common = common[0], Encoding(classes=named).class_numbers(common[1])
    shared = None if common is None else (take(common[0], whose), labels(common[1], whose, dtype))
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
        encoding=Encoding(classes=named),
        classes=len(named) or _given(classes) or _classes(y, test_y, *([shared[1]] if shared else [])),
    )


def _given(classes: int | Sequence[str] | None) -> int | None:
    return classes if isinstance(classes, int) else None


def _numbered(
    clients: Mapping[Any, Sequence[Any]], classes: int | Sequence[str] | None
) -> tuple[Mapping[Any, Sequence[Any]], tuple[str, ...]]:
    """Class names as numbers, and the names: those that are given, else those that occur, in the order of letters."""
    labels = [data[at] for data in clients.values() for at in (1, 3) if len(data) > at and len(data[at])]
    listed = tuple(map(str, classes)) if classes is not None and not isinstance(classes, int) else ()
    if not listed and not (labels and all(map(is_text, labels))):
        return clients, ()
    names = listed or names_in(name for each in labels for name in each)
    encoding = Encoding(classes=names)
    return {who: [encoding.class_numbers(part) if at % 2 else part for at, part in enumerate(data)]
            for who, data in clients.items()}, names  # fmt: skip


def _classes(*groups: Tensor) -> int:
    """The number of classes, where nobody gave it: labels that leave some out were perhaps numbered otherwise.

    Of real targets and yes/no labels, how many a row has.
    """
    if groups[0].dtype != torch.int64:
        return prod(groups[0].shape[1:])
    if groups[0].dim() > 1:
        return count_classes(*groups)  # tokens that occur nowhere are common
    found, count = torch.cat(groups).unique(), count_classes(*groups)
    if len(found) and (found.min() > 0 or 2 * len(found) < count):
        known = ", ".join(map(str, found[:3].tolist())) + ", ..." * (len(found) > 3)
        raise TacitError(
            f"labels are {known} up to {count - 1}, so there would be {count} classes: number them from 0 without "
            f"gaps, or give classes={count}"
        )
    return count


def _own(
    data: Sequence[Any], at: int, who: str, fraction: float, seed: int, read: Readers
) -> tuple[Rows, Tensor, Rows, Tensor]:
    whose = f"client '{who}'"
    if len(data) not in (2, 4):
        raise TacitError(f"{whose} has {len(data)} arrays: give (x, y) or (x, y, x_test, y_test)")
    x, y = _pair(data[0], data[1], whose, read)
    if len(data) == 4:
        return x, y, *_pair(data[2], data[3], whose, read, like=(x, y))
    train, test = hold_out(len(x), fraction, seed, at) if len(x) else (np.arange(0),) * 2
    return x[train], y[train], x[test], y[test]


def _pair(x: Any, y: Any, whose: str, read: Readers, like: Pair | None = None) -> Pair:
    rows, targets = read[0](x, whose), read[1](y, whose)
    if len(rows) != len(targets):
        raise TacitError(f"{whose} has {len(rows)} rows and {len(targets)} labels: give one label a row")
    if like is not None and len(rows) == 0:
        rows, targets = like[0][:0], like[1][:0]
    if like is not None:
        _alike([like[0], rows], [whose, f"{whose} (test)"])
    return rows, targets


def _promoted(parts: Sequence[Rows]) -> Sequence[Rows]:
    """Whole numbers of one client are numbers like all others' where another has fractions."""
    dtypes = {part.dtype for part in parts}
    wider = next((dtype for dtype in dtypes if isinstance(dtype, torch.dtype) and dtype.is_floating_point), None)
    if wider is None or len(dtypes) == 1 or not dtypes <= {wider, torch.int64}:
        return parts
    return [part.to(wider) for part in parts]


def _alike(parts: Sequence[Rows], names: Sequence[str]) -> None:
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
def from_dataset(
    dataset: MapDataset, ids: str | np.ndarray | Sequence[Any], *, label: str = "labels", **options: Any
) -> FederatedDataset:
    """A federation of a torch dataset that yields (x, y), or of one whose rows are dicts, as Hugging Face's are.

    Of dicts, `label` is the target and all else the model's inputs, by name. Sequences of unequal lengths are padded:
    with 0, and labels with -100, which count nowhere.

    Args:
        dataset: knows its length, and gives row `i`.
        ids: whose each row is; of dicts, also the name of the item that says so.
        label: of dicts, the item that is the target.
        options: those of `from_clients`.

    Example:
        >>> rows = [{"author": "ann", "input_ids": [5, 6, 7], "labels": [6, 7, 8]},
        ...         {"author": "bob", "input_ids": [5], "labels": [6]}]
        >>> data = from_dataset(rows, "author", test_fraction=0.0)
        >>> data.x, data.y.tolist()
        (Columns(input_ids int64 (3,)), [[6, 7, 8], [6, -100, -100]])
    """
    items = [dataset[row] for row in range(len(dataset))]
    if items and all(isinstance(item, Mapping) for item in items):
        ids, items = _from_dicts(items, ids, label)
        clients = {who: ({name: part[rows] for name, part in items[0].items()}, items[1][rows])
                   for who, rows in grouped(ids)}  # fmt: skip
        return from_clients(clients, **{"name": "dataset", **options})
    if len(dataset) != len(ids) or isinstance(ids, str):
        raise TacitError(f"the dataset has {len(dataset)} rows and there are {len(ids)} client ids: give one a row")
    odd = next((at for at, item in enumerate(items) if not isinstance(item, tuple | list) or len(item) != 2), None)
    if odd is not None:
        raise TacitError(f"row {odd} of the dataset is {shown(items[odd])}: give pairs (x, y)")
    x = _stack([item[0] for item in items])
    y = _numbers([np.asarray(item[1]) for item in items], "the dataset", "labels")
    return from_clients({who: (x[rows], y[rows]) for who, rows in grouped(ids)}, **{"name": "dataset", **options})


def _from_dicts(items: Sequence[Mapping[str, Any]], ids: Any, label: str) -> tuple[Any, Any]:
    """(ids, (inputs by name, targets)) of rows that are dicts."""
    names = list(items[0])
    if label not in names:
        raise unknown("item of the rows", label, names)
    if isinstance(ids, str):
        if ids not in names:
            raise unknown("item of the rows", ids, names)
        names.remove(ids)
        ids = [item[ids] for item in items]
    if len(ids) != len(items):
        raise TacitError(f"the dataset has {len(items)} rows and there are {len(ids)} client ids: give one a row")
    parts = {name: padded([item[name] for item in items], -100 if name == label else 0, name) for name in names}
    y = parts.pop(label)
    return ids, (parts, y)


def padded(rows: Sequence[Any], value: int, name: str) -> np.ndarray:
    """One array; sequences of unequal lengths are filled up with `value` to the longest."""
    arrays = [np.asarray(row) for row in rows]
    if len({array.shape for array in arrays}) == 1:
        return _numbers(arrays, f"'{name}'") if not is_text(rows) else np.array(rows)
    if any(array.ndim != 1 or array.dtype.kind not in "iufb" for array in arrays):
        raise TacitError(f"'{name}' has rows of unequal shapes: give sequences of numbers, or every row the same shape")
    whole = np.full((len(rows), max(map(len, arrays))), value, np.result_type(*arrays))
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole


def _stack(rows: Sequence[Any]) -> Array:
    if rows and isinstance(rows[0], Tensor):
        if len({row.shape for row in rows}) > 1:
            raise TacitError("the dataset has features of unequal shapes: give every row the same shape")
        return torch.stack(list(rows))
    return _numbers([np.asarray(row) for row in rows], "the dataset")


@checked
def from_csv(path: str | Path, *, client: str = "client", label: str = "label", **options: Any) -> FederatedDataset:
    """A federation of a table in a file: see `from_pandas`, whose options it has."""
    from tacit.data.loaders import read_frame

    return from_pandas(read_frame(Path(path)), client=client, label=label, **{"name": Path(path).stem, **options})


@checked
def from_pandas(
    frame: Any,
    *,
    client: str = "client",
    label: str = "label",
    targets: Literal["classes", "numbers"] | None = None,
    categories: Mapping[str, Any] | None = None,
    classes: Sequence[Any] | None = None,
    **options: Any,
) -> FederatedDataset:
    """A federation of a table: a column of client ids, one of targets, and features.

    Args:
        frame: a `pandas.DataFrame`. Columns of names become a column of zeros and ones for each category.
        client: the column that says whose a row is.
        label: the column of targets: class numbers from 0, or class names.
        targets: "numbers" for a regression.
        categories: by column, all categories there are; public. By default those that occur in the table.
        classes: the names of all classes; public. By default those that occur.
        options: those of `from_clients`.

    Example:
        >>> import pandas
        >>> rows = {"client": [1, 1, 2], "city": ["Rome", "Oslo", "Rome"], "label": ["yes", "no", "no"]}
        >>> data = from_pandas(pandas.DataFrame(rows), test_fraction=0.0)
        >>> data.x.tolist(), data.y.tolist(), data.encoding.classes
        ([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [1, 0, 0], ('no', 'yes'))
    """
    name = str(options.get("name", "table"))
    if not hasattr(frame, "columns"):
        raise TacitError(f"the table is {shown(frame)}: give a pandas.DataFrame")
    table = encode_table(
        frame, client=client, label=label, where=name, targets=targets, categories=categories, classes=classes
    )
    assert table.ids is not None
    rows = {who: (table.x[rows], table.y[rows]) for who, rows in grouped(table.ids)}
    several = {"classes": len(table.encoding.classes)} if table.encoding.classes else {}
    return replace(from_clients(rows, **{"name": name, **several, **options}), encoding=table.encoding)
