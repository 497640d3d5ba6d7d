"""Calls in Python that are slightly wrong, or in short: what is meant happens, or one line says what to write."""

from collections import UserList
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.core import tree
from tacit.core.contract import Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.estimation import (
    BernoulliRates,
    GaussianMeans,
    LinearRegressions,
    MixtureMeans,
    beta_moments,
    lemma_radius,
    suggest_radius,
)
from tacit.estimation.messages import LocalGaussian, Quantized, RandomisedResponse
from tacit.rounds.assemble import assemble
from tests.worlds import ragged

ANY: Any = tacit  # calls that no type checker would let pass
TEXT: Any = "x"
LEVEL = tacit.Level("p", epsilon=4, delta=1e-3)
ROWS = (np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]))
DATA, MODEL = ragged(), nn.Linear(6, 3, dtype=torch.float64)
TRAINING = tacit.Training(rounds=1, dtype=torch.float64)


def train(*given: Any, **options: Any) -> Any:
    return ANY.train(*given, training=TRAINING, progress=False, **options)


# each case: a call, and what the line must say: the value and the remedy
REFUSED: dict[str, tuple[Any, str]] = {
    # levels and privacy
    "delta without epsilon": (lambda: tacit.Level("p", delta=1e-3), "add epsilon"),
    "epsilon as text": (lambda: ANY.Level("p", epsilon="4", delta=1e-3), "Level(epsilon='4'): give a number"),
    "epsilon true": (lambda: tacit.Level("p", epsilon=True, delta=1e-3), "epsilon=True"),
    "epsilon in a list": (lambda: ANY.Level("p", epsilon=[4], delta=1e-3), "epsilon=[4]"),
    "level without a name": (lambda: ANY.Level(epsilon=4, delta=1e-3), "'name'"),
    "level of a number": (lambda: ANY.Level(4), "name=4"),
    "level with the name of all": (lambda: tacit.Level("all"), "cannot be called 'all'"),
    "strengths of levels that are not there": (
        lambda: train(DATA, MODEL, tacit.Ditto(strength=(0.1, 0.2, 0.3))),
        "settings for 3 privacy levels, and there are 1",
    ),
    "strengths inside of a method": (
        lambda: train(DATA, MODEL, tacit.KeepLocal(("bias",), tacit.Ditto(strength=(0.1, 0.2)))),
        "Ditto has settings for 2 privacy levels",
    ),
    "no epochs": (lambda: tacit.Training(epochs=0), "epochs must be at least 1"),
    "alpha of another partition": (
        lambda: tacit.load("digits", partition="iid", alpha=0.1),
        "alpha is 0.1, and partition 'iid' does not use it: leave it out, or use 'dirichlet'",
    ),
    "groups of no natural clients": (lambda: tacit.load("digits", group=2), "group is 2"),
    "an estimator's argument without its name": (lambda: ANY.estimation.GaussianMeans(4), "name each argument"),
    "an estimator's misspelt argument": (lambda: LinearRegressions(sed=1), "did you mean 'seed'"),  # pyright: ignore
    "misspelt epsilon": (lambda: ANY.Level("p", epsilom=4), "did you mean 'epsilon'"),
    "a budget given to a plan": (lambda: ANY.Central(epsilon=4), "Level('private', epsilon=4, delta=...)"),
    "a budget given to a privacy": (lambda: ANY.Privacy(delta=1e-3), "Level('private', epsilon=..., delta=0.001)"),
    "one argument too many": (lambda: ANY.Level("p", 4, 1e-3, None, 5), "too many"),
    "plan as a class": (lambda: ANY.Privacy(tacit.Central, LEVEL), "write Central()"),
    "open plan as a class": (lambda: ANY.Privacy(tacit.Open, LEVEL), "write Open()"),
    "plan that is no plan": (lambda: ANY.Privacy(tacit.Poisson(0.1), LEVEL), "Poisson"),
    "misspelt plan": (lambda: ANY.Privacy("centrl", LEVEL), "did you mean 'central'"),
    "levels as a plan": (lambda: ANY.Privacy((LEVEL,)), "give a Mechanism"),
    "levels by name": (lambda: ANY.Privacy(levels=("p",)), "each a Level"),
    "levels in a dict": (lambda: ANY.Privacy(levels={"p": LEVEL}), "each a Level"),
    "exact noise for nobody": (lambda: tacit.Privacy(noise="exact"), "noise 'exact' protects nobody"),
    "plan for nobody": (lambda: tacit.Privacy(tacit.Grouped()), "plan Grouped protects nobody"),
    "named plan for nobody": (lambda: ANY.Privacy("local", tacit.Level("a")), "plan Local protects nobody"),
    "misspelt noise": (lambda: ANY.Privacy(levels=LEVEL, noise="exat"), "did you mean 'exact'"),
    "unknown accountant": (lambda: ANY.Privacy(levels=LEVEL, accountant="moments"), "'pld' or 'rdp'"),
    "clients by number": (lambda: ANY.Privacy(levels=LEVEL, choices={3: "p"}), "{3: 'p'}"),
    "choices as a share": (lambda: ANY.Privacy(levels=LEVEL, choices=0.5), "choices=0.5"),
    "changes in a tuple": (lambda: ANY.Privacy(levels=LEVEL, changes=(3, "a", "p")), "each a Change"),
    "change at a round in text": (lambda: ANY.Change("1", "a", "p"), "round='1'"),
    "share as text": (lambda: ANY.Among("0.1", 3), "share='0.1'"),
    "clip as text": (lambda: ANY.Central(clip="1.0"), "'1.0'"),
    "clip true": (lambda: ANY.Central(clip=True), "clip=True"),
    "clip that is no clip": (lambda: ANY.Grouped(clip=tacit.Poisson(0.1)), "give a Clip, for example Fixed("),
    "clip as a class": (lambda: ANY.Local(clip=tacit.Fixed), "write Fixed()"),
    "bound as text": (lambda: ANY.Fixed("1"), "bound='1'"),
    "quantile as text": (lambda: ANY.Quantile(target="0.5"), "target='0.5'"),
    "misspelt ratio": (lambda: ANY.Grouped(ratio="optimum"), "did you mean 'optimal'"),
    "bits of a fraction": (lambda: ANY.Distributed(bits=18.5), "bits=18.5"),
    "participations as text": (lambda: ANY.Record(participations="3"), "participations='3'"),
    "misspelt view": (lambda: ANY.Stepwise(seen="mesages"), "did you mean 'messages'"),
    # training
    "rounds as text": (lambda: ANY.Training(rounds="3"), "Training(rounds='3'): give a whole number, for example 100"),
    "rounds of a fraction": (lambda: ANY.Training(rounds=2.5), "rounds=2.5"),
    "rounds true": (lambda: tacit.Training(rounds=True), "rounds=True"),
    "rounds of nan": (lambda: ANY.Training(rounds=float("nan")), "rounds=nan"),
    "seed as text": (lambda: ANY.Training(seed="abc"), "seed='abc'"),
    "negative seed": (lambda: tacit.Training(seed=-1), "-1"),
    "sampler as a number": (lambda: ANY.Training(sampler=0.5), "for example Poisson(share=0.1)"),
    "sampler as a class": (lambda: ANY.Training(sampler=tacit.Poisson), "write Poisson(...)"),
    "rate and sampler": (lambda: ANY.Training(rate=0.1, sampler=tacit.Poisson(0.2)), "sampler is given, too"),
    "rate and cohort": (lambda: ANY.Training(rate=0.1, cohort=5), "give one of them"),
    "rate as text": (lambda: ANY.Training(rate="0.1"), "'0.1'"),
    "steps and epochs": (lambda: tacit.Training(steps=2, epochs=3), "give one of the two"),
    "type as text": (lambda: ANY.Training(dtype="float64"), "for example torch.float32"),
    "type of integers": (lambda: tacit.Training(dtype=torch.int64), "torch.float32"),
    "devices as a share": (lambda: ANY.Training(devices=0.1), "give an Availability"),
    "misspelt engine": (lambda: ANY.Performance(engine="rya"), "did you mean 'ray'"),
    "evaluating never": (lambda: tacit.Schedule(evaluate_every=0), "at least 1, not 0"),
    "evaluating before the start": (lambda: tacit.Schedule(evaluate_every=-1), "-1"),
    "checkpoints never": (lambda: tacit.Schedule(checkpoint_every=0), "at least 1, not 0"),
    "schedule as text": (lambda: ANY.Schedule("10"), "evaluate_every='10'"),
    "share of clients as text": (lambda: ANY.Poisson("0.1"), "share='0.1'"),
    "cohort of a fraction": (lambda: ANY.FixedSize(2.5), "size=2.5"),
    "times as text": (lambda: ANY.LimitedParticipation(5, "2"), "times='2'"),
    "dropping as text": (lambda: ANY.Availability(drop="0.1"), "drop='0.1'"),
    # methods
    "optimizer as a number": (lambda: ANY.FedAvg(0.5), "give a LocalSgd, for example LocalSgd(lr=0.3"),
    "misspelt lr": (lambda: ANY.FedAvg(lrr=0.5), "did you mean 'lr'"),
    "lr twice": (lambda: ANY.FedAvg(tacit.LocalSgd(0.1), lr=0.5), "local is given, too"),
    "lr as text": (lambda: ANY.FedAvg(lr="0.5"), "lr='0.5'"),
    "strength as text": (lambda: ANY.Ditto(strength="0.1"), "Ditto(strength='0.1'): give a number"),
    "base as a class": (lambda: ANY.Ditto(tacit.FedAvg), "write FedAvg()"),
    "base by name": (lambda: ANY.FineTuned("fedavg"), "give a Method"),
    "prior as a class": (lambda: ANY.Personal(tacit.L2), "write L2()"),
    "prior that is none": (lambda: ANY.Personal(tacit.FedAvg()), "give a Prior"),
    "components of a fraction": (lambda: ANY.FedEM(components=2.5), "components=2.5"),
    "nothing to keep": (lambda: tacit.KeepLocal(()), "'norm'"),
    "server's optimizer as a client's": (lambda: ANY.FedAvg(optimizer=tacit.LocalSgd()), "give a ServerOptimizer"),
    "misspelt hessian": (lambda: ANY.PerFedAvg(hessian="first order"), "did you mean 'first-order'"),
    # data and models
    "clients in a list": (lambda: ANY.from_clients([ROWS]), "give a dict, id -> (x, y)"),
    "a client that is a number": (lambda: ANY.from_clients({"a": 5}), "'a'"),
    "fraction as text": (lambda: ANY.from_clients({"a": ROWS}, test_fraction="0.2"), "'0.2'"),
    "labels from one": (lambda: tacit.from_clients({"a": (ROWS[0], ROWS[1] + 1)}), "number them from 0"),
    "labels with gaps": (lambda: tacit.from_clients({"a": (ROWS[0], ROWS[1] * 1000)}), "1001 classes"),
    "rows in dicts": (lambda: tacit.from_dataset([{"x": 1, "y": 0}], ["a"]), "unknown item of the rows 'labels'"),
    "a dataset that is a number": (lambda: ANY.from_dataset(5, ["a"]), "dataset=5"),
    "a table at a number": (lambda: ANY.from_csv(3), "path=3"),
    "words in a table": (lambda: tacit.from_clients({"a": (pd.DataFrame({"x": ["u"] * 4}), ROWS[1])}), "numbers"),
    "source that is a number": (lambda: ANY.load(3), "source=3"),
    "normalising true": (lambda: ANY.load("digits", normalise=True), "for example {'shift'"),
    "normalising by a word": (lambda: ANY.load("digits", normalise="standard"), "for example {'shift'"),
    "scale as text": (lambda: tacit.load("digits", normalise={"scale": "2"}), "normalise.scale is '2'"),
    "clients as text": (lambda: ANY.load("digits", clients="20"), "clients='20'"),
    "rows of a data set that are no tensor": (lambda: replace(DATA, x=TEXT), "give a Tensor"),
    "layers as text": (lambda: ANY.models.MLP("64", 10), "inputs='64'"),
    "shape as text": (lambda: ANY.models.build("mlp", "64", 10), "input_shape='64'"),
    "a run at a number": (lambda: ANY.open_run(3), "path=3"),
    # train
    "method by name": (lambda: train(DATA, MODEL, "fedavg"), "train(method='fedavg'): give a Method"),
    "method as a class": (lambda: train(DATA, MODEL, tacit.FedAvg), "write FedAvg()"),
    "model and data the other way round": (lambda: train(MODEL, DATA, tacit.FedAvg()), "give a FederatedDataset"),
    "no model": (lambda: train(DATA, None, tacit.FedAvg()), "model=None"),
    "levels as privacy": (lambda: train(DATA, MODEL, tacit.FedAvg(), privacy=(LEVEL,)), "give a Privacy"),
    "no privacy": (lambda: ANY.train(DATA, MODEL, tacit.FedAvg(), privacy=None), "leave it out, or give a Privacy"),
    "a number as rows": (lambda: ANY.from_dataset(3, "a"), "give a Dataset of torch or of Hugging Face, or a list"),
    "privacy as a class": (lambda: train(DATA, MODEL, tacit.FedAvg(), privacy=tacit.Privacy), "write Privacy()"),
    "rounds as training": (lambda: ANY.train(DATA, MODEL, tacit.FedAvg(), training=10), "give a Training"),
    "misspelt option": (lambda: train(DATA, MODEL, tacit.FedAvg(), foldr="x"), "did you mean 'folder'"),
    "model that needs arguments": (lambda: train(DATA, tacit.models.MLP, tacit.FedAvg()), "lambda: Net(...)"),
    "factory of nothing": (lambda: train(DATA, lambda: None, tacit.FedAvg()), "a function that returns one"),
    "fewer strengths than levels": (
        lambda: train(
            DATA,
            MODEL,
            tacit.Ditto(strength=(0.1, 0.2)),
            privacy=tacit.Privacy(levels=(tacit.Level("a"), tacit.Level("b"), tacit.Level("c"))),
        ),
        "settings for 2 privacy levels, and there are 3",
    ),
    # estimation
    "message by name": (lambda: BernoulliRates(message=TEXT).fit([1, 2, 3], trials=5), "'x'"),
    "plan as a message": (
        lambda: GaussianMeans(message=ANY.Central(), noise_variance=1.0).fit([1.0, 2, 3]),
        "RandomisedResponse(",
    ),
    "message of a mixture": (lambda: MixtureMeans(message=TEXT, noise_variance=1.0).fit([1.0, 2, 3]), "message is"),
    "message of a regression": (
        lambda: LinearRegressions(message=TEXT).fit(np.ones((4, 1)), [1.0] * 4, groups=[0, 0, 1, 1]),
        "message is",
    ),
    "epsilon of a message as text": (lambda: RandomisedResponse(epsilon=TEXT), "epsilon="),
    "delta of a message as text": (lambda: LocalGaussian(1.0, TEXT), "delta="),
    "bits of a message": (lambda: Quantized(width=TEXT), "width="),
    "prior mean of a rate": (lambda: BernoulliRates(prior_mean=7, prior_variance=0.1).fit([1, 2], trials=5), "7"),
    "prior mean as text": (lambda: BernoulliRates(prior_mean="a", prior_variance=0.1).fit([1, 2], trials=5), "'a'"),
    "radius as text": (lambda: suggest_radius(TEXT, 1, 1, 1, 1), "mean_bound="),
    "radius of a mixture as text": (lambda: lemma_radius(1, 1, 1, 1, TEXT), "dimension="),
    "moments as text": (lambda: beta_moments(TEXT, 1), "alpha="),
}


@pytest.mark.parametrize("case", REFUSED, ids=list(REFUSED))
def test_a_call_that_cannot_be_meant_is_one_line_with_the_value_and_the_remedy(case: str) -> None:
    call, says = REFUSED[case]
    with pytest.raises(TacitError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


DITTO = tacit.Ditto(base=tacit.FedAvg(tacit.LocalSgd(0.5)), personal=tacit.LocalSgd(0.5))
# each case: what is typed, and what it is short for
SHORT: dict[str, tuple[Any, Any]] = {
    "lr of FedAvg": (lambda: ANY.FedAvg(lr=0.5), tacit.FedAvg(tacit.LocalSgd(0.5))),
    "lr and momentum": (lambda: ANY.FedAvg(lr=0.5, momentum=0.9), tacit.FedAvg(tacit.LocalSgd(0.5, 0.9))),
    "lr of Ditto, shared and personal": (lambda: ANY.Ditto(lr=0.5), DITTO),
    "server's optimizer through the base": (
        lambda: ANY.Ditto(optimizer=tacit.ServerAdam()),
        tacit.Ditto(tacit.FedAvg(optimizer=tacit.ServerAdam())),
    ),
    "lr beside a base of one's own": (
        lambda: ANY.Ditto(tacit.Scaffold(0.3), lr=0.5),
        tacit.Ditto(tacit.Scaffold(0.3), personal=tacit.LocalSgd(0.5)),
    ),
    "one name to keep": (lambda: ANY.KeepLocal("norm"), tacit.KeepLocal(("norm",))),
    "strengths in a list": (lambda: ANY.Ditto(strength=[1, 0.5]), tacit.Ditto(strength=(1.0, 0.5))),
    "clip by its bound": (lambda: ANY.Central(clip=1.0), tacit.Central(tacit.Fixed(1.0))),
    "clip by a whole number": (lambda: ANY.Grouped(2), tacit.Grouped(tacit.Fixed(2.0))),
    "clip of a sum": (lambda: ANY.Distributed(clip=0.5), tacit.Distributed(tacit.Fixed(0.5))),
    "plan by name": (lambda: ANY.Privacy("central", (LEVEL,)), tacit.Privacy(tacit.Central(), (LEVEL,))),
    "stepwise by name": (lambda: ANY.Privacy("stepwise", (LEVEL,)), tacit.Privacy(tacit.Stepwise(), (LEVEL,))),
    "one level": (lambda: ANY.Privacy(levels=LEVEL), tacit.Privacy(levels=(LEVEL,))),
    "levels in a list": (lambda: ANY.Privacy(levels=[LEVEL]), tacit.Privacy(levels=(LEVEL,))),
    "levels in some other sequence": (lambda: ANY.Privacy(levels=UserList([LEVEL])), tacit.Privacy(levels=(LEVEL,))),
    "rate": (lambda: ANY.Training(rate=0.1), tacit.Training(sampler=tacit.Poisson(0.1))),
    "cohort": (lambda: ANY.Training(cohort=5), tacit.Training(sampler=tacit.FixedSize(5))),
    "numpy's numbers": (
        lambda: ANY.Level("p", epsilon=np.int64(4), delta=np.float64(1e-3)),
        LEVEL,
    ),
    "numpy's seed": (lambda: ANY.Training(seed=np.int32(3)), tacit.Training(seed=3)),
    "numpy's truth": (lambda: ANY.Central(project=np.bool_(True)), tacit.Central(project=True)),
    "covariance as an array": (
        lambda: ANY.Multitask(covariance=np.eye(2)),
        tacit.Multitask(covariance=((1.0, 0.0), (0.0, 1.0))),
    ),
}


@pytest.mark.parametrize("case", SHORT, ids=list(SHORT))
def test_what_is_written_in_short_is_what_it_is_short_for(case: str) -> None:
    call, whole = SHORT[case]
    assert repr(call()) == repr(whole)
    assert call() == whole


def test_a_short_form_does_not_change_what_a_copy_is_made_of() -> None:
    method: Any = replace(ANY.FedAvg(lr=0.5), optimizer=tacit.ServerAdam())
    assert method == tacit.FedAvg(tacit.LocalSgd(0.5), tacit.ServerAdam())


def start_of(model: Any, seed: int) -> Tree:
    return assemble(DATA, tacit.models.start(model, seed), tacit.FedAvg(), tacit.Privacy(), TRAINING).engine.start


class Net(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3, dtype=torch.float64)


@pytest.mark.parametrize("model", [Net, lambda: nn.Linear(6, 3, dtype=torch.float64)], ids=["class", "function"])
def test_a_model_that_is_made_by_the_run_starts_from_its_seed(model: Any) -> None:
    before = torch.random.get_rng_state()
    one, again, other = (start_of(model, seed) for seed in (1, 1, 2))
    assert torch.equal(one["weight"], again["weight"])
    assert not torch.equal(one["weight"], other["weight"])
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one["weight"], tacit.models.initialise(Net(), 1).weight)  # as a file has it


def test_a_module_that_is_built_stays_as_it_is() -> None:
    assert tacit.models.start(MODEL, 7) is MODEL


def test_train_makes_the_model_under_the_seed_of_its_training() -> None:
    training = replace(TRAINING, seed=5)
    results = [tacit.train(DATA, Net, tacit.FedAvg(), training=training, progress=False) for _ in range(2)]
    one, again = (result.run.progress.server.view.model for result in results)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert torch.equal(results[0].run.engine.start["weight"], start_of(Net, 5)["weight"])
    given = results[0]
    assert np.array_equal(given.predict(DATA.test_x, "c0"), ANY.Result.predict(given, DATA.test_x.tolist(), "c0"))
    for wrong in ("abc", [["a"] * 6], {"x": 1}):
        with pytest.raises(TacitError, match="what is to be predicted"):
            given.predict(wrong, "c0")
    for nothing in ("rows.csv", None):  # and no training row in the error
        with pytest.raises(
            TacitError, match=r"^what is to be predicted is not \[rows, [0-9, ]+\]: give arrays of these shapes$"
        ):
            given.predict(nothing)


def test_a_client_may_be_named_by_its_number() -> None:
    data = tacit.from_clients({k: (np.eye(4, 3), [0, 1, 0, 1]) for k in range(3)})
    result = tacit.train(data, lambda: nn.Linear(3, 2), tacit.FedAvg(), training=tacit.Training(1), progress=False)
    assert np.array_equal(ANY.Result.predict(result, np.eye(3), 2), result.predict(np.eye(3), "2"))


def test_a_table_with_truth_values_is_one_of_numbers() -> None:
    table = pd.get_dummies(pd.DataFrame({"size": [1.5, 2.0, 3.0, 4.0], "kind": ["u", "v", "u", "v"]}))
    data = tacit.from_clients({"a": (table, [0, 1, 0, 1])}, test_fraction=0)
    assert data.x.tolist() == [[1.5, 1, 0], [2, 0, 1], [3, 1, 0], [4, 0, 1]]


@dataclass(frozen=True)
class Own(tacit.Method):
    """FedAvg's first lines, with a mistake."""

    mistake: str

    def init(self, params: Tree) -> Server:
        return Server(Shared(params))

    def client(self, view: Shared, state: Tree, site: Site) -> Any:
        gradient = site.grad(view.model, 0)
        if self.mistake == "looks at a number":
            print(float(next(iter(gradient.values())).sum()))
        if self.mistake == "draws":
            gradient = tree.each(lambda leaf: leaf + torch.randn(leaf.shape), gradient)
        if self.mistake == "other names":
            gradient = tree.prefix("my", gradient)
        if self.mistake == "no such leaf":
            gradient = {"a": gradient["none"]}
        return Shared(gradient) if self.mistake == "no reply" else Reply(Shared(gradient), state)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(Shared({name: leaf - mean.model[name] for name, leaf in server.view.model.items()}))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(view.model, x)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("looks at a number", "Own.client fails"),
        ("draws", "Own.client fails"),
        ("other names", "Own.server fails"),
        ("no such leaf", "KeyError: 'none'"),
        ("no reply", "Reply(upload, state)"),
    ],
)
def test_a_mistake_in_ones_own_method_is_told_before_a_round_is_charged(
    mistake: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(TacitError) as caught:
        train(DATA, MODEL, Own(mistake), folder=tmp_path / "run")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_method_of_ones_own_without_a_mistake_trains() -> None:
    assert train(DATA, MODEL, Own("")).stopped is None
