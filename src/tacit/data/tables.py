"""Tables of a user's own: comma-separated files with a column of labels and, mostly, one of client ids."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.data.validate import unknown
from tacit.errors import TacitError

if TYPE_CHECKING:
    import pandas


class Table(NamedTuple):
    x: np.ndarray  # [rows, features], float64
    y: np.ndarray
    ids: np.ndarray | None


def read_csv(path: str | Path, *, client: str | None = "client", label: str = "label") -> Table:
    """Every column but the two named ones is a numeric feature without gaps; anything else is a `TacitError`."""
    frame = _frame(Path(path))
    for column in (label, client):
        if column is not None and column not in frame.columns:
            raise TacitError(f"{path}: {unknown('column', column, map(str, frame.columns))}")
    if not len(frame):
        raise TacitError(f"{path} has a header and no rows: give at least one row")
    _complete(frame, path)
    columns = [name for name in frame.columns if name not in (label, client)]
    _numeric(frame, columns, path)
    ids = None if client is None else frame[client].to_numpy()
    return Table(frame[columns].to_numpy(np.float64), _class_numbers(frame, label, path), ids)


def _frame(path: Path) -> "pandas.DataFrame":
    import pandas

    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        return pandas.read_csv(path)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not a comma-separated table ({str(error).strip()}): check the file") from error


def _complete(frame: "pandas.DataFrame", path: str | Path) -> None:
    for name in frame.columns:
        gaps = np.flatnonzero(frame[name].isna().to_numpy())
        if gaps.size:
            raise TacitError(f"{path}: column '{name}' is empty in row {gaps[0] + 1}: drop the row or fill the value")


def _numeric(frame: "pandas.DataFrame", columns: list[str], path: str | Path) -> None:
    if not columns:
        raise TacitError(f"{path} has no feature columns: add at least one numeric column")
    for name in columns:
        if frame[name].dtype.kind not in "iufb":
            raise TacitError(f"{path}: column '{name}' is not numeric ({frame[name].iloc[0]!r}): encode it as numbers")


def _class_numbers(frame: "pandas.DataFrame", label: str, path: str | Path) -> np.ndarray:
    column = frame[label]
    if column.dtype.kind in "iub":
        return column.to_numpy()
    broken = [value for value in column.tolist() if not _whole(value)]
    if broken:
        raise TacitError(f"{path}: label column '{label}' holds {broken[0]!r}: number the classes from 0")
    return column.to_numpy(dtype=np.float64).astype(np.int64)


def _whole(value: object) -> bool:
    try:
        return float(str(value)).is_integer()
    except ValueError:
        return False
