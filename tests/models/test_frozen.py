"""Frozen weights of any module: not trained, sent, clipped, covered with noise, or copied."""

import copy
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

import tacit
from tacit.errors import TacitError
from tacit.methods import FedAvg, KeepLocal
from tacit.models import ModuleTask, check, initialise, params
from tacit.models.frozen import copy_around_frozen
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.worlds import PLANS, ragged, states


class LoRA(nn.Module):
    """A frozen linear layer and a low-rank one beside it, as adapters have it: B starts at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.frozen.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(2, inputs) / 2)
        self.lora_b = nn.Parameter(torch.zeros(outputs, 2))
        self.batched: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batched.append(is_batchedtensor(self.frozen.weight))
        return self.frozen(x) + x @ self.lora_a.T @ self.lora_b.T


def adapted() -> nn.Module:
    torch.manual_seed(0)
    layers: OrderedDict[str, nn.Module] = OrderedDict(body=LoRA(6, 8), act=nn.Tanh(), head=nn.Linear(8, 3))
    return nn.Sequential(layers).double()


def finished(
    plan: str,
    method: tacit.Method | None = None,
    chunk: int | None = None,
    rows: tacit.FederatedDataset | None = None,
    model: nn.Module | None = None,
) -> tuple[Run, nn.Module]:
    training = Training(3, Poisson(0.5), 4, seed=3, dtype=torch.float64)
    model, performance = model or adapted(), Performance(chunk, compile="off")
    parts = assemble(rows or ragged(), model, method or FedAvg(), PLANS[plan], training, performance=performance)
    parts = parts._replace(engine=replace(parts.engine, identity=""))  # noise by the seed alone, to compare runs
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
    it.go()
    return it, model


@pytest.mark.parametrize("plan", ["open", "central", "record", "distributed"])
def test_only_trainable_weights_are_uploaded_and_moved(plan: str) -> None:
    it, model = finished(plan)
    trainable = {f"model/{name}" for name in params(model)}
    assert (
        set(it.engine.plan.setting.upload)
        == trainable
        == {"model/body.lora_a", "model/body.lora_b"}
        | {
            "model/head.weight",
            "model/head.bias",
        }
    )
    learned = it.progress.server.view.model
    assert all(not torch.equal(learned[name], leaf) for name, leaf in params(model).items())
    assert torch.equal(it.engine.task.module.body.frozen.weight, model.body.frozen.weight)  # pyright: ignore


@pytest.mark.parametrize("chunk", [1, 20])
def test_many_clients_share_one_copy_of_the_frozen_weights(chunk: int) -> None:
    it, _ = finished("central", chunk=chunk)
    body = it.engine.task.module.get_submodule("body")
    assert isinstance(body, LoRA)
    assert body.batched
    assert not any(body.batched)


def test_copies_of_a_task_share_frozen_weights_and_nothing_else() -> None:
    model = adapted()
    task = ModuleTask(model)
    for other in (task.module, copy.deepcopy(task).module, copy_around_frozen(model)):
        leaves = dict(other.named_parameters())
        for name, leaf in model.named_parameters():
            assert (leaves[name].data_ptr() == leaf.data_ptr()) == ("frozen" in name)


def test_a_personal_adapter_stays_with_its_client_under_privacy() -> None:
    it, _ = finished("central", KeepLocal(("lora",)))
    assert set(it.engine.plan.setting.upload) == {"model/head.weight", "model/head.bias"}
    kept = states(it)
    touched = np.flatnonzero(it.store.touched)
    adapters = kept["kept/model/body.lora_b"][touched]
    assert adapters.flatten(1).norm(dim=1).min() > 0
    assert len(adapters.flatten(1).unique(dim=0)) == len(touched)


@pytest.mark.parametrize("plan", ["open", "central", "record", "distributed"])
def test_a_head_on_a_frozen_body_learns_what_it_learns_on_features_of_that_body(plan: str) -> None:
    """Under every plan: so frozen weights have no part in what is sent, in its norm, or in its noise."""
    frozen, data = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), ragged()
    frozen[0].requires_grad_(False)
    with torch.no_grad():
        features = replace(data, x=frozen[:2](data.x), test_x=frozen[:2](data.test_x))
    learned = []
    for rows, model in ((data, frozen), (features, nn.Sequential(frozen[2]))):
        view = finished(plan, rows=rows, model=model)[0].progress.server.view
        learned.append(torch.cat([leaf.flatten() for leaf in view.model.values()]))
    assert torch.allclose(*learned, atol=1e-12)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.pooler = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 8)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Counting(nn.Sequential):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return super().forward(input)


class Writing(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        self[0].bias.data.add_(0.0)  # pyright: ignore
        return super().forward(input)


def test_a_trainable_weight_that_nothing_moves_is_an_error_that_names_it() -> None:
    with pytest.raises(TacitError, match=r"'pooler.weight' is trainable and nothing moves it in 2 steps, nor 1 others"):
        check(Idle().double(), ragged())


def test_rows_of_zeros_as_a_member_of_a_federation_has_them_for_a_trial_are_no_error() -> None:
    data = ragged()
    check(adapted(), replace(data, x=torch.zeros_like(data.x)))


@pytest.mark.parametrize(("kind", "says"), [(Counting, "'calls' is frozen, and forward"), (Writing, "captured Tensor")])
def test_something_frozen_that_forward_moves_is_an_error(kind: type[nn.Sequential], says: str) -> None:
    model = kind(nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 3)).double()
    with pytest.raises(TacitError, match=says):
        check(model, ragged())


def test_a_network_with_frozen_weights_is_not_drawn_anew() -> None:
    model = adapted()
    before = {name: leaf.detach().clone() for name, leaf in model.named_parameters()}
    initialise(model, 5)
    assert all(torch.equal(before[name], leaf) for name, leaf in model.named_parameters())


def test_the_files_of_personal_models_hold_what_differs_from_the_shared_one(tmp_path: Path) -> None:
    model, data = adapted().float(), ragged(5).astype(torch.float32)
    training = Training(rounds=2, sampler=Poisson(1.0), batch=4)
    result = tacit.train(data, model, KeepLocal(("lora",)), training=training, progress=False)
    folder = result.save(tmp_path / "saved")
    assert set(load_file(folder / "personal" / "c1.safetensors")) == {"body.lora_a", "body.lora_b"}
    x = torch.randn(4, 6)
    for loaded in (tacit.load_model(folder, "c1"), tacit.load_model(folder, "c1", model=adapted().float())):
        assert torch.equal(loaded(x).detach(), result.outputs(x, "c1"))
