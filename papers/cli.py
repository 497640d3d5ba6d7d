"""`python -m papers`: the papers' tables and figures measured again, and their closed forms."""

from pathlib import Path
from typing import Annotated

import typer

from papers.fedhdp.theory.cli import fedhdp
from tacit.cli.main import Commands

app = typer.Typer(
    cls=Commands,
    help="Reproductions of the papers. Start with: python -m papers list",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.command("list")
def list_names() -> None:
    """List the tables and figures that can be measured again."""
    from papers import bench

    for name in bench.REGISTRY:
        typer.echo(f"{name}: {bench.find(name).title}")


@app.command(epilog="Example: `python -m papers run estimation/bernoulli --seeds 20`")
def run(
    name: Annotated[str, typer.Argument(help="Which one; `python -m papers list` prints them all.")],
    full: Annotated[bool, typer.Option("--full", help="The paper's size, however long it takes.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of every cell; default: as the page says.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the page and its images go.")] = Path("papers/results"),
    cells: Annotated[
        Path,
        typer.Option(help="Where finished cells are kept, one file each; papers/results/cells has those of our pages."),
    ] = Path("runs/reproduce"),
) -> None:
    """Measure a paper's table or figure again and write paper and measured side by side; goes on where it stopped."""
    from rich.console import Console

    from papers import bench

    console = Console(highlight=False, markup=False)
    page = bench.reproduce(name, console, full=full, seeds=seeds, out=out, cache=cells)
    typer.echo(f"page: {page}")


app.command("theory", epilog="Example: `python -m papers theory --clients 100 --opted-out 5 --out /tmp/theory`")(fedhdp)
