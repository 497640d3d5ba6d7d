"""A page of results: text, tables and pictures, on the terminal and as Markdown with images beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, Final, Literal

from tacit.core.files import storage
from tacit.report.axes import DASHES, Style, dress
from tacit.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

COLORS = PALETTE


@dataclass(frozen=True)
class Results:
    """A table. The first column is read from the left, the others are figures."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """A line through measured or computed points; `error` is one standard error each, `band` marks only, no line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    error: Sequence[float] | None = None
    style: Style = "solid"
    marks: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    x_title: str
    y_title: str
    curves: Sequence[Curve]
    log: Literal["", "x", "y", "xy"] = ""


_ACROSS: Final = 3  # panels in a row; more of them go two by two


@dataclass(frozen=True)
class Picture:
    """Panels side by side in one image, or any figure that was drawn elsewhere."""

    name: str  # of the file, behind the page's own
    caption: str
    panels: Sequence[Panel] = ()
    figure: Any = None

    def draw(self) -> "Figure":
        from matplotlib.figure import Figure

        if self.figure is not None:
            return self.figure
        columns = len(self.panels) if len(self.panels) <= _ACROSS else 2
        rows = -(-len(self.panels) // columns)
        whole = Figure(figsize=(6.8 * columns, 3.6 * rows), layout="constrained", facecolor="white")
        for at, panel in enumerate(self.panels, start=1):
            _draw(whole.add_subplot(rows, columns, at), panel)
        return whole


Part = str | Results | Picture


@dataclass(frozen=True)
class Page:
    """`parts` in the order of reading; text is Markdown."""

    title: str
    paper: str
    parts: Sequence[Part]


def show(page: Page, console: "Console") -> None:
    """Text and tables on the terminal; pictures by their caption."""
    console.print(f"{page.title}\n{page.paper}\n")
    for part in page.parts:
        if isinstance(part, Results):
            console.print(_rich(part))
        elif isinstance(part, str):
            console.print(f"{part}\n")


def write(page: Page, folder: Path, stem: str, command: str) -> Path:
    """`stem`.md and its images in `folder`; says by which command it was made."""
    parts = [f"# {page.title}", page.paper, f"Written by a run, not by hand. To repeat it: `{command}`"]
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        parts += [_markdown(part, folder, stem) for part in page.parts]
        path = folder / f"{stem}.md"
        path.write_text("\n\n".join(parts) + "\n")
    return path


def embed(page: Page, folder: Path, stem: str) -> list[Path]:
    """Fills the pages of `folder` that ask for a table: `<!-- STEM: start of its title -->` up to `<!-- end -->`."""
    tables = [part for part in page.parts if isinstance(part, Results)]
    filled: list[Path] = []
    for path in sorted(folder.glob("*.md")):
        old = new = path.read_text()
        for table in tables:
            asked = re.compile(rf"(<!-- {re.escape(stem)}: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
            new = asked.sub(lambda found, table=table: _filled(found, table), new)
        if new != old:
            path.write_text(new)
            filled.append(path)
    return filled


def _filled(found: re.Match[str], table: Results) -> str:
    begin, title, end = found.groups()
    return f"{begin}\n{_written(table)}\n\n{end}" if table.title.startswith(title) else found[0]


def plus_minus(mean: float, spread: float, digits: int = 1) -> str:
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


def over(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation; of one value the value alone, of none nothing."""
    mean = sum(values) / max(1, len(values))
    return plus_minus(mean, spread(values), digits) if len(values) > 1 else f"{mean:.{digits}f}" if values else ""


def spread(values: Sequence[float]) -> float:
    """The standard deviation; 0 where one value has none to show."""
    return stdev(values) if len(values) > 1 else 0.0


def _markdown(part: Part, folder: Path, stem: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Picture):
        part.draw().savefig(folder / f"{stem}-{part.name}.png", dpi=130)
        return f"![{part.caption}]({stem}-{part.name}.png)\n\n*{part.caption}*"
    return _written(part)


def _written(table: Results) -> str:
    align = [":--", *["--:"] * (len(table.heads) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (table.heads, align, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", table.note] if table.note else [])])


def _rich(table: Results) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=table.title, caption=table.note or None, box=SIMPLE_HEAD, title_justify="left")
    made.caption_justify = "left"
    for at, head in enumerate(table.heads):
        made.add_column(head, justify="right" if at else "left")
    for row in table.rows:
        made.add_row(*row)
    return made


def _draw(axes: "Axes", panel: Panel) -> None:
    for curve in panel.curves:
        kind: Any = "none" if curve.marks else DASHES[curve.style]
        shared: dict[str, Any] = {"color": curve.color, "label": curve.name, "linestyle": kind, "linewidth": 1.5}
        if curve.marks or curve.error is not None:
            axes.errorbar(curve.x, curve.y, yerr=curve.error, marker="o", markersize=3.5, capsize=2, **shared)
        else:
            axes.plot(curve.x, curve.y, **shared)
    if "x" in panel.log:
        places = list(panel.curves[0].x)
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)
    if "y" in panel.log:
        axes.set_yscale("log")
    dress(axes, panel.title, panel.x_title, panel.y_title)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
