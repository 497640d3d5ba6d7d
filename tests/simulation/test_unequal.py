"""Clients of unequal sizes: chunks that pad little, and recorded programs that give what the plain ones give."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.methods import Ditto, FedAvg, LocalSgd
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run
from tacit.sampling.cohorts import FixedSize, FixedSteps, Shuffled
from tacit.simulation.chunks import Chunking

SIZES = (3, 8, 15, 26, 41, 60, 77, 95, 112, 124)


def clients() -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)

    def rows(several: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(several, 6, generator=draw), torch.randint(3, (several,), generator=draw)

    return from_clients({k: (*rows(n), *rows(1)) for k, n in enumerate(SIZES)})


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, id="by torch", marks=pytest.mark.slow), pytest.param(torch.float32, id="compiled")],
)
@pytest.mark.parametrize("method", [FedAvg(LocalSgd(0.1)), Ditto(FedAvg(LocalSgd(0.1)))], ids=["fedavg", "ditto"])
def test_a_recorded_round_of_unequal_clients_is_the_plain_one(method: Method, dtype: torch.dtype, epochs: int) -> None:
    def after_rounds(rounds: int) -> torch.Tensor:
        """A long run records its programs, a short one does not."""
        training = Training(rounds=rounds, sampler=FixedSize(8), batch=5, epochs=epochs, dtype=dtype)
        parts = assemble(clients(), initialise(MLP(6, 3, (4,)), 0), method, Privacy(), training)
        run = Run(*parts, ledger=Ledger.open(":memory:"))
        assert parts.engine.recorded == (rounds > 100)
        for _ in range(3):
            run.step()
        assert all(program is not None for program in parts.engine.programs.values())
        return torch.cat([leaf.flatten() for leaf in run.progress.server.view.model.values()])

    near = 1e-9 if dtype == torch.float64 else 1e-4
    assert torch.allclose(after_rounds(100_000), after_rounds(3), rtol=near, atol=near / 1000)


def test_recording_a_program_leaves_frozen_weights_in_their_precision() -> None:
    def after_rounds(rounds: int) -> torch.Tensor:
        model = initialise(MLP(6, 3, (4,)), 0)
        frozen = next(iter(model.parameters())).requires_grad_(False)
        training = Training(rounds=rounds, sampler=FixedSize(8), batch=200)
        run = Run(*assemble(clients(), model, FedAvg(LocalSgd(0.1)), Privacy(), training), Ledger.open(":memory:"))
        run.step()
        assert frozen.dtype == torch.float32
        assert run.engine.path.startswith("recorded" if rounds > 100 else "plain")
        return torch.cat([leaf.flatten() for leaf in run.progress.server.view.model.values()])

    assert torch.allclose(after_rounds(1000), after_rounds(1), rtol=1e-4, atol=1e-7)


def test_chunks_of_a_log_normal_population_pad_less_than_a_half_more() -> None:
    draw = np.random.default_rng(0)
    steps = np.ceil(np.clip(draw.lognormal(np.log(60), 1.0, 2000), 10, 1000) / 10).astype(np.int64)
    chunking = Chunking(Shuffled(10, 1), 10**9, steps, 79_510, workers=2, asked=100, alike=True, gather=False)
    assert chunking.recorded
    cohorts = [draw.choice(2000, 100, replace=False) for _ in range(20)]
    shapes = [(chunking.shape(chunk), chunk) for cohort in cohorts for chunk in chunking.split(cohort)]
    assert sum(len(chunk) for _, chunk in shapes) == 2000
    assert all(len(chunk) <= shape.clients and steps[chunk].max() <= shape.steps for shape, chunk in shapes)
    padded = sum(shape.clients * shape.steps for shape, _ in shapes)
    assert padded <= 1.5 * sum(steps[chunk].sum() for _, chunk in shapes)


@given(
    steps=st.lists(st.integers(1, 200), min_size=1, max_size=80),
    workers=st.integers(1, 4),
    several=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_where_padding_is_passed_over_one_program_serves_all_and_workers_have_like_work(
    steps: list[int], workers: int, several: int, seed: int
) -> None:
    every = np.array(steps)
    chunking = Chunking(
        Shuffled(10), 10**9, every, 79_510, workers, len(every), alike=True, gather=False, chunk=several, skipped=True
    )
    cohort = np.random.default_rng(seed).permutation(len(every))
    chunks = list(chunking.split(cohort))
    assert sorted(np.concatenate(chunks)) == sorted(cohort)
    assert all(chunking.records(chunk) for chunk in chunks)
    for chunk in chunks:
        shape = chunking.shape(chunk)
        assert len(chunk) <= shape.clients == several
        assert shape.full <= every[chunk].min()
        assert every[chunk].max() <= shape.length(every[chunk].max())
    recorded = [chunk for chunk in chunks if every[chunk].max() <= 128]  # the others are one loop
    assert len({chunking.shape(chunk) for chunk in recorded}) <= 1
    assert len({chunking.shape(chunk) for chunk in chunks}) <= 2
    if recorded and len(np.unique(every)) > 1 and len(every) <= several:  # any of them could have all
        taken = [every[chunk].sum() for chunk in recorded]
        assert max(taken) - min(taken) <= every[every <= 128].max()


@pytest.mark.parametrize(
    ("asked", "workers", "several"),
    [(100, 2, 25), (50, 2, 25), (16.2, 2, 5), (16.2, 1, 9), (1, 2, 2), (60, 2, 15), (104, 2, 13), (400, 2, 25)],
)
def test_a_small_cohort_leaves_no_worker_idle_and_fills_little_up(asked: float, workers: int, several: int) -> None:
    steps = np.ones(539, dtype=np.int64)
    chunking = Chunking(FixedSteps(32, 1), 500, steps, 50_000, workers, asked, alike=True, gather=False)
    cohort = np.arange(max(1, round(asked)))
    assert chunking.recorded
    assert chunking.shape(next(chunking.split(cohort))).clients == several


@pytest.mark.parametrize(
    ("lengths", "recorded"), [((160,), True), ((512,), True), ((513,), False), ((100, 160), False)]
)
def test_without_loops_a_long_program_is_recorded_where_it_serves_everybody(
    lengths: tuple[int, ...], recorded: bool
) -> None:
    steps = np.resize(np.array(lengths, dtype=np.int64), 539)
    chunking = Chunking(FixedSteps(32, 1), 500, steps, 50_000, 2, 50, alike=True, gather=False, loops=False)
    assert chunking.records(np.flatnonzero(steps == max(lengths))) == recorded
