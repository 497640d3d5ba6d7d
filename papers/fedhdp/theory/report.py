"""All figures and tables of one problem, and the files they become."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from papers.fedhdp.theory import figures, incentive, tables
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.point import Hold
from tacit.errors import StorageError
from tacit.report.figures import Figure, write_png
from tacit.report.page import Table, document, sections

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
        images = [write_png([figure], folder / f"{figure.name}.png") for figure in report.figures]
        html, text = folder / f"{NAME}.html", folder / f"{NAME}.md"
        html.write_text(_page(report), encoding="utf-8")
        text.write_text(_markdown(report), encoding="utf-8")
    except (OSError, StorageError) as error:
        raise StorageError(f"cannot write to {folder}: {error}; choose another --out") from error
    return [*images, html, text]


def _page(report: Report) -> str:
    tables = "".join(table.html() for table in report.tables)
    head = f"<header><h1>{TITLE}</h1><p>{escape(report.about)}</p></header>"
    return document(TITLE, head + sections(report.figures) + tables)


def _markdown(report: Report) -> str:
    tables = "\n\n".join(table.markdown() for table in report.tables)
    return f"# {TITLE}\n\n{report.about} Written by `python -m papers theory`.\n\n{tables}\n"
