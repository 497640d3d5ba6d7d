import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit.errors import TacitError
from tacit.experiments import run_dir
from tacit.experiments.callbacks import interruptible
from tacit.report.metrics import ALL, Metrics, Row, read
from tacit.report.run_folder import Folder
from tacit.report.summary import open_run
from tacit.rounds import checkpoint
from tacit.rounds.loop import Run
from tests.experiments.tiny import run, stopping_after, tiny

TRAIN = "tacit.experiments.train.interruptible"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run that nothing disturbed."""
    folder = Folder(tmp_path_factory.mktemp("whole") / "tiny-0")
    run(folder.path)
    return folder


def same_end(one: Folder, other: Folder) -> bool:
    """Both ended with the same models, states and figures, to the bit."""
    a, b = (checkpoint.load(folder.checkpoint) for folder in (one, other))
    trees = all(torch.equal(a[part][name], b[part][name]) for part in ("model", "store") for name in a[part])
    texts = all(getattr(one, file).read_bytes() == getattr(other, file).read_bytes() for file in ("metrics", "clients"))
    return trees and texts and a["round"] == b["round"]


def test_a_folder_holds_what_was_asked_and_what_came_of_it(whole: Folder) -> None:
    names = {path.name for path in whole.path.iterdir()}
    assert names >= {
        "config.toml",
        "facts.json",
        "environment.json",
        "metrics.csv",
        "clients.csv",
        "outcome.json",
        "ledger.sqlite",
        "checkpoint.bin",
    }
    rows = read(whole.metrics)
    assert sorted({row.round for row in rows}) == [2, 4, 6, 8]
    assert {row.level for row in rows} == {ALL, "private", "open"}
    metrics = {row.metric for row in rows if row.level == "private"}
    assert metrics >= {"shared_mean", "personal_variance", "personal_worst_decile", "clients"}
    assert {"common", "bound", "strangers", "charges"} <= {row.metric for row in rows if row.level == ALL}
    assert not any("epsilon" in row.metric for row in rows)


def test_the_environment_names_no_person_machine_or_path(whole: Folder) -> None:
    import getpass
    import socket

    text = whole.environment.read_text()
    assert "/" not in text
    assert socket.gethostname() not in text
    assert getpass.getuser() not in json.loads(text)


@pytest.mark.parametrize("rounds", [1, 3, 4, 7])
def test_an_interrupted_run_resumes_to_the_same_end(
    whole: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    folder = Folder(tmp_path / "tiny-0")
    with monkeypatch.context() as patched:
        patched.setattr(TRAIN, stopping_after(rounds))
        result = run(folder.path)
    assert result.interrupted
    assert result.findings.rounds_done == rounds
    assert "Ended after" in str(result)
    assert run(folder.path, resume=True).stopped is None
    assert same_end(folder, whole)


save = Run.save


def test_figures_measured_after_the_checkpoint_are_measured_again(
    whole: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash in the sixth round: rows of later rounds, and a last line that was cut short."""
    folder = Folder(tmp_path / "tiny-0")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", lambda self: save(self) if self.progress.round <= 3 else None)
        patched.setattr(TRAIN, stopping_after(5))
        run(folder.path)
    folder.outcome.unlink()
    with open(folder.metrics, "a") as file:
        file.write("5,all,common,0.123\n5,all,comm")
    run(folder.path, resume=True)
    assert same_end(folder, whole)


def test_a_crash_before_the_first_checkpoint_is_a_start_from_scratch(whole: Folder, tmp_path: Path) -> None:
    folder = run_dir.create(tmp_path / "tiny-0", tiny().model_dump(exclude_none=True))
    folder.metrics.write_text("round,level,metric,value\n2,all,common,0.5\n")
    run(folder.path, resume=True)
    assert same_end(folder, whole)


def test_resuming_a_finished_run_changes_nothing(whole: Folder, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny-0")
    run(folder.path)
    assert run(folder.path, resume=True).stopped is None
    assert same_end(folder, whole)


def test_threads_and_chunks_do_not_stop_a_run_from_resuming(whole: Folder) -> None:
    run(whole.path, "performance.chunk=50", "name=other", resume=True)


def test_a_folder_is_never_overwritten(whole: Folder, tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="already holds this run: resume it, or choose a new folder"):
        run(whole.path)
    with pytest.raises(TacitError, match=r"holds another run .* rounds is 8 there and 9 here"):
        run(whole.path, "rounds=9")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TacitError, match="is not empty and holds no run"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_resuming_with_another_configuration_names_both_and_the_difference(whole: Folder) -> None:
    with pytest.raises(TacitError, match=r"fingerprint \w{16} there, \w{16} here; method.lr is 0.5 there and 0.4 here"):
        run(whole.path, "method.lr=0.4", resume=True)
    with pytest.raises(TacitError, match="there is no run at"):
        run(whole.path / "none", resume=True)


def test_nothing_is_made_for_a_run_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="is not on the menu"):
        run(tmp_path / "new", "choices={opn=0.5}")
    assert not (tmp_path / "new").exists()


def test_two_processes_do_not_write_into_one_folder(whole: Folder) -> None:
    with run_dir.alone(whole), pytest.raises(TacitError, match="another process is running"):
        run(whole.path, resume=True)


def test_numbered_folders_are_found_in_order(tmp_path: Path) -> None:
    content = tiny().model_dump(exclude_none=True)
    other = tiny("rounds=9").model_dump(exclude_none=True)
    for each in (content, other, content, other):
        run_dir.create(run_dir.next_free(tmp_path, "tiny-0"), each)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-0", "tiny-0-2", "tiny-0-3", "tiny-0-4"]
    assert run_dir.latest(tmp_path, "tiny-0", content).name == "tiny-0-3"
    assert run_dir.latest(tmp_path, "tiny-0", other).name == "tiny-0-4"
    with pytest.raises(TacitError, match="to resume: start it without --resume"):
        run_dir.latest(tmp_path, "other-0", content)


def test_a_spent_budget_ends_the_run_and_says_so(tmp_path: Path) -> None:
    changes = ["privacy.plan=local", "privacy.participations=1", "choices={open=0.0}", "rate=1.0", "evaluate.every=5"]
    result = run(tmp_path / "a", *changes)
    assert result.findings.rounds_done == 1
    assert "Ended after 1 of 8 rounds: every client has used up its budget." in str(result)
    assert max(row.round for row in read(tmp_path / "a" / "metrics.csv")) == 1
    again = run(tmp_path / "a", *changes, resume=True)
    assert len(again.metrics) == len(result.metrics)


def test_epsilon_grows_to_the_budget_and_stays_below_rdp(whole: Folder) -> None:
    (rounds, pld), (_, rdp) = open_run(whole.path).spent_over_rounds("private").values()
    assert rounds == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pld == sorted(pld)
    assert pld[-1] == pytest.approx(6, abs=0.01)
    assert pld[-1] <= 6
    assert all(a <= b for a, b in zip(pld, rdp, strict=True))


@pytest.mark.parametrize("plan", ["local", "record"])
def test_where_clients_have_accounts_the_worst_one_is_reported(tmp_path: Path, plan: str) -> None:
    result = run(tmp_path / "a", f"privacy.plan={plan}", "rounds=4")
    told = result.findings.epsilons["private"]["pld"]
    assert told == max(line.epsilon for line in result.findings.statement)
    assert 0 < told <= 6


def test_metrics_forget_and_remember(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table = Metrics(path)
    table.append([Row(1, 'odd, "level"', "x", 0.1 + 0.2)])
    table.append([Row(2, ALL, "x", float("inf"))])
    assert Metrics(path).rows == table.rows
    table.rewind(1)
    assert Metrics(path).rows == [Row(1, 'odd, "level"', "x", 0.1 + 0.2)]


def test_a_level_called_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="a level cannot be called 'all'"):
        run(tmp_path / "a", "levels={all={epsilon=6.0,delta=1e-2},open={}}", "rounds=2")


def small_run(**options: object) -> tacit.Result:
    data = tacit.load("digits", clients=20)
    model = tacit.models.initialise(tacit.models.build("softmax", data.input_shape, data.classes), 0)
    privacy = tacit.Privacy(
        tacit.Grouped(),
        levels=(tacit.Level("private", epsilon=6, delta=1e-2), tacit.Level("open")),
        choices={"open": 0.2},
    )
    training = tacit.Training(rounds=3, sampler=tacit.Poisson(0.3), batch=5)
    return tacit.train(data, model, tacit.Ditto(), privacy, training, progress=False, **options)  # type: ignore[arg-type]


def test_a_run_from_python_needs_no_folder_and_prints_itself() -> None:
    result = small_run()
    text = str(result)
    assert "open: no guarantee: these clients opted out." in text
    assert "client-level, add/remove" in text
    assert "simulation only" in text
    assert result.folder is None
    assert list(result.metrics.columns) == ["round", "level", "metric", "value"]


def test_a_client_predicts_with_its_own_model() -> None:
    predicts_as_scored(small_run())


def test_batch_statistics_of_a_prediction_are_the_clients_own() -> None:
    data = tacit.load("digits", clients=20)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    training = tacit.Training(rounds=2, sampler=tacit.Poisson(0.3), batch=5)
    predicts_as_scored(tacit.train(data, model, tacit.FineTuned(), training=training, progress=False))


def predicts_as_scored(result: tacit.Result) -> None:
    data = result.run.engine.federation
    for at, score in list(zip(result.scores.clients, result.scores.personal, strict=True))[:5]:
        rows = data.test_rows(at)
        predicted = result.predict(data.test_x[rows], data.ids[at])
        assert np.mean(predicted == data.test_y[rows].numpy()) == pytest.approx(score, abs=1e-6)
    assert np.array_equal(result.predict(data.test_x[:3].numpy(), "0"), result.predict(data.test_x[:3], "0"))
    with pytest.raises(TacitError, match="there is no client 'x'"):
        result.predict(data.test_x, "x")
    with pytest.raises(TacitError, match=r"rows to predict have shape \(3,\)"):
        result.predict(np.zeros(3), "0")


def test_a_run_from_python_resumes_only_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(TRAIN, stopping_after(1))
        small_run(folder=tmp_path / "a")
    resumed, straight = small_run(folder=tmp_path / "a", resume=True), small_run()
    assert resumed.metrics.equals(straight.metrics)
    with pytest.raises(TacitError, match=r"evaluate\.every is 10 there and 2 here"):
        small_run(folder=tmp_path / "a", resume=True, schedule=tacit.Schedule(evaluate_every=2))
    with pytest.raises(TacitError, match="resume needs the folder"):
        small_run(resume=True)


def test_ctrl_c_once_asks_and_twice_stops_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert "press Ctrl-C again to stop at once" in capfd.readouterr().err


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    seen: list[bool] = []

    def inside() -> None:
        with interruptible() as stop:
            seen.append(stop())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [False]


def test_names_of_earlier_versions_say_what_they_are_called_now() -> None:
    with pytest.warns(DeprecationWarning, match="tacit.FederatedDataset"):
        assert tacit.Federation is tacit.FederatedDataset  # pyright: ignore


def test_every_public_name_is_there() -> None:
    assert all(getattr(tacit, name) is not None for name in tacit.__all__)
    assert set(dir(tacit)) == set(tacit.__all__)
    with pytest.raises(AttributeError, match="attribute nothing"):
        tacit.nothing  # pyright: ignore  # noqa: B018


def test_a_rota_from_a_file_asks_nobody_twice_and_says_what_that_costs(tmp_path: Path) -> None:
    result = run(tmp_path, "cohort=5", "times=1", "rounds=4", "choices=", "levels.open=", "privacy.plan=central")
    said = "\n".join(result.guarantees())
    assert "who sees the released models and knows who took part" in said.replace("whoever", "who")
    assert "asked at most 1 times in the run; each is charged" in said
    charged = [line for line in result.findings.statement if line.scope.startswith("client:")]
    assert len(charged) == 20
    assert {line.rounds for line in charged} == {1}
    assert all(5.8 < line.epsilon <= 6 for line in charged)


def test_times_without_a_cohort_is_refused() -> None:
    with pytest.raises(TacitError, match="add cohort"):
        tiny("times=1")
