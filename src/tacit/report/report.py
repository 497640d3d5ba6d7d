"""Reports of runs on disk: tables for the terminal, a page and an image."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from tacit.core.files import storage, write_atomically
from tacit.errors import TacitError
from tacit.report.charts import figures
from tacit.report.figures import Figure, Panel
from tacit.report.figures import write_png as write_image
from tacit.report.html import page
from tacit.report.summary import RunSummary, open_run
from tacit.report.tables import comparison, level_table

__all__ = ["open_all", "places", "tell", "write_html", "write_png"]


def open_all(paths: Sequence[Path]) -> list[RunSummary]:
    """The runs in these folders, each under a title of its own."""
    several = [open_run(path) for path in paths]
    titles = [findings.title for findings in several]
    if len(set(titles)) < len(titles):
        twice = next(title for title in titles if titles.count(title) > 1)
        raise TacitError(f"two of the runs are called '{twice}': give each run once, or rename one of the folders")
    return several


def tell(several: Sequence[RunSummary]) -> Iterator[RenderableType]:
    """What a terminal shows: tables, guarantees in words, and whatever a reader must be warned of."""
    yield comparison(several) if len(several) > 1 else level_table(several[0])
    for findings in several:
        if len(several) > 1:
            yield f"\n{findings.title}"
        yield from findings.lines()


def places(paths: Sequence[Path]) -> tuple[Path, Path]:
    """Where page and image go by default: into the run's folder, or for several beside the first."""
    if len(paths) == 1:
        return paths[0] / "report.html", paths[0] / "report.png"
    return paths[0].parent / "comparison.html", paths[0].parent / "comparison.png"


def write_html(several: Sequence[RunSummary], path: Path) -> Path:
    """One file that needs no other and no network."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(several).encode())
    return path


def write_png(several: Sequence[RunSummary], path: Path) -> Path:
    """All figures in one image; those of simulation only are marked."""
    nothing = Figure("nothing", "", [Panel("nothing was evaluated yet", "round", "")])
    return write_image(figures(several) or [nothing], path)
