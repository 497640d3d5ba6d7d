"""Foundation models: tiny networks of transformers that were drawn at random, with adapters of peft; offline."""

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad

import tacit
from tacit.core import tree
from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.models import check, params, pretrained
from tacit.privacy.mechanisms.gradient import ghost
from tests.worlds import PLANS, largest_difference

try:
    import transformers  # pyright: ignore[reportMissingImports]
except ImportError:
    transformers = None
needs_transformers = pytest.mark.skipif(
    transformers is None or not find_spec("peft"), reason="the extra pretrained is not installed"
)
LENGTH, TOKENS, CLASSES = 6, 50, 3
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def test_a_server_cannot_name_a_path_of_a_network_for_its_members() -> None:
    from tacit.federation.service.experiment import check_keys

    with pytest.raises(TacitError, match=r"model\.source', which a server may not set"):
        check_keys({"model": {"name": "pretrained", "source": "/etc"}})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert transformers is not None
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    wide = {"initializer_range": 0.3}  # so that little differences show
    short = {"vocab_size": TOKENS, "bos_token_id": 1, "eos_token_id": 1}
    networks: dict[str, nn.Module] = {
        "bert": transformers.BertModel(
            transformers.BertConfig(vocab_size=TOKENS, max_position_embeddings=16, **SMALL, **wide)
        ),
        "gpt2": transformers.GPT2Model(
            transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, pad_token_id=0, **short, **wide)
        ),
        "vit": transformers.ViTModel(
            transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **SMALL, **wide)
        ),
    }
    for name, network in networks.items():
        network.save_pretrained(folder / name)  # pyright: ignore
    return folder


def world(name: str) -> tacit.FederatedDataset:
    draw = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = draw.integers(CLASSES, size=n)
        if name == "vit":
            return draw.normal(size=(n, 1, 8, 8)) + y[:, None, None, None], y
        x = draw.integers(2, TOKENS, size=(n, LENGTH))
        x[::2, -2:] = 0  # padding
        return x, y

    return tacit.from_clients({f"c{k}": (*rows(4), *rows(2)) for k in range(4)}, classes=CLASSES)


@needs_transformers
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_outputs_are_those_of_transformers_with_its_own_attention_mask(folders: Path, name: str) -> None:
    assert transformers is not None
    model, backbone = (
        pretrained(folders / name, classes=CLASSES),
        transformers.AutoModel.from_pretrained(folders / name),
    )
    x = world(name).x[:5]
    real = x != 0
    with torch.no_grad():
        states = backbone.eval()(input_ids=x.long(), attention_mask=real.long()).last_hidden_state
        mean = (states * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)
        expected = model.head(mean)  # pyright: ignore
        assert torch.allclose(model(x), expected, atol=1e-5)
        assert torch.allclose(model({"input_ids": x.long(), "attention_mask": real.long()}), expected, atol=1e-5)


@needs_transformers
@pytest.mark.parametrize(("name", "plan"), [("vit", "central"), *(("bert", plan) for plan in PLANS)])
def test_adapters_and_head_alone_are_sent_and_moved(folders: Path, name: str, plan: str) -> None:
    model = pretrained(folders / name, lora=2, classes=CLASSES)
    training = tacit.Training(2, tacit.Poisson(1.0), batch=2)
    result = tacit.train(world(name), model, tacit.FedAvg(), PLANS[plan], training, progress=False)
    sent = {name.removeprefix("model/") for name in result.run.engine.plan.setting.upload}
    assert sent == set(params(model))
    assert all("lora" in leaf or leaf.startswith("head.") for leaf in sent)
    before, after = dict(model.named_parameters()), dict(result.model().named_parameters())
    assert {leaf for leaf in before if not torch.equal(before[leaf], after[leaf])} == sent


@needs_transformers
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_private_gradients_of_adapters_are_the_clipped_gradients_of_examples_one_by_one(
    folders: Path, name: str
) -> None:
    data = world(name).astype(torch.float64)
    task = check(pretrained(folders / name, lora=2, classes=CLASSES).double(), data)
    (x, y), start = data.take(torch.arange(5)), params(task.module)
    start = tree.each(lambda leaf: leaf + 0.1, start)  # adapters that do something
    bound = 0.5

    def clipped(row: int) -> Tree:
        one = grad(lambda leaves: task.losses(leaves, x[row : row + 1], y[row : row + 1]).sum())(start)
        return tree.scale(one, min(1.0, bound / float(tree.norm(one))))

    expected = tree.each(lambda *leaves: torch.stack(leaves).sum(0), *(clipped(row) for row in range(5)))
    found = ghost(task.losses, start, x, y, torch.ones(5, dtype=torch.bool), bound)
    assert largest_difference(found, expected) < 1e-5


@needs_transformers
def test_a_personal_adapter_stays_and_a_saved_model_predicts_the_same(folders: Path, tmp_path: Path) -> None:
    data, model = world("bert"), pretrained(folders / "bert", lora=2, classes=CLASSES)
    training = tacit.Training(2, tacit.Poisson(1.0), batch=2)
    result = tacit.train(data, model, tacit.KeepLocal(("lora",)), PLANS["central"], training, progress=False)
    assert set(result.run.engine.plan.setting.upload) == {"model/head.weight", "model/head.bias"}
    saved = result.save(tmp_path / "saved")
    for client in (None, "c1"):
        loaded = tacit.load_model(saved, client)
        assert torch.allclose(loaded(data.x[:3]), result.outputs(data.x[:3], client), atol=1e-6)
    assert (saved / "personal" / "c1.safetensors").stat().st_size < (saved / "model.safetensors").stat().st_size / 4


@needs_transformers
def test_the_same_seed_gives_the_same_start_and_the_callers_generator_is_left_alone(folders: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (params(pretrained(folders / "bert", seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert largest_difference(first, second) == 0
    assert largest_difference(first, other) > 0


@needs_transformers
def test_what_is_not_there_is_said(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="there is no network at"):
        pretrained(tmp_path)
    with pytest.raises(
        TacitError, match="no linear layer is called attention: the network has dense, key, query, value"
    ):
        pretrained(folders / "bert", targets=("attention",))
    only_head = params(pretrained(folders / "bert", lora=0))
    assert set(only_head) == {"head.weight", "head.bias"}


QUIET = """
import sys, threading
from tacit.models import pretrained
from transformers.utils import logging
pretrained(sys.argv[1], lora=0)
assert logging.is_progress_bar_enabled()
assert [each.name for each in threading.enumerate()] == ["MainThread"], threading.enumerate()
"""


@needs_transformers
def test_a_network_of_a_folder_is_read_without_a_word_a_thread_or_a_connection(folders: Path) -> None:
    """What would ask the hub here would wait: nobody answers at the address that it is given."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        done = subprocess.run(
            [sys.executable, "-c", QUIET, folders / "bert"],
            env=os.environ | address, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        nobody.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            nobody.accept()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_extra_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-fl\[pretrained\]'"):
        pretrained("anywhere")


@needs_transformers
def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "foundation-models.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {"__name__": "page"})
    sent = (
        2 * 2 * (4 * 32 + 32 * 4) + 2 * 32 + 2
    )  # layers, projections, factors of rank 4; weights and biases of the head
    assert f"{sent} numbers are sent" in capsys.readouterr().out


@needs_transformers
def test_a_file_names_a_pretrained_network(folders: Path) -> None:
    from tacit.experiments.build import build_model
    from tacit.experiments.config import parse

    table = {"name": "pretrained", "source": str(folders / "bert"), "lora": 2, "targets": ["query"]}
    one, other = (params(build_model(parse({"model": table, "seed": seed}), (LENGTH,), CLASSES)) for seed in (0, 1))
    assert one["head.weight"].shape[0] == CLASSES
    assert {name.rpartition("lora")[1] or "head" for name in one} == {"lora", "head"}
    assert largest_difference(one, other) > 0  # the experiment's seed draws head and adapters
