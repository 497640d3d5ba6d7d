"""Sweeps: every combination once, in parallel, gone on with after a kill, compared on one page."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.errors import TacitError
from tacit.experiments.sweep import Sweep, Trial, cores_each, grid, run_sweep, split_values
from tacit.report.run_folder import Folder
from tacit.report.summary import ON_REQUEST
from tacit.report.sweep import differences, pareto_front, sweep_figures
from tests.experiments.tiny import CONTENT, TEXT, run, tiny

SETTINGS = {"levels.private.epsilon": [1.0, 6.0]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return tacit.sweep(CONTENT, SETTINGS, seeds=2, jobs=2, out=tmp_path_factory.mktemp("sweep"), progress=False)


def test_a_frame_has_a_row_for_every_combination_and_seed(whole: Sweep) -> None:
    frame: Any = whole.frame()
    assert len(frame) == 4
    assert not whole.failures
    assert not whole.left
    assert len(frame[["epsilon", "seed"]].drop_duplicates()) == 4
    assert (frame["epsilon_private"] <= frame["epsilon"] * (1 + 1e-9)).all()
    assert frame["personal"].between(0, 1).all()


def test_a_run_of_a_sweep_is_the_run_one_would_have_alone(whole: Sweep, tmp_path: Path) -> None:
    trial = next(each for each in whole.trials if each.settings == {"epsilon": 6.0} and each.seed == 0)
    run(tmp_path / "alone")
    assert Folder(trial.folder).metrics.read_bytes() == Folder(tmp_path / "alone").metrics.read_bytes()


def test_a_sweep_that_is_done_runs_nothing_again(whole: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {trial.folder: Folder(trial.folder).outcome.stat().st_mtime_ns for trial in whole.trials}
    again = tacit.sweep(CONTENT, SETTINGS, seeds=2, jobs=1, out=whole.folder.parent, progress=False)
    assert {trial.folder: Folder(trial.folder).outcome.stat().st_mtime_ns for trial in again.trials} == before


def test_the_page_has_bands_a_front_and_paired_differences(whole: Sweep, tmp_path: Path) -> None:
    drawn = sweep_figures(whole.measured)
    assert [figure.name for figure in drawn] == ["rounds", "pareto-client"]
    assert all(series.band is not None for series in drawn[0].panels[0].series)
    text = whole.save_html(tmp_path / "page.html").read_text()
    for words in ("standard error", "best for its epsilon", "simulation", "has spent more than its epsilon"):
        assert words in text
    assert len(text) < 1.5e6


def test_differences_are_paired_by_seed(whole: Sweep) -> None:
    frame: Any = whole.frame()
    first, last = (frame[frame["epsilon"] == epsilon] for epsilon in (1.0, 6.0))
    gaps = 100 * (last.sort_values("seed")["personal"].to_numpy() - first.sort_values("seed")["personal"].to_numpy())
    assert differences(whole.measured).rows[-1][1:3] == ["2", f"{gaps.mean():+.2f}"]
    assert float(differences(whole.measured).rows[-1][3]) == pytest.approx(np.std(gaps, ddof=1) / np.sqrt(2), abs=0.01)


def test_the_front_has_the_points_that_nothing_beats_in_both() -> None:
    points = [(1.0, 0.5), (2.0, 0.4), (2.0, 0.7), (4.0, 0.7), (8.0, 0.9), (9.0, float("nan"))]
    assert pareto_front(points) == [(1.0, 0.5), (2.0, 0.7), (8.0, 0.9)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=.03,.1", [".03", ".1"]),
        ("model.hidden=[8, 4],[16]", ["[8, 4]", "[16]"]),
        ("a='x,y',z", ["'x,y'", "z"]),
        ("choices={ open = 0.1 },{ open = 0.2, x = 1 }", ["{ open = 0.1 }", "{ open = 0.2, x = 1 }"]),
    ],
)
def test_commas_inside_of_brackets_and_quotes_belong_to_a_value(text: str, values: list[str]) -> None:
    assert split_values(text)[1] == values


@pytest.mark.parametrize("text", ["lr", "=1,2", "lr=", ""])
def test_a_setting_that_sets_nothing_is_an_error(text: str) -> None:
    with pytest.raises(TacitError, match="sets nothing"):
        split_values(text)


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ({"method.lr": ["0.1", "0.1"]}, "each value once"),
        ({"method.lr": []}, "at least one"),
        ({"method.learning": ["1"]}, "learning"),
        ({"rounds": [str(n) for n in range(1, 200)], "batch": [str(n) for n in range(1, 200)]}, "at most"),
    ],
)
def test_what_cannot_be_swept_is_told_before_any_run(assignments: dict[str, list[str]], words: str) -> None:
    with pytest.raises(TacitError, match=words):
        list(grid(tiny(), assignments, 1, Path("nowhere")))


def test_names_tell_settings_apart(tmp_path: Path) -> None:
    values = {"method.lr": ["0.1", "0.2"], "levels.private.epsilon": ["1"], "levels.private.delta": ["1e-2"]}
    names = [trial.folder.name for trial in grid(tiny(), values, 2, tmp_path)]
    assert names[0] == "lr=0.1,epsilon=1,delta=1e-2-0"
    assert len(set(names)) == 4


def test_a_run_that_fails_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    found = run_sweep(tiny("rounds=2"), {"data.clients": ["20", "100000"]}, 1, 1, tmp_path, progress=False)
    assert len(found.failures) == 1
    assert len(found.measured) == 1


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "rounds=8-0"
    run(folder, "rounds=2")
    with pytest.raises(TacitError, match="another run"):
        run_sweep(tiny(), {"rounds": ["8"]}, 1, 1, tmp_path, progress=False)


def test_a_run_that_was_stopped_is_gone_on_with(tmp_path: Path) -> None:
    trial = Trial({}, 0, tiny(), tmp_path / "0")
    assert trial.state == "new"
    run(trial.folder)
    outcome = Folder(trial.folder).outcome
    assert trial.state == "done"
    outcome.write_text(json.dumps(json.loads(outcome.read_text()) | {"stopped": ON_REQUEST}))
    assert trial.state == "begun"
    outcome.unlink()
    assert trial.state == "begun"


def test_killed_at_any_moment_and_started_again_no_run_is_lost_or_done_twice(whole: Sweep, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TEXT)
    command = [sys.executable, "-m", "tacit.cli", "sweep", "tiny.toml", "--seeds", "2"]
    command += ["--set", "levels.private.epsilon=1.0,6.0", "-j", "2", "--out", "runs", "--quiet"]
    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("runs/tiny/*/outcome.json")):
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ended = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/tiny/*/outcome.json")}
    time.sleep(1.5)  # the workers notice that their parent is gone
    assert len(ended) < 4
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ, capture_output=True)
    assert all(path.stat().st_mtime_ns == written for path, written in ended.items())
    for trial in whole.trials:
        again = Folder(tmp_path / "runs" / "tiny" / trial.folder.name)
        assert again.metrics.read_bytes() == Folder(trial.folder).metrics.read_bytes()


def test_runs_on_a_cluster_share_its_cores_and_fit_on_a_machine() -> None:
    assert [cores_each(jobs, [2]) for jobs in (1, 2, 3)] == [2, 1, 1]
    assert cores_each(1, [8, 8, 8, 8]) == 8
    assert cores_each(16, [8, 8, 8, 8]) == 2
    assert cores_each(1, []) == 1


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'tacit-fl[ray]'")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_same_command_on_a_cluster_of_two_workers_gives_the_same_runs(whole: Sweep, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TEXT)
    command = [sys.executable, "-m", "tacit.cli", "sweep", "tiny.toml", "--set", "levels.private.epsilon=1.0,6.0"]
    command += ["--set", "data.clients=20,100000", "--ray", "local", "-j", "2", "--out", "runs", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.stderr.count("failed: epsilon=") == 2  # those of 100,000 clients, and the others go on
    assert "Traceback" not in done.stderr
    for trial in (each for each in whole.trials if each.seed == 0):
        again = Folder(tmp_path / "runs" / "tiny" / f"epsilon={trial.settings['epsilon']},clients=20-0")
        assert again.metrics.read_bytes() == Folder(trial.folder).metrics.read_bytes()
