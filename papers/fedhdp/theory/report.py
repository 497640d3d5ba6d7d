"""All figures and tables of one problem, and the files they become."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from papers.fedhdp.theory import figures, incentive, tables
from papers.fedhdp.theory.draw import Figure, Table, page, write_png
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.point import Hold
from tacit.errors import StorageError

TITLE: Final = "FedHDP in closed form"
NAME: Final = "theory-fedhdp"


@dataclass(frozen=True)
class Report:
    about: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


def make(regression: Regression, *, hold: Hold = "gamma2", repetitions: int = 20_000, seed: int = 0) -> Report:
    problem = regression.coordinate
    drawn = figures.figures(problem, regression.dim, regression.samples, hold, repetitions, seed)
    told = (tables.server_table(problem, repetitions, seed), tables.personal_table(problem, repetitions, seed))
    return Report(
        figures.describe(regression),
        (*drawn, incentive.figure(problem), incentive.price_figure(problem)),
        (*told, incentive.table(problem)),
    )


def write(report: Report, folder: Path) -> list[Path]:
    """Every figure as PNG, one page with all of them, and the tables as text; returns where."""
    try:
        images = [write_png(figure, folder) for figure in report.figures]
        html, text = folder / f"{NAME}.html", folder / f"{NAME}.md"
        html.write_text(page(TITLE, report.about, report.figures, report.tables), encoding="utf-8")
        text.write_text(_markdown(report), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    return [*images, html, text]


def _markdown(report: Report) -> str:
    tables = "\n".join(table.markdown() for table in report.tables)
    return f"# {TITLE}\n\n{report.about} Written by `python -m papers theory`.\n\n{tables}"
