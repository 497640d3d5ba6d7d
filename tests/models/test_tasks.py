"""Tasks other than one class a row: their losses, their metrics, and what privacy asks of both."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tacit
from tacit.core import tree
from tacit.core.columns import Columns
from tacit.core.contract import Batch, Reply, Shared, Site, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.models import initialise
from tacit.models.functional import Objective, check, params
from tacit.models.losses import IGNORE, LOSSES, contents, find_loss
from tacit.models.metrics import FITS, METRICS, find_metrics, kind_of
from tacit.privacy.evaluation import BOUND, Evaluation, figures, means
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.gradient import Exact, ghost, integer_sum
from tacit.rounds.assemble import Training, assemble
from tests.worlds import PLANS, PRIVATE, RECORD

TRAINING = Training(2, tacit.Poisson(0.5), 4, seed=3)


class Reader(nn.Module):
    """A class at each position, of tokens and of what counts of them."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.body, self.norm = nn.Embedding(7, 5), nn.GRU(5, 5, batch_first=True), nn.LayerNorm(5)
        self.head = nn.Linear(5, 7)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.letters(input_ids) * attention_mask.unsqueeze(-1)
        return self.head(self.norm(self.body(hidden)[0]))


def world(task: str, clients: int = 6, scale: float = 1.0) -> FederatedDataset:
    draw, data = np.random.default_rng(0), {}
    for client in range(clients):
        x = draw.normal(size=(10 + client, 4)) * scale
        if task == "tokens":
            ids = draw.integers(7, size=(10 + client, 5))
            real = np.arange(5) < draw.integers(2, 6, size=(10 + client, 1))
            x = {"input_ids": ids, "attention_mask": real.astype(int)}
            y: Any = np.where(real, (ids + 1) % 7, IGNORE)
        else:
            y = {"numbers": x @ [1.0, -1.0, 0.5, 0.0], "outputs": x[:, :2] * 2, "labels": x[:, :3] > 0}[task]
        data[f"c{client}"] = (x, y)
    return from_clients(data, classes=7 if task == "tokens" else None)


def model_of(task: str) -> nn.Module:
    made = Reader() if task == "tokens" else nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, {"numbers": 1, "outputs": 2, "labels": 3}[task])
    )  # fmt: skip
    return initialise(made, 0)


TASKS = ("numbers", "outputs", "labels", "tokens")
LOSSES_OF = {
    "numbers": ["mse", "mae", "huber", "half-squared-error", nn.MSELoss(), nn.L1Loss(reduction="none")],
    "outputs": ["mse", nn.SmoothL1Loss(reduction="sum")],
    "labels": ["binary-cross-entropy", nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))],
    "tokens": ["token-cross-entropy", nn.CrossEntropyLoss(label_smoothing=0.1)],
}
CASES = [(task, loss) for task, losses in LOSSES_OF.items() for loss in losses]
IDS = [f"{task}-{loss}" for task, loss in CASES]


def rows(data: FederatedDataset, several: int = 6) -> tuple[Any, Tensor]:
    return data.take(torch.arange(several))


@pytest.mark.parametrize(("task", "loss"), CASES, ids=IDS)
def test_private_gradients_are_those_of_examples_one_by_one(task: str, loss: Any) -> None:
    data, module = world(task), model_of(task)
    made = check(module, data, Objective(loss))
    (x, y), leaves = rows(data), params(module)
    mask = torch.tensor([True, True, False, True, True, True])
    found = ghost(made.losses, leaves, x, y, mask, 0.3)
    whole = integer_sum(made.losses, leaves, x, y, mask, 0.3, torch.tensor(1.0))
    expected, count = tree.zeros(leaves), 0
    for row in mask.nonzero().flatten().tolist():
        copy = model_of(task).requires_grad_(True)
        outputs = copy(**dict(zip(x.names, x[row : row + 1].tensors, strict=True))) if task == "tokens" else copy(
            x[row : row + 1]
        )  # fmt: skip
        made.loss(outputs, y[row : row + 1]).sum().backward()
        own = {name: leaf.grad for name, leaf in copy.named_parameters() if leaf.grad is not None}
        expected, count = tree.add(expected, clip(own, 0.3)[0]), count + 1
    assert count == 5
    assert whole.shape == (tree.size(leaves),)
    for name, leaf in expected.items():
        assert (found[name] - leaf).abs().max() < 1e-5


@pytest.mark.parametrize(("task", "loss"), CASES, ids=IDS)
def test_padding_rows_train_nothing(task: str, loss: Any) -> None:
    data, module = world(task), model_of(task)
    made, leaves = check(module, data, Objective(loss)), params(module)
    (x, y), mask = rows(data), torch.arange(6) < 4
    other_x, other_y = data.take(torch.tensor([0, 1, 2, 3, 8, 9]))
    padded, others, alone = (
        Exact(made, lambda step, batch=batch: Batch(*batch))(leaves, 0)
        for batch in ((x, y, mask), (other_x, other_y, mask), (x[:4], y[:4], mask[:4]))
    )
    assert all(torch.equal(padded[name], others[name]) for name in leaves)
    assert all(torch.allclose(padded[name], alone[name], atol=1e-7) for name in leaves)


@pytest.mark.parametrize("plan", [*PLANS])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs_under_every_plan(task: str, plan: str) -> None:
    result = tacit.train(world(task), model_of(task), FedAvg(), PLANS[plan], TRAINING, progress=False)
    told, usual = str(result), FITS[result.run.engine.task.kind][0]
    assert usual in told
    assert "accurac" not in told
    assert math.isfinite(result.scores.summary("personal").mean)


@pytest.mark.parametrize("task", TASKS)
def test_one_clients_data_change_nobody_elses_upload(task: str) -> None:
    data = world(task)
    first = data.rows(0)
    x, y = data.x, data.y.clone()
    y[first] = y[first].flip(0)
    changed = replace(data, x=Columns(x.names, [_flipped(leaf, first) for leaf in x.tensors]) if isinstance(x, Columns)
                      else _flipped(x, first), y=y)  # fmt: skip
    uploads = []
    for each in (data, changed):
        engine, _ = assemble(each, model_of(task), FedAvg(), PLANS["central"], TRAINING)
        view, who = engine.method.init(engine.start).view, np.arange(data.clients)
        inputs = engine.inputs_for({}, who, 0)
        uploads.append(engine.uploads(engine.task, 0, view, engine.plan.release.start(), torch.tensor(0), inputs)[0])
    before, after = uploads
    assert any(not torch.equal(before[name][0], after[name][0]) for name in before)
    assert all(torch.equal(before[name][1:], after[name][1:]) for name in before)


def _flipped(leaf: Tensor, rows: slice) -> Tensor:
    changed = leaf.clone()
    changed[rows] = changed[rows].flip(0)
    return changed


@dataclass(frozen=True)
class Leaking(FedAvg):
    """Uploads an exact gradient."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, state, site)
        return Reply(Shared(tree.add(reply.upload.model, site.grad(view.model, 0))), state)


@pytest.mark.parametrize("task", TASKS)
def test_a_method_that_uploads_exact_gradients_is_refused_whatever_the_inputs(task: str) -> None:
    with pytest.raises(TacitError, match="learned with exact gradients"):
        assemble(world(task), model_of(task), Leaking(), RECORD, TRAINING)
    assemble(world(task), model_of(task), FedAvg(), RECORD, TRAINING)


def test_a_criterions_reduction_is_taken_within_an_example() -> None:
    outputs, y = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    for reduction, expected in (("none", [5.0, 2.0]), ("mean", [5.0, 2.0]), ("sum", [10.0, 4.0])):
        assert find_loss(nn.MSELoss(reduction=reduction))(outputs, y).tolist() == expected
    assert find_loss(nn.MSELoss)(outputs[:, :1], y[:, 0]).tolist() == [1.0, 4.0]  # [2, 1] and [2]: not [2, 2]


def test_positions_without_a_label_count_nowhere() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(4, 5, 7, generator=draw), torch.randint(7, (4, 5), generator=draw)
    y[0, 2:], y[1] = IGNORE, IGNORE
    ours, torchs = find_loss("token-cross-entropy"), find_loss(nn.CrossEntropyLoss())
    flat = [functional.cross_entropy(outputs[row], y[row]).item() for row in (0, 2, 3)]
    for loss in (ours, torchs):
        assert loss(outputs, y)[[0, 2, 3]].tolist() == pytest.approx(flat)
        assert loss(outputs, y)[1] == 0
    found = METRICS["perplexity"](outputs, y)
    assert found.item() == pytest.approx(functional.cross_entropy(outputs.flatten(0, 1), y.flatten()).exp().item())
    hits = (outputs.argmax(-1) == y).sum() / (y != IGNORE).sum()
    assert METRICS["token-accuracy"](outputs, y).item() == pytest.approx(hits.item())


def test_metrics_of_numbers_are_the_textbooks() -> None:
    draw = np.random.default_rng(0)
    y, outputs = draw.normal(size=(50, 2)), draw.normal(size=(50, 2))
    found = {name: float(METRICS[name](torch.tensor(outputs), torch.tensor(y))) for name in FITS["numbers"]}
    error = outputs - y
    r2 = (1 - (error**2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
    assert found == pytest.approx({"rmse": np.sqrt((error**2).mean()), "mae": np.abs(error).mean(), "r2": r2})
    constant = METRICS["r2"](torch.zeros(3, 1), torch.full((3,), 5.0))
    assert float(constant) == 0


def test_metrics_of_labels_are_the_textbooks() -> None:
    y = torch.tensor([[True, False, True], [False, False, True]])
    outputs = torch.tensor([[1.0, 1.0, -1.0], [-1.0, -1.0, 2.0]])  # 2 of 3 found, 1 said in vain
    assert float(METRICS["f1"](outputs, y)) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert float(METRICS["exact-match"](outputs, y)) == 0.5
    assert float(METRICS["f1"](-torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool))) == 1


def test_rows_that_are_padding_change_no_metric() -> None:
    for task in TASKS:
        data, module = world(task), model_of(task)
        made = check(module, data, Objective(metrics=FITS[check(module, data).kind]))
        (x, y), real = rows(data), torch.arange(6) < 4
        outputs = made.apply({}, x)
        for metric in made.metrics:
            assert torch.allclose(metric(outputs, y, real), metric(outputs[:4], y[:4]))


def test_of_a_metric_where_smaller_is_better_the_largest_are_the_worst() -> None:
    result = tacit.train(world("numbers", 20), model_of("numbers"), FedAvg(), training=TRAINING, progress=False)
    personal = result.scores.personal
    assert result.scores.summary("personal").worst_decile == pytest.approx(np.sort(personal)[-2:].mean())
    assert "rmse (smaller is better) after round 2" in str(result)
    assert result.predict(world("numbers").x[:3]).shape == (3,)


def test_further_metrics_stand_below_the_table_and_in_the_metrics() -> None:
    def within_one(outputs: Tensor, y: Tensor) -> Tensor:
        return ((outputs.squeeze(-1) - y).abs() < 1).float()

    wanted = ["mae", "r2", within_one, "loss"]
    result = tacit.train(
        world("numbers"), model_of("numbers"), FedAvg(), training=TRAINING, progress=False, loss="mse", metrics=wanted
    )
    assert result.findings.others == ["r2", "within_one", "loss"]
    shown = result.findings.value("all", "within_one:personal_mean")
    assert shown is not None
    assert f"within_one shared {shown:.3f}, personal {shown:.3f}" in str(result)


def test_a_loss_of_ones_own_is_minimised() -> None:
    draw = np.random.default_rng(0)
    data = from_clients({f"c{k}": (np.zeros((40, 1)), draw.normal(size=40)) for k in range(3)}, test_fraction=0.0)

    def pinball(outputs: Tensor, y: Tensor) -> Tensor:
        error = y - outputs.squeeze(-1)
        return torch.maximum(0.9 * error, -0.1 * error)

    long = Training(60, tacit.Poisson(1.0), 20)
    method = FedAvg(tacit.LocalSgd(0.1))
    result = tacit.train(data, nn.Linear(1, 1), method, training=long, progress=False, loss=pinball)
    assert float(params(result.model())["bias"]) == pytest.approx(float(data.y.quantile(0.9)), abs=0.15)


@pytest.mark.parametrize(
    ("task", "objective", "message"),
    [
        ("numbers", Objective("msee"), "unknown loss 'msee': did you mean 'mse'?"),
        ("numbers", Objective("mse", ("accuracy",)), "does not fit targets that are numbers: use one of rmse, mae, r2"),
        ("numbers", Objective(lambda outputs, y: (outputs.squeeze(-1) - y).square().mean()), r"expected \(2,\)"),
        ("numbers", Objective(lambda outputs, y: outputs @ y), "fit it to both"),
        ("tokens", Objective("cross-entropy"), "use 'token-cross-entropy'"),
        ("numbers", Objective(metrics=("mae", "mae")), "asked for twice"),
        ("outputs", Objective(nn.Bilinear(1, 1, 1)), "has parameters of its own"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_round(task: str, objective: Objective, message: str) -> None:
    with pytest.raises(TacitError, match=message):
        assemble(world(task), model_of(task), FedAvg(), PLANS["open"], TRAINING, objective=objective)


def test_losses_with_other_settings_are_other_runs() -> None:
    def scaled(by: float) -> Any:
        return lambda outputs, y: by * (outputs.squeeze(-1) - y).square()

    losses = [nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0), scaled(1.0), scaled(2.0), "mse"]
    ids = set()
    for loss in losses:
        engine, _ = assemble(
            world("numbers"), model_of("numbers"), FedAvg(), PLANS["central"], TRAINING, objective=Objective(loss)
        )
        from tacit.simulation.fingerprint import identity

        ids.add(identity(engine))
    assert len(ids) == len(losses)
    assert contents(scaled(1.0)) == contents(scaled(1.0))


# evaluation with noise


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -3.0, 0.0])
def test_whatever_a_metric_is_its_figures_keep_the_bound(value: float) -> None:
    for range in ((0.0, 1.0), (-5.0, 20.0), (0.0, 1e-3)):
        assert tree.norm(figures([value, value], range)) <= BOUND * (1 + 1e-12)
    middle = figures([math.nan, math.nan], (0.0, 8.0))
    assert means(middle, (0.0, 8.0)) == {"shared": 4.0, "personal": 4.0}


def test_figures_come_back_in_their_range() -> None:
    assert means(figures([3.0, 30.0], (0.0, 20.0)), (0.0, 20.0)) == pytest.approx({"shared": 3.0, "personal": 20.0})


def test_a_metric_without_a_range_is_not_released_unless_one_is_stated() -> None:
    level = replace(PRIVATE, epsilon=8.0, noise=None)
    privacy = replace(PLANS["central"], levels=(level,), evaluation=Evaluation(every=1))
    with pytest.raises(TacitError, match=r"'rmse' has no range.*evaluate.range = \[lowest, highest\]"):
        assemble(world("numbers"), model_of("numbers"), FedAvg(), privacy, TRAINING)
    stated = replace(privacy, evaluation=Evaluation(every=1, range=(0.0, 10.0)))
    engine, _ = assemble(world("numbers"), model_of("numbers"), FedAvg(), stated, TRAINING)
    same, _ = assemble(world("labels"), model_of("labels"), FedAvg(), privacy, TRAINING)
    assert engine.plan.evaluation is not None
    assert same.plan.evaluation is not None
    assert engine.plan.evaluation.std == pytest.approx(10 * same.plan.evaluation.std)
    with pytest.raises(TacitError, match="two finite numbers"):
        Evaluation(range=(0.0, math.inf))


def test_every_named_loss_and_metric_is_found_and_has_a_kind() -> None:
    assert {name for names in FITS.values() for name in names} == set(METRICS.builtin)
    for name in LOSSES.builtin:
        assert find_loss(name) is LOSSES.builtin[name]
    assert kind_of(torch.zeros(3), find_loss(nn.BCEWithLogitsLoss())) == "labels"
    assert [metric.name for metric in find_metrics((), "tokens", find_loss("token-cross-entropy"))] == ["perplexity"]


def test_a_mask_of_which_hugging_face_asks_whether_it_is_full_is_applied() -> None:
    names: dict[str, Any] = {"__name__": "transformers.masking_utils"}
    exec("def needed(mask):\n    return None if mask.all() else mask", names)  # as theirs, and in a module of its name

    class Masked(Reader):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            mask = names["needed"](attention_mask)
            return super().forward(input_ids, torch.ones_like(attention_mask) if mask is None else mask)

    data = world("tokens")
    made = check(initialise(Masked(), 0), data)
    x, _ = rows(data)
    assert torch.equal(made.apply({}, x), check(model_of("tokens"), data).apply({}, x))

    class Own(Reader):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return super().forward(
                input_ids, torch.ones_like(attention_mask) if attention_mask.all() else attention_mask
            )

    with pytest.raises(TacitError, match="control flow depends on values"):
        check(Own(), data)


# in files, and in a federation


def test_a_file_names_loss_and_metrics_and_a_member_runs_only_those_that_it_permits() -> None:
    from tacit.experiments.build import build_objective
    from tacit.experiments.config import parse
    from tacit.federation.service.experiment import check_keys, foreign_names

    content = {"task": {"loss": "mse", "metrics": ["mae", "r2"]}}
    assert build_objective(parse(content)) == Objective("mse", ("mae", "r2"))
    assert foreign_names(content) == ()
    own = {"task": {"loss": "torch.nn:MSELoss", "metrics": ["mine:near", "loss"]}}
    assert foreign_names(own) == ("torch.nn:MSELoss", "mine:near")
    with pytest.raises(TacitError, match=r"'torch\.nn:MSELoss', which is not Tacit's own code"):
        check_keys(own)
    check_keys(own, foreign_names(own))
