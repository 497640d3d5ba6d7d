"""Tables with names, rows that are dicts: what is public is kept, and comes back with predictions."""

from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.core.columns import Columns
from tacit.data.from_rows import from_clients, from_csv, from_dataset, from_pandas
from tacit.data.hub import from_hub
from tacit.data.loaders import load
from tacit.data.tables import Encoding
from tacit.errors import TacitError

TRAINING = tacit.Training(2, tacit.Poisson(1.0), 4)


def animals(rows: int = 24) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    kind = np.array(["cat", "dog", "owl"])[np.arange(rows) % 3]
    home = np.where(kind == "owl", "tree", np.where(draw.random(rows) < 0.5, "house", "yard"))
    weight = np.round({"cat": 4, "dog": 20, "owl": 1}["cat"] + draw.normal(size=rows), 2)
    return pd.DataFrame({"client": np.arange(rows) % 4, "weight": weight, "home": home, "label": kind})


def test_categories_become_columns_and_class_names_come_back(tmp_path: Path) -> None:
    frame = animals()
    data = from_pandas(frame, name="animals")
    assert data.input_shape == (4,)
    assert data.encoding.classes == ("cat", "dog", "owl")
    assert set(data.x[:, 1:].flatten().tolist()) == {0.0, 1.0}
    result = tacit.train(data, nn.Linear(4, 3), tacit.FedAvg(), training=TRAINING, progress=False)
    said = result.predict(data.x[:5])
    assert set(said) <= {"cat", "dog", "owl"}
    assert isinstance(result.adapt(data.x[:4], ["cat", "dog", "owl", "cat"], rounds=1), nn.Linear)
    folder, rows = result.save(tmp_path / "saved"), tmp_path / "rows.csv"
    frame.drop(columns=["label", "client"]).head(5).to_csv(rows, index=False)
    done = CliRunner().invoke(app, ["predict", str(folder), str(rows)])
    assert done.exit_code == 0, done.output
    table = pd.read_csv(StringIO(done.output))
    assert list(table) == ["prediction", "p(cat)", "p(dog)", "p(owl)"]
    encoded = data.encoding.features(frame.head(5), "rows")
    assert table["prediction"].tolist() == result.predict(encoded).tolist()


def test_a_category_that_nobody_told_of_is_an_error_and_a_list_of_them_is_kept() -> None:
    data = from_pandas(animals(), categories={"home": ["boat", "house", "tree", "yard"]}, classes=["cat", "dog", "owl"])
    assert data.input_shape == (5,)
    strange = animals(3).assign(home="moon")
    with pytest.raises(TacitError, match="rows: column 'home' has the unknown category 'moon': use one of boat"):
        data.encoding.features(strange, "rows")
    with pytest.raises(TacitError, match="unknown class 'owl'"):
        from_pandas(animals(), classes=["cat", "dog"])


def test_a_word_among_numbers_is_a_mistake_and_no_category() -> None:
    frame = animals().astype({"weight": object})
    frame.loc[3, "weight"] = "heavy"
    with pytest.raises(TacitError, match=r"column 'weight' is not numeric \('heavy' among numbers"):
        from_pandas(frame)


def test_a_column_of_quantities_is_a_regression_if_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "houses.csv"
    pd.DataFrame({"client": [0, 0, 1, 1], "size": [1, 2, 3, 4], "label": [10, 20, 30, 40]}).to_csv(path, index=False)
    assert from_csv(path, targets="numbers", test_fraction=0.0).y.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert load("csv", path=str(path), targets="numbers", test_fraction=0.0).y.is_floating_point()
    path.write_text("client,size,label\n0,1,0.5\n")
    with pytest.raises(TacitError, match=r"holds 0\.5: number the classes from 0, or say targets='numbers'"):
        from_csv(path)


def test_class_names_of_clients_are_numbered_by_letters_whoever_holds_them() -> None:
    x = np.ones((2, 1))
    data = from_clients({"a": (x, ["dog", "owl"]), "b": (x, ["cat", "dog"])}, test_fraction=0)
    assert data.y.tolist() == [1, 2, 0, 1]
    listed = from_clients({"a": (x, ["dog", "owl"])}, test_fraction=0, classes=["owl", "dog", "cat"])
    assert (listed.y.tolist(), listed.classes) == ([1, 0], 3)


def test_what_a_federation_prints_tells_sizes_and_never_a_row() -> None:
    secret = 123.456
    frame = animals().assign(weight=secret)
    told = repr(from_pandas(frame, name="animals"))
    assert told.splitlines()[0] == (
        "animals: 4 clients, 20 training rows (5 a client), 4 test rows, 0 common test rows"
    )
    assert "inputs: float32 [4]; targets: 3 classes (cat, dog, owl)" in told
    assert "skew: a client holds 3.0 classes on average" in told
    assert "123" not in told
    assert len(told) < 400


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.table(input_ids) * attention_mask.unsqueeze(-1))


def sentences() -> list[dict[str, object]]:
    lengths = [3, 1, 4, 2, 4, 3, 2, 1]
    return [
        {
            "author": "ab"[at % 2],
            "input_ids": [*range(1, n + 1)],
            "attention_mask": [1] * n,
            "labels": [*range(2, n + 2)],
        }
        for at, n in enumerate(lengths)
    ]


def test_tokenised_rows_train_by_name_and_padding_counts_nowhere() -> None:
    data = from_dataset(sentences(), "author", classes=9)
    assert isinstance(data.x, Columns)
    assert data.x.names == ("input_ids", "attention_mask")
    assert torch.equal(data.y != -100, data.x.tensors[1] == 1)
    result = tacit.train(data, Tagger(), tacit.FedAvg(), training=TRAINING, progress=False)
    assert "perplexity" in str(result)


def test_data_sets_in_memory_and_saved_ones_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    rows = datasets.Dataset.from_list(sentences())
    rows.save_to_disk(tmp_path / "saved")
    for source in (rows, str(tmp_path / "saved"), datasets.DatasetDict({"train": rows})):
        data = from_hub(source, client="author", test_fraction=0.0)
        assert data.ids == ("a", "b")
        assert isinstance(data.x, Columns)
        assert data.x.tensors[0].shape == (8, 4)
        assert (data.y == -100).sum() == 8 * 4 - 20
    named = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0, 4.0], "label": ["no", "yes", "yes", "no"]})
    assert from_hub(named, clients=2, partition="iid").encoding.classes == ("no", "yes")


def test_an_encoding_outlives_its_run() -> None:
    from dataclasses import asdict
    from json import dumps, loads

    encoding = from_pandas(animals()).encoding
    assert Encoding.from_json(loads(dumps(asdict(encoding)))) == encoding


@pytest.mark.parametrize("nothing", ["", 3])
def test_what_is_no_data_set_is_said(nothing: object) -> None:
    with pytest.raises(TacitError, match="give a name of the hub, a folder, a file or a Dataset"):
        from_hub(nothing, client="author")
