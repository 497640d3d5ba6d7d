"""The shrinkage picture: each client on a line of its own, moving from what it says alone toward the centre."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.core.files import write_atomically
from tacit.report import figures
from tacit.report.figures import INK, NEUTRAL, PALETTE, Figure, Panel, Series
from tacit.report.page import document, sections

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


def write_html(moves: Moves, path: Path) -> Path:
    """The same picture to point at: one file, nothing fetched."""
    body = f"<h1>Personal estimates</h1>{sections([moves.figure()])}"
    write_atomically(path, document(moves.title, body).encode())
    return path
