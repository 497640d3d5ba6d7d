"""The trained model is the user's: as a module, on disk, in another process, for a client that is new."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.rounds.predict import MethodModule


class Wide(nn.Module):
    """A network of a user's own: no class that Tacit knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x.flatten(1)))))


@pytest.fixture(scope="module")
def data() -> tacit.FederatedDataset:
    return tacit.load("digits", clients=6, classes_each=2)


def trained(data: tacit.FederatedDataset, method: tacit.Method, **options: object) -> tacit.Result:
    torch.manual_seed(0)
    return tacit.train(data, Wide(), method, training=tacit.Training(rounds=2), progress=False, **options)  # pyright: ignore


@pytest.fixture(scope="module")
def result(data: tacit.FederatedDataset) -> tacit.Result:
    return trained(data, tacit.Ditto())


@pytest.fixture(scope="module")
def folder(result: tacit.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("saved") / "model", clients=["0", "3"])


def test_the_shared_model_is_a_plain_module_with_what_was_learned(result: tacit.Result) -> None:
    learned, module = result.run.progress.server.view.model, result.model()
    assert isinstance(module, Wide)
    assert not module.training
    assert all(torch.equal(leaf, learned[name]) for name, leaf in module.named_parameters())


def test_a_personal_model_predicts_as_the_evaluation_did(data: tacit.FederatedDataset, result: tacit.Result) -> None:
    for at, client in enumerate(data.ids[:3]):
        rows = data.test_rows(at)
        right = result.predict(data.test_x[rows], client) == data.test_y[rows].numpy()
        assert right.mean() == pytest.approx(result.scores.personal[at])


def test_a_prediction_does_not_depend_on_the_rows_beside_it(data: tacit.FederatedDataset, result: tacit.Result) -> None:
    together = result.outputs(data.x[:20], "0")
    alone = torch.cat([result.outputs(data.x[at : at + 1], "0") for at in range(20)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_a_method_that_mixes_networks_gives_a_module_that_mixes_them(data: tacit.FederatedDataset) -> None:
    mixed = trained(data, tacit.FedEM()).personal("1")
    assert isinstance(mixed, MethodModule)
    assert mixed(data.x[:3]).logsumexp(-1).tolist() == pytest.approx([0.0] * 3, abs=1e-5)  # logarithms of chances


def test_saved_models_give_the_same_bits_in_a_process_that_does_not_know_the_class(
    data: tacit.FederatedDataset, result: tacit.Result, folder: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", data.x[:9].numpy())
    code = (
        "import sys, numpy as np, torch, tacit\n"
        "rows = torch.from_numpy(np.load(sys.argv[2]))\n"
        "for client in (None, '3'):\n"
        "    print(tacit.load_model(sys.argv[1], client)(rows).detach().numpy().tobytes().hex())\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "rows.npy")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert lines == [result.outputs(data.x[:9], client).numpy().tobytes().hex() for client in (None, "3")]


class Tagger(nn.Module):
    """A class at each position, of tokens with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(input_ids) * attention_mask.unsqueeze(-1))


class Recurrent(nn.Module):
    """Whose export torch warns of."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


def test_numbers_sequences_and_tokens_are_predicted_alike_in_a_new_process(tmp_path: Path) -> None:
    draw, training = np.random.default_rng(0), tacit.Training(rounds=1)
    x, ids = draw.normal(size=(8, 3)).astype(np.float32), draw.integers(9, size=(8, 5))
    waves, halves = draw.normal(size=(8, 5, 3)).astype(np.float32), np.arange(8) % 2
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    tasks = {
        "numbers": (nn.Linear(3, 1), x, (x, x.sum(1)), {"x": x}),
        "tokens": (Tagger(), inputs, (inputs, ids), inputs),
        "classes": (Recurrent(), waves, (waves, halves), {"x": waves}),
    }
    expected = []
    for name, (model, rows, pair, arrays) in tasks.items():
        data = tacit.from_clients({"a": pair, "b": pair}, classes=9 if name == "tokens" else None)
        result = tacit.train(data, model, tacit.Ditto(), training=training, progress=False)
        result.save(tmp_path / name)
        np.savez(tmp_path / f"{name}.npz", **arrays)
        expected.append(result.outputs(rows, "b").numpy().tobytes().hex())
        expected += [str(value) for value in result.predict(rows, "b").flatten().tolist()] * (name != "classes")
    code = (
        "import sys, pathlib, numpy as np\n"
        "from tacit.experiments.trained import open_models, prediction_table, read_rows\n"
        "for name in ('numbers', 'tokens', 'classes'):\n"
        "    folder = pathlib.Path(sys.argv[1])\n"
        "    models = open_models(folder / name)\n"
        "    outputs = models.outputs(read_rows(folder / f'{name}.npz', models.config), 'b')\n"
        "    print(outputs.numpy().tobytes().hex())\n"
        "    table = prediction_table(outputs, models.config)\n"
        "    print(*table.to_numpy().flatten().tolist() if name != 'classes' else [])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "tokens"), str(tmp_path / "numbers.npz")])
    assert "it needs the arrays input_ids, attention_mask" in said.output
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "tokens"), str(tmp_path / "rows.csv")])
    assert "give an .npz file with the arrays input_ids, attention_mask" in said.output


def test_saved_parameters_fit_an_instance_of_the_class(
    data: tacit.FederatedDataset, result: tacit.Result, folder: Path
) -> None:
    again = tacit.load_model(folder, "0", model=Wide())
    assert isinstance(again, Wide)
    assert torch.equal(again(data.x[:5]).detach(), result.outputs(data.x[:5], "0"))


def test_the_model_card_has_the_guarantees_of_the_ledger(result: tacit.Result, folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert all(sentence in card for sentence in result.guarantees())
    assert "no guarantee covers" in card


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda folder: tacit.load_model(folder / "none"), "holds no saved model"),
        (lambda folder: tacit.load_model(folder, "nobody"), "has no personal model of 'nobody'"),
        (lambda folder: tacit.load_model(folder, model=nn.Linear(2, 2)), "do not fit the network"),
    ],
)
def test_what_cannot_be_loaded_says_why(folder: Path, call: object, says: str) -> None:
    with pytest.raises(tacit.TacitError, match=says):
        call(folder)  # pyright: ignore


def test_a_folder_with_something_in_it_is_not_saved_over(result: tacit.Result, folder: Path) -> None:
    with pytest.raises(tacit.TacitError, match="not empty"):
        result.save(folder)


def test_a_client_that_never_took_part_gets_a_model_of_its_own(data: tacit.FederatedDataset) -> None:
    result = trained(data, tacit.Ditto(strength=0.1))
    rows, labels = data.x[data.rows(0)], torch.zeros(data.sizes[0], dtype=torch.int64)  # it calls everything a zero
    head = result.run.ledger.head()
    module = result.adapt(rows, labels, rounds=60)
    assert (module(rows).argmax(-1) == 0).float().mean() > 0.9
    assert result.run.ledger.head() == head  # nothing was charged


def test_a_finished_run_predicts_and_exports_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('rounds = 2\n[data]\nclients = 6\n[model]\nname = "softmax"\n[method]\nname = "ditto"\n')
    runner = CliRunner()
    assert runner.invoke(app, ["run", str(file), "--out", str(tmp_path), "--quiet"]).exit_code == 0
    run, rows = str(tmp_path / "small-0"), tmp_path / "rows.csv"
    pd.DataFrame(tacit.load("digits", clients=6).x[:7].flatten(1).numpy()).to_csv(rows, index=False)
    shared = runner.invoke(app, ["predict", run, str(rows)])
    personal = runner.invoke(app, ["predict", run, str(rows), "--client", "2", "--out", str(tmp_path / "p.csv")])
    assert (shared.exit_code, personal.exit_code) == (0, 0), shared.output + personal.output
    assert shared.output.startswith("prediction,p(0)")
    assert len(pd.read_csv(tmp_path / "p.csv")) == 7
    for kind, name in (("state-dict", "m.pt"), ("torch-export", "m.pt2")):
        assert runner.invoke(app, ["export", run, str(tmp_path / name), "--format", kind]).exit_code == 0
    assert torch.load(tmp_path / "m.pt", weights_only=True)["linear.weight"].shape == (10, 64)
    wrong = runner.invoke(app, ["predict", run, str(file)])
    assert wrong.exit_code != 0


def test_an_onnx_file_gives_the_same_outputs_for_any_number_of_rows(folder: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' and onnxruntime are not installed")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    done = CliRunner().invoke(app, ["export", str(folder), str(tmp_path / "m.onnx"), "--format", "onnx"])
    assert done.exit_code == 0, done.output
    network = runtime.InferenceSession(tmp_path / "m.onnx")
    for several in (1, 5):
        x = np.random.default_rng(0).normal(size=(several, 8, 8)).astype(np.float32)
        (found,) = network.run(None, {network.get_inputs()[0].name: x})
        assert np.allclose(found, tacit.load_model(folder)(torch.from_numpy(x)).detach(), atol=1e-5)


def test_without_its_packages_onnx_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    done = CliRunner().invoke(app, ["export", str(folder), str(tmp_path / "m.onnx"), "--format", "onnx"])
    assert "pip install 'tacit-fl[onnx]'" in str(done.exception) + done.output
    assert not (tmp_path / "m.onnx").exists()
