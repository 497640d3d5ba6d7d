"""Rounds of very many local steps: a program with a loop over steps gives what the plain program gives."""

import pytest
import torch

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.methods import Ditto, FedAvg, LocalSgd
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run
from tacit.sampling.cohorts import FixedSize


def clients(*sizes: int) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)

    def rows(several: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(several, 5, generator=draw), torch.randint(3, (several,), generator=draw)

    return from_clients({k: (*rows(n), *rows(1)) for k, n in enumerate(sizes)})


def trained(method: Method, sizes: tuple[int, ...], epochs: int, rounds: int, dtype: torch.dtype) -> Run:
    """After two rounds; a long run records its programs, a short one does not."""
    training = Training(rounds=rounds, sampler=FixedSize(4), batch=5, epochs=epochs, dtype=dtype)
    run = Run(*assemble(clients(*sizes), initialise(MLP(5, 3, (4,)), 0), method, Privacy(), training),
              ledger=Ledger.open(":memory:"))  # fmt: skip
    for _ in range(2):
        run.step()
    return run


def flat(run: Run) -> torch.Tensor:
    return torch.cat([leaf.flatten() for leaf in run.progress.server.view.model.values()])


@pytest.mark.parametrize(
    ("method", "sizes", "epochs", "dtype"),
    [
        pytest.param(FedAvg(LocalSgd(0.05, momentum=0.5)), (5,) * 6, 146, torch.float32, id="alike, compiled"),
        pytest.param(FedAvg(LocalSgd(0.05)), (5, 9, 3, 5, 10, 10), 140, torch.float64, id="unequal, by torch"),
        pytest.param(Ditto(FedAvg(LocalSgd(0.05))), (5, 9, 3, 5, 10, 10), 140, torch.float32, id="states, compiled"),
    ],
)
def test_a_loop_over_steps_is_the_plain_program(
    method: Method, sizes: tuple[int, ...], epochs: int, dtype: torch.dtype
) -> None:
    looped = trained(method, sizes, epochs, 100_000, dtype)
    assert looped.engine.path.startswith("recorded")
    assert all(shape.loop for shape, _ in looped.engine.programs)
    near = 1e-9 if dtype == torch.float64 else 1e-4
    assert torch.allclose(flat(looped), flat(trained(method, sizes, epochs, 2, dtype)), rtol=near, atol=near / 100)
