"""What a member and a server promise beyond one run, and against what a server may send."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.core import tree
from tacit.core.contract import Method
from tacit.federation.protocol.messages import Answer, pack, unpack
from tacit.methods import FedAvg, PerFedAvg, PFedMe
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import describe
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tests.federation.in_process import Wire, World
from tests.worlds import PLANS, ragged


def test_each_run_draws_its_own_batches(tmp_path: Path) -> None:
    """Sampling of rows is credited once for each step: in another run the same step sees rows of its own."""
    world = World(FedAvg(), PLANS["record"], ragged(3), fresh=True)
    client = world.client(2, tmp_path)
    drawn = []
    for run in ("run-1", "run-2", "run-1"):
        program = client._program(run, client.assemble(replace(world, run_id=run).terms))
        drawn.append(program.inputs_for({}, np.array([2]), 0))
    one, two, again = ((inputs.rows * inputs.mask).sum(-1).tolist() for inputs in drawn)
    assert one == again
    assert one != two


@pytest.mark.parametrize("method", [PFedMe(), PerFedAvg()], ids=["pfedme", "per-fedavg"])
def test_several_queries_of_a_batch_cost_a_member_what_they_cost_in_a_simulation(
    tmp_path: Path, method: Method
) -> None:
    """In its own ledger, by the events of the plan: samples of composed queries, never so many samples."""
    world = World(method, PLANS["record"], ragged(3), rounds=2, rate=1.0, fresh=True)
    simulated = world.simulated().engine.plan
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).go()
    for place, name in enumerate(world.federation.ids):
        account = simulated.client(place)
        assert account is not None
        with wire.clients[name].store.ledger() as own:
            assert own.spent(f"client:{name}") == {account.event: 2 * account.count}
        if world.federation.sizes[place] > 4:
            assert "queries" in describe(account.event, "record")


def test_no_bound_that_a_server_sends_takes_the_noise_off(tmp_path: Path) -> None:
    """A model that is sure of the one class of a client has tiny gradients: their squares vanish, as would the norm."""
    data = ragged(3)
    alike = replace(data, y=torch.zeros_like(data.y))
    world = World(FedAvg(), PLANS["local"], alike, rounds=1, rate=1.0, fresh=True, dtype=torch.float32)
    wire = Wire(world.clients(tmp_path))
    ask = world.conductor(tmp_path, wire)._ask("train", 0)
    model = tree.each(torch.zeros_like, tree.strip("view/model", ask.tensors))
    model["head.bias"][0] = 55.0
    body = tree.prefix("view/model", model) | {"public/bound": torch.tensor(1e-30, dtype=torch.float64)}
    answer = unpack(Answer, wire.clients["c1"].answer(pack(replace(ask, charged=(0,), tensors=body))))
    assert not answer.refused
    sent = tree.flatten(tree.strip("body", answer.tensors))  # integers: noise alone, of 2^26, whatever the bound
    assert sent.dtype == torch.int32
    assert 0.5 < float(sent.double().square().mean().sqrt()) / 2**26 < 1.5


def test_a_server_counts_what_earlier_runs_have_spent(tmp_path: Path) -> None:
    """Two runs that share a ledger stay within one budget."""
    level = Level("private", epsilon=6.0, delta=1e-3, noise=1.0)
    world = World(FedAvg(), Privacy(plans.Central(Fixed(0.5)), (level,)), ragged(3), rounds=40, fresh=True)
    ledger = Ledger.open(":memory:")
    for run in ("run-1", "run-2"):
        replace(world, run_id=run).conductor(tmp_path / run, Wire(world.clients(tmp_path / run)), ledger).go()
    (line,) = statement(ledger)
    assert 5.0 < line.epsilon <= 6.0
