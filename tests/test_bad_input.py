"""Bad input: one line that names the value and the remedy, exit code 2, no traceback, nothing half-written."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import FedAvg
from tacit.rounds.assemble import Training, assemble
from tests.experiments.tiny import TEXT
from tests.worlds import ragged

# each case: what is set in the experiment, and what the line must say
SET: dict[str, tuple[list[str], str]] = {
    "negative epsilon": (["levels.private.epsilon=-1"], "-1"),
    "epsilon zero": (["levels.private.epsilon=0.0"], "0"),
    "epsilon nan": (["levels.private.epsilon=nan"], "nan"),
    "epsilon without delta": (["levels.other.epsilon=2.0"], "delta"),
    "delta of 1/n": (["levels.private.delta=0.05"], "1/20"),
    "delta above one": (["levels.private.delta=1.5"], "1.5"),
    "negative noise": (["levels.private.noise=-1.0"], "-1"),
    "level not on the menu": (["choices.opne=0.1"], "open"),
    "share above one": (["choices.open=1.5"], "1.5"),
    "client that does not exist": (['choices={ nobody = "open" }'], "nobody"),
    "shares above one together": (["choices.open=0.7", "choices.private=0.7"], "1.4"),
    "change of a client that does not exist": (['changes=[{round=2, clients=["nobody"], level="open"}]'], "nobody"),
    "change to a level not on the menu": (['changes=[{round=2, clients=["0"], level="opne"}]'], "open"),
    "change before the first round": (['changes=[{round=0, clients=["0"], level="open"}]'], "0"),
    "change after the last round": (['changes=[{round=8, clients=["0"], level="open"}]'], "8"),
    "change of nobody": (['changes=[{round=2, clients=[], level="open"}]'], "clients"),
    "change without a round": (['changes=[{clients=["0"], level="open"}]'], "round"),
    "change twice at once": (['changes=[{round=2, clients=["0", "0"], level="open"}]'], "twice"),
    "misspelt key of a change": (['changes=[{rond=2, clients=["0"], level="open"}]'], "round"),
    "changes in a file that is not there": (['changes="nothing.csv"'], "nothing.csv"),
    "change that the central plan cannot follow": (
        ['privacy.plan="central"', "choices={}", 'changes=[{round=2, clients=["0"], level="open"}]'],
        "grouped",
    ),
    "no rounds": (["rounds=0"], "0"),
    "rounds in words": (['rounds="many"'], "many"),
    "rate zero": (["rate=0.0"], "0"),
    "rate above one": (["rate=1.5"], "1.5"),
    "cohort larger than the population": (["cohort=1000"], "1000"),
    "batch zero": (["batch=0"], "0"),
    "negative epochs": (["epochs=-1"], "-1"),
    "no epochs": (["epochs=0"], "at least 1"),
    "an option of another partition": (["data.alpha=0.1"], "does not use it"),
    "a level with the name of all": (["levels.all={ epsilon = 4.0, delta = 1e-3 }"], "cannot be called 'all'"),
    "negative seed": (["seed=-1"], "-1"),
    "misspelt source": (['data.source="digts"'], "digits"),
    "no clients": (["data.clients=0"], "0"),
    "more clients than rows": (["data.clients=100000"], "100000"),
    "misspelt partition": (['data.partition="dirichelt"'], "dirichlet"),
    "more classes than there are": (["data.classes_each=11"], "11"),
    "negative alpha": (['data.partition="dirichlet"', "data.alpha=-1.0"], "-1"),
    "impossible minimum": (['data.partition="dirichlet"', "data.minimum=1000"], "1000"),
    "everything held out": (["data.test_fraction=1.0"], "1"),
    "misspelt model": (['model.name="softmx"'], "softmax"),
    "layer of width zero": (['model.name="mlp"', "model.hidden=[0]"], "0"),
    "model that does not fit": (['model.name="five-layer-cnn"'], "8"),
    "misspelt method": (['method.name="dito"'], "ditto"),
    "negative rate of learning": (["method.lr=-0.1"], "-0.1"),
    "infinite rate of learning": (["method.lr=inf"], "inf"),
    "momentum of one": (["method.momentum=1.0"], "1"),
    "negative strength": (["method.strength=-1.0"], "-1"),
    "nothing to keep": (["method.keep=[]"], "keep"),
    "keeping what is not there": (['method.keep=["transform"]'], "transform"),
    "misspelt plan": (['privacy.plan="centrl"'], "central"),
    "clip zero": (["privacy.clip=0.0"], "0"),
    "clip target above one": (["privacy.clip={ target = 2.0 }"], "2"),
    "ratio above one": (["privacy.ratio=3.0"], "3"),
    "no participation": (['privacy.plan="local"', "privacy.participations=0"], "0"),
    "unknown accountant": (['privacy.accountant="moments"'], "moments"),
    "central with two levels": (['privacy.plan="central"'], "grouped"),
    "record with a bound below zero": (['privacy.plan="record"', "privacy.bound=-1.0"], "-1"),
    "ratio zero with nobody open": (["privacy.ratio=0.0", "choices.open=0.0"], "ratio"),
    "unknown key": (["ronds=5"], "rounds"),
    "unknown key in a table": (["privacy.cilp=1.0"], "clip"),
    "unknown table": (["privcy.clip=1.0"], "privacy"),
    "evaluating never": (["evaluate.every=0"], "0"),
    "half precision": (['run.dtype="float16"'], "float16"),
    "assignment without a value": (["rounds"], "rounds"),
    "data that is not there": (['data.source="mnist"'], "TACIT_DATA"),
}


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    file = tmp_path / "tiny.toml"
    file.write_text(TEXT)
    return file


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    for text in says:
        assert text in lines[0]


@pytest.mark.parametrize("case", SET, ids=list(SET))
def test_an_impossible_experiment_is_refused_before_anything_is_written(experiment: Path, case: str) -> None:
    assignments, says = SET[case]
    out = experiment.parent / "runs"
    refused(call("run", experiment, "--out", out, *(part for a in assignments for part in ("--set", a))), says)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [("rounds = = 5", "TOML"), ("\0", "TOML"), ("rounds = 5\nrounds = 6", "TOML")],
    ids=["no toml", "zero byte", "twice"],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    refused(call("run", file, "--out", tmp_path / "runs"), says)


def test_what_is_not_there_is_named(tmp_path: Path, experiment: Path) -> None:
    refused(call("run", tmp_path / "nothing.toml"), "nothing.toml")
    refused(call("show", tmp_path / "nothing"), "nothing")
    refused(call("ledger", tmp_path / "nothing"), "nothing")
    refused(call("run", experiment, "--out", tmp_path / "runs", "--resume"), "resume")
    refused(call("run", experiment, "--out", experiment), "tiny.toml")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epsilon", "-1"],
        ["--epsilon", "nan"],
        ["--delta", "2"],
        ["--rate", "0"],
        ["--rate", "1.5"],
        ["--rounds", "0"],
        ["--noise-multiplier", "-1"],
        ["--population", "1000", "--delta", "0.01"],
        ["--fixed-size", "50"],
    ],
    ids=" ".join,
)
def test_an_impossible_budget_is_refused(arguments: list[str]) -> None:
    refused(call("budget", *arguments))


def csv(folder: Path, text: str) -> list[str]:
    path = folder / "data.csv"
    path.write_text(text)
    return ["--set", 'data={ source = "csv", path = "' + str(path) + '", client = "client", label = "label" }']


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,label,x\na,0,1\nb,1,nan\n", "x"),
        ("client,label,x\na,0,1\nb,1,inf\n", "inf"),
        ("client,x\na,1\n", "label"),
        ("label,x\n0,1\n", "client"),
        ("client,label,x\na,-1,2\n", "-1"),
        ("client,label,x\na,0.5,2\n", "0.5"),
        ("client,label\na,0\n", "feature"),
        ("", "data.csv"),
    ],
    ids=["nan", "inf", "no label", "no client", "negative label", "fraction", "no features", "empty"],
)
def test_a_table_that_cannot_be_data_is_refused(experiment: Path, text: str, says: str) -> None:
    refused(call("run", experiment, "--out", experiment.parent / "runs", *csv(experiment.parent, text)), says)


@pytest.fixture
def half_done(experiment: Path) -> Path:
    """A finished run, whose parts the tests below break."""
    assert call("run", experiment, "--out", experiment.parent / "runs", "--quiet").exit_code == 0
    return experiment.parent / "runs" / "tiny-0"


def test_resuming_with_another_configuration_names_the_difference(experiment: Path, half_done: Path) -> None:
    before = {path.name: path.read_bytes() for path in half_done.iterdir()}
    refused(call("run", experiment, "--out", half_done.parent, "--resume", "--set", "batch=7"), "batch")
    after = {path.name: path.read_bytes() for path in half_done.iterdir()}
    assert after == before


def test_a_damaged_checkpoint_is_refused(experiment: Path, half_done: Path) -> None:
    data = (half_done / "checkpoint.bin").read_bytes()
    (half_done / "checkpoint.bin").write_bytes(data[:-10])
    refused(call("run", experiment, "--out", half_done.parent, "--resume"), "damaged")


def test_a_damaged_ledger_is_refused(experiment: Path, half_done: Path) -> None:
    for path in half_done.glob("ledger.sqlite-*"):
        path.unlink()
    (half_done / "ledger.sqlite").write_bytes(b"not a ledger" * 1000)
    refused(call("run", experiment, "--out", half_done.parent, "--resume"), "ledger")
    refused(call("ledger", half_done), "ledger")


def test_a_full_disk_is_one_line(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(call("run", experiment, "--out", experiment.parent / "runs"), "space")
    assert not list(experiment.parent.rglob("*.part"))


ROWS = (np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "no clients"),
        ({"a": (np.full((2, 3), np.nan), np.array([0, 1]))}, "'a'"),
        ({"a": (np.zeros((0, 3)), np.zeros(0, int))}, "'a'"),
        ({"a": (np.ones((3, 3)), np.array([0, 1]))}, "'a'"),
        ({"a": (np.ones((2, 3)), np.array([0, -1]))}, "-1"),
        ({"a": ROWS, "b": (np.ones((2, 4)), np.array([0, 1]))}, "'b'"),
        ({"a": ROWS, 1: ROWS, "1": ROWS}, "1"),
    ],
    ids=["empty", "nan", "no rows", "lengths", "label", "shapes", "twice"],
)
def test_impossible_clients_are_refused(data: dict, says: str) -> None:
    with pytest.raises(TacitError, match=says) as caught:
        from_clients(data)
    assert "\n" not in str(caught.value)


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(TacitError, match="5"):
        from_clients({"a": (np.ones((2, 3)), np.array([0, 5]))}, classes=3)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(5, 3), "shape"),
        (nn.Linear(6, 4), "expected"),
        (nn.Sequential(nn.Flatten()), "no trainable"),
        (nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)), "shape"),
    ],
    ids=["inputs", "outputs", "no parameters", "not by row"],
)
def test_a_model_that_does_not_fit_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(TacitError, match=says) as caught:
        assemble(ragged(), model, FedAvg(), tacit.Privacy(), Training(rounds=1, dtype=torch.float64))
    assert "\n" not in str(caught.value)
