"""The shrinkage picture: each client on a line of its own, moving from what it says alone toward the centre."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.report.axes import INK, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
SHOWN: Final = 36
_OWN, _PERSONAL, _CENTRE = "#EE6677", "#4477AA", "#888888"


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


def draw(moves: Moves) -> "Figure":
    """Hollow: alone. Filled: personal, with its interval. Dashed: the centre."""
    from matplotlib.figure import Figure

    shown = moves.spread()
    figure = Figure(figsize=(8, 1.6 + 0.19 * len(shown.names)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    rows = np.arange(len(shown.names))
    axes.axvline(shown.centre, color=_CENTRE, linestyle="--", linewidth=1, label="centre")
    axes.hlines(rows, shown.low, shown.high, color=_PERSONAL, alpha=0.25, linewidth=5, label="interval, 95%")
    axes.hlines(rows, shown.local, shown.personal, color=INK, linewidth=0.8)
    axes.plot(shown.local, rows, "o", markerfacecolor="white", color=_OWN, markersize=5, label="alone")
    axes.plot(shown.personal, rows, "o", color=_PERSONAL, markersize=5, label="personal")
    _frame(axes, shown, rows)
    return figure


def _frame(axes: "Axes", shown: Moves, rows: Any) -> None:
    dress(axes, shown.title, shown.value, "", lines="x")
    axes.set_yticks(rows, [name[:28].replace("$", r"\$") for name in shown.names], fontsize=7)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def write_png(moves: Moves, path: Path) -> Path:
    draw(moves).savefig(path, dpi=150)
    return path


def write_html(moves: Moves, path: Path) -> Path:
    """The same picture to hover over: one file, nothing fetched."""
    import plotly.graph_objects as go

    shown = moves.spread(200)
    rows = list(range(len(shown.names)))
    lines = [end for pair in zip(shown.local, shown.personal, strict=True) for end in (*pair, None)]
    bars = [end for pair in zip(shown.low, shown.high, strict=True) for end in (*pair, None)]
    heights = [height for row in rows for height in (row, row, None)]
    figure = go.Figure()
    figure.add_scatter(x=bars, y=heights, mode="lines", name="interval, 95%", opacity=0.3, line_color=_PERSONAL)
    figure.add_scatter(x=lines, y=heights, mode="lines", showlegend=False, line={"color": INK, "width": 1})
    for name, values, mark in (
        ("alone", shown.local, {"color": _OWN, "symbol": "circle-open", "size": 7}),
        ("personal", shown.personal, {"color": _PERSONAL, "size": 7}),
    ):
        text = "%{text}: %{x:.4g}<extra>" + name + "</extra>"
        figure.add_scatter(
            x=values, y=rows, mode="markers", name=name, marker=mark, text=list(shown.names), hovertemplate=text
        )
    figure.add_vline(x=shown.centre, line_dash="dash", line_color=_CENTRE, annotation_text="centre")
    figure.update_layout(
        title=shown.title, xaxis_title=shown.value, template="plotly_white", height=300 + 14 * len(rows)
    )
    figure.update_yaxes(tickvals=rows, ticktext=list(shown.names), tickfont_size=9, showgrid=False)
    figure.write_html(path, include_plotlyjs=True)
    return path
