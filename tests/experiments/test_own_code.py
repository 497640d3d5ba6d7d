"""A method, a model or a dataset of one's own is one file beside the experiment: nothing else is touched."""

import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.core.registry import Registry
from tacit.errors import TacitError
from tacit.experiments.build import build, build_performance, method_of
from tacit.experiments.config import load, parse, section_table
from tacit.methods import REGISTRY
from tests.experiments.tiny import tiny

METHOD = """
    '''FedProx (Li et al. 2020): local steps held near the model that was received.'''

    from dataclasses import dataclass
    from typing import Literal

    from tacit.core import tree
    from tacit.core.contract import Reply, Shared
    from tacit.methods import FedAvg


    @dataclass(frozen=True)
    class FedProx(FedAvg):
        mu: float = 0.1
        kind: Literal["l2", "none"] = "l2"

        def __post_init__(self):
            if self.mu < 0:
                raise ValueError(f"mu must be at least 0, not {self.mu}")

        def client(self, view, state, site):
            def pull(gradient, params):
                return tree.axpy(self.mu, tree.sub(params, view.model), gradient)

            trained = self.local.run(view.model, site, site.private_grad, pull, guarded=True)
            return Reply(Shared(tree.sub(trained, view.model)), state)
"""
DATASET = """
    '''Two clouds of points.'''

    import torch

    from tacit.data.partition import Pool


    def clouds(rows: int = 40, apart: float = 3.0) -> Pool:
        '''Points of two classes in the plane.'''
        y = torch.arange(rows) % 2
        x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0)) + apart * y[:, None]
        return Pool("clouds", x, y, classes=2, usual="iid", usual_clients=4)
"""
MODEL = """
    from torch import nn


    def scaled(shape: tuple[int, ...], classes: int, width: int = 3) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, classes))
"""
EXPERIMENT = """
    rounds = 2
    rate = 0.9
    data = { source = "own_clouds:clouds", rows = 48, clients = 6 }
    model = { name = "own_model:scaled", width = 5 }
    method = { name = "own_method:FedProx", lr = 0.2, mu = 0.5 }
    evaluate = { every = 2 }
    [levels]
    private = { epsilon = 8.0, delta = 1e-2 }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment, in a folder from which nothing is run."""
    folder = tmp_path / "mine"
    folder.mkdir()
    parts = {"own_method.py": METHOD, "own_clouds.py": DATASET, "own_model.py": MODEL, "exp.toml": EXPERIMENT}
    for name, text in parts.items():
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # what `load` adds to the path is taken off again
    return folder / "exp.toml"


def test_a_file_runs_a_method_a_model_and_a_dataset_that_stand_beside_it(file: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "runs"), "--quiet"])
    assert said.exit_code == 0, said.output
    parts = build(load(file))
    assert (parts.federation.clients, parts.federation.classes, parts.federation.name) == (6, 2, "clouds")
    assert type(parts.method).__name__ == "FedProx"
    assert repr(parts.method).endswith("mu=0.5, kind='l2')")
    assert sum(leaf.numel() for leaf in parts.model.parameters()) == 2 * 5 + 5 + 5 * 2 + 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("mu = 0.5, m = 1", "unknown key 'method.m': did you mean 'mu'?"),
        ("mu = 'a lot'", "method.mu is 'a lot': give a number"),
        ("mu = -1", "method.mu is -1: give at least 0"),
        ("kind = 'l1'", "method.kind is 'l1': use one of l2, none"),
        (
            "strength = 1.0",
            "method.strength is 1.0, and 'own_method:FedProx' does not use it: leave it out, or use fedprox",
        ),
    ],
)
def test_its_options_are_checked_like_those_of_any_other(file: Path, change: str, said: str) -> None:
    file.write_text(file.read_text().replace("mu = 0.5", change))
    with pytest.raises(TacitError) as caught:
        method_of(load(file))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:FedProx", "method 'nowhere:FedProx' cannot be imported (ModuleNotFoundError: "),
        ("math:FedProx", "method 'math:FedProx' cannot be imported (AttributeError: "),
        ("math:pi", "method 'math:pi' is a float: name a class or a function"),
        (
            "collections:Counter",
            "method.name is 'collections:Counter', which makes a Counter: name a method",
        ),
    ],
)
def test_a_path_that_leads_to_no_method_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(TacitError) as caught:
        method_of(parse({"method": {"name": name}}))
    assert str(caught.value).startswith(said)


def test_an_installed_package_adds_a_name_and_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("fancy", "tacit.methods.fedavg:FedAvg", "tacit.methods"),
        EntryPoint("ditto", "nowhere:Ditto", "tacit.methods"),
    ]
    monkeypatch.setattr("tacit.core.registry.entry_points", lambda group: points)
    registry = Registry("method", "tacit.methods", {"ditto": tacit.Ditto})
    assert dict(registry) == {"ditto": tacit.Ditto, "fancy": tacit.FedAvg}
    with pytest.raises(TacitError, match="unknown method 'fany': did you mean 'fancy'"):
        registry.find("fany")


def test_every_section_lists_what_there_is_with_its_keys() -> None:
    for section, names in (("method", REGISTRY), ("model", tacit.models.MODELS)):
        assert list(section_table(section).columns[0].cells) == list(names)


def test_keys_of_the_machine_are_taken_in_their_old_places_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"run.chunk is now performance.chunk: move it there"):
        assert build_performance(tiny("run.chunk=3")) == tacit.Performance(chunk=3, threads=1)
    with pytest.warns(DeprecationWarning, match=r"Training\(chunk=3\) is now performance=Performance\(chunk=3\)"):
        assert tacit.Training(chunk=3).performance == tacit.Performance(chunk=3)
    with pytest.raises(TacitError, match=r"run.threads is 2, and performance.threads is given, too"):
        tiny("run.threads=2")


def test_how_the_machine_is_used_is_no_part_of_a_run(tmp_path: Path) -> None:
    data = tacit.load("digits", clients=6)
    model, training = tacit.models.MLP(64, 10, (3,)), tacit.Training(rounds=2, sampler=tacit.Poisson(0.9))
    before = torch.get_num_threads()
    one = tacit.train(data, model, tacit.FedAvg(), training=training, folder=tmp_path / "run", progress=False)
    again = tacit.train(
        data,
        model,
        tacit.FedAvg(),
        training=training,
        folder=tmp_path / "run",
        resume=True,
        progress=False,
        performance=tacit.Performance(chunk=2, threads=2),
    )
    assert one.findings.config == again.findings.config
    assert torch.get_num_threads() == before


def test_data_and_code_beside_the_file_are_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere, runs = tmp_path / "project", tmp_path / "elsewhere", tmp_path / "runs"
    project.mkdir()
    elsewhere.mkdir()
    (project / "beside_net.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(2, 2)\n")
    rows = [f"{client},{value},{1 - value},{value % 2}" for client in "abc" for value in range(6)]
    (project / "rows.csv").write_text("\n".join(["client,u,v,label", *rows]) + "\n")
    (project / "levels.csv").write_text("client,level\na,one\nb,two\nc,two\n")
    (project / "beside.toml").write_text(
        'choices = "levels.csv"\nrounds = 1\n[data]\nsource = "csv"\npath = "rows.csv"\n'
        '[model]\nname = "beside_net:net"\n[levels]\none = {}\ntwo = {}\n'
    )
    (tmp_path / "new.csv").write_text("u,v\n1,0\n")
    monkeypatch.chdir(elsewhere)
    assert CliRunner().invoke(app, ["run", "../project/beside.toml", "--quiet", "--out", str(runs)]).exit_code == 0

    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(project)])
    monkeypatch.delitem(sys.modules, "beside_net")
    said = CliRunner().invoke(app, ["predict", str(runs / "beside-0"), str(tmp_path / "new.csv")])
    assert said.output.startswith("prediction,p(0)"), said.output

    monkeypatch.chdir(project)
    again = CliRunner().invoke(app, ["run", "beside.toml", "--quiet", "--resume", "--out", str(runs)])
    assert again.exit_code == 0, again.output
