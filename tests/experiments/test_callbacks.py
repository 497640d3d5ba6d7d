"""Callbacks see a simulation; trackers write what their own libraries read; a federation tells what was paid for."""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.errors import TacitError
from tacit.experiments.build import build
from tacit.experiments.callbacks import Callback, EarlyStopping, Released, Tracker, released_figures
from tacit.report.summary import open_run
from tacit.rounds.evaluate import NoisyScores
from tacit.rounds.round import Report
from tests.experiments.tiny import run, tiny


class Notes(Tracker):
    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}
        self.rounds: list[int] = []
        self.ended: list[Any] = []

    def on_round(self, report: Report) -> None:
        self.rounds.append(report.round)

    def log(self, round: int, figures: Any) -> None:
        self.seen[round] = dict(figures)

    def on_stop(self, result: Any) -> None:
        self.ended.append(result)


def train(*callbacks: Callback, **more: Any) -> tacit.Result:
    parts = build(tiny())
    return tacit.train(
        parts.federation,
        parts.model,
        parts.method,
        parts.privacy,
        parts.training,
        schedule=parts.schedule,
        progress=False,
        callbacks=callbacks,
        **more,
    )


def test_callbacks_see_every_round_every_evaluation_and_the_end(tmp_path: Path) -> None:
    notes = Notes()
    result = train(notes, folder=tmp_path / "run")
    assert notes.rounds == [*range(1, 9)]
    assert [*notes.seen] == [2, 4, 6, 8]
    assert notes.ended == [result]
    opened = open_run(tmp_path / "run")
    assert notes.seen[8]["all/personal_mean"] == opened.value("all", "personal_mean")


def test_the_epsilon_that_a_callback_sees_is_the_ledgers() -> None:
    notes = Notes()
    result = train(notes)
    spent = result.findings.spent_over_rounds("private")["pld"]
    assert [notes.seen[round]["private/epsilon"] for round in spent[0] if round in notes.seen] == [
        value for round, value in zip(*spent, strict=True) if round in notes.seen
    ]


def test_a_run_with_callbacks_ends_with_the_same_model() -> None:
    assert train(Notes()).metrics.equals(train().metrics)


class Ending(Callback):
    def on_round(self, report: Report) -> str | None:
        return "enough" if report.round == 3 else None


def test_a_callback_can_end_a_run_with_its_reason(tmp_path: Path) -> None:
    result = train(Ending(), folder=tmp_path / "run")
    assert (result.stopped, result.findings.rounds_done, result.interrupted) == ("enough", 3, False)
    assert "enough" in (open_run(tmp_path / "run").standing or "")


def test_early_stopping_waits_for_its_patience() -> None:
    stopping = EarlyStopping(patience=2, figure="x", larger=False)
    answers = [stopping.on_evaluation(at, {"x": value}) for at, value in enumerate((3.0, 2.0, 2.5, 1.0, 1.5, 1.0))]
    assert [bool(answer) for answer in answers] == [False] * 5 + [True]


def test_early_stopping_names_the_figures_that_there_are() -> None:
    with pytest.raises(TacitError, match="all/personal_mean"):
        EarlyStopping(figure="accuracy").on_evaluation(1, {"all/personal_mean": 0.5})


def test_an_unknown_tracker_is_told_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="tensorboard"):
        run(tmp_path / "run", 'run.track=["tensorbord"]')
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'tacit-fl[tensorboard]'")
    events_of = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    result = run(tmp_path / "run", 'run.track=["tensorboard"]')
    events = events_of(str(tmp_path / "run" / "tensorboard")).Reload()
    last = events.Scalars("all/personal_mean")[-1]
    assert last.step == 8
    assert last.value == pytest.approx(result.findings.value("all", "personal_mean"), abs=1e-6)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # MLflow, of SQLAlchemy 2.1
def test_mlflow_reads_what_was_tracked(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'tacit-fl[mlflow]'")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    result = train(tacit.MLflow(uri))
    client = mlflow.MlflowClient(uri)
    number = client.get_experiment_by_name("tacit").experiment_id
    history = client.get_metric_history(client.search_runs([number])[0].info.run_id, "all/personal_mean")
    assert [each.step for each in history] == [2, 4, 6, 8]
    assert history[-1].value == result.findings.value("all", "personal_mean")


def wandb_records(file: Path) -> list[bytes]:
    """A `.wandb` file is a log in blocks of 32 kB: 7 bytes, then records of (checksum, length, kind) and content.

    Versions up to 0.2x have a reader of their own in Python; from .3 on only their compiled service reads files.
    """
    try:
        store = import_module("wandb.sdk.internal.datastore").DataStore()
    except ImportError:
        return records_by_hand(file)
    store.open_for_scan(str(file))
    found = [*iter(store.scan_data, None)]
    store.close()
    return found


def records_by_hand(file: Path) -> list[bytes]:
    data, at, records, part = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = (b"" if kind in (1, 2) else part) + data[at + 7 : at + 7 + length]
        records += [part] if kind in (1, 4) else []
        at += 7 + length
    return records


def test_weights_and_biases_reads_what_was_tracked(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'tacit-fl[wandb]'")
    messages = import_module("wandb.proto.wandb_internal_pb2")
    result = train(tacit.WeightsAndBiases(), folder=tmp_path / "run")
    wandb.teardown()  # ends the process that writes the file, as leaving Python does: until then it may be empty
    records = [messages.Record.FromString(each) for each in wandb_records(next((tmp_path / "run").rglob("*.wandb")))]
    items = [item for record in records for item in record.history.item]
    values = [item.value_json for item in items if "all/personal_mean" in (item.key, ".".join(item.nested_key))]
    assert float(values[-1]) == result.findings.value("all", "personal_mean")


def test_python_logging_has_the_start_every_evaluation_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tacit.run"):
        result = train()
    told = [record.getMessage() for record in caplog.records if record.name == "tacit.run"]
    assert len(told) == 1 + 4 + 1
    assert "started" in told[0]
    assert "ended" in told[-1]
    last = vars(caplog.records[-2])
    assert (last["round"], last["figures"]["all/personal_mean"]) == (8, result.findings.value("all", "personal_mean"))
    assert last["figures"]["private/epsilon"] == result.findings.spent_over_rounds("private")["pld"][1][-1]


def test_python_logging_is_silent_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    train()
    assert not [record for record in caplog.records if record.name == "tacit.run"]


def leaking() -> Report:
    """A report that holds more than was paid for: every field of a private client's doing is set."""
    parts = build(tiny())
    scores = train().scores
    return Report(
        round=3, rounds=8, cohort=17, bound=0.7, weights=(0.4, 0.6), scores=scores, seconds=1.25, plan=parts,  # type: ignore[arg-type]
        asked=19, work=0.5, refused=Counter(late=2), rejected=Counter(huge=1),
        figures=NoisyScores(asked=20, answered=18, std=0.03, shared=0.61, personal=0.72),
    )  # fmt: skip


def test_a_deployments_tracker_gets_only_what_was_paid_for() -> None:
    notes = Notes()
    Released([notes]).after_round(leaking())
    assert notes.seen[3] == {
        "all/bound": 0.7,
        "0/weight": 0.4,
        "1/weight": 0.6,
        "all/shared_mean": 0.61,
        "all/personal_mean": 0.72,
        "all/noise_std": 0.03,
    }
    assert not notes.rounds


def test_a_round_that_released_no_figure_tells_none() -> None:
    notes = Notes()
    quiet = leaking()._replace(bound=None, weights=None, figures=None)
    Released([notes]).after_round(quiet)
    assert not notes.seen
    assert released_figures(quiet) == {}
