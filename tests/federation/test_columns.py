"""Members' tables with names in them: the server's file lists the categories, and all members encode theirs alike."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("safetensors", reason="needs the extra 'flower'")
pytest.importorskip("httpx", reason="needs the extra 'flower'")

from tacit.cli.main import app
from tacit.data.from_rows import from_pandas
from tacit.errors import TacitError
from tacit.experiments.config import parse
from tacit.federation.protocol.messages import Arrived
from tacit.federation.service import experiment, join
from tacit.federation.service.client_dir import Agreement, ClientFolder, Offer, read_offer
from tacit.federation.service.join import News
from tacit.federation.service.own_rows import read_rows
from tacit.federation.service.server_dir import ServerFolder, Settings

CITIES = ["Oslo", "Rome", "Turin"]
CONTENT: dict[str, Any] = {
    "rounds": 2,
    "rate": 1.0,
    "model": {"name": "softmax"},
    "method": {"name": "ditto"},
    "privacy": {"plan": "central", "clip": 0.5},
    "levels": {"private": {"noise": 1.0, "delta": 1e-3}},
    "federation": {"columns": {"age": "number", "city": CITIES}, "classes": ["no", "yes"], "nodes": 3},
}


def offered(**federation: Any) -> Offer:
    config = parse({**CONTENT, "federation": {**CONTENT["federation"], **federation}})
    assert config.federation is not None
    inputs, classes, layout = config.federation.rows
    text = experiment.text_of(config)
    mine = Offer(text, inputs, classes, 3, config.federation.label, None, layout=layout)
    return read_offer(mine.content())  # as a member reads it


def people(seed: int, rows: int = 10) -> pd.DataFrame:
    """No member has somebody in every city, and all have a column that the federation does not ask for."""
    draw = np.random.default_rng(seed)
    city = np.array(CITIES)[seed % 3 - np.arange(rows) % 2]
    age = draw.integers(20, 60, size=rows) / 40
    label = np.where(age + (city == "Rome") > 1.2, "yes", "no")
    return pd.DataFrame({"remark": "private", "city": city, "label": label, "age": age})


def table(folder: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(folder / "my.csv", index=False)
    return folder / "my.csv"


def test_a_members_table_is_encoded_as_the_federation_says(tmp_path: Path) -> None:
    frame = people(1, 20)
    rows, offer = read_rows(table(tmp_path, frame), offered()), offered()
    assert offer.inputs == (4,)
    kept = frame[["age", "city", "label"]].assign(client="me")
    whole = from_pandas(kept, categories={"city": CITIES}, classes=["no", "yes"], test_fraction=0.0)
    mine = sorted([*x, y] for x, y in zip(rows.x.tolist(), rows.y.tolist(), strict=True))
    held = sorted([*x, y] for x, y in zip(rows.test_x.tolist(), rows.test_y.tolist(), strict=True))
    assert sorted(mine + held) == sorted([*x, y] for x, y in zip(whole.x.tolist(), whole.y.tolist(), strict=True))


WRONG = [
    ({"city": "Bergen"}, r"my\.csv: column 'city' has the unknown category 'Bergen': use one of Oslo, Rome, Turin"),
    ({"city": None}, "column 'city' is empty in row 1"),
    ({"age": "old"}, "column 'age' is not numeric"),
    ({"label": "perhaps"}, "unknown class 'perhaps'"),
    ({"town": "Oslo", "city": ...}, "unknown column 'city'"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_what_does_not_fit_is_told_to_its_owner_and_never_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], says: str
) -> None:
    content, posted = offered().content(), []

    def post(server: str, ca: Path, what: str, said: dict[str, Any]) -> dict[str, Any]:
        posted.append((what, said))
        return content

    monkeypatch.setattr(join, "_post", post)
    monkeypatch.setattr(join, "_authority", lambda *_: tmp_path / "ca.crt")
    monkeypatch.setattr(join, "read_invitation", lambda _: ("token", "mark"))
    frame = people(1).assign(**{name: value for name, value in change.items() if value is not ...})
    frame = frame.drop(columns=[name for name, value in change.items() if value is ...])
    with pytest.raises(TacitError, match=says) as refused:
        join.join(
            "here", "x", table(tmp_path, frame), "me", "private", tmp_path / "me", Console(file=io.StringIO()), max
        )
    assert "\n" not in str(refused.value)
    assert posted == [("offer", {"invitation": "token"})]


def test_names_without_a_list_of_categories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match=r"column 'remark' has names, .*\[federation\] columns"):
        read_rows(table(tmp_path, people(1)), offered(columns=None, inputs=[3]))


@dataclass
class Homes:
    folder: Path

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            yield name, ClientFolder(self.folder / name).client().answer(blob)


def test_a_run_on_tables_with_names_ends_with_models_that_take_such_tables(tmp_path: Path) -> None:
    offer, names = offered(), ("ann", "bob", "cleo")
    for seed, name in enumerate(names):
        (tmp_path / name).mkdir()
        rows = read_rows(table(tmp_path / name, people(seed)), offer)
        ClientFolder(tmp_path / name).settle(Agreement.to(offer, name, "private"), rows)
    config = experiment.experiment_of(offer.experiment, None)
    seats = tuple(experiment.seat(config, name, "private", 0) for name in names)
    server = ServerFolder(tmp_path / "server")
    server.open(offer.terms("run-1", seats), {}, Settings(fresh=False))
    server.go(Homes(tmp_path))
    assert server.outcome is not None
    home = ClientFolder(tmp_path / "bob")
    News(home).hand_out(Console(file=io.StringIO()))
    (own,) = (home.folder / "models").iterdir()
    unlabelled = table(tmp_path, people(7).drop(columns="label"))
    for folder, more in ((Path(server.outcome["model"]), []), (own, ["--client", "bob"])):
        said = CliRunner().invoke(app, ["predict", str(folder), str(unlabelled), *more])
        assert said.exit_code == 0, said.output
        assert pd.read_csv(io.StringIO(said.output)).columns.tolist() == ["prediction", "p(no)", "p(yes)"]


@pytest.mark.parametrize(
    ("federation", "says"),
    [
        ({"inputs": [4]}, "federation.columns says what a row is: leave out inputs"),
        ({"columns": {"label": "number"}}, "federation.columns has 'label', which is the label"),
        ({"columns": {"city": ["Oslo", "Oslo"]}}, r"federation.columns.city is \['Oslo', 'Oslo'\]: list each"),
        ({"columns": {"city": []}}, r"federation.columns.city is \[\]: list each"),
        ({"columns": {}}, "federation.columns is empty"),
        ({"columns": {"city": "text"}}, "federation.columns.city is 'text'"),
    ],
)
def test_columns_that_say_no_row_are_refused(federation: dict[str, Any], says: str) -> None:
    with pytest.raises(TacitError, match=says):
        offered(**federation)
