"""Whatever a row is, a federation is its simulation: numbers, several labels, tokens, several inputs; and names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("safetensors", reason="needs the extra 'flower'")

from tacit.core.columns import Columns
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.data.layout import NUMBERS, Layout, read_layout, read_shapes
from tacit.errors import TacitError
from tacit.experiments.config import parse
from tacit.federation.protocol.messages import Rejected
from tacit.federation.protocol.terms import Participant, Rows, Terms, read_terms
from tacit.federation.service.client_dir import Agreement, ClientFolder, Offer
from tacit.federation.service.own_rows import read_rows
from tacit.methods import FedAvg
from tests.federation.in_process import Wire, World
from tests.worlds import PLANS, largest_difference

WORDS, LENGTH = 7, 5


class Tokens(nn.Module):
    """A class at each position, or (with a mask) one for the row."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.words, self.head, self.whole = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), whole

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden = self.words(input_ids)
        if attention_mask is not None:
            weight = attention_mask.unsqueeze(-1)
            hidden = hidden * weight / weight.sum(1, keepdim=True)  # NaN where all of a row is left out
        return self.head(hidden.mean(1) if self.whole else hidden)


class Sum(nn.Module):
    """Takes two inputs in order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.first(a) + self.second(b)


def clients(make: Any, **options: Any) -> FederatedDataset:
    draw = np.random.default_rng(0)
    data = {f"c{k}": (*make(draw, 2 + k), *make(draw, 2)) for k in range(3)}
    return from_clients(data, dtype=torch.float64, **options)


def _regression(draw: np.random.Generator, n: int) -> tuple[Any, Any]:
    x = draw.normal(size=(n, 4))
    return x, x.sum(1)


def _tokens(draw: np.random.Generator, n: int) -> tuple[Any, Any]:
    x = draw.integers(WORDS, size=(n, LENGTH + 1))
    return x[:, :-1], np.where(draw.random((n, LENGTH)) < 0.2, -100, x[:, 1:])


def _masked(draw: np.random.Generator, n: int) -> tuple[Any, Any]:
    ids = draw.integers(WORDS, size=(n, LENGTH))
    ids[:, 0] = np.maximum(ids[:, 0], 2)
    return {"input_ids": ids, "attention_mask": (ids > 1).astype(np.int64)}, ids[:, 0]


WORLDS: dict[str, tuple[FederatedDataset, nn.Module]] = {
    "regression": (clients(_regression), nn.Linear(4, 1)),
    "several labels": (
        clients(lambda draw, n: (x := draw.normal(size=(n, 4)), x[:, :2] > 0)),
        nn.Linear(4, 2),
    ),
    "tokens": (clients(_tokens, classes=WORDS), Tokens()),
    "mask": (clients(_masked, classes=WORDS), Tokens(whole=True)),
    "two inputs": (
        clients(lambda draw, n: ((draw.normal(size=(n, 3)), draw.normal(size=(n, 2))), np.arange(n) % 2), classes=2),
        Sum(),
    ),
    "whole numbers": (
        clients(lambda draw, n: (draw.integers(5, size=(n, 4)), np.arange(n) % 2), classes=2),
        nn.Linear(4, 2),
    ),
}


@pytest.mark.parametrize("plan", ["central", "record", "distributed"])
@pytest.mark.parametrize("kind", WORLDS)
def test_a_federation_is_its_simulation_whatever_a_row_is(tmp_path: Path, kind: str, plan: str) -> None:
    data, model = WORLDS[kind]
    world = World(FedAvg(), PLANS[plan], data, model=model, rounds=2)
    expected = world.simulated()
    expected.go()
    server = world.conductor(tmp_path, Wire(world.clients(tmp_path)))
    assert server.go() is None
    assert largest_difference(server.progress.server.view.model, expected.progress.server.view.model) < 1e-9


@pytest.mark.parametrize("kind", WORLDS)
def test_terms_and_a_members_folder_keep_what_a_row_is(tmp_path: Path, kind: str) -> None:
    data = WORLDS[kind][0]
    offer = Offer.on(data, "", permitted=None)
    terms = offer.terms("run", (Participant("a", "open"),))
    assert read_terms(terms.text()) == terms
    word = Agreement("a", "open", "open", None, None, offer.inputs, offer.classes, layout=offer.layout)
    home = ClientFolder(tmp_path / "a")
    home.settle(word, Rows.of(data, 1))
    assert home.agreement == word
    mine, kept = Rows.of(data, 1), home.rows()
    assert torch.equal(kept.y, mine.y)
    assert type(kept.x) is type(mine.x)
    for one, other in zip(_leaves(kept.x), _leaves(mine.x), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def _leaves(x: Any) -> list[Tensor]:
    return [*x.tensors] if isinstance(x, Columns) else [x]


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": []},
        {"inputs": ["complex"]},
        {"names": ["a"], "inputs": ["float", "float"]},
        {"names": ["a", "a"], "inputs": ["float", "float"]},
        {"target": "float16"},
        {"each": [-1]},
        {"each": [True]},
        {"classes": [3]},
        {"columns": [["city"]]},
        {"columns": [["city", ["Oslo", 3]]]},
        {"columns": [["city", ["Oslo", "Oslo"]]]},
        {"columns": [["city", []], ["city", []]]},
        {"columns": 3},
        {"more": 1},
    ],
)
def test_a_layout_that_says_anything_else_is_refused(change: dict[str, Any]) -> None:
    assert read_layout(json.loads(json.dumps(NUMBERS.content()))) == NUMBERS
    with pytest.raises(TacitError, match="does not say what a row is"):
        read_layout({**NUMBERS.content(), **change})
    content = json.loads(Terms("run", "", (1,), 2, (Participant("a", "b"),)).text())
    with pytest.raises(Rejected, match="malformed"):
        read_terms(json.dumps({**content, "layout": {**content["layout"], **change}}))


def test_shapes_are_as_many_as_inputs() -> None:
    two = Layout(inputs=("float", "int64"), names=("a", "b"))
    assert read_shapes([[3], [2, 2]], two) == ((3,), (2, 2))
    with pytest.raises(TypeError, match="1 shapes for 2 inputs"):
        read_shapes([[3]], two)


def offered(**federation: Any) -> Offer:
    config = parse({"federation": federation})
    assert config.federation is not None
    inputs, classes, layout = config.federation.rows
    from tacit.federation.service.experiment import text_of

    return Offer(text_of(parse({"model": {"name": "softmax"}})), inputs, classes, 2, permitted=None, layout=layout)


def test_a_file_says_what_a_row_is() -> None:
    assert offered(inputs=[4], classes=3).layout == NUMBERS
    assert offered(inputs=[4], classes=["no", "yes"]).layout.classes == ("no", "yes")
    assert offered(inputs=[4], classes=1, targets="numbers").layout == Layout(target="float")
    assert offered(inputs=[4], classes=3, targets="labels").layout == Layout(target="bool", each=(3,))
    tokens = offered(inputs=[LENGTH], integers=True, positions=[LENGTH], classes=WORDS)
    assert tokens.layout == Layout(inputs=("int64",), each=(LENGTH,))
    both = offered(inputs={"image": [8, 8], "age": [1]}, integers=["age"], classes=2)
    assert (both.inputs, both.layout.inputs, both.layout.names) == (
        ((8, 8), (1,)),
        ("float", "int64"),
        ("image", "age"),
    )
    with pytest.raises(TacitError, match=r"federation\.integers has 'agee'"):
        offered(inputs={"age": [1]}, integers=["agee"], classes=2)
    with pytest.raises(TacitError, match=r"federation\.positions is \[3\], and targets are numbers"):
        offered(inputs=[3], targets="numbers", positions=[3], classes=1)


def test_a_member_brings_a_table_with_class_names_or_quantities(tmp_path: Path) -> None:
    table = tmp_path / "my.csv"
    table.write_text("a,b,label\n" + "1,2.5,yes\n3,4,no\n" * 5)
    rows = read_rows(table, offered(inputs=[2], classes=["no", "yes"]))
    assert sorted(torch.cat([rows.y, rows.test_y]).tolist()) == [0] * 5 + [1] * 5
    with pytest.raises(TacitError, match="unknown class 'yes'"):
        read_rows(table, offered(inputs=[2], classes=["no", "perhaps"]))
    table.write_text("a,b,label\n" + "1,2.5,0.5\n" * 5)
    assert read_rows(table, offered(inputs=[2], classes=1, targets="numbers")).y.tolist() == [0.5] * 4
    with pytest.raises(TacitError, match=r"2\.5 among its inputs"):
        read_rows(table, offered(inputs=[2], classes=1, targets="numbers", integers=True))
    with pytest.raises(TacitError, match=r"give an \.npz file"):
        read_rows(table, offered(inputs={"a": [1], "b": [1]}, classes=2))


def test_a_member_brings_arrays_of_several_inputs(tmp_path: Path) -> None:
    file, offer = tmp_path / "my.npz", offered(inputs=[LENGTH], integers=True, positions=[LENGTH], classes=WORDS)
    x, y = _tokens(np.random.default_rng(0), 10)
    np.savez(file, x=x, label=y)
    rows = read_rows(file, offer)
    assert rows.x.dtype == torch.int64
    assert (len(rows.x), rows.y.shape) == (8, (8, LENGTH))
    wrongs = [({"x": x}, "label"), ({"x": x[:3], "label": y}, "3, 10 rows"), ({"x": x, "label": y[:, 0]}, "targets")]
    for wrong, says in wrongs:
        np.savez(file, **wrong)
        with pytest.raises(TacitError, match=says):
            read_rows(file, offer)
    np.savez(file, x=x, label=np.full_like(y, WORDS))
    with pytest.raises(TacitError, match=f"label {WORDS}"):
        read_rows(file, offer)
    several = offered(inputs={"input_ids": [LENGTH], "attention_mask": [LENGTH]}, integers=True, classes=WORDS)
    inputs, labels = _masked(np.random.default_rng(0), 10)
    np.savez(file, **inputs, label=labels)
    with pytest.raises(TacitError, match="rows have 2 inputs, and the model 'softmax' takes one"):
        read_rows(file, several)
