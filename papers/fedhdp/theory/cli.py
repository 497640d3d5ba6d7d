"""`python -m papers theory`: the papers' closed forms, drawn and printed."""

from pathlib import Path
from typing import Annotated

import typer

from papers.fedhdp.theory.point import Hold


def fedhdp(
    out: Annotated[Path, typer.Option("--out", help="Folder for the images, the page and the tables.")] = Path(
        "theory"
    ),
    clients: Annotated[int, typer.Option(min=3, help="N, all clients.")] = 40,
    opted_out: Annotated[int, typer.Option(min=1, help="How many of them opted out; 2 or more must stay.")] = 4,
    alpha2: Annotated[float, typer.Option(help="Variance of a client's own estimate.")] = 1.0,
    tau2: Annotated[float, typer.Option(help="How far apart clients' true points are (variance).")] = 0.1,
    gamma2: Annotated[float, typer.Option(help="Noise on the private clients' mean (variance).")] = 0.2,
    dim: Annotated[int, typer.Option(min=1, help="Coefficients of the linear regression (Figure 3).")] = 5,
    samples: Annotated[int, typer.Option(min=1, help="Rows of each client there; at least --dim.")] = 10,
    hold: Annotated[
        Hold, typer.Option(help="In Figures 2 and 3, what the rest keep when one opts out; see README.md here.")
    ] = "gamma2",
    repetitions: Annotated[int, typer.Option(min=8, help="Monte Carlo repetitions.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the Monte Carlo.")] = 0,
) -> None:
    """Draw Figures 1-4 of FeO2 and FedHDP, and print who gains what from privacy chosen client by client.

    Each client estimates a point of its own from its data and from the server's average of everybody's noisy messages.
    For this problem all is known in closed form: the best weight of private messages (r*), the best pull towards the
    shared estimate (lambda*), and what a client gains by opting out. Every formula stands beside a simulation.

    Only ratios matter: scale alpha2, tau2 and gamma2 together and each error scales with them.
    """
    from rich.console import Console

    from papers.fedhdp.theory.linear import Regression
    from papers.fedhdp.theory.point import Problem
    from papers.fedhdp.theory.report import make, write

    problem = Problem(clients, clients - opted_out, alpha2, tau2, gamma2)
    report = make(Regression.of(problem, dim, samples), hold=hold, repetitions=repetitions, seed=seed)
    console = Console(highlight=False, markup=False)
    console.print(report.about, *(table.rich() for table in report.tables), sep="\n\n")
    for path in write(report, out):
        typer.echo(path)
