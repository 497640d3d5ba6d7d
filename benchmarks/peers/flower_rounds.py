"""The rounds in Flower's simulation: a ServerApp and a ClientApp of its message API, its engine with an actor a core.

No strategy stands between: the server sends the model, adds up what comes back, adds noise and steps, which is the
least that a round of Flower can be. The simulation runs in a thread and does a round for each one that is asked for.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
import atexit
import os
import random
import threading
import time
from queue import SimpleQueue

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import protocol
import torch
from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch_loop import make_layers

State = dict[str, Tensor]
actors = 1


def set_actors(several: int) -> None:
    """What other systems do with threads, Flower does with actors of one thread each."""
    global actors
    actors = several
    torch.set_num_threads(several)


def one_round(grid: Grid, nodes: list[int], state: State, model: str) -> None:
    how = protocol.training(model)
    content = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord({"model": model})})
    cohort = random.sample(nodes, how.cohort)
    replies = grid.send_and_receive([Message(content, dst_node_id=node, message_type="train") for node in cohort])
    updates = [reply.content["arrays"].to_torch_state_dict() for reply in replies if reply.has_content()]
    if len(updates) != len(cohort):
        raise RuntimeError(f"{len(cohort) - len(updates)} clients of {len(cohort)} did not answer")
    for name, leaf in state.items():
        total = torch.stack([update[name] for update in updates]).sum(0)
        total += torch.randn_like(total) * (protocol.NOISE_MULTIPLIER * how.clip)
        leaf.add_(total, alpha=protocol.SERVER_RATE / len(cohort))


def everybody(grid: Grid, clients: int) -> list[int]:
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    return nodes


def build(model: str) -> protocol.Round:
    asked: SimpleQueue[bool] = SimpleQueue()
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    server_app, clients = ServerApp(), protocol.training(model).clients

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        nodes, state = everybody(grid, clients), nn.Sequential(*make_layers(model)).state_dict()
        while asked.get():
            one_round(grid, nodes, state, model)
            done.put(None)

    resources = {"init_args": {"num_cpus": actors}, "client_resources": {"num_cpus": 1}}

    def simulate() -> None:
        try:
            run_simulation(server_app, client_app, clients, backend_config=resources)
        except BaseException as error:  # whoever waits for a round must hear of it
            done.put(error)

    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    atexit.register(lambda: (asked.put(False), thread.join(25)))  # Ray ends with it, and its agents

    def ask() -> None:
        asked.put(True)
        if (error := done.get()) is not None:
            raise error

    return ask


if __name__ == "__main__":
    protocol.run("flower", build, set_actors, ("flwr", "ray", "torch"))
