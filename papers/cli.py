"""`tacit reproduce NAME`: a table or figure of a paper, measured again."""

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[str, typer.Argument(help="Which one; `list` prints them all.")] = "list",
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

    from papers import bench as room

    console = Console(highlight=False, markup=False)
    if name == "list":
        for each in room.REGISTRY:
            console.print(f"{each}: {room.find(each).title}")
        return
    page = room.reproduce(name, console, full=full, seeds=seeds, out=out, cache=cells)
    typer.echo(f"page: {page}")
