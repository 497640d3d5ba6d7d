"""Who holds what: flat tensors, client after client, with offsets; `from_rows.py` builds it from one's own data.

Inputs are one tensor, or several by name or in order (`Columns`). Floats are numbers; integers and truth values stay
what they are until it is known whether the model takes them so (`FederatedDataset.fitted`); bytes (uint8) are images,
scaled to [0, 1] when a batch is gathered, and builders make bytes of an array only where they are told that it is one.

Targets are classes ([rows], int64), real numbers ([rows] or [rows, outputs], floating), yes/no labels ([rows, labels],
bool), or a class at each position ([rows, ...], int64, -100 where none counts).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core import columns
from tacit.core.checked import checked
from tacit.core.columns import Columns, Rows
from tacit.core.rng import generator
from tacit.data.tables import NO_NAMES, Encoding
from tacit.data.validate import proportion, validate
from tacit.errors import TacitError

Pair = tuple[Rows, Tensor]
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
    """Who holds what. Once built: every number is finite, every label a class, every client has a training row.

    `tacit.load` and the builders (`from_clients`, `from_csv`, ...) make one; by hand it is rarely needed.

    Args:
        name: in reports.
        x: the training rows of all clients, one client after the other: [rows, ...], or several inputs (`Columns`).
        y: their targets.
        offsets: [clients + 1]: the rows of client k are those from offsets[k] to offsets[k + 1].
        test_x: each client's own test rows, in the same way.
        test_y: their targets.
        test_offsets: where a client's test rows begin and end.
        common_x: the common test set, or None.
        common_y: its targets.
        ids: the clients' names.
        classes: how many there are; outputs of a regression, or yes/no labels.
        encoding: what columns and classes are called; public.

    Raises:
        TacitError: rows that are not finite, labels that are no class, a client without a training row.

    Example:
        >>> import tacit
        >>> data = tacit.load("digits", clients=20)
        >>> data.clients, data.input_shape, data.classes
        (20, (8, 8), 10)
    """

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


def local_view(
    ids: tuple[str, ...], classes: int, place: int, rows: Pair, test_rows: Pair, encoding: Encoding = NO_NAMES
) -> LocalView:
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
        encoding=encoding,
    )


def like(tried: Rows, x: Rows) -> Rows:
    """Inputs with the types of those that a model was tried on. Bytes for float32 stay bytes: batches scale them."""
    fitted = [leaf if leaf.dtype == torch.uint8 and each.dtype == torch.float32 else _cast(leaf, each.dtype)
              for leaf, each in zip(columns.leaves(x), columns.leaves(tried), strict=True)]  # fmt: skip
    several: Any = Columns(x.names, fitted) if isinstance(x, Columns) else fitted[0]
    return several


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)


def inputs(value: Any, owner: str, dtype: torch.dtype = torch.float32, images: bool | None = None) -> Rows:
    """One tensor of features, or several: of a dict of arrays, or of a tuple of them."""
    if isinstance(value, Columns):
        return _rows(value.each(lambda part: features(part, owner, dtype, images)))
    if isinstance(value, tuple) and value and all(hasattr(part, "shape") for part in value):
        return _rows(Columns.of([features(part, owner, dtype, images) for part in value]))
    if isinstance(value, Mapping):
        return _rows(Columns.of({str(name): features(part, owner, dtype, images) for name, part in value.items()}))
    return features(value, owner, dtype, images)


def _rows(columns_of_inputs: Columns) -> Rows:
    return columns_of_inputs  # pyright: ignore[reportReturnType]


def features(value: Any, owner: str, dtype: torch.dtype = torch.float32, images: bool | None = None) -> Tensor:
    """Floats as `dtype`, integers as int64, truth values as they are. Bytes of `images` stay bytes; others are numbers.

    Raises `TacitError` for bytes above 1 of which nobody said whether they are an image's.
    """
    if not isinstance(value, Tensor):
        array = numbers_in(value, owner)
        value = torch.from_numpy(
            np.require(array, array.dtype if array.dtype in PLAIN else _WIDER[array.dtype.kind], "W")
        )
    if value.is_complex() or value.dim() == 0:
        raise TacitError(
            f"{owner} has {value.dtype} features of shape {tuple(value.shape)}: give real numbers, a row each"
        )
    value = value.detach().cpu()
    if value.dtype == torch.uint8 and images is None and value.numel() and int(value.max()) > 1:
        raise TacitError(
            f"{owner} has bytes (uint8) up to {int(value.max())}: say images=True if they are pixels, which are scaled "
            "to [0, 1], or images=False if they are numbers or tokens"
        )
    if value.dtype == torch.uint8 and images:
        return value
    if value.is_floating_point():
        return value.to(dtype)
    return value if value.dtype == torch.bool else value.to(torch.int64)


def labels(value: Any, owner: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets: classes (int64), real numbers (`dtype`), or yes/no for each of several labels (bool)."""
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else numbers_in(value, owner, "labels")
    if array.ndim == 0 or (array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind != "f"):
        raise TacitError(f"{owner} has labels of shape {array.shape}: give one class number a row")
    if array.dtype.kind == "f" and array.size:
        return torch.from_numpy(array.astype(np.float64)).to(dtype)
    return torch.from_numpy(array.astype(bool if array.dtype.kind == "b" and array.ndim > 1 else np.int64))


def numbers_in(value: Any, owner: str, what: str = "features") -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TacitError(f"{owner} has {what} of unequal lengths: give every row the same shape") from error
    columns: Any = getattr(value, "dtypes", array.dtype)  # of a table, one each
    if any(each.kind not in "iufb" for each in np.atleast_1d(columns)):
        raise TacitError(f"{owner} has {what} of type {array.dtype}: convert them to numbers first")
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


def keep_clients(data: FederatedDataset, which: Sequence[int] | np.ndarray) -> FederatedDataset:
    """The same federation with these clients alone, in this order; the common test set stays."""
    rows, test = (
        np.concatenate([np.arange(offsets[k], offsets[k + 1]) for k in which])
        for offsets in (data.offsets, data.test_offsets)
    )
    own, others = torch.from_numpy(rows), torch.from_numpy(test)
    return replace(
        data,
        x=data.x[own],
        y=data.y[own],
        offsets=offsets_of(data.sizes[list(which)]),
        test_x=data.test_x[others],
        test_y=data.test_y[others],
        test_offsets=offsets_of(np.diff(data.test_offsets)[list(which)]),
        ids=tuple(data.ids[k] for k in which),
    )
