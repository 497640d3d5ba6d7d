"""A module becomes a pure task; what cannot be trained is refused; batch normalisation keeps its statistics local."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from tacit.core import tree
from tacit.core.contract import Task
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.models import MLP, ModuleTask, check, has_batch_statistics, initialise, params
from tacit.models.functional import Objective


def rows(n: int, seed: int = 0, shape: tuple[int, ...] = (4,)) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def federation(dtype: torch.dtype = torch.float32) -> FederatedDataset:
    return from_clients({"a": (rows(6), [0, 1, 2] * 2), "b": (rows(3, 1), [0, 1, 2])}, dtype=dtype)


def normed() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return initialise(net, 0)


def convolved() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False), nn.Flatten(), nn.Linear(18, 3))
    return initialise(net, 0)


def stacked(*trees: tree.View) -> dict[str, Tensor]:
    return tree.each(lambda *leaves: torch.stack(leaves), *trees)


def test_apply_and_losses_are_those_of_the_module() -> None:
    net, x, y = MLP(4, 3), rows(5), torch.tensor([0, 1, 2, 0, 1])
    task: Task = ModuleTask(net)
    torch.testing.assert_close(task.apply(params(net), x), net(x))
    expected = nn.functional.cross_entropy(net(x), y, reduction="none")
    torch.testing.assert_close(task.losses(params(net), x, y), expected)


def test_a_users_loss_is_used() -> None:
    task = ModuleTask(MLP(4, 3), loss=lambda outputs, y: outputs[:, 0] + y)
    net = params(task.module)
    assert torch.equal(task.losses(net, rows(2), torch.tensor([0, 1]))[1:], task.apply(net, rows(2))[1:, 0] + 1)


def test_params_are_clones_of_the_trainable_parameters_only() -> None:
    net = MLP(4, 3)
    net.head.weight.requires_grad_(False)
    leaves = params(net)
    assert "head.weight" not in leaves
    assert not any(leaf.requires_grad for leaf in leaves.values())
    leaves["head.bias"].add_(1)
    assert not torch.equal(leaves["head.bias"], net.head.bias)


def test_the_module_given_is_never_changed() -> None:
    net = normed()
    before = copy.deepcopy(net.state_dict())
    task = ModuleTask(net)
    task.statistics(params(net), rows(6), torch.ones(6, dtype=torch.bool))
    task.losses(params(net), rows(6), torch.zeros(6, dtype=torch.int64))
    assert isinstance(net[1], nn.BatchNorm1d)
    assert all(torch.equal(before[name], leaf) for name, leaf in net.state_dict().items())


def test_a_fitting_module_passes_and_bytes_are_seen_as_float32() -> None:
    check(MLP(4, 3), federation())
    check(normed(), federation())
    check(MLP(4, 3).double(), federation(torch.float64))
    pixels = from_clients({"a": ((rows(3) * 9).abs().to(torch.uint8), [0, 1, 2])}, images=True)
    check(MLP(4, 3), pixels)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.rand(3)


class Branching(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.steps = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (MLP(4, 5), r"\(2, 5\), expected \(2, 3\)"),
        (MLP(7, 3), r"fails on inputs of shape .*: fit the model to the inputs"),
        (
            nn.Sequential(nn.Linear(7, 3)),
            r"Sequential fails in layer '0' on inputs of shape .*: fit the model to the inputs",
        ),
        (Noisy(), "draws random numbers"),
        (Branching(), "control flow depends on values: use torch.where"),
        (Whole(), "parameter 'steps' is torch.int64"),
        (nn.Flatten(), "no trainable parameters"),
        (MLP(4, 3).double(), "torch.float64 and inputs are torch.float32"),
        (nn.InstanceNorm1d(4, affine=True, track_running_stats=True), "track_running_stats=False"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_with_a_reason(module: nn.Module, message: str) -> None:
    with pytest.raises(TacitError, match=message):
        check(module, federation())


def test_dropout_of_rate_zero_is_no_dropout() -> None:
    check(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), federation())


def test_a_loss_that_averages_is_refused() -> None:
    with pytest.raises(TacitError, match="reduction='none'"):
        check(MLP(4, 3), federation(), Objective(loss=nn.functional.cross_entropy))


def test_check_leaves_the_global_generator_alone() -> None:
    net, data = MLP(4, 3), federation()
    state = torch.get_rng_state()
    check(net, data)
    assert torch.equal(state, torch.get_rng_state())


def test_batch_normalisation_layers_are_named_and_group_normalisation_is_not() -> None:
    assert has_batch_statistics(normed()) == ["1"]
    assert has_batch_statistics(ModuleTask(normed()).module) == ["1"]
    assert has_batch_statistics(nn.BatchNorm1d(3)) == [""]
    assert has_batch_statistics(nn.Sequential(nn.GroupNorm(1, 4), nn.LayerNorm(4))) == []


@pytest.mark.parametrize(("net", "shape"), [(normed(), (4,)), (convolved(), (1, 5, 5))])
def test_training_uses_the_statistics_of_the_batch_as_torch_does(net: nn.Module, shape: tuple[int, ...]) -> None:
    x = rows(6, shape=shape)
    torch.testing.assert_close(ModuleTask(net).apply(params(net), x), copy.deepcopy(net).train()(x))


@pytest.mark.parametrize(("net", "shape"), [(normed(), (4,)), (convolved(), (1, 5, 5))])
def test_with_statistics_apply_is_torchs_evaluation_with_these_buffers(net: nn.Module, shape: tuple[int, ...]) -> None:
    task, x = ModuleTask(net), rows(8, shape=shape)
    stats = task.statistics(params(net), x, torch.ones(8, dtype=torch.bool))
    assert set(stats) == {"1.running_mean", "1.running_var"}
    reference = copy.deepcopy(net).eval()
    reference.load_state_dict(stats, strict=False)
    torch.testing.assert_close(task.with_statistics(stats).apply(params(net), x), reference(x))
    torch.testing.assert_close(task.apply(params(net) | stats, x), reference(x))
    torch.testing.assert_close(task.apply(params(net), x), reference(x))


def test_a_prediction_does_not_depend_on_the_other_rows_of_its_batch() -> None:
    task, net = ModuleTask(normed()), params(normed())
    fixed = task.with_rows(rows(8), torch.ones(8, dtype=torch.bool))
    x = rows(5, 3)
    torch.testing.assert_close(fixed.apply(net, x)[2:3], fixed.apply(net, x[2:3]))
    assert not torch.allclose(task.apply(net, x)[2:3], task.apply(net, x[2:4])[:1])


def test_statistics_of_deep_networks_do_not_see_padding() -> None:
    net = initialise(nn.Sequential(normed(), nn.BatchNorm1d(3)), 1)
    task, x = ModuleTask(net), rows(6)
    padded = torch.cat([x, 100 * rows(3, 2)])
    mask = torch.arange(9) < 6
    exact = task.statistics(params(net), x, torch.ones(6, dtype=torch.bool))
    masked = task.statistics(params(net), padded, mask)
    assert set(exact) == {"0.1.running_mean", "0.1.running_var", "1.running_mean", "1.running_var"}
    for name, leaf in exact.items():
        torch.testing.assert_close(masked[name], leaf)


def test_statistics_without_a_real_row_are_zero_and_one() -> None:
    stats = ModuleTask(normed()).statistics(params(normed()), rows(2), torch.zeros(2, dtype=torch.bool))
    assert torch.equal(stats["1.running_mean"], torch.zeros(5))
    assert torch.equal(stats["1.running_var"], torch.ones(5))


def test_a_module_without_batch_normalisation_has_no_statistics_and_stays_as_it_is() -> None:
    task = ModuleTask(MLP(4, 3))
    assert task.statistics(params(task.module), rows(2), torch.ones(2)) == {}
    assert task.with_rows(rows(2), torch.ones(2)) is task
    assert task.with_statistics({}) is task


def test_batch_normalisation_runs_for_several_clients_in_one_call_with_gradients() -> None:
    task = ModuleTask(convolved())
    own = [params(initialise(convolved(), seed)) for seed in (1, 2)]
    x, y = rows(12, shape=(1, 5, 5)).reshape(2, 6, 1, 5, 5), torch.arange(12).reshape(2, 6) % 3
    mask = torch.arange(6) < torch.tensor([[6], [4]])

    def client(leaves: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        gradient = grad(lambda p: task.losses(p, x, y).mean())(leaves)
        return gradient, task.with_rows(x, mask).apply(leaves, x[:2])

    gradients, outputs = vmap(client)(stacked(*own), x, y, mask)
    for at in (0, 1):
        gradient, output = client(own[at], x[at], y[at], mask[at])
        torch.testing.assert_close(outputs[at], output)
        for name, leaf in gradient.items():
            torch.testing.assert_close(gradients[name][at], leaf)


def test_statistics_of_several_clients_come_out_of_one_call() -> None:
    task, net = ModuleTask(normed()), params(normed())
    x, mask = rows(12).reshape(2, 6, 4), torch.ones(2, 6, dtype=torch.bool)
    together = vmap(task.statistics)(stacked(net, net), x, mask)
    for name, leaf in task.statistics(net, x[1], mask[1]).items():
        torch.testing.assert_close(together[name][1], leaf)
    outputs = vmap(lambda stats, x: task.with_statistics(stats).apply(net, x))(together, x)
    torch.testing.assert_close(outputs[0], task.apply(net, x[0]))


def test_the_batch_rule_is_back_after_a_failure() -> None:
    task, net = ModuleTask(normed()), params(normed())
    stats = task.statistics(net, rows(4), torch.ones(4, dtype=torch.bool))
    with pytest.raises(RuntimeError):
        task.apply(net | stats, rows(4, shape=(9,)))
    torch.testing.assert_close(task.apply(net, rows(4)), copy.deepcopy(normed()).train()(rows(4)))


class Gives(nn.Module):
    """Makes something else of its logits."""

    def __init__(self, made: object) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(4, 3), made

    def forward(self, x: Tensor) -> object:
        logits = self.linear(x)
        return self.made(logits) if callable(self.made) else self.made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda logits: (logits,), "gives a tuple"),
        (None, "gives a NoneType"),
        (lambda logits: logits.long(), "floating-point"),
        (lambda logits: logits * float("nan"), "not finite"),
    ],
)
def test_outputs_that_no_loss_can_be_taken_of_are_refused(made: object, words: str) -> None:
    with pytest.raises(TacitError, match=words):
        check(Gives(made), federation())
