"""Tables of clients on disk, CSV, Excel or Parquet, read and written piece by piece in bounded memory (Excel: whole).

Separator, decimal comma, thousands and encoding are guessed from the first rows unless given (`Dialect`), and said.
"""

import codecs
import csv
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from tacit.core.files import storage
from tacit.errors import StorageError, TacitError
from tacit.estimation.collect import BLOCK

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 4 * BLOCK
_PARQUET: Final = (".parquet", ".pq")
_EXCEL: Final = (".xlsx", ".xlsm")
_KINDS: Final = "CSV, Excel or Parquet"
_SEPARATORS: Final = (",", ";", "\t", "|")
_LOOKED_AT: Final = 200  # rows that a guess is made of
_NAMES: Final = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", ".": "point"}


@dataclass(frozen=True)
class Dialect:
    """How a text table is written. What is None is guessed from its first rows."""

    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    sheet: str | None = None  # of an Excel file; the first one if None

    def __str__(self) -> str:
        parts = [
            f"separator {_NAMES.get(self.separator or '', self.separator)}",
            f"decimal {_NAMES[self.decimal or '.']}",
        ]
        parts += [f"thousands {_NAMES.get(self.thousands, repr(self.thousands))}"] if self.thousands else []
        return ", ".join([*parts, f"encoding {self.encoding}"])

    @property
    def plain(self) -> bool:
        return (self.separator, self.decimal, self.thousands) == (",", ".", None) and self.encoding == "utf-8"

    def guess(self, path: Path, wanted: Sequence[str]) -> "Dialect":
        """Whole: what is not given is taken from the bytes and from the columns that are wanted."""
        if path.suffix.lower() in (*_PARQUET, *_EXCEL):
            self._refuse_text_options(path)
            return self
        if self.sheet is not None:
            raise TacitError(f"--sheet {self.sheet}: {path} is no Excel file: leave it out")
        self._check_signs()
        encoding = _encoding(path) if self.encoding is None else _known_encoding(self.encoding)
        lines = _first_lines(path, encoding)
        separator = self.separator or _separator(lines, wanted)
        decimal, thousands = self.decimal, self.thousands
        if decimal is None or thousands is None:
            values = _values(lines, separator, wanted[1:])
            decimal, thousands = _signs(values, decimal, thousands)
        return Dialect(separator, decimal, thousands, encoding)

    def _refuse_text_options(self, path: Path) -> None:
        if any((self.separator, self.decimal, self.thousands, self.encoding)):
            raise TacitError(f"{path} is no text: leave out --sep, --decimal, --thousands and --encoding")
        if self.sheet is not None and path.suffix.lower() in _PARQUET:
            raise TacitError(f"--sheet {self.sheet}: {path} is no Excel file: leave it out")

    def _check_signs(self) -> None:
        for name, sign in (("--sep", self.separator), ("--decimal", self.decimal), ("--thousands", self.thousands)):
            if sign is not None and len(sign) != 1:
                raise TacitError(f"{name} {sign!r}: give one character, for instance ';' or 'tab'")
        if self.decimal not in (None, ".", ","):
            raise TacitError(f"--decimal {self.decimal!r}: give a point or a comma")
        if self.decimal is not None and self.decimal == self.thousands:
            raise TacitError(f"--decimal and --thousands are both {self.decimal!r}: give two different signs")


_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def _known_encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise TacitError(f"--encoding {name}: not known; give for instance utf-8, cp1252 or utf-16") from None


def _encoding(path: Path) -> str:
    """By its mark, else UTF-8 if all of it is; else Windows' western letters, of which every byte is one."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        start = file.read(1 << 20)
        for mark, name in _MARKS:
            if start.startswith(mark):
                return name
        if b"\0" in start[:2048]:
            return "utf-16-be" if start[:1] == b"\0" else "utf-16-le"
        try:
            while start:
                decoder.decode(start)
                start = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8"


def _first_lines(path: Path, encoding: str) -> list[str]:
    try:
        with path.open(encoding=encoding, newline="") as file:
            return [line for line, _ in zip(file, range(_LOOKED_AT), strict=False) if line.strip()]
    except (UnicodeDecodeError, UnicodeError) as error:
        raise TacitError(f"{path} is not written in {encoding} ({error}): give another --encoding") from None


def _separator(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """The one that shows the wanted columns in the first line; else the one that cuts every line alike."""
    if not lines:
        return ","

    def merit(sign: str) -> tuple[int, int]:
        rows = [len(row) for row in csv.reader(lines, delimiter=sign)]
        names = next(csv.reader(lines, delimiter=sign))
        return sum(name in names for name in wanted), rows[0] if len(set(rows)) == 1 else 0

    return max(_SEPARATORS, key=merit)


def _values(lines: Sequence[str], separator: str, columns: Sequence[str]) -> list[tuple[int, str, str]]:
    """Row, column and text of the wanted numbers in the first rows."""
    rows = list(csv.reader(lines, delimiter=separator))
    places = [(rows[0].index(name), name) for name in columns if rows and name in rows[0]]
    return [
        (at, name, row[place].strip())
        for at, row in enumerate(rows[1:], 1)
        for place, name in places
        if place < len(row)
    ]


_GROUPED: Final = re.compile(r"[-+]?\d{1,3}(,\d{3})+")


def _signs(
    values: Sequence[tuple[int, str, str]], decimal: str | None, thousands: str | None
) -> tuple[str, str | None]:
    """Decimal sign and thousands, from how numbers are written; "27,000" alone could be either and is asked about."""
    commas = [value for value in values if "," in value[2]]
    if not commas or decimal == "," or thousands == ",":
        return decimal or ("," if thousands == "." else "."), thousands
    both = [value for value in commas if "." in value[2]]
    if both:
        last = "," if both[0][2].rindex(",") > both[0][2].rindex(".") else "."
        return decimal or last, thousands or ("," if last == "." else ".")
    if all(_GROUPED.fullmatch(text) for _, _, text in commas):
        at, name, text = commas[0]
        if decimal == ".":
            return decimal, ","
        raise TacitError(f"row {at} has '{text}' as {name}: give --thousands , or --decimal , to say what the comma is")
    return decimal or ",", thousands


def chunks(path: Path, name: str, columns: Sequence[str], dialect: Dialect = Dialect()) -> Iterator["pd.DataFrame"]:
    """The client's name as text and the given columns, `CHUNK` rows at a time; only the last piece is shorter."""
    import pandas as pd

    wanted = list(dict.fromkeys([name, *columns]))
    kept: list[pd.DataFrame] = []
    for piece in _pieces(path, wanted, name, whole_dialect(path, wanted, dialect)):
        kept.append(piece)
        while sum(map(len, kept)) >= CHUNK:
            whole = pd.concat(kept, ignore_index=True) if len(kept) > 1 else kept[0]
            yield whole.iloc[:CHUNK].reset_index(drop=True)
            kept = [whole.iloc[CHUNK:]]
    rest = pd.concat(kept, ignore_index=True) if kept else None
    if rest is not None and len(rest):
        yield rest


def whole_dialect(path: Path, wanted: Sequence[str], dialect: Dialect) -> Dialect:
    """`dialect` with what was not given, as the file tells it."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}: give a table, {_KINDS}")
    return dialect.guess(path, wanted)


def _pieces(path: Path, wanted: list[str], name: str, dialect: Dialect) -> Iterator["pd.DataFrame"]:
    if path.suffix.lower() in _PARQUET:
        yield from _parquet(path, wanted, name)
    elif path.suffix.lower() in _EXCEL:
        yield _excel(path, wanted, name, dialect.sheet)
    else:
        yield from _text(path, wanted, name, dialect)


def _text(path: Path, wanted: list[str], name: str, dialect: Dialect) -> Iterator["pd.DataFrame"]:
    import pandas as pd

    options: Any = {"sep": dialect.separator, "encoding": dialect.encoding}
    signs: Any = {"decimal": dialect.decimal, "thousands": dialect.thousands}
    try:
        _check_columns(path, list(pd.read_csv(path, nrows=0, **options).columns), wanted)
        reader: Any = pd.read_csv(
            path, usecols=lambda c: c in wanted, dtype={name: str}, chunksize=CHUNK, **options, **signs
        )
        with reader as pieces:
            for piece in pieces:
                yield piece.assign(**{each: _numbered(piece[each], dialect) for each in wanted if each != name})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeError) as error:
        told = " ".join(str(error).split())
        raise TacitError(f"{path} is not a CSV table ({told}): correct it, or give {_KINDS}") from None


def _numbered(column: "pd.Series", dialect: Dialect) -> "pd.Series":
    """One cell that is no number leaves a whole column as text: the others are numbers all the same, as `dialect` says,
    so that the error names the cell that is none."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column
    text = column.astype(str).str.replace(dialect.thousands or "", "", regex=False)
    found: Any = pd.to_numeric(text.str.replace(dialect.decimal or ".", ".", regex=False), errors="coerce")
    return column.astype(object).where(found.isna(), found)


def _excel(path: Path, wanted: list[str], name: str, sheet: str | None) -> "pd.DataFrame":
    import zipfile

    import pandas as pd

    _openpyxl()
    try:
        frame = pd.read_excel(path, sheet_name=0 if sheet is None else sheet, dtype={name: str}, engine="openpyxl")
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise TacitError(f"{path} cannot be read as an Excel file ({error}): check it and --sheet") from None
    _check_columns(path, list(map(str, frame.columns)), wanted)
    return pd.DataFrame({column: frame.rename(columns=str)[column] for column in wanted})


def _openpyxl() -> None:
    from importlib.util import find_spec

    if find_spec("openpyxl") is None:
        raise TacitError("Excel files need openpyxl: pip install 'tacit-fl[excel]', or save the table as CSV")


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
        raise TacitError(f"{path} is not a Parquet table ({error}): correct it, or give CSV") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TacitError("Parquet needs pyarrow: pip install pyarrow, or use CSV") from None
    return pyarrow.parquet, pyarrow


def _check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [column for column in wanted if column not in list(columns)]
    if missing:
        raise TacitError(f"{path} has no column {missing[0]!r}: it has {', '.join(map(str, columns))}")


def names_of(frame: "pd.DataFrame", column: str, first: int) -> NDArray[Any]:
    """The clients' names, each of which says something."""
    names = frame[column]
    empty = names.isna() | (names.astype(str).str.strip() == "")
    if empty.any():
        raise TacitError(f"row {first + int(np.argmax(empty)) + 1} has no {column}: name its client, or leave it out")
    return names.to_numpy()


def numbers(frame: "pd.DataFrame", column: str, name: str, first: int) -> NDArray[np.float64]:
    """A column as numbers; the first row that is not one is named by its place in the table and its client."""
    import pandas as pd

    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise TacitError(
            f"row {first + at + 1} ({name} {frame[name].iloc[at]}) has '{frame[column].iloc[at]}' as {column}: "
            "correct it, or leave the row out"
        )
    return values


def check_places(table: Path, ledger: Path, out: Path, written: Sequence[Path], force: bool) -> None:
    """Refuses to write over the table that is read or its ledger, ever, and over any other file unless `force`."""
    if out.suffix.lower() not in (".csv", *_PARQUET, *_EXCEL[:1]):
        raise TacitError(f"{out} is no name for a table: end it with .csv, .xlsx or .parquet")
    if out.suffix.lower() in _EXCEL:
        _openpyxl()
    if same_file(ledger, table):
        raise TacitError(f"{ledger} is the table that is read: keep the ledger in another file")
    for path in written:
        for kept, name in ((table, "the table that is read"), (ledger, "the ledger of what was asked")):
            if same_file(path, kept):
                raise TacitError(f"{path} is {name}: write the estimates to another file")
        if not path.exists():
            continue
        if path.is_dir():
            raise TacitError(f"{path} is a folder: give a file")
        if not force:
            raise TacitError(f"{path} is there already: choose another name, or add --force to write over it")


def same_file(one: Path, other: Path) -> bool:
    """Whether both names lead to one file, that is there or will be: by links of either kind, too."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


class Names:
    """Remembers names by hash, so that a client that comes twice is noticed; 8 bytes a client."""

    def __init__(self) -> None:
        self._seen: list[NDArray[np.uint64]] = []

    def add(self, names: Any) -> None:
        self._seen.append(_hashes(names))

    def check(self, again: Iterable[Any]) -> None:
        """Refuses a name that comes twice; `again` are the same names once more, to say which."""
        whole = np.sort(np.concatenate(self._seen)) if self._seen else np.empty(0, np.uint64)
        same = whole[1:] == whole[:-1]
        if same.any():
            first = whole[int(np.argmax(same))]
            which = next(str(names[at]) for names in again for at in np.flatnonzero(_hashes(names) == first))
            raise TacitError(
                f"{int(same.sum()):,} rows name a client that was there before, for instance '{which}': add up each "
                "client's rows first"
            )


def _hashes(names: Any) -> NDArray[np.uint64]:
    from pandas.core.util.hashing import hash_array

    return hash_array(np.asarray(names, dtype=object))


class Writer:
    """Writes a table piece by piece to a temporary file and puts it in place at the end: whole or not at all.

    Text is written as the table was that was read: who reads decimal commas gets decimal commas.
    """

    def __init__(self, path: Path, dialect: Dialect = Dialect()) -> None:
        self._dialect = dialect
        self._kept: list[pd.DataFrame] = []
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
            elif self._path.suffix.lower() in _EXCEL:
                self._kept.append(frame)
            else:
                self._write_text(frame)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        self._first = False

    def _write_text(self, frame: "pd.DataFrame") -> None:
        encoding = self._dialect.encoding or "utf-8"
        if not self._first:  # one mark of the encoding is enough
            encoding = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}.get(encoding, encoding)
        signs: Any = {"sep": self._dialect.separator or ",", "decimal": self._dialect.decimal or "."}
        mode = "w" if self._first else "a"
        frame.to_csv(self._part, mode=mode, header=self._first, index=False, encoding=encoding, **signs)

    def _write_excel(self) -> None:
        import pandas as pd

        with storage(self._path), self._part.open("wb") as file:
            pd.concat(self._kept).to_excel(file, index=False, engine="openpyxl")

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
        if kind is None and self._kept:
            self._write_excel()
        if kind is None and self._part.exists():
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)
