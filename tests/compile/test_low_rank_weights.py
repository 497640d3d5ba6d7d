"""A recorded program that keeps the first layer as shares of the client's examples gives what the plain one gives."""

import numpy as np
import pytest
import torch

from tacit.compile import replay as recording
from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.methods import L1, Ditto, FedAvg, FineTuned, Personal, PFedMe, Scaffold
from tacit.methods.optimizers import LocalSgd
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson
from tacit.simulation.chunks import Compile
from tests.worlds import CENTRAL, largest_difference, states

INPUTS, CLASSES = (1, 8, 8), 3
OFF_AND_ON: tuple[Compile, ...] = ("off", "require")
METHODS = {
    "plain": FedAvg(),
    "momentum": FedAvg(LocalSgd(lr=0.2, momentum=0.9)),
    "weight decay": FedAvg(LocalSgd(lr=0.2, weight_decay=0.1)),
    "a falling rate": FedAvg(LocalSgd(lr=0.2, decay=0.9)),
    "Ditto": Ditto(),
    "Scaffold": Scaffold(),
    "fine-tuned": FineTuned(FedAvg()),
    "pFedMe": PFedMe(),
}


def federation(sizes: list[int], spoil: int | None = None) -> FederatedDataset:
    draw = torch.Generator().manual_seed(1)
    rows, clients = sum(sizes), len(sizes)
    x = torch.randn(rows, *INPUTS, generator=draw, dtype=torch.float64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if spoil is not None:
        x[offsets[spoil]] = 1e200  # its square is not finite
    labels = torch.randint(0, CLASSES, (rows,), generator=draw)
    return FederatedDataset(
        name="images",
        x=x,
        y=labels,
        offsets=offsets,
        test_x=x[:clients],
        test_y=labels[:clients],
        test_offsets=np.arange(clients + 1),
        common_x=None,
        common_y=None,
        ids=tuple(str(k) for k in range(clients)),
        classes=CLASSES,
    )


def run(method: Method, data: FederatedDataset, compile: Compile, devices: Availability = Availability()) -> Run:
    training = Training(rounds=3, sampler=Poisson(0.8), batch=4, epochs=3, dtype=torch.float64, devices=devices)
    performance = Performance(chunk=4, compile=compile)
    model = initialise(MLP(64, CLASSES, (5,)), 0)
    parts = assemble(data, model, method, CENTRAL, training, performance=performance)
    return Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))


def same(method: Method, data: FederatedDataset, devices: Availability = Availability()) -> None:
    plain, recorded = (run(method, data, compile, devices) for compile in OFF_AND_ON)
    for each in (plain, recorded):
        each.go()
    assert recorded.engine.programs
    assert all(recorded.engine.programs.values())
    assert largest_difference(plain.progress.server.view.model, recorded.progress.server.view.model) < 1e-12
    assert largest_difference(states(plain), states(recorded)) < 1e-12


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The programs that were recorded."""
    kept: list[torch.fx.GraphModule] = []
    simplify = recording.simplify

    def kept_too(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        kept.append(simplify(graph))
        return kept[-1]

    monkeypatch.setattr(recording, "simplify", kept_too)
    return kept


def of_weights_shape(graph: torch.fx.GraphModule) -> int:
    """Operations that make something of the first layer's size for every client, and are no views."""
    made = [
        n for n in graph.graph.nodes if n.op == "call_function" and n.target is not torch.ops.aten.as_strided.default
    ]
    return sum(tuple(n.meta["val"].shape) == (4, 5, 64) for n in made if isinstance(n.meta.get("val"), torch.Tensor))


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_those_of_the_plain_program(name: str) -> None:
    same(METHODS[name], federation([6, 8, 7, 8, 5, 8, 6, 8]))


def test_they_are_for_clients_of_very_unequal_sizes() -> None:
    same(Ditto(), federation([1, 30, 7, 12, 5, 2, 16, 8]))


def test_they_are_for_devices_that_do_less() -> None:
    same(FedAvg(), federation([6, 8, 7, 8, 5, 8, 6, 8]), Availability(variability=0.5))


def test_no_step_passes_over_the_first_layer(graphs: list[torch.fx.GraphModule]) -> None:
    same(FedAvg(), federation([8] * 8))
    assert max(of_weights_shape(graph) for graph in graphs) <= 5  # made once for the upload, then clipped


def test_what_draws_to_the_shared_model_passes_over_it_no_more(graphs: list[torch.fx.GraphModule]) -> None:
    """Ditto's own model: chosen, made once, kept; the difference to the shared one is a number in front of each."""
    same(Ditto(), federation([8] * 8))
    own = max(of_weights_shape(graph) for graph in graphs)
    graphs.clear()
    same(FedAvg(), federation([8] * 8))
    assert own - max(of_weights_shape(graph) for graph in graphs) <= 4


def test_a_row_whose_square_is_not_finite_spoils_nobody_else() -> None:
    same(FedAvg(), federation([6, 3, 6, 3, 6, 3, 6, 3], spoil=2))


def test_weights_that_rounding_left_where_they_were_have_no_sign() -> None:
    data = federation([8] * 4)
    data.x.mul_(1e-200)
    same(Personal(L1()), data)
