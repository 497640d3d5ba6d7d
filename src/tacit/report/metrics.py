"""One tidy table of what was measured: round, level, metric, value. Figures in it are simulation only.

`personal_mean` is of the run's first metric (`Facts.metric`); of a further one, say mae, it is `mae:personal_mean`.

It holds no epsilon: that is the ledger's to say (`spending.py`). `charges` is how many rows the ledger had for the
rounds so far, so that a ledger which has lost some is noticed.
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError
from tacit.rounds.evaluate import Scores

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"
"""The level of what concerns every client. A level of that name is told apart by a trailing underscore."""
CHARGES = "charges"
KEPT = "kept_length"  # share of an update's length that the clip leaves
WHICH = ("shared", "personal")
STATISTICS = ("mean", "variance", "worst_decile")


class Row(NamedTuple):
    round: int
    level: str
    metric: str
    value: float


def label(level: str) -> str:
    return f"{level}_" if level.rstrip("_") == ALL else level


def score_rows(round: int, scores: Scores, levels: Sequence[str]) -> Iterator[Row]:
    """Metrics of all clients and of each level that has some."""
    yield from _figures(round, scores, levels)
    for other in scores.others:
        for row in _figures(round, other, levels):
            if row.metric not in ("common_loss", "strangers", "clients"):
                yield row._replace(metric=f"{other.metric.name}:{row.metric}")


def _figures(round: int, scores: Scores, levels: Sequence[str]) -> Iterator[Row]:
    if scores.common is not None:
        yield Row(round, ALL, "common", scores.common)
    if scores.loss is not None and math.isfinite(scores.loss):
        yield Row(round, ALL, "common_loss", scores.loss)
    yield Row(round, ALL, "strangers", scores.strangers)
    for index, level in [(None, ALL), *((j, label(name)) for j, name in enumerate(levels))]:
        summaries = {model: scores.summary(model, index) for model in WHICH}
        yield Row(round, level, "clients", summaries["personal"].clients)
        for model, summary in summaries.items():
            for statistic in STATISTICS:
                value = getattr(summary, statistic)
                if not math.isnan(value):
                    yield Row(round, level, f"{model}_{statistic}", value)


class Metrics:
    """The table, in memory and, with a path, on disk: what `append` was given is durable when it returns."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.rows: list[Row] = []
        if path is not None and path.exists():
            self.rows = read(path)

    def append(self, rows: Iterable[Row]) -> None:
        new = list(rows)
        if self._path is not None:
            text = _text(new) if self._path.exists() else _header() + _text(new)
            with storage(self._path), open(self._path, "a", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self.rows += new

    def rewind(self, round: int) -> None:
        """Forgets what was measured after `round`: a resumed run measures it again, and finds the same."""
        self.rows = [row for row in self.rows if row.round <= round]
        if self._path is not None and self._path.exists():
            write_atomically(self._path, (_header() + _text(self.rows)).encode())

    def has(self, round: int) -> bool:
        """Whether the round was evaluated."""
        return any(row.round == round and row.metric == "strangers" for row in self.rows)


def read(path: Path) -> list[Row]:
    """The rows of a file. A last line that a killed run left unfinished is not read."""
    with storage(path):
        content = path.read_bytes()
    try:
        text = content.decode()
        whole = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(io.StringIO(whole, newline="")))[1:]
        rows = [Row(int(round), level, metric, float(value)) for round, level, metric, value in lines]
    except (ValueError, csv.Error) as error:
        raise StorageError(f"{path} is damaged ({error}): restore it from a backup or start the run anew") from error
    return [row for row in rows if "_epsilon_" not in row.metric]  # earlier versions kept their own


def frame(rows: Iterable[Row]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(Row._fields)).astype(
        {"round": "int64", "level": "object", "metric": "object", "value": "float64"}
    )


def _header() -> str:
    return ",".join(Row._fields) + "\n"


def _text(rows: Iterable[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows((r.round, r.level, r.metric, repr(float(r.value))) for r in rows)
    return out.getvalue()
