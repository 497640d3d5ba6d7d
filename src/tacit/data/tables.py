"""Tables with names in them: categories become columns of zeros and ones, class names become class numbers.

How, is an `Encoding`. It is public: it is kept with the federation, with a run's saved models and in their folder, and
predictions come back as the names. So the names of columns, categories and classes must be no secret; where the list of
categories is one, or where several tables are to be encoded alike, give the list (`categories=`, `classes=`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from tacit.data.validate import unknown
from tacit.errors import TacitError

if TYPE_CHECKING:
    import pandas

Targets = Literal["classes", "numbers"]


class Column(NamedTuple):
    """A feature of a table: a number, or one of some categories."""

    name: str
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Encoding:
    """What the columns of a table are, and what classes are called; both empty where nothing has a name.

    >>> Encoding(classes=("cat", "dog")).named(np.array([1, 0])).tolist()
    ['dog', 'cat']
    """

    columns: tuple[Column, ...] = ()
    classes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Encoding":
        columns = tuple(Column(name, tuple(categories)) for name, categories in content.get("columns", ()))
        return cls(columns, tuple(content.get("classes", ())))

    @property
    def width(self) -> int:
        return sum(len(column.categories) or 1 for column in self.columns)

    def features(self, frame: "pandas.DataFrame", where: str) -> np.ndarray:
        """[rows, width], float64: numbers as they are, each category as a column of zeros and ones."""
        for column in self.columns:
            if column.name not in frame.columns:
                raise TacitError(f"{where} has no column '{column.name}', which the model was trained on: add it")
        return np.concatenate([self._column(frame, column, where) for column in self.columns], 1)

    def _column(self, frame: "pandas.DataFrame", column: Column, where: str) -> np.ndarray:
        values = frame[column.name]
        if not column.categories:
            if values.dtype.kind not in "iufb":
                raise TacitError(f"{where}: column '{column.name}' is not numeric ({values.iloc[0]!r})")
            return values.to_numpy(np.float64)[:, None]
        try:
            return np.eye(len(column.categories))[_numbers(values, column.categories, "category")]
        except TacitError as error:
            raise TacitError(f"{where}: column '{column.name}' has the {error}") from None

    def class_numbers(self, labels: Any) -> np.ndarray:
        """The numbers of classes by their names."""
        return _numbers(labels, self.classes, "class")

    def named(self, predictions: np.ndarray) -> np.ndarray:
        """Class numbers as names, where classes have names."""
        return np.array(self.classes, dtype=object)[predictions] if self.classes else predictions


NO_NAMES: Final = Encoding()


def _numbers(values: Any, names: Sequence[str], what: str) -> np.ndarray:
    place = {name: number for number, name in enumerate(names)}
    texts = [str(value) for value in values]
    strange = next((text for text in texts if text not in place), None)
    if strange is not None:
        raise unknown(what, strange, names)
    return np.array([place[text] for text in texts], np.int64)


def is_text(values: Any) -> bool:
    """Whether values are names rather than numbers."""
    return isinstance(next(iter(values), None), str) and all(isinstance(value, str) for value in values)


def names_in(values: Any) -> tuple[str, ...]:
    """In the order of letters."""
    return tuple(sorted({str(value) for value in values}))


class EncodedTable(NamedTuple):
    x: np.ndarray  # [rows, features], float64
    y: np.ndarray  # int64 classes, or float64 targets
    ids: np.ndarray | None
    encoding: Encoding


def encode_table(
    frame: "pandas.DataFrame",
    *,
    client: str | None,
    label: str,
    where: str,
    targets: Targets | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    classes: Sequence[Any] | None = None,
    columns: Sequence[Column] = (),
) -> EncodedTable:
    """Every column but the two named ones is a feature without gaps: a number, or one of some categories.

    `targets`: "numbers" makes the labels the targets of a regression; without it they are classes.
    `columns`: the features, in this order, as others have said them; what else the table has is left out.
    """
    for column in (label, client, *(categories or ()), *(told.name for told in columns)):
        if column is not None and column not in frame.columns:
            raise TacitError(f"{where}: {unknown('column', column, map(str, frame.columns))}")
    if not len(frame):
        raise TacitError(f"{where} has a header and no rows: give at least one row")
    if columns:
        kept = [*(told.name for told in columns), *(name for name in (label, client) if name is not None)]
        frame = frame.filter(items=kept)
    for name in frame.columns:
        gaps = np.flatnonzero(frame[name].isna().to_numpy())
        if gaps.size:
            raise TacitError(f"{where}: column '{name}' is empty in row {gaps[0] + 1}: drop the row or fill the value")
    names = [name for name in frame.columns if name not in (label, client)]
    if not names:
        raise TacitError(f"{where} has no feature columns: add at least one")
    columns = tuple(columns) or tuple(
        Column(str(name), _categories(frame[name], (categories or {}).get(str(name)), where)) for name in names
    )
    y, told = _targets(frame[label], label, where, targets, classes)
    encoding = Encoding(columns if any(column.categories for column in columns) else (), told)
    x = Encoding(columns).features(frame.rename(columns=str), where)
    return EncodedTable(x, y, None if client is None else frame[client].to_numpy(), encoding)


def _categories(values: Any, known: Sequence[Any] | None, where: str) -> tuple[str, ...]:
    if known is not None:
        return tuple(map(str, known))
    return () if values.dtype.kind in "iufb" else _names(values, f"{where}: column '{values.name}' is not numeric")


def _names(values: Any, trouble: str) -> tuple[str, ...]:
    """Of values that are all names; a word among numbers is rather a mistake."""
    if any(map(_is_number, values)):
        odd = next(value for value in values if not _is_number(value))
        raise TacitError(f"{trouble} ({odd!r} among numbers): mend it, or list the categories")
    return names_in(values)


def _targets(
    column: Any, label: str, where: str, targets: Targets | None, classes: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    if classes is not None:
        names = tuple(map(str, classes))
        return Encoding(classes=names).class_numbers(column), names
    if column.dtype.kind not in "iufb" and not all(map(_is_number, column)):
        odd = next(value for value in column if not _is_number(value))
        names = _names(column, f"{where}: label column '{label}' holds {odd!r}")
        return Encoding(classes=names).class_numbers(column), names
    values = column.astype(np.float64).to_numpy()
    if targets == "numbers":
        return values, ()
    if (fractions := values != np.round(values)).any():
        raise TacitError(
            f"{where}: label column '{label}' holds {values[fractions][0]:g}: number the classes from 0, or say "
            "targets='numbers' if it is a quantity"
        )
    return values.astype(np.int64), ()


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
