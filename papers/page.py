"""A page of results: text, tables and pictures, on the terminal and as Markdown with images beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING

from tacit.core.files import storage
from tacit.report.figures import PALETTE as COLORS
from tacit.report.figures import Figure as Picture
from tacit.report.figures import Panel, write_png
from tacit.report.figures import Series as Curve
from tacit.report.page import Table as Results

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["COLORS", "Curve", "Page", "Panel", "Part", "Picture", "Results", "embed", "over", "plus_minus", "show",
           "spread", "write"]  # fmt: skip

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
            console.print(part.rich())
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
    return f"{begin}\n{table.markdown()}\n\n{end}" if table.title.startswith(title) else found[0]


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
        write_png([part], folder / f"{stem}-{part.name}.png")
        return f"![{part.note}]({stem}-{part.name}.png)\n\n*{part.note}*"
    return part.markdown()
