"""Figures and tables apart from what is in them: PNG images, one self-contained page, text for the terminal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.report.axes import DASHES, INK, Style, dress
from tacit.report.style import CSS, SCRIPT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from rich.table import Table as RichTable

_GREY = "#777777"


@dataclass(frozen=True)
class Line:
    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "solid"


@dataclass(frozen=True)
class Dots:
    """Points with a meaning of their own (filled), or simulated ones (hollow, grey)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = _GREY
    filled: bool = True


@dataclass(frozen=True)
class Panel:
    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    dots: Sequence[Dots] = ()
    log_x: bool = False
    log_y: bool = False
    range_y: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """`name` is the file's. The note says how to read it."""

    name: str
    title: str
    note: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `words` columns are left-aligned, the rest are numbers."""

    title: str
    note: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def rich(self) -> "RichTable":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        left: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "box": SIMPLE_HEAD}
        table = RichTable(title=self.title, caption=self.note, **left)
        for at, head in enumerate(self.heads):
            table.add_column(head, justify="left" if at < self.words else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rule = ["---"] * self.words + ["---:"] * (len(self.heads) - self.words)
        lines = ["| " + " | ".join(row) + " |" for row in (self.heads, rule, *self.rows)]
        return "\n".join([f"## {self._heading}", "", *lines, "", self.note, ""])

    def html(self) -> str:
        head = self._cells("th", self.heads)
        rows = "".join(f"<tr>{self._cells('td', row)}</tr>" for row in self.rows)
        return (
            f'<section><h2>{escape(self._heading)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f'<tbody>{rows}</tbody></table></div><p class="note">{escape(self.note)}</p></section>'
        )

    @property
    def _heading(self) -> str:
        return self.title[:1].upper() + self.title[1:]

    def _cells(self, tag: str, row: Sequence[str]) -> str:
        kinds = ["name"] * self.words + ["n"] * (len(self.heads) - self.words)
        return "".join(f'<{tag} class="{kind}">{escape(text)}</{tag}>' for kind, text in zip(kinds, row, strict=True))


def write_png(figure: Figure, folder: Path) -> Path:
    """FOLDER/name.png; the folder is made if it is not there."""
    from matplotlib.figure import Figure as Canvas

    columns = len(figure.panels)
    canvas = Canvas(figsize=(5.2 * columns, 3.9), layout="constrained", facecolor="white")
    canvas.suptitle(figure.title, fontsize=12, x=0.01, ha="left", color=INK)
    for axes, panel in zip(canvas.subplots(1, columns, squeeze=False)[0], figure.panels, strict=True):
        _draw(axes, panel)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{figure.name}.png"
    canvas.savefig(path, dpi=150)
    return path


def _draw(axes: "Axes", panel: Panel) -> None:
    for line in panel.lines:
        axes.plot(line.x, line.y, linestyle=DASHES[line.style], color=line.color, linewidth=1.8, label=line.name)
    for dots in panel.dots:
        face, edge, size = (dots.color, "white", 7) if dots.filled else ("none", dots.color, 4.5)
        axes.plot(
            dots.x, dots.y, linestyle="none", marker="o", markersize=size, markerfacecolor=face, markeredgecolor=edge,
            label=dots.name or "_", zorder=4 if dots.filled else 3,
        )  # fmt: skip
    if panel.log_x:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis, (1,))
    if panel.log_y:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis, (1, 2, 5))
    dress(axes, panel.title, panel.x_title, panel.y_title, size=10)
    if panel.range_y:
        axes.set_ylim(*panel.range_y)
    axes.legend(fontsize=8.5, loc="best", labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)


def _plain_numbers(axis: "XAxis | YAxis", digits: Sequence[int]) -> None:
    """Ticks of a logarithmic axis at these digits, not written as powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def page(title: str, about: str, figures: Sequence[Figure], tables: Sequence[Table]) -> str:
    """One HTML file: everything inlined, nothing fetched, works offline."""
    from plotly.offline import get_plotlyjs

    charts = "".join(_section(at, figure) for at, figure in enumerate(figures))
    body = f"<header><h1>{escape(title)}</h1><p>{escape(about)}</p></header>{charts}"
    body += "".join(table.html() for table in tables)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body><main>{body}</main>\n"
        f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _section(number: int, figure: Figure) -> str:
    panels = "".join(_chart(f"chart-{number}-{at}", panel) for at, panel in enumerate(figure.panels))
    note = f'<p class="note">{escape(figure.note)}</p>'
    return f'<section><h2>{escape(figure.title)}</h2>{note}<div class="panels">{panels}</div></section>'


def _chart(name: str, panel: Panel) -> str:
    traces = [_line(line) for line in panel.lines] + [_dots(dots) for dots in panel.dots]
    # a closing tag inside the data would end the script
    data = json.dumps({"data": traces, "layout": _layout(panel)}).replace("</", "<\\/")
    return (
        f'<div class="panel"><h3>{escape(panel.title)}</h3><div class="chart" data-from="{name}"></div>'
        f'<script type="application/json" id="{name}">{data}</script></div>'
    )


def _line(line: Line) -> dict[str, Any]:
    look = {"color": line.color, "dash": line.style, "width": 2.2}
    return {
        "type": "scatter", "mode": "lines", "name": line.name, "x": list(line.x), "y": list(line.y), "line": look,
        "hovertemplate": "%{y:.4g}",
    }  # fmt: skip


def _dots(dots: Dots) -> dict[str, Any]:
    symbol = "circle" if dots.filled else "circle-open"
    return {
        "type": "scatter", "mode": "markers", "name": dots.name, "x": list(dots.x), "y": list(dots.y),
        "marker": {"color": dots.color, "symbol": symbol, "size": 9 if dots.filled else 6},
        "showlegend": bool(dots.name), "hovertemplate": "%{x:.4g}: %{y:.4g}",
    }  # fmt: skip


def _layout(panel: Panel) -> dict[str, Any]:
    return {
        "xaxis": {"title": panel.x_title, "showgrid": False} | ({"type": "log", "dtick": 1} if panel.log_x else {}),
        "yaxis": {"title": panel.y_title, **_range(panel)} | ({"type": "log", "dtick": "D2"} if panel.log_y else {}),
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "hovermode": "closest",
    }


def _range(panel: Panel) -> dict[str, Any]:
    if panel.range_y is None:
        return {}
    from math import log10

    return {"range": [log10(edge) for edge in panel.range_y] if panel.log_y else list(panel.range_y)}
