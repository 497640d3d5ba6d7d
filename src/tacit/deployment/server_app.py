"""What the SuperLink's executor runs: the rounds of one or several runs, each in its folder, resumed where it stood."""
# pyright: reportMissingImports=false

from functools import partial
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from tacit.deployment.office import Office
from tacit.deployment.turned_away import TurnedAway
from tacit.engine.flower.grid import FlowerTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    door = TurnedAway(Path(str(context.run_config["door"])))
    for folder in str(context.run_config["folders"]).split("|"):
        office = Office(Path(folder))
        office.go(FlowerTransport(grid, office.nodes, partial(door.since, terms=office.terms)))
