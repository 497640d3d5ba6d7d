"""Ghost norms: the clipped sum without the gradients of examples equals the one that is meant."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.core import tree
from tacit.models import build, initialise, transformed
from tacit.models.functional import ModuleTask, params
from tacit.privacy.mechanisms.gradient import ghost, linear_layers, plain, watch


class Tied(nn.Module):
    """One weight in two layers, so that an example's gradient of it is no outer product."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.twice(self.twice(x).relu()).relu())


class Rows(nn.Module):
    """A linear layer that sees several rows of one example."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Linear(3, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x.reshape(-1, 2, 3)).tanh().mean(1))


class Flat(Rows):
    """The same, where the rows of all examples stand in one matrix, so that each seems to be an example."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x.reshape(-1, 3)).tanh().reshape(-1, 2, 4).mean(1))


class Tokens(nn.Module):
    """An embedding of tokens that come again within an example, one of which learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 5, padding_idx=-19), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x.abs().nan_to_num(0, 0).long() % 20).tanh().sum(1))


MODELS = {
    "embedding": (Tokens, 2),
    "mlp": (lambda: build("mlp", (6,), 3, hidden=[5, 4]), 6),
    "behind a transform": (lambda: transformed(build("mlp", (6,), 3, hidden=[5]), (6,)), 4),
    "group norm": (lambda: build("mlp", (6,), 3, hidden=[8], norm="group"), 4),
    "softmax": (lambda: build("softmax", (6,), 3), 2),
    "tied weights": (Tied, 2),
    "several rows": (Rows, 2),
    "rows of all in one": (Flat, 2),
}


def world(make: nn.Module, rows: int = 12) -> tuple[ModuleTask, tree.Tree, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    task = ModuleTask(initialise(make, 0).double())
    x = 3 * torch.randn(rows, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (rows,), generator=draw)
    return task, params(task.module), x, y, torch.rand(rows, generator=draw) < 0.7


def close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    assert list(one) == list(other)
    return all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-12) for name in one)


@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("model", MODELS)
def test_ghost_norms_give_the_plain_clipped_sum(model: str, bound: float, rows: int) -> None:
    make, names = MODELS[model]
    task, leaves, x, y, mask = world(make(), rows)
    assert sum(len(layer.names) for layer in linear_layers(task.losses, leaves, x[:1], y[:1])) == names
    assert close(*(f(task.losses, leaves, x, y, mask, bound) for f in (ghost, plain)))


@pytest.mark.parametrize("model", ["behind a transform", "embedding"])
def test_under_many_clients_at_once_it_is_the_same(model: str) -> None:
    task, leaves, x, y, mask = world(MODELS[model][0]())
    clients = tree.each(lambda leaf: torch.stack([leaf, 2 * leaf, leaf + 1]), leaves)
    batches = torch.stack([x, -x, x + 1])
    several = [
        vmap(lambda p, rows, f=f: f(task.losses, p, rows, y, mask, 1.0))(clients, batches) for f in (ghost, plain)
    ]
    assert close(*several)


def test_no_gradient_of_an_embedding_is_made_for_an_example_unless_it_is_small() -> None:
    task, leaves, x, y, _ = world(Tokens())
    _, (table,) = watch(task.losses, leaves, x[:1], y[:1])
    assert (table.weight, table.padding) == ("table.weight", 1)
    tokens = x.abs().long() % 20
    assert any(len(set(row)) < len(row) and 1 in row for row in tokens.tolist())  # the trial can fail
    assert watch(task.losses, leaves, x[:1].repeat(1, 9), y[:1])[1] == []
    assert watch(lambda p, x, y: task.losses(p, x, y) + p["table.weight"].sum(), leaves, x[:1], y[:1])[1] == []


def test_a_parameter_that_the_loss_uses_besides_its_layer_is_found_out() -> None:
    task, leaves, x, y, mask = world(MODELS["mlp"][0]())

    def decayed(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(p, x, y) + p["head.weight"].square().sum()

    layers = linear_layers(decayed, leaves, x[:1], y[:1])
    assert "head.weight" not in {layer.weight for layer in layers}
    assert close(*(f(decayed, leaves, x, y, mask, 1.0) for f in (ghost, plain)))


def test_rows_that_are_not_finite_or_not_real_count_as_zero() -> None:
    task, leaves, x, y, mask = world(MODELS["mlp"][0]())
    x[0], x[1], mask[:2] = float("nan"), float("inf"), True
    good = mask.clone()
    good[:2] = False
    assert close(ghost(task.losses, leaves, x, y, mask, 1.0), plain(task.losses, leaves, x, y, good, 1.0))
    nothing = ghost(task.losses, leaves, x, y, torch.zeros_like(mask), 1.0)
    assert float(tree.norm(nothing)) == 0


def test_large_inputs_and_small_gradients_do_not_pass_unclipped() -> None:
    """The square of the gradient at the outputs is zero in single precision, its product with the inputs is not."""

    def losses(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.linear(x, p["weight"]).sum(1) * y

    weight, row = {"weight": torch.zeros(400, 3)}, torch.full((1, 3), 1e19)
    for small in (2e-23, 1e-21, 1e-19):
        total = ghost(losses, weight, row, torch.tensor([small]), torch.tensor([True]), 1e-3)
        assert float(total["weight"].double().norm()) <= 1e-3
