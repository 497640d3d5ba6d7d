"""The panels of a report as one PNG image."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core.files import storage
from tacit.report.axes import DASHES, INK, dress
from tacit.report.charts import Panel, Section, Series, sections
from tacit.report.summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3


def write_png(several: Sequence[RunSummary], path: Path) -> Path:
    """All panels below each other, a section a row; simulation-only figures are marked."""
    from matplotlib.figure import Figure

    rows = [(section, panels) for section in sections(several) for panels in _rows(section.panels)]
    if not rows:
        rows = [(Section("nothing was evaluated yet", "", ()), [Panel("", "round", "", ())])]
    figure = Figure(figsize=(10, 3.1 * len(rows) + 0.4), layout="constrained", facecolor="white")
    for place, (section, panels) in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        mark = f"  ({section.mark})" if section.note else ""
        place.suptitle(section.title + mark, fontsize=11, x=0.01, ha="left", color=INK)
        for axes, panel in zip(place.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axes, panel)
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return path


def _rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    return [panels[start : start + _COLUMNS] for start in range(0, len(panels), _COLUMNS)]


def _draw(axes: "Axes", panel: Panel) -> None:
    draw = _bars if panel.kind == "bar" else _lines
    draw(axes, panel.series)
    dress(axes, panel.title, panel.x_title, panel.y_title)
    axes.set_ylim(bottom=0, top=panel.top)
    if panel.series:
        axes.legend(fontsize=7, frameon=False, loc="best")


def _lines(axes: "Axes", series: Sequence[Series]) -> None:
    for line in series:
        width = 1.8 if line.strong else 1.1
        dot = "o" if len(line.x) == 1 else None  # a line of one point is not seen
        style = {"linestyle": DASHES[line.style], "color": line.color, "linewidth": width, "marker": dot}
        axes.plot(line.x, line.y, label=line.name, **style)


def _bars(axes: "Axes", series: Sequence[Series]) -> None:
    width = 0.08 / max(len(series), 1)
    for at, bars in enumerate(series):
        places = [x - 0.04 + (at + 0.5) * width for x in bars.x]
        axes.bar(places, bars.y, width, color=bars.color, label=bars.name)
    axes.set_xlim(0, 1)
