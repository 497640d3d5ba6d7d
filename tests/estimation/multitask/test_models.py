"""Any per-client arrays in, personal models out; who learns from whom is drawn and told."""

from pathlib import Path

import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.estimation.multitask import MultitaskModels, Sharing
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.rounds.assemble import Privacy
from tests.estimation.multitask.problems import tasks


def named(kind: str = "classes", **options: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    words = np.array(["stand", "walk"])
    found = tasks(kind, rows=30, **options)  # pyright: ignore[reportArgumentType]
    return {f"p{k}": (x, y if kind == "real" else words[y]) for k, (x, y) in enumerate(found)}


def test_classes_keep_their_names_and_models_fit_their_clients() -> None:
    data = named()
    models = MultitaskModels("smooth-hinge", strength=0.05, rounds=40).fit(data)
    assert set(models.predict("p0", data["p0"][0])) <= {"stand", "walk"}
    assert np.mean(list(models.score(data).values())) > 0.85
    assert models.coef_.shape == (5, 1, 3)
    assert models.intercept_.shape == (5, 1)
    assert np.trace(models.covariance_) == pytest.approx(1, abs=1e-5)
    assert models.history_[-1].gap >= -1e-3
    assert models.never_took_part_ == []
    assert list(models.statement_) == []


def test_outputs_are_those_of_the_coefficients() -> None:
    data = named()
    models = MultitaskModels("squared", strength=0.1, rounds=20).fit(data)
    x = data["p1"][0]
    score = x @ models.coef_[1, 0] + models.intercept_[1, 0]
    outputs = models.decision_function("p1", x)
    assert outputs[:, 1] - outputs[:, 0] == pytest.approx(score, abs=1e-4)


def test_real_targets_make_it_a_regression() -> None:
    data = named("real")
    models = MultitaskModels("squared", strength=0.05, rounds=60).fit(data)
    assert models.classes_ is None
    assert np.mean(list(models.score(data).values())) > 0.8


def test_privacy_is_accounted_for_each_client() -> None:
    privacy = Privacy(plans.Local(participations=3), (Level("private", epsilon=8, delta=1e-3),))
    models = MultitaskModels("hinge", rounds=10, privacy=privacy).fit(named())
    assert len(models.statement_) == 5
    assert all(line.epsilon <= 8 for line in models.statement_)
    assert models.run_.progress.round == 3  # nobody can afford a fourth


def test_like_devices_stand_side_by_side_and_learn_from_one_another(tmp_path: Path) -> None:
    data = named(features=8)
    mixed = {name: data[name] for name in ("p0", "p2", "p1", "p3", "p4")}
    models = MultitaskModels("smooth-hinge", strength=0.5, rounds=60, epochs=2).fit(mixed)
    sharing = Sharing.of(models.run_)
    order = [sharing.ids[t] for t in sharing.order()]
    assert abs(order.index("p0") - order.index("p1")) == 1
    assert sharing.origin.sum(1) == pytest.approx(np.ones(5))
    table = {row[0]: row[2] for row in sharing.table(most=1)}
    assert table["p0"].startswith("p1")
    assert sharing.save_png(tmp_path / "who.png").stat().st_size > 1000
    page = sharing.save_html(tmp_path / "who.html").read_text()
    assert "learned correlation of tasks" in page
    assert "http://" not in page


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ({}, "no clients"),
        ({"a": (np.zeros((2, 3)), np.zeros(3))}, "give \\[rows, features\\]"),
        ({"a": (np.zeros((2, 3)), np.zeros(2, int))}, "at least two classes"),
        ({"a": (np.zeros((2, 3)), [0, 1]), "b": (np.zeros((2, 4)), [0, 1])}, "give all the same"),
    ],
)
def test_wrong_arrays_are_told(clients: dict, told: str) -> None:
    with pytest.raises(TacitError, match=told):
        MultitaskModels().fit(clients)


def test_unfitted_models_say_so() -> None:
    with pytest.raises(TacitError, match="call fit"):
        _ = MultitaskModels().coef_
