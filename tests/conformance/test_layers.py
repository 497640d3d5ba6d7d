"""Which layers run under which plan; docs/how-to/which-layers.md says the same."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional
from torch.utils import _pytree as pytree

from tacit.core.contract import Tree
from tacit.core.dropout import Key, drawing
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.models import check, params
from tacit.models.functional import fit_inputs
from tacit.models.layers import Layers
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms.gradient import ghost
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.worlds import PLANS, largest_difference

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-layers.md"
COLUMNS = ("open", "central", "record", "distributed")
TOKENS, LENGTH, WIDTH = 7, 4, 8


class Text(nn.Module):
    """Tokens, an embedding, something over the sequence, a class."""

    def __init__(self, over: Callable[[], nn.Module], read: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.over, self.head = nn.Embedding(TOKENS, WIDTH), over(), nn.Linear(WIDTH, 3)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.over, self.embedding(x.long())))


def last(over: nn.Module, x: Tensor) -> Tensor:
    return over(x)[0][:, -1]


def by_cell(over: nn.Module, x: Tensor) -> Tensor:
    h = c = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
    for now in x.unbind(1):
        h, c = over(now, (h, c))
    return h


def attended(over: nn.Module, x: Tensor) -> Tensor:
    padding = torch.arange(LENGTH) == LENGTH - 1
    return over(x, x, x, key_padding_mask=padding.expand(x.shape[0], -1))[0].mean(1)


def causal(over: nn.Module, x: Tensor) -> Tensor:
    return over(functional.scaled_dot_product_attention(x, x, x, dropout_p=0.2, is_causal=True)).mean(1)


def time_first(over: nn.Module, x: Tensor) -> Tensor:
    return over(x.transpose(0, 1)).mean(0)


def packed(over: nn.Module, x: Tensor) -> Tensor:
    several = nn.utils.rnn.pack_padded_sequence(x, [LENGTH] * x.shape[0], batch_first=True)
    return over(several)[1][0][-1]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(TOKENS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x.long()))


class Function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(LENGTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.dropout(self.body(x).relu(), 0.5, self.training))


def image(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 3, padding=1), *layers, nn.Linear(16, 3))


def encoder(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=batch_first), 1, enable_nested_tensor=False
    )


def dense(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(LENGTH, WIDTH), *layers, nn.Linear(WIDTH, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "`nn.Dropout`": lambda: dense(nn.ReLU(), nn.Dropout(0.5)),
    "`F.dropout`": Function,
    "`nn.Dropout2d` (also `1d`, `3d`)": lambda: image(nn.Dropout2d(0.25), nn.Flatten(), nn.Dropout(0.5)),
    "`nn.AlphaDropout`, `nn.FeatureAlphaDropout`": lambda: dense(nn.SELU(), nn.AlphaDropout(0.3)),
    "`nn.LSTM`": lambda: Text(lambda: nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3, batch_first=True), last),
    "`nn.GRU`": lambda: Text(lambda: nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True), last),
    "`nn.RNN`": lambda: Text(lambda: nn.RNN(WIDTH, WIDTH, batch_first=True), last),
    "`nn.LSTMCell`, `nn.GRUCell`, `nn.RNNCell`": lambda: Text(lambda: nn.LSTMCell(WIDTH, WIDTH), by_cell),
    "packed sequences": lambda: Text(lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), packed),
    "`nn.Embedding`": lambda: Text(nn.Identity, lambda over, x: over(x).mean(1)),
    "`nn.EmbeddingBag`": Bag,
    "`nn.MultiheadAttention`": lambda: Text(
        lambda: nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True), attended
    ),
    "`F.scaled_dot_product_attention`": lambda: Text(nn.Identity, causal),
    "`nn.TransformerEncoder`": lambda: Text(encoder, lambda over, x: over(x).mean(1)),
    "`nn.TransformerEncoder`, time first": lambda: Text(lambda: encoder(False), time_first),
    "`nn.LayerNorm`, `nn.RMSNorm`, `nn.GroupNorm`": lambda: dense(
        nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH), nn.GroupNorm(2, WIDTH)
    ),
    "`nn.BatchNorm1d` (also `2d`, `3d`)": lambda: dense(nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)),
}


@cache
def world() -> FederatedDataset:
    draw = np.random.default_rng(0)

    def rows(several: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.integers(TOKENS, size=(several, LENGTH)), draw.integers(3, size=several)

    return from_clients({f"c{k}": (*rows(4), *rows(1)) for k in range(3)}, classes=3)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def outcome(name: str, plan: str) -> str:
    """What two rounds come to: "yes", or why not."""
    training = Training(2, Poisson(0.9), batch=2)
    try:
        parts = assemble(world(), build(name), FedAvg(), PLANS[plan], training, performance=Performance(compile="off"))
    except TacitError as error:
        return f"no: {error}"
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
    run.go()
    moved = largest_difference(run.progress.server.view.model, parts.engine.start)
    assert np.isfinite(moved)
    return "yes" if moved > 0 else "no: nothing was learned"


def table() -> dict[str, list[str]]:
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows[1:]}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("plan", COLUMNS)
@pytest.mark.parametrize("name", MODELS)
def test_the_page_says_what_happens(name: str, plan: str) -> None:
    says, happens = table()[name][COLUMNS.index(plan)], outcome(name, plan)
    assert happens.startswith(says), f"{name} under {plan}: {happens}"


def test_the_page_names_no_other_layers() -> None:
    assert list(table()) == list(MODELS)


@pytest.mark.parametrize("name", [name for name in MODELS if name[:6] not in ("packed", "`nn.Ba")])
def test_private_gradients_are_the_clipped_gradients_of_examples_one_by_one(name: str) -> None:
    network = build(name).double()
    data = fit_inputs(network, world(), torch.float64)
    task, (x, y) = check(network, data), data.take(torch.arange(5))
    leaves, words = params(task.module), torch.arange(5).unsqueeze(-1)

    def clipped(row: int) -> Tree:
        with drawing(Key(words[row : row + 1])):
            one = grad(lambda p: task.losses(p, x[row : row + 1], y[row : row + 1]).sum())(leaves)
        norm = float(torch.cat([leaf.flatten() for leaf in one.values()]).norm())
        return {leaf: value * min(1.0, 0.5 / norm) for leaf, value in one.items()}

    each = [clipped(row) for row in range(5)]
    expected = {leaf: torch.stack([one[leaf] for one in each]).sum(0) for leaf in leaves}
    found = ghost(task.losses, leaves, x, y, torch.ones(5, dtype=torch.bool), 0.5, Key(words))
    assert largest_difference(found, expected) < 1e-5


def test_recurrent_networks_and_attention_are_torchs() -> None:
    x = torch.randn(3, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    for layer, inputs in (
        (nn.LSTM(WIDTH, 5, 2, bidirectional=True, batch_first=True), (x,)),
        (nn.LSTM(WIDTH, 5, bias=False), (x, (torch.ones(1, LENGTH, 5), torch.ones(1, LENGTH, 5)))),
        (nn.GRU(WIDTH, 5, 2, bidirectional=True), (x,)),
        (nn.RNN(WIDTH, 5, 2, nonlinearity="relu"), (x,)),
        (nn.GRUCell(WIDTH, 5), (x[0],)),
        (nn.RNNCell(WIDTH, 5), (x[0],)),
        (attention, (x, x, x)),
        (attention, (x, x, x, None, False, mask)),
    ):
        theirs = layer(*inputs)
        with Layers():
            ours = layer(*inputs)
        pairs = zip(_leaves(theirs), _leaves(ours), strict=True)
        assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-6
    for mask in (None, torch.rand(LENGTH, LENGTH) > 0.5, torch.randn(LENGTH, LENGTH)):
        theirs = functional.scaled_dot_product_attention(x, x, x, mask)
        with Layers():
            assert float((theirs - functional.scaled_dot_product_attention(x, x, x, mask)).abs().max()) < 1e-6


def _leaves(of: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(of) if isinstance(leaf, Tensor)]
