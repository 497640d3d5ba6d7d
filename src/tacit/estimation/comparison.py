"""Local, global and personal estimates side by side: is it worth working together?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

NAMES: Final = ("local", "global", "personal")
WORTHWHILE: Final = 0.01
"""A gain over the better of the two simple choices below this is called none."""


@dataclass(frozen=True)
class Row:
    """One way to estimate. `gain` is the share of the local error that it saves, negative where it adds to it."""

    name: str
    expected_mse: float  # mean over clients, by the theorem
    gain: float
    measured_mse: float | None = None  # mean over clients, where the truth was given: simulation only
    measured_gain: float | None = None
    worse_off: float | None = None  # share of clients whose expected error is above their local one


@dataclass(frozen=True)
class Comparison:
    """Rows local, global, personal; `str` is a plain table with the verdict below it."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    @property
    def gain(self) -> float:
        """The share of the local error that the personal estimates are expected to save."""
        return self["personal"].gain

    @property
    def helps(self) -> bool:
        """Whether the personal estimates are expected to beat local ones by at least a hundredth."""
        return self.gain >= WORTHWHILE

    @property
    def verdict(self) -> str:
        if not self.helps:
            return (
                f"Collaboration does not help here: it saves {100 * self.gain:.1f}% of the local error. "
                "Clients differ by far more than their own noise, or too little could be learned from the messages."
            )
        best = self["global"].expected_mse
        if self["personal"].expected_mse > (1 - WORTHWHILE) * best:
            return (
                f"Personal estimates save {100 * self.gain:.1f}% of the local error; so does one estimate for all: "
                "the clients hardly differ."
            )
        return f"Personal estimates save {100 * self.gain:.1f}% of the local error."

    def to_frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows]).set_index("name")

    def __rich__(self) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, caption=self.verdict, caption_justify="left")
        table.add_column("estimate")
        for head in self._heads():
            table.add_column(head, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row.name, *self._cells(row))
        return table

    def __str__(self) -> str:
        lines = [["estimate", *self._heads()], *([row.name, *self._cells(row)] for row in self.rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*text, self.verdict])

    def _heads(self) -> list[str]:
        return ["expected MSE", "gain"] + ["measured MSE", "gain"] * (self.rows[0].measured_mse is not None)

    def _cells(self, row: Row) -> list[str]:
        cells = [f"{row.expected_mse:.4g}", f"{100 * row.gain:+.1f}%"]
        if row.measured_mse is not None and row.measured_gain is not None:
            cells += [f"{row.measured_mse:.4g}", f"{100 * row.measured_gain:+.1f}%"]
        return cells


def compare(
    estimates: Sequence[NDArray[np.float64]],
    expected: Sequence[NDArray[np.float64]],
    truth: NDArray[np.float64] | None,
) -> Comparison:
    """Local, global, personal, in this order: their estimates, and the expected squared error of each client."""
    local, measured_local = float(np.mean(expected[0])), None
    rows = []
    for name, values, mse in zip(NAMES, estimates, expected, strict=True):
        mean, measured = float(np.mean(mse)), None
        if truth is not None:
            error = np.square(np.broadcast_to(values, truth.shape) - truth).reshape(len(truth), -1)
            measured = float(error.sum(1).mean())
            measured_local = measured if measured_local is None else measured_local
        worse = float(np.mean(mse > expected[0] * (1 + 1e-9)))
        rows.append(Row(name, mean, gain(mean, local), measured, _gain(measured, measured_local), worse))
    return Comparison(tuple(rows))


def gain(mse: float, local: float) -> float:
    """The share of `local` saved; 0 where there is no error to save."""
    return 1 - mse / local if local > 0 else 0.0


def _gain(mse: float | None, local: float | None) -> float | None:
    return None if mse is None or local is None else gain(mse, local)


def of_means(local: float, global_: float, personal: float) -> Comparison:
    """From mean expected errors alone, where there are too many clients to keep."""
    values = zip(NAMES, (local, global_, personal), strict=True)
    return Comparison(tuple(Row(name, float(mse), gain(mse, local)) for name, mse in values))
