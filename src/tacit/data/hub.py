"""Data sets of the hub, and local files in its format, through the `datasets` library (the extra `hub`)."""

from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.data.dataset import FederatedDataset, Pair, count_classes, features, inputs, labels
from tacit.data.from_rows import padded
from tacit.data.partition import Ids, Pool, divide
from tacit.data.tables import Encoding, is_text, names_in
from tacit.data.validate import unknown
from tacit.errors import TacitError


def from_hub(source: Any, *, clients: int | None = None, partition: str | None = None, test: str = "own",
             test_fraction: float = 0.2, seed: int = 0, **options: Any) -> FederatedDataset:  # fmt: skip
    """A federation of a Hugging Face data set (needs the extra `hub`).

    Args:
        source: a name of the hub, a folder (also one that `save_to_disk` wrote), a `.parquet` file, or a
            `datasets.Dataset` or `DatasetDict` in memory.
        clients: how many; with a column `client`, how many of them are kept.
        partition: how rows are dealt to clients; with a column `client`, by it.
        test: where a client's test rows come from.
        test_fraction: of a client's rows.
        seed: of everything that is drawn.
        options: those of `hub_pool`: `client`, `label`, `columns`, `named`, splits.

    Returns:
        A checked `FederatedDataset`.

    Raises:
        TacitError: if the data set, a column or the library is not there.

    Example:
        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"age": [31.0, 32.0, 40.0, 41.0], "label": [0, 1, 0, 1], "who": [1, 1, 2, 2]})
        >>> from_hub(rows, client="who", test_fraction=0.0).ids
        ('1', '2')
    """
    pool = hub_pool(source, **options)
    return divide(pool, clients=clients, partition=partition, test=test, test_fraction=test_fraction, seed=seed)


def hub_pool(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    client: str | None = None,
    named: bool | None = None,
    config: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
    cache: str | None = None,
    revision: str | None = None,
) -> Pool:
    """The rows of a hub name, a folder, a `.parquet` file, or a data set in memory. Nothing is fetched for local ones.

    `columns`: one image column, or columns of numbers or lists of numbers; by default the image column, else every
    column of numbers that is neither label nor client. `client`: a column of client ids, then the usual partition.
    `named`: the model takes the columns as inputs by their names, each for itself; so it is where `input_ids` is among
    them. Sequences of unequal lengths are padded with 0, their labels with -100. `label`: "labels" or "label" if left
    out.
    """
    if not isinstance(path, str | Path) and not hasattr(path, "column_names"):
        raise TacitError(f"the data set is {path!r:.40}: give a name of the hub, a folder, a file or a Dataset")
    if not str(path):
        raise TacitError("the data set has no name: give a name of the hub, a folder, a file or a Dataset")
    splits = _load(path, config, cache, revision)
    if train_split not in splits:
        raise unknown(f"split of {path}", train_split, map(str, splits))
    rows = splits[train_split]
    label = label or ("labels" if "labels" in rows.column_names else "label")
    name = Path(path).stem if isinstance(path, str) else "dataset"
    for column in (label, *([client] if client else []), *(columns or [])):
        if column not in rows.column_names:
            raise unknown(f"column of {path}", column, rows.column_names)
    chosen = list(columns or _usual_columns(rows, {label, client}, path))
    named = "input_ids" in chosen if named is None else named
    names = _class_names(rows, label)
    read = partial(_pair, columns=chosen, label=label, path=name, named=named, names=names)
    x, y = read(rows)
    apart = test_split in splits and test_split != train_split
    pooled = read(splits[test_split]) if apart else None
    ids = {"client": Ids(np.asarray(rows[client][:]))} if client else {}
    usual = "client" if client else "classes"
    classes = _classes(rows, label, y, pooled)
    return Pool(name, x, y, classes, pooled, ids, usual=usual, encoding=Encoding(classes=names))


def _load(path: Any, config: str | None, cache: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise TacitError("hub data needs the `datasets` library: pip install 'tacit-fl[hub]'") from error
    if isinstance(path, datasets.Dataset | datasets.DatasetDict):
        return {"train": path} if isinstance(path, datasets.Dataset) else path
    try:
        if any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json")):
            saved = datasets.load_from_disk(path)
            return {"train": saved} if isinstance(saved, datasets.Dataset) else saved
        if Path(path).suffix == ".parquet":
            return datasets.load_dataset("parquet", data_files=path, cache_dir=cache)
        return datasets.load_dataset(path, config, cache_dir=cache, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TacitError(f"cannot load '{path}' ({reason}): check the name, the path and the connection") from error


def _usual_columns(rows: Any, taken: set[str | None], path: str) -> list[str]:
    import datasets

    kinds = {name: kind for name, kind in rows.features.items() if name not in taken}
    images = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    usual = images[:1] or [name for name, kind in kinds.items() if _is_number(kind)]
    if not usual:
        raise TacitError(
            f"{path} has no image and no numeric column besides {sorted(filter(None, taken))}: name `columns`"
        )
    return usual


def _is_number(kind: Any) -> bool:
    """A number, or a (nested) list or array of numbers."""
    while hasattr(kind, "feature"):
        kind = kind.feature
    return any(str(getattr(kind, "dtype", "")).startswith(start) for start in ("int", "uint", "float", "bool"))


def _pair(
    rows: Any, columns: Sequence[str], label: str, path: str, named: bool = False, names: tuple[str, ...] = ()
) -> Pair:
    y = Encoding(classes=names).class_numbers(rows[label][:]) if is_text(rows[label][:]) else None
    y = labels(padded(rows[label][:], -100, label) if y is None else y, path)
    if named:
        return inputs({name: padded(rows[name][:], 0, name) for name in columns}, path, images=False), y
    parts = [_column(rows, name) for name in columns]
    if len(parts) > 1:
        parts = [np.concatenate([part.reshape(len(part), -1) for part in parts], 1)]
    return features(parts[0], path, images=_is_image(rows, columns[0])), y


def _class_names(rows: Any, label: str) -> tuple[str, ...]:
    """As the data set names them, or as they occur where labels are names."""
    told = getattr(rows.features[label], "names", None)
    return tuple(told or (names_in(rows[label][:]) if is_text(rows[label][:]) else ()))


def _is_image(rows: Any, column: str) -> bool:
    import datasets

    return isinstance(rows.features[column], datasets.Image)


def _column(rows: Any, name: str) -> np.ndarray:
    if _is_image(rows, name):
        return _images([_pixels(image) for image in rows[name]], name)
    try:
        array = np.asarray(rows[name][:])
    except ValueError as error:
        raise TacitError(f"column '{name}' has rows of unequal lengths: give every row the same shape") from error
    if array.dtype.kind not in "iufb":
        raise TacitError(
            f"column '{name}' is not numeric ({array.dtype}): encode it as numbers or name other `columns`"
        )
    return array


def _pixels(image: Any) -> np.ndarray:
    """[height, width] for grey images, else [3, height, width]; bytes."""
    pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB"))
    return pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _images(pixels: list[np.ndarray], name: str) -> np.ndarray:
    shapes = sorted({part.shape for part in pixels})
    if len(shapes) > 1:
        raise TacitError(f"column '{name}' has images of shapes {shapes[0]} and {shapes[1]}: resize them to one")
    return np.stack(pixels)


def _classes(rows: Any, label: str, y: Any, pooled: Pair | None) -> int:
    """As many as the data set names, else one more than the largest label; of other targets, how many a row has."""
    if y.dtype != torch.int64:
        return prod(y.shape[1:])
    named = getattr(rows.features[label], "num_classes", None)
    return named or count_classes(y, *([pooled[1]] if pooled else []))
