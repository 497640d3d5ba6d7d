"""Data sets of the hub, and local files in its format, through the `datasets` library (the extra `hub`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.dataset import Pair, count_classes, features, labels
from tacit.data.partition import Ids, Pool
from tacit.data.validate import unknown
from tacit.errors import TacitError


def hub_pool(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    label: str = "label",
    client: str | None = None,
    config: str | None = None,
    train_split: str = "train",
    test_split: str = "test",
    cache: str | None = None,
    revision: str | None = None,
) -> Pool:
    """The rows of a hub name, a folder, or a `.parquet` file. Nothing is fetched for a local path.

    `columns`: one image column, or columns of numbers or lists of numbers; by default the image column, else every
    column of numbers that is neither label nor client. `client`: a column of client ids, then the usual partition.
    """
    splits = _load(path, config, cache, revision)
    if train_split not in splits:
        raise unknown(f"split of {path}", train_split, map(str, splits))
    rows = splits[train_split]
    for column in (label, *([client] if client else []), *(columns or [])):
        if column not in rows.column_names:
            raise unknown(f"column of {path}", column, rows.column_names)
    chosen = list(columns or _usual_columns(rows, {label, client}, path))
    x, y = _pair(rows, chosen, label, path)
    apart = test_split in splits and test_split != train_split
    pooled = _pair(splits[test_split], chosen, label, path) if apart else None
    ids = {"client": Ids(np.asarray(rows[client][:]))} if client else {}
    usual = "client" if client else "classes"
    return Pool(Path(path).stem, x, y, _classes(rows, label, y, pooled), pooled, ids, usual=usual)


def _load(path: str, config: str | None, cache: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise TacitError("hub data needs the `datasets` library: pip install 'tacit-fl[hub]'") from error
    try:
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
    found = images[:1] or [name for name, kind in kinds.items() if _is_number(kind)]
    if not found:
        raise TacitError(
            f"{path} has no image and no numeric column besides {sorted(filter(None, taken))}: name `columns`"
        )
    return found


def _is_number(kind: Any) -> bool:
    """A number, or a (nested) list or array of numbers."""
    while hasattr(kind, "feature"):
        kind = kind.feature
    return any(str(getattr(kind, "dtype", "")).startswith(start) for start in ("int", "uint", "float", "bool"))


def _pair(rows: Any, columns: Sequence[str], label: str, path: str) -> Pair:
    parts = [_column(rows, name) for name in columns]
    if len(parts) > 1:
        parts = [np.concatenate([part.reshape(len(part), -1) for part in parts], 1)]
    return features(parts[0], path, images=_is_image(rows, columns[0])), labels(rows[label][:], path)


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
    """As many as the data set names, else one more than the largest label."""
    named = getattr(rows.features[label], "num_classes", None)
    return named or count_classes(y, *([pooled[1]] if pooled else []))
