"""What the SuperLink's executor runs: the rounds of one or several runs, each in its folder, resumed where it stood."""
# pyright: reportMissingImports=false

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from tacit.federation.flower.patch import Patch
from tacit.federation.flower.transport import FlowerTransport
from tacit.federation.service.gateway import OversizeLog
from tacit.federation.service.owned_processes import hold
from tacit.federation.service.server_dir import ServerFolder

PULLED = Patch(
    "flwr.superlink.grid.http_grid",
    "pull_objects",
    (
        *("object_ids", "pull_object_fn", "max_concurrent_pulls", "max_time"),
        *("max_tries_per_object", "initial_backoff", "backoff_cap"),
    ),
    "HttpGrid.pull_messages",
)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    door, due = OversizeLog(Path(str(context.run_config["door"]))), keep_deadlines()
    for folder in str(context.run_config["folders"]).split("|"):
        run_folder = ServerFolder(Path(folder))
        transport = FlowerTransport(grid, run_folder.nodes, partial(door.since, terms=run_folder.terms))
        due[:] = [transport]
        with hold(run_folder.folder):  # by one application at a time, even if Flower has started two
            run_folder.go(transport)


def keep_deadlines() -> list[FlowerTransport]:
    """Flower would wait three minutes for the rest of an answer whose sender died while sending it, and so would all.

    From here on it waits until the answers are due to the transport in the list; one try is always made.
    """
    due: list[FlowerTransport] = []
    pull = PULLED.check().pull_objects

    def pull_in_time(object_ids: list[str], pull_object_fn: Any) -> dict[str, bytes]:
        left = max(due[0].until - time.monotonic(), 0.0)
        return pull(object_ids, pull_object_fn, max_time=left, backoff_cap=1.0)

    PULLED.put(pull_in_time)
    return due
