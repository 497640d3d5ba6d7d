"""Federated datasets from one's own data: rows by client, a torch dataset, a table.

Builders read arrays of any kind in one way (`inputs`, `labels`), hold out test rows where a client has none, and give a
`FederatedDataset`, which is checked when it is made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tacit.core import columns
from tacit.core.checked import checked, shown
from tacit.core.columns import Rows
from tacit.data.dataset import (
    FederatedDataset,
    Pair,
    count_classes,
    hold_out,
    inputs,
    labels,
    numbers_in,
    offsets_of,
)
from tacit.data.tables import Encoding, encode_table, is_text, names_in
from tacit.data.validate import proportion, unknown
from tacit.errors import TacitError

Array = np.ndarray | Tensor
Readers = tuple[Callable[[Any, str], Rows], Callable[[Any, str], Tensor]]


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

    Returns:
        A checked `FederatedDataset`.

    Raises:
        TacitError: no clients, rows of unequal shapes, numbers that are not finite, labels that are no class.

    Example:
        >>> two = {"a": ([[0.5], [1.5]], [1.0, 2.0]), "b": ([[2.5], [3.5]], [3.0, 4.0])}
        >>> from_clients(two, test_fraction=0.5).sizes.tolist()
        [1, 1]
    """
    proportion(test_fraction, "test_fraction", one=False)
    clients, named = _numbered(clients, classes)
    read = take, _ = partial(inputs, dtype=dtype, images=images), partial(labels, dtype=dtype)
    divided = [_own(data, at, str(who), test_fraction, seed, read) for at, (who, data) in enumerate(clients.items())]
    if not divided:
        raise TacitError("the federation has no clients: give at least one")
    parts = [_promoted(column) for column in zip(*divided, strict=True)]
    for column in parts[:2]:
        _alike(column, [str(who) for who in clients])
    x, y, test_x, test_y = map(columns.concatenate, parts)
    owner = "the common test set"
    if common is not None and named:
        common = common[0], Encoding(classes=named).class_numbers(common[1])
    shared = None if common is None else (take(common[0], owner), labels(common[1], owner, dtype))
    return FederatedDataset(
        name=name,
        x=x,
        y=y,
        offsets=offsets_of([len(part[0]) for part in divided]),
        test_x=test_x,
        test_y=test_y,
        test_offsets=offsets_of([len(part[2]) for part in divided]),
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
    labels_there, count = torch.cat(groups).unique(), count_classes(*groups)
    if len(labels_there) and (labels_there.min() > 0 or 2 * len(labels_there) < count):
        known = ", ".join(map(str, labels_there[:3].tolist())) + ", ..." * (len(labels_there) > 3)
        raise TacitError(
            f"labels are {known} up to {count - 1}, so there would be {count} classes: number them from 0 without "
            f"gaps, or give classes={count}"
        )
    return count


def _own(
    data: Sequence[Any], at: int, who: str, fraction: float, seed: int, read: Readers
) -> tuple[Rows, Tensor, Rows, Tensor]:
    owner = f"client '{who}'"
    if len(data) not in (2, 4):
        raise TacitError(f"{owner} has {len(data)} arrays: give (x, y) or (x, y, x_test, y_test)")
    x, y = _pair(data[0], data[1], owner, read)
    if len(data) == 4:
        return x, y, *_pair(data[2], data[3], owner, read, template=(x, y))
    train, test = hold_out(len(x), fraction, seed, at) if len(x) else (np.arange(0),) * 2
    return x[train], y[train], x[test], y[test]


def _pair(x: Any, y: Any, owner: str, read: Readers, template: Pair | None = None) -> Pair:
    rows, targets = read[0](x, owner), read[1](y, owner)
    if len(rows) != len(targets):
        raise TacitError(f"{owner} has {len(rows)} rows and {len(targets)} labels: give one label a row")
    if template is not None and len(rows) == 0:
        rows, targets = template[0][:0], template[1][:0]
    if template is not None:
        _alike([template[0], rows], [owner, f"{owner} (test)"])
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
    dataset: Annotated[MapDataset, "a Dataset of torch or of Hugging Face, or a list of rows"],
    ids: str | np.ndarray | Sequence[Any],
    *,
    label: str = "labels",
    **options: Any,
) -> FederatedDataset:
    """A federation of a torch dataset that yields (x, y), or of one whose rows are dicts, as Hugging Face's are.

    Of dicts, `label` is the target and all else the model's inputs, by name. Sequences of unequal lengths are padded:
    with 0, and labels with -100, which count nowhere.

    Args:
        dataset: knows its length, and gives row `i`.
        ids: whose each row is; of dicts, also the name of the item that says so.
        label: of dicts, the item that is the target.
        options: those of `from_clients`.

    Returns:
        A checked `FederatedDataset`.

    Raises:
        TacitError: not one id for each row, rows that are neither pairs nor dicts, and what `from_clients` refuses.

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
    y = numbers_in([np.asarray(item[1]) for item in items], "the dataset", "labels")
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
        return numbers_in(arrays, f"'{name}'") if not is_text(rows) else np.array(rows)
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
    return numbers_in([np.asarray(row) for row in rows], "the dataset")


@checked
def from_csv(path: str | Path, *, client: str = "client", label: str = "label", **options: Any) -> FederatedDataset:
    """A federation of a table in a file, comma-separated, with names in its first line.

    Args:
        path: of the file.
        client: the column that says whose a row is.
        label: the column of targets: class numbers from 0, or class names.
        options: those of `from_pandas`.

    Returns:
        A checked `FederatedDataset`.

    Raises:
        TacitError: a file or column that is not there, and what `from_pandas` refuses.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("client,age,label\\nann,31,0\\nann,32,1\\nbob,40,1\\n")
        ...     file.flush()
        ...     from_csv(file.name, test_fraction=0.0).ids
        ('ann', 'bob')
    """
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

    Returns:
        A checked `FederatedDataset`.

    Raises:
        TacitError: a column that is not there, a category or class that is not listed, missing values.

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
    count = {"classes": len(table.encoding.classes)} if table.encoding.classes else {}
    return replace(from_clients(rows, **{"name": name, **count, **options}), encoding=table.encoding)
