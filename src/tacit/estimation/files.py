"""Tables of clients on disk, CSV or Parquet, read and written piece by piece in bounded memory."""

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import StorageError, TacitError
from tacit.estimation.collect import BLOCK

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 4 * BLOCK
_PARQUET = (".parquet", ".pq")


def chunks(path: Path, name: str, columns: Sequence[str]) -> Iterator["pd.DataFrame"]:
    """The client's name as text and the given columns, `CHUNK` rows at a time; only the last piece is shorter."""
    import pandas as pd

    if not path.is_file():
        raise TacitError(f"there is no file {path}: give a CSV or Parquet table")
    wanted = list(dict.fromkeys([name, *columns]))
    kept: list[pd.DataFrame] = []
    for piece in _pieces(path, wanted, name):
        kept.append(piece)
        while sum(map(len, kept)) >= CHUNK:
            whole = pd.concat(kept, ignore_index=True) if len(kept) > 1 else kept[0]
            yield whole.iloc[:CHUNK].reset_index(drop=True)
            kept = [whole.iloc[CHUNK:]]
    rest = pd.concat(kept, ignore_index=True) if kept else None
    if rest is not None and len(rest):
        yield rest


def _pieces(path: Path, wanted: list[str], name: str) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    if path.suffix.lower() in _PARQUET:
        yield from _parquet(path, wanted, name)
        return
    try:
        _check_columns(path, list(pd.read_csv(path, nrows=0).columns), wanted)
        with pd.read_csv(path, usecols=lambda c: c in wanted, dtype={name: str}, chunksize=CHUNK) as pieces:
            yield from pieces
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not a CSV table ({error}): mend it or give Parquet") from None


def _parquet(path: Path, wanted: list[str], name: str) -> Iterator["pd.DataFrame"]:
    parquet, arrow = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, wanted)
        for batch in file.iter_batches(batch_size=CHUNK, columns=wanted):
            piece = batch.to_pandas()
            piece[name] = piece[name].astype(str)
            yield piece
    except arrow.ArrowException as error:
        raise TacitError(f"{path} is not a Parquet table ({error}): mend it or give CSV") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TacitError("Parquet needs pyarrow: pip install pyarrow, or use CSV") from None
    return pyarrow.parquet, pyarrow


def _check_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [column for column in wanted if column not in list(found)]
    if missing:
        raise TacitError(f"{path} has no column {missing[0]!r}: it has {', '.join(map(str, found))}")


def numbers(frame: "pd.DataFrame", column: str, first: int) -> NDArray[np.float64]:
    """A column as numbers; the first row that is not one is named by its line in the table."""
    import pandas as pd

    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise TacitError(f"row {first + at + 1} has '{frame[column].iloc[at]}' as {column}: mend it or leave it out")
    return values


def check_places(table: Path, out: Path, written: Sequence[Path], force: bool) -> None:
    """Refuses to write over the table that is read, ever, and over any other file unless `force`."""
    if out.suffix.lower() not in (".csv", *_PARQUET):
        raise TacitError(f"{out} is no name for a table: end it with .csv or .parquet")
    for path in written:
        if not path.exists():
            continue
        if table.exists() and path.samefile(table):
            raise TacitError(f"{path} is the table that is read: write the estimates to another file")
        if path.is_dir():
            raise TacitError(f"{path} is a folder: give a file")
        if not force:
            raise TacitError(f"{path} is there already: choose another name, or add --force to write over it")


class Names:
    """Remembers names by hash, so that a client that comes twice is noticed; 8 bytes a client."""

    def __init__(self) -> None:
        self._seen: list[NDArray[np.uint64]] = []

    def add(self, names: Any) -> None:
        from pandas.core.util.hashing import hash_array

        self._seen.append(hash_array(np.asarray(names, dtype=object)))

    def check(self) -> None:
        whole = np.sort(np.concatenate(self._seen)) if self._seen else np.empty(0, np.uint64)
        twice = int((whole[1:] == whole[:-1]).sum())
        if twice:
            raise TacitError(f"{twice:,} rows name a client that was there before: add up each client's rows first")


class Writer:
    """Writes a table piece by piece to a temporary file and puts it in place at the end: whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # nobody's file
        self._parquet: Any = None
        self._first = True

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        return self

    def write(self, frame: "pd.DataFrame") -> None:
        try:
            if self._path.suffix.lower() in _PARQUET:
                self._write_parquet(frame)
            else:
                frame.to_csv(self._part, mode="w" if self._first else "a", header=self._first, index=False)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        self._first = False

    def _write_parquet(self, frame: "pd.DataFrame") -> None:
        parquet, arrow = _pyarrow()
        table = arrow.Table.from_pandas(frame, preserve_index=False)
        if self._parquet is None:
            self._parquet = parquet.ParquetWriter(self._part, table.schema)
        self._parquet.write_table(table)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parquet is not None:
            self._parquet.close()
        if kind is None and self._part.exists():
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)
