"""Local, global and personal estimates side by side: is it worth working together?

The shrinkage picture: each client on a line of its own, moving from what it says alone toward the centre.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tacit.report import figures
from tacit.report.figures import INK, NEUTRAL, PALETTE, Figure, Panel, Series

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


Array = NDArray[np.float64]
SHOWN: Final = 36
_PERSONAL, _ALONE = PALETTE[:2]


@dataclass(frozen=True)
class Moves:
    """Some clients, by name: alone, personal, and the interval around the personal estimate."""

    names: Sequence[str]
    local: Array
    personal: Array
    low: Array
    high: Array
    centre: float
    title: str
    value: str = "estimate"

    def spread(self, most: int = SHOWN) -> "Moves":
        """At most `most` clients, evenly over the ranks of what they say alone, ascending."""
        order = np.argsort(self.local, kind="stable")
        kept = order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
        return replace(
            self,
            names=[self.names[int(at)] for at in kept],
            local=self.local[kept],
            personal=self.personal[kept],
            low=self.low[kept],
            high=self.high[kept],
        )

    def panel(self, most: int = SHOWN) -> Panel:
        """Hollow: alone. Filled: personal, with its interval. Dashed: the centre."""
        shown = self.spread(most)
        rows = np.arange(len(shown.names), dtype=float)
        thrice = np.repeat(rows, 3)

        def across(name: str, low: Array, high: Array, color: str, width: float, opacity: float) -> Series:
            ends = np.column_stack([low, high, np.full(len(low), np.nan)]).ravel()
            return Series(name, ends.tolist(), thrice.tolist(), color, width=width, opacity=opacity)

        series = [
            across("interval, 95%", shown.low, shown.high, _PERSONAL, 5, 0.25),
            across("", shown.local, shown.personal, INK, 0.8, 1),
            Series("centre", [shown.centre] * 2, [-0.8, len(rows) - 0.2], NEUTRAL, style="dash", width=1),
            Series("alone", shown.local.tolist(), rows.tolist(), _ALONE, style="none", mark="hollow"),
            Series("personal", shown.personal.tolist(), rows.tolist(), _PERSONAL, style="none", mark="filled"),
        ]
        names = {row: name[:24] for row, name in zip(rows.tolist(), shown.names, strict=True)}
        height = 1.4 + 0.17 * len(rows)
        return Panel("", shown.value, "", series, y_range=(-0.8, len(rows) - 0.2), y_names=names, height=height)

    def figure(self) -> Figure:
        note = (
            f"{min(SHOWN, len(self.names))} clients, evenly over the ranks of what they say alone. Each name stands "
            "beside that client's own data and estimate: give each client its own row only."
        )
        return Figure("moves", note, [self.panel()], self.title)


def write_png(moves: Moves, path: Path) -> Path:
    return figures.write_png([moves.figure()], path)
