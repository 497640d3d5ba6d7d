"""When a federation has ended, the server has the shared model and each member its own; and whose code it was."""

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import tacit
from benchmarks.federation import liar, oracle
from tacit.cli.main import app
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments.build import build_model, load_data
from tacit.experiments.config import Config, parse
from tacit.federation.protocol.client import Refusal
from tacit.federation.protocol.messages import Arrived
from tacit.federation.protocol.terms import Rows, Terms
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import Agreement, ClientFolder, Offer, read_offer
from tacit.federation.service.experiment import identify
from tacit.federation.service.join import News
from tacit.federation.service.server_dir import ServerFolder, Settings
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.predict import personal_module

CONTENT = {
    "rounds": 2,
    "rate": 1.0,
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "ditto", "strength": 0.5},
    "privacy": {"plan": "central", "clip": 0.5},
    "levels": {"private": {"noise": 1.0, "delta": 1e-3}},
    "data": {"source": "digits", "clients": 3, "classes_each": 4},
}


@dataclass
class Homes:
    """A transport to members' folders."""

    folder: Path

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            yield name, ClientFolder(self.folder / name).client().answer(blob)


@dataclass
class Ended:
    folder: Path
    server: ServerFolder
    data: FederatedDataset
    config: Config


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Three members, two rounds; noise by the seed, to compare with a simulation."""
    folder, config = tmp_path_factory.mktemp("federation"), parse(CONTENT)
    data, text = load_data(config), experiment.text_of(config)
    offer = Offer.on(data, text, permitted=None)
    for k, name in enumerate(data.ids):
        word = replace(Agreement.to(offer, name, "private"), fresh=False)
        ClientFolder(folder / name).settle(word, Rows.of(data, k))
    seats = tuple(experiment.seat(config, name, "private", 0) for name in data.ids)
    server = ServerFolder(folder / "server")
    server.open(offer.terms("run-1", seats), {}, Settings(fresh=False))
    server.go(Homes(folder))
    return Ended(folder, server, data, config)


def test_the_server_ends_with_the_shared_model_and_its_path(ended: Ended) -> None:
    assert ended.server.outcome is not None
    model = tacit.load_model(ended.server.outcome["model"])
    assert model(ended.data.x[:4]).shape == (4, 10)
    with pytest.raises(TacitError, match="no personal model"):
        tacit.load_model(ended.server.outcome["model"], ended.data.ids[0])
    assert "level:private: epsilon 4.8" in (Path(ended.server.outcome["model"]) / "README.md").read_text()


def test_each_member_ends_with_the_model_that_a_simulation_gives_it(ended: Ended, tmp_path: Path) -> None:
    method, privacy, training = experiment.parts(ended.config)
    network = build_model(ended.config, ended.data.input_shape, ended.data.classes)
    engine, shapes = assemble(ended.data, network, method, privacy, training)
    run = Run(replace(engine, identity=""), shapes, ledger=Ledger.open(":memory:"), schedule=Schedule())
    run.go()
    x, shared = ended.data.x[:20], []
    for name in ended.data.ids:
        home, said = ClientFolder(ended.folder / name), Console(file=io.StringIO(), width=300)
        news = News(home)
        news.hand_out(said)
        news.hand_out(said)  # is done
        (path,) = (home.folder / "models").iterdir()
        assert said.file.getvalue().count(f"run-1 has ended. Your own model: {path}") == 1  # pyright: ignore
        assert torch.allclose(tacit.load_model(path, name)(x), personal_module(run, network, name)(x), atol=1e-6)
        shared.append(tacit.load_model(path)(x))
    assert ended.server.outcome is not None
    theirs = tacit.load_model(ended.server.outcome["model"])(x)
    assert all(torch.equal(own, theirs) for own in shared)

    rows, first = tmp_path / "rows.csv", ended.data.ids[0]
    pd.DataFrame(x.numpy().reshape(len(x), -1)).to_csv(rows, index=False)
    path = ended.folder / first / "models" / "run-1"
    done = CliRunner().invoke(app, ["predict", str(path), str(rows), "--client", first])
    assert done.exit_code == 0, done.output
    predicted = pd.read_csv(io.StringIO(done.stdout))["prediction"].to_numpy()
    assert np.array_equal(predicted, personal_module(run, network, first)(x).argmax(-1).numpy())


def test_a_run_that_goes_on_after_it_was_closed_gives_a_new_model(ended: Ended) -> None:
    home = ClientFolder(ended.folder / ended.data.ids[1])
    for file in home.unsaved():
        home.save_model(file)
    assert home.unsaved() == []
    (file,) = (home.folder / "runs").glob("*/terms.json")
    now = file.stat().st_mtime + 3600  # later than the saved model, however slow the machine is
    os.utime(file, (now, now))
    assert home.unsaved() == [file]


CODE = "from tacit import FedAvg as Theirs\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the member's, which an experiment names."""
    place = tmp_path / "site" / "permitted_here"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "methods.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(place.parent))
    return place


NAME = "permitted_here.methods:Theirs"


def text(name: str = NAME) -> str:
    return liar.text(oracle.LOCAL, method={"name": name})


def test_an_agreement_has_version_and_digest_of_permitted_code_and_a_change_is_refused(
    package: Path, tmp_path: Path
) -> None:
    offer = replace(liar.offered(text()), permitted=(NAME,))
    home = liar.joined(tmp_path / "member", offer, liar.some_rows(9))
    agreement = home.agreement
    assert agreement.code == (identify(NAME),)
    assert json.loads((home.folder / "client.json").read_text())["code"][0][2] == identify(NAME).digest
    terms = Terms("run", text(), liar.INPUTS, liar.CLASSES, liar.roster(home, {}))
    agreement.check(terms)
    (package / "other.py").write_text("")  # any file of the package may be imported by the one that is named
    with pytest.raises(Refusal, match=r"'permitted_here.methods:Theirs' is version none, digest \w{16}, and version"):
        agreement.check(terms)
    assert liar.verdict(liar.answered(home, terms)) == "refused"
    assert "join again to permit it" in str(home.refusal)
    (package / "other.py").unlink()
    agreement.check(terms)


def test_code_that_the_agreement_does_not_have_is_refused_before_it_is_imported(package: Path, tmp_path: Path) -> None:
    home = liar.joined(tmp_path / "member", liar.offered(liar.text(oracle.LOCAL)), liar.some_rows(9))
    sys.modules.pop("permitted_here", None)
    agreement = replace(home.agreement, permitted=(NAME,))  # as one of an earlier version would be
    with pytest.raises(Refusal, match="was no part of what was agreed on"):
        agreement.check(Terms("run", text(), liar.INPUTS, liar.CLASSES, liar.roster(home, {})))
    assert "permitted_here" not in sys.modules


def test_a_server_that_has_other_code_is_not_joined(package: Path) -> None:
    content = replace(liar.offered(text()), permitted=None).content()
    read_offer(content, (NAME,)).compare_code()
    (package / "methods.py").write_text(CODE + "# another version\n")
    with pytest.raises(TacitError, match=r"digest \w{16} here and .* at the server: install the same"):
        read_offer(content, (NAME,)).compare_code()


def test_code_that_is_not_installed_cannot_be_permitted() -> None:
    with pytest.raises(TacitError, match=r"'nowhere.at.all:Theirs' is not installed here"):
        identify("nowhere.at.all:Theirs")
