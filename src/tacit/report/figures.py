"""How figures look: series of numbers in panels, and two ways to show them, an image (PNG) and a page (SVG).

A figure is data until `write_png` or `svg` draws it, both with the same code. So whatever a page shows, an image shows
too, and colours, axes and legends are the same everywhere.
"""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from tacit.core.files import storage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure as Canvas

Style = Literal["solid", "dash", "dot", "none"]
Mark = Literal["", "filled", "hollow"]
Names = Mapping[Any, str]
"""Words at places of an axis, which are whole or other numbers."""

# Paul Tol's bright scheme: told apart by colour-blind readers, legible on white and on black
PALETTE: Final = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE")
NEUTRAL: Final = "#888888"
INK, FAINT, PAPER = "#222222", "#dddddd", "#fffffe"
DIVERGING: Final = ("#b2182b", "#ffffff", "#2166ac")
_DASHES: Final[dict[Style, Any]] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "none": "none"}
# A page follows the reader's light or dark scheme, an image does not
_THEME: Final = {INK: "currentColor", FAINT: "var(--line)", PAPER: "var(--paper)"}
_SIZE: Final = 9.5  # points
_WIDTH: Final = 4.3  # of a panel, in inches: on a phone, its smallest letters have ten pixels
_ACROSS: Final = 3  # panels in a row of an image
_LETTERS: Final = 56  # of a legend that fit beside each other over one panel
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none", "svg.hashsalt": "tacit", "text.parse_math": False,
    "lines.solid_capstyle": "butt",  # a wide line is an interval: it ends where the interval does
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Points of one name: joined by a line (broken at NaN), marked, or bars. `error` is half an interval, `band` the
    same as a shade around the line; `labels` stand beside the points. A page can switch off all series of a `group`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = NEUTRAL
    error: Sequence[float] | None = None
    style: Style = "solid"
    mark: Mark = ""
    width: float = 1.8
    opacity: float = 1.0
    group: str = ""
    labels: Sequence[str] = ()
    band: Sequence[float] | None = None


@dataclass(frozen=True, eq=False)
class Heat:
    """A matrix as colours, its first row on top. `form` writes each value into its cell; None writes none."""

    values: np.ndarray
    colors: Sequence[str] = DIVERGING
    low: float | None = None
    high: float | None = None
    form: str | None = None
    scale: bool = True  # whether a bar of colours says which value is which


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Names put words at places of an axis; a range end that is None follows from the data."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series] = ()
    log: Literal["", "x", "y", "xy"] = ""
    bars: bool = False
    x_range: tuple[float | None, float | None] = (None, None)
    y_range: tuple[float | None, float | None] = (None, None)
    x_names: Names = field(default_factory=dict)
    y_names: Names = field(default_factory=dict)
    heat: Heat | None = None
    height: float = 3.2  # inches


@dataclass(frozen=True)
class Figure:
    """Panels that answer one question. `name` is the file's; `mark` keeps a reader from taking it for more."""

    name: str
    note: str
    panels: Sequence[Panel]
    title: str = ""
    mark: str = ""


class Chart(NamedTuple):
    """One panel on a page: `points[series]` has (x, y, words for x, words for y), in the drawing's own units."""

    svg: str
    points: list[list[tuple[float, float, str, str]]]


def write_png(figures: Sequence[Figure], path: Path) -> Path:
    """All figures in one image, a row each; those of one panel share a row."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(figures).savefig(path, dpi=150)
    return path


def draw(figures: Sequence[Figure]) -> "Canvas":
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    rows = _rows(figures)
    columns = max(sum(len(figure.panels) for figure in row) for row in rows)
    heights = [max(_height(panel) for figure in row for panel in figure.panels) for row in rows]
    with mpl.rc_context(_SETTINGS):
        canvas = Canvas(figsize=(_WIDTH * columns, sum(heights) + 0.2), layout="constrained", facecolor="white")
        canvas.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr]
        strips = canvas.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for strip, row in zip(strips, rows, strict=True):
            counts = [len(figure.panels) for figure in row]
            shares = [*counts, columns - sum(counts)] if sum(counts) < columns else counts
            places = strip.subfigures(1, len(shares), squeeze=False, width_ratios=shares)[0]
            for place, figure in zip(places, row, strict=False):
                _draw_figure(place, figure)
    return canvas


def _rows(figures: Sequence[Figure]) -> list[list[Figure]]:
    """Figures of several panels have rows of their own, at most `_ACROSS` wide (four panels: two by two)."""
    rows: list[list[Figure]] = []
    for figure in figures:
        count = len(figure.panels)
        across = 2 if count == 4 else _ACROSS
        if count == 1 and rows and len(rows[-1]) < _ACROSS and all(len(each.panels) == 1 for each in rows[-1]):
            rows[-1].append(figure)
        else:
            for start in range(0, count, across):
                title = "" if start else figure.title
                rows.append([replace(figure, panels=figure.panels[start : start + across], title=title)])
    return rows


def _draw_figure(place: Any, figure: Figure) -> None:
    title = f"{figure.title} ({figure.mark})" if figure.mark and figure.title else figure.title
    if title:
        place.suptitle(textwrap.fill(title, 54 * len(figure.panels)), fontsize=11, x=0.01, ha="left", color=INK)
    for axes, panel in zip(place.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True):
        _draw_panel(axes, panel)


def svg(panel: Panel, name: str) -> Chart:
    """The panel for a page. `name` keeps its ids apart from those of other charts there."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    out = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        canvas = Canvas(figsize=(_WIDTH, _height(panel)), layout="constrained", dpi=72)
        axes = canvas.subplots()
        _draw_panel(axes, panel)
        canvas.savefig(out, format="svg", transparent=True)
    return Chart(_inline(out.getvalue(), panel, name), _points(axes, panel, 72 * _height(panel)))


def _inline(text: str, panel: Panel, name: str) -> str:
    """An SVG element for the middle of a page: no declarations, ids of its own, the page's colours."""
    size, body = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>(.*)</svg>', text, re.DOTALL).groups()  # type: ignore[union-attr]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'( id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", body)
    for color, replacement in _THEME.items():
        body = body.replace(color, replacement)
    return f'<svg viewBox="{size}" role="img" aria-label="{_describe(panel)}">{body}</svg>'


def _describe(panel: Panel) -> str:
    """For readers who do not see it: what is drawn, and where each series ends."""
    from html import escape

    ends = [f"{each.name} ends at {each.y[-1]:.4g}" for each in panel.series if each.name and len(each.y)]
    about = f"{panel.y_title} by {panel.x_title}" if panel.x_title and panel.y_title else panel.x_title or panel.y_title
    return escape("; ".join(part for part in (panel.title, about, *ends[:12]) if part), quote=True)


def _points(axes: "Axes", panel: Panel, height: float) -> list[list[tuple[float, float, str, str]]]:
    if panel.heat is not None:
        down, right = (each.ravel() for each in np.indices(panel.heat.values.shape))
        names = [f"{_word(y, panel.y_names)}, {_word(x, panel.x_names)}" for x, y in zip(right, down, strict=True)]
        return [_place(axes, right, down, names, [f"{value:.4g}" for value in panel.heat.values.ravel()], height)]
    both = [([_word(x, panel.x_names) for x in s.x], [_word(y, panel.y_names) for y in s.y]) for s in panel.series]
    words = [(y, x) if panel.y_names else (x, y) for x, y in both]  # what has a name comes first
    return [_place(axes, s.x, s.y, *each, height) for s, each in zip(panel.series, words, strict=True)]


def _place(
    axes: "Axes", x: Any, y: Any, names: Sequence[str], values: Sequence[str], height: float
) -> list[tuple[float, float, str, str]]:
    places = axes.transData.transform(np.column_stack([np.asarray(x, float), np.asarray(y, float)]))
    points = zip(places, names, values, strict=True)
    return [(round(a, 1), round(height - b, 1), n, w) for (a, b), n, w in points if np.isfinite([a, b]).all()]


def _word(value: Any, names: Names) -> str:
    return names.get(float(value), f"{value:.4g}")


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    if panel.heat is not None:
        _draw_heat(axes, panel.heat)
    elif panel.bars:
        _draw_bars(axes, panel.series)
    else:
        for at, series in enumerate(panel.series):
            _draw_line(axes, series, at)
    _scale(axes, panel)
    _dress(axes, panel)
    _add_legend(axes, panel)


def _draw_line(axes: "Axes", series: Series, at: int) -> None:
    alone = series.style != "none" and not series.mark and len(series.x) == 1  # a line of one point is not seen
    mark = "filled" if alone or (series.error is not None and not series.mark) else series.mark
    look: dict[str, Any] = {
        "color": series.color, "linestyle": _DASHES[series.style], "linewidth": series.width, "alpha": series.opacity,
        "marker": "o" if mark else None, "markersize": 4, "label": series.name or "_",
        "markerfacecolor": PAPER if mark == "hollow" else series.color, "zorder": 3 if series.style == "none" else 2,
    }  # fmt: skip
    error = None if series.error is None else [each if np.isfinite(each) else 0.0 for each in series.error]
    drawn = axes.errorbar(series.x, series.y, yerr=error, capsize=2, elinewidth=1, **look)
    shade = [] if series.band is None else [_draw_band(axes, series, series.band)]
    _name([*drawn.get_children(), *shade], at)
    for x, y, text in zip(series.x, series.y, series.labels, strict=False):
        axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", fontsize=_SIZE - 1.5, color=INK)


def _draw_band(axes: "Axes", series: Series, band: Sequence[float]) -> Any:
    y, half = np.asarray(series.y, float), np.asarray(band, float)
    return axes.fill_between(series.x, y - half, y + half, color=series.color, alpha=0.15, linewidth=0, zorder=1)


def _draw_bars(axes: "Axes", groups: Sequence[Series]) -> None:
    places = sorted({float(x) for series in groups for x in series.x})
    step = min((b - a for a, b in pairwise(places)), default=1.0)
    width = 0.8 * step / max(len(groups), 1)
    for at, series in enumerate(groups):
        left = [x - 0.4 * step + (at + 0.5) * width for x in series.x]
        look: dict[str, Any] = {"color": series.color, "label": series.name, "yerr": series.error}
        bars = axes.bar(left, series.y, width, **look, error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2})
        _name(bars, at)
    axes.axhline(0, color=FAINT, linewidth=0.8)


def _name(artists: Any, at: int) -> None:
    """So that a page can find what belongs to a series."""
    for number, artist in enumerate(artists):
        artist.set_gid(f"series-{at}-{number}")


def _draw_heat(axes: "Axes", heat: Heat) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("heat", list(heat.colors))
    image = axes.imshow(heat.values, aspect="auto", cmap=colors, vmin=heat.low, vmax=heat.high, interpolation="nearest")
    if heat.scale:
        axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=_SIZE - 2, colors=INK, length=0)
    for (down, right), value in np.ndenumerate(heat.values) if heat.form else ():
        red, green, blue, _ = colors(image.norm(value))
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        axes.text(right, down, format(value, heat.form or ""), ha="center", va="center", fontsize=_SIZE - 2, color=ink)


def _scale(axes: "Axes", panel: Panel) -> None:
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    axes.set_xlim(*panel.x_range)
    axes.set_ylim(*panel.y_range)
    if panel.x_names:
        tall = panel.heat is not None and len(panel.x_names) > 12
        axes.set_xticks(list(panel.x_names), list(panel.x_names.values()), rotation=90 if tall else 0)
    elif "x" in panel.log:
        places = [] if panel.y_names else sorted({float(x) for series in panel.series for x in series.x})
        _mark_logarithmic(axes.xaxis, places)
    elif all(float(x).is_integer() for series in panel.series for x in series.x):
        axes.locator_params(axis="x", integer=True)
    if panel.y_names:
        axes.set_yticks(list(panel.y_names), list(panel.y_names.values()))
    elif "y" in panel.log:
        _mark_logarithmic(axes.yaxis, ())


def _mark_logarithmic(axis: "XAxis | YAxis", places: Sequence[float]) -> None:
    """Ticks where the data are, if these are few, or at round numbers; not written as powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = np.log10(axis.get_view_interval())
    if 1 < len(places) <= 9:
        apart = [places[0]]
        for place in places[1:]:
            if np.log10(place / apart[-1]) > 0.1 * (high - low):
                apart.append(place)
        axis.set_major_locator(FixedLocator(apart))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high - low < 2.5 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):,.10g}"))
    axis.set_minor_locator(NullLocator())


def _dress(axes: "Axes", panel: Panel) -> None:
    """Titles, and faint lines behind what is drawn instead of a frame around it."""
    axes.set_xlabel(panel.x_title, fontsize=_SIZE, color=INK)
    axes.set_ylabel(panel.y_title, fontsize=_SIZE, color=INK)
    crowded = panel.heat is not None and len(panel.y_names) > 16
    axes.tick_params(which="both", labelsize=_SIZE - (3 if crowded else 1), colors=INK, length=0)
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=FAINT, visible=panel.heat is None)
    if panel.heat is None:
        axes.grid(axis="x" if panel.y_names else "y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)


def _columns(names: Sequence[str]) -> int:
    """Of a legend: as many as the width has room for."""
    return max(1, min(len(names), _LETTERS // (max(map(len, names), default=0) + 6), 4))


def _height(panel: Panel) -> float:
    """A long legend does not take room from the axes."""
    names = [series.name for series in panel.series if series.name]
    return panel.height + 0.17 * max(0, -(-len(names) // _columns(names)) - 2)


def _add_legend(axes: "Axes", panel: Panel) -> None:
    """Over the axes, where it covers nothing; the panel's title is its first line."""
    names = [series.name for series in panel.series if series.name]
    if not names or (names == [panel.title] and len(panel.series) == 1):
        axes.set_title(textwrap.fill(panel.title, _LETTERS), fontsize=_SIZE, loc="left", color=INK)
        return
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(
        handles, [textwrap.fill(label, _LETTERS) for label in labels], title=panel.title or None,
        alignment="left", loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, borderpad=0, frameon=False,
        ncols=_columns(names), columnspacing=1.2, handlelength=1.8, fontsize=_SIZE - 1, title_fontsize=_SIZE,
        labelcolor=INK,
    )  # fmt: skip
    legend.get_title().set_color(INK)
