"""Dropout: masks belong to an example of a client in a step of a round, whoever computes it and with whom."""

import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from tacit.core.contract import Shared, Tree
from tacit.core.dropout import Draws, Key, drawing
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.experiments.train import train
from tacit.federation.protocol.client_store import ClientStore
from tacit.methods import Ditto, FedAvg
from tacit.models import MLP, check, params
from tacit.models.functional import ModuleTask
from tacit.models.layers import Layers
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.gradient import ghost, plain
from tacit.rounds.assemble import Performance, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.federation.in_process import World
from tests.worlds import PLANS, largest_difference, ragged, states


def words(rows: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + rows).unsqueeze(-1)


class Layered(nn.Module):
    """Dropout as a layer, as a function, and where the batch does not come first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 8), nn.Dropout(0.25), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.dropout(self.drop(self.body(x)).tanh().T, 0.5, self.training)
        return self.head(hidden.T)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Layered()


def run(
    plan: str = "central", *, compile: str = "off", chunk: int | None = None, dtype: torch.dtype = torch.float64
) -> Run:
    training = Training(2, Poisson(0.9), 4, seed=3, dtype=dtype)
    performance = Performance(chunk=chunk, compile=compile)  # pyright: ignore[reportArgumentType]
    engine, shapes = assemble(ragged(6), net(), FedAvg(), PLANS[plan], training, performance=performance)
    return Run(engine, shapes, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))


def trained(plan: str = "central", **options: object) -> Tree:
    one = run(plan, **options)  # pyright: ignore[reportArgumentType]
    one.go()
    return one.progress.server.view.model


def test_a_mask_keeps_each_number_with_its_probability_and_independently() -> None:
    keep = Draws(Key(words(2000))).keep((100,), 0.3).double()
    sigma = 0.21**0.5
    assert abs(float(keep.mean()) - 0.7) < 5 * sigma / 200_000**0.5
    for sums, several in ((keep.mean(0), 2000), (keep.mean(1), 100)):  # places, examples: as spread as chance has it
        assert float(sums.std()) == pytest.approx(sigma / several**0.5, rel=0.15)
    neighbours = torch.corrcoef(torch.stack([keep[:, :-1].flatten(), keep[:, 1:].flatten()]))[0, 1]
    examples = torch.corrcoef(torch.stack([keep[:-1].flatten(), keep[1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 5 / 200_000**0.5
    assert abs(float(examples)) < 5 / 200_000**0.5


@pytest.mark.parametrize(
    "other", [Key(words(4, 1)), Key(words(4), seed=1), Key(words(4), step=1)], ids=["row", "seed", "step"]
)
def test_another_row_seed_or_step_has_another_mask_and_the_next_draw_too(other: Key) -> None:
    first = Draws(Key(words(4)))
    masks = [first.keep((64,), 0.5), first.keep((64,), 0.5), Draws(other).keep((64,), 0.5)]
    assert len({tuple(mask[0].tolist()) for mask in masks}) == 3


def test_a_mask_does_not_depend_on_the_batch_nor_on_vmap() -> None:
    whole = Draws(Key(words(7))).keep((5,), 0.5)
    assert torch.equal(whole[3:5], Draws(Key(words(2, 3))).keep((5,), 0.5))
    assert torch.equal(whole, vmap(lambda word: Draws(Key(word)).keep((5,), 0.5))(words(7).unsqueeze(1)).squeeze(1))


@pytest.mark.parametrize(
    ("layer", "shape", "pieces"),
    [
        (nn.Dropout(0.4), (50, 40), 2000),
        (nn.Dropout1d(0.4), (50, 40, 3), 2000),
        (nn.Dropout2d(0.4), (50, 40, 3, 2), 2000),
        (nn.Dropout3d(0.4), (50, 40, 3, 2, 2), 2000),
    ],
)
def test_dropout_scales_what_it_keeps_and_drops_whole_channels(layer: nn.Module, shape: tuple, pieces: int) -> None:
    with drawing(Key(words(50))), Layers():
        out = layer(torch.ones(shape)).reshape(pieces, -1)
    assert set(out.unique().tolist()) == {0.0, float(torch.ones(()) / 0.6)}
    assert (out == out[:, :1]).all()
    assert float((out[:, 0] == 0).double().mean()) == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)])
def test_alpha_dropout_keeps_mean_and_variance(layer: nn.Module) -> None:
    x = torch.randn(200, 100, 4, generator=torch.Generator().manual_seed(0))
    with drawing(Key(words(200))), Layers():
        out = layer(x)
    assert float(out.mean()) == pytest.approx(0, abs=0.03)
    assert float(out.var()) == pytest.approx(1, abs=0.05)


def test_nothing_is_dropped_where_nothing_is_trained_and_all_of_it_at_one() -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    task = check(net().double(), ragged())
    assert task.drops
    assert torch.equal(task.apply({}, x), task.apply({}, x))
    assert torch.equal(task.apply({}, x), net().double().eval()(x))
    with drawing(Key(words(4))), Layers():
        assert not functional.dropout(x, 1.0).any()


def test_models_without_dropout_run_a_batch_as_one() -> None:
    assert not check(MLP(6, 3).double(), ragged()).drops


@pytest.mark.parametrize("of", [plain, ghost])
def test_private_gradients_are_those_of_each_example_alone_with_its_own_mask(of: object) -> None:
    task, x, y = check(net().double(), ragged()), torch.randn(5, 6).double(), torch.randint(3, (5,))
    leaves, key, mask = params(task.module), Key(words(5, 7)), torch.arange(5) < 4

    def alone(row: int) -> Tree:
        with drawing(Key(words(1, 7 + row))):
            return grad(lambda p: task.losses(p, x[row : row + 1], y[row : row + 1]).sum())(leaves)

    each = [alone(row) for row in range(4)]
    norms = [torch.cat([leaf.flatten() for leaf in one.values()]).norm() for one in each]
    expected = {
        name: sum(one[name] * min(1.0, 0.5 / float(norm)) for one, norm in zip(each, norms, strict=True))
        for name in leaves
    }
    found = of(task.losses, leaves, x, y, mask, 0.5, key)  # pyright: ignore[reportCallIssue]
    assert largest_difference(found, expected) < 1e-5  # pyright: ignore[reportArgumentType]
    without = of(task.losses, leaves, x, y, mask, 0.5)  # pyright: ignore[reportCallIssue]
    assert largest_difference(found, without) > 1e-3  # a mask makes a difference


class Visible(nn.Module):
    """Rows are one-hot, so that W has a row for each: what of it does not move was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(12, 40, dtype=torch.float64))
        draw = torch.Generator().manual_seed(0)
        self.head = nn.Parameter(torch.randn(40, 3, generator=draw, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x @ self.rows + 1, 0.5, self.training) @ self.head


@cache
def numbered() -> FederatedDataset:
    """Three clients; of all rows everybody knows its number."""
    labels = np.arange(12) % 3
    return from_clients({name: (np.eye(12)[:n], labels[:n]) for name, n in (("a", 12), ("b", 7), ("c", 9))},
                        test_fraction=0.0, classes=3, dtype=torch.float64)  # fmt: skip


def watched(chunk: int | None = None, folder: Path | None = None, resume: bool = False) -> Run:
    """Two rounds, at whose end each client's own model shows what was dropped of which row."""
    training = Training(2, Poisson(1.0), batch=12, seed=3, dtype=torch.float64)
    schedule = Schedule(evaluate_every=100, checkpoint_every=1)
    performance = Performance(chunk=chunk, compile="off")
    data, method = numbered(), Ditto(strength=0.0)
    return train(
        data, Visible(), method, Privacy(), training,
        folder=folder, schedule=schedule, performance=performance, resume=resume, progress=False,
    ).run  # fmt: skip


def kept(state: Tree) -> Tensor:
    """[clients, rows, numbers]: what moved in either of the rounds."""
    return state["personal/rows"] != 0


def test_masks_are_the_same_to_the_bit_for_any_chunk_size_and_number_of_threads() -> None:
    first, threads = kept(states(watched(chunk=1))), torch.get_num_threads()
    assert 0.6 < float(first[0].double().mean()) < 0.9  # of two masks of one half each
    assert not torch.equal(first[0, :7], first[1, :7])
    try:
        for several in (1, 2):
            torch.set_num_threads(several)
            for chunk in (2, 7, 100):
                assert torch.equal(first, kept(states(watched(chunk))))
    finally:
        torch.set_num_threads(threads)


def test_masks_are_the_same_to_the_bit_in_a_federation_of_three_nodes(tmp_path: Path) -> None:
    world = World(Ditto(strength=0.0), Privacy(), numbered(), rounds=2, rate=1.0, model=Visible())
    world.conductor(tmp_path).go()
    first = Ditto().join(Shared({"rows": torch.zeros(12, 40, dtype=torch.float64)}), {})
    found = [ClientStore(tmp_path / name).state("run-1", 2, first) for name in numbered().ids]
    simulated = world.simulated()
    simulated.go()
    assert torch.equal(torch.stack([kept(state) for state in found]), kept(states(simulated)))


def test_masks_are_the_same_to_the_bit_after_kill_9(tmp_path: Path) -> None:
    """Of a process that is killed within its second round, and this one, which goes on."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tacit.rounds.loop import Run\n"
        "from tests.models.test_dropout import watched\n"
        "step = Run.step\n"
        "def dying(run):\n"
        "    if run.progress.round == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(run)\n"
        "Run.step = dying\n"
        "watched(folder=Path(sys.argv[1]))\n"
    )
    folder = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert torch.equal(kept(states(watched(folder=folder, resume=True))), kept(states(watched())))


@pytest.mark.parametrize("plan", ["central", "record"])
def test_models_are_the_same_up_to_the_order_of_sums_for_any_chunk_size_and_number_of_threads(plan: str) -> None:
    first = trained(plan, chunk=1)
    assert largest_difference(first, trained(plan, chunk=7)) < 1e-12
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert largest_difference(first, trained(plan, chunk=100)) < 1e-12
    finally:
        torch.set_num_threads(threads)


def test_recorded_and_plain_programs_drop_the_same() -> None:
    plainly, recorded = (trained("open", compile=how, dtype=torch.float32) for how in ("off", "require"))
    assert largest_difference(plainly, recorded) < 1e-6


def test_a_run_that_stops_and_goes_on_drops_the_same() -> None:
    whole = trained()
    first = run()
    first.step()
    again = run()
    again.progress, _ = first.progress, again.store.restore(first.store.prepare())
    again.go()
    assert largest_difference(whole, again.progress.server.view.model) == 0


def test_rounds_and_clients_have_masks_of_their_own() -> None:
    engine = run().engine
    inputs = engine.inputs_for({}, np.array([1, 2]), 0)
    site = engine.site
    keys = [
        site(engine.task, type(inputs)({}, *(leaf[at] for leaf in inputs[1:])), round, 1)[0].grad.key(0)  # pyright: ignore
        for at, round in ((0, 0), (1, 0), (0, 1))
    ]
    masks = [Draws(key).keep((64,), 0.5)[0].tolist() for key in keys]
    assert len({tuple(mask) for mask in masks}) == 3


def test_dropout_beside_batch_norm_needs_the_batch_first() -> None:
    good = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    assert check(good, ragged()).drops

    class Turned(Layered):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    with pytest.raises(TacitError, match="put the batch first"):
        check(Turned().double(), ragged())


def test_a_task_that_was_not_checked_drops_nothing() -> None:
    task, x = ModuleTask(net().double()), torch.randn(2, 6).double()
    with drawing(Key(words(2))):
        assert torch.equal(task.apply({}, x), net().double().eval()(x))
