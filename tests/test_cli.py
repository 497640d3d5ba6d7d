import re
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.experiments import demo
from tacit.experiments.config import load, with_overrides
from tacit.experiments.train import run_config
from tacit.rounds import checkpoint
from tests.experiments.tiny import TEXT

COMMANDS = ("run", "show", "budget", "ledger", "demo", "data", "methods")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TEXT)
    return path


def tell(*arguments: object, code: int = 0) -> str:
    """What a command prints, on both channels."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_help_teaches_by_an_example() -> None:
    assert all(name in tell("--help") for name in COMMANDS)
    for name in COMMANDS:
        assert f"Example: tacit {name}" in tell(name, "--help")


def test_the_version_is_printed() -> None:
    assert tell("--version") == f"tacit {tacit.__version__}\n"


def test_a_run_is_made_shown_and_accounted_for(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    told = tell("run", file, "--set", "rounds=4", "--out", out)
    assert "no guarantee: these clients opted out" in told
    assert f"tacit show {out / 'tiny-0'}" in told
    assert "level:private" in tell("ledger", out / "tiny-0")
    shown = tell("show", out / "tiny-0")
    assert "simulation only" in shown
    assert "<svg" in (out / "tiny-0" / "report.html").read_text()
    assert (out / "tiny-0" / "report.png").is_file()
    tell("show", out / "tiny-0", "--html", tmp_path / "x.html", "--png", tmp_path / "x.png")
    assert (tmp_path / "x.html").is_file()
    assert (tmp_path / "x.png").is_file()


def test_seeds_go_into_folders_of_their_own_and_are_summed_up(file: Path, tmp_path: Path) -> None:
    told = tell("run", file, "--set", "rounds=2", "--out", tmp_path / "runs", "--seeds", 2)
    assert "mean and standard deviation over 2 seeds" in told
    assert re.search(r"private\s+\d\.\d{3} ± \d\.\d{3}", told)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny-0", "tiny-1"}
    again = tell("run", file, "--set", "rounds=2", "--out", tmp_path / "runs", "--seeds", 3, "--resume", "--quiet")
    assert [Path(line).name for line in again.split()] == ["tiny-0", "tiny-1", "tiny-2"]


def test_a_second_run_gets_a_second_folder_and_resume_wants_the_same_configuration(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert tell("run", file, "--set", "rounds=1", "--out", out, "--quiet").strip().endswith("tiny-0")
    assert tell("run", file, "--set", "rounds=2", "--out", out, "--quiet").strip().endswith("tiny-0-2")
    assert tell("run", file, "--set", "rounds=1", "--out", out, "--quiet", "--resume").strip().endswith("tiny-0")
    error = tell("run", file, "--set", "rounds=3", "--out", out, "--resume", code=2)
    assert re.match(r"error: .*tiny-0-2 cannot be resumed .* rounds is 2 there and 3 here; [^\n]*\n$", error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "none.toml"], "there is no file none.toml"),
        (["run", "FILE", "--set", "rouns=3"], "unknown key 'rouns': did you mean 'rounds'?"),
        (["run", "FILE", "--set", "levels.private.delta=0.5"], "delta 0.5 of level 'private' is not below 1/20"),
        (["run", "FILE", "--resume"], "to resume: start it without --resume"),
        (["show", "nowhere"], "there is no run at nowhere"),
        (["ledger", "nowhere"], "there is no run at nowhere"),
        (["ledger", "."], "holds no ledger.sqlite"),
        (["budget", "--epsilon", "-1"], "epsilon -1"),
    ],
)
def test_what_a_user_can_cause_is_one_line_and_code_2(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = tell(*[str(file) if each == "FILE" else each for each in arguments], code=2)
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_lists_and_budgets_are_printed() -> None:
    assert "digits" in tell("data")
    assert "dirichlet" in tell("data")
    assert "[method] name" in tell("methods")
    assert "ditto" in tell("methods")
    assert "client-level" in tell("budget", "--epsilon", 3.6, "--delta", 1e-4, "--rate", 0.05, "--rounds", 100)


def test_the_demo_tells_its_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = with_overrides(demo.demo_config(), ["rounds=3", "evaluate.every=1"])
    monkeypatch.setattr(demo, "demo_config", lambda: short)
    told = tell("demo", "--out", tmp_path)
    for expected in ("local only", "private: client-level", "open: no guarantee", "demo.html", "simulation only"):
        assert expected in told
    assert (tmp_path / "demo-0" / "demo.html").is_file()


def test_the_demo_is_as_described() -> None:
    config = load(Path(str(files("tacit.experiments") / "demo.toml")))
    assert (config.data.clients, config.choices, config.privacy.plan) == (200, {"open": 0.1}, "grouped")
    delta = config.levels["private"].delta
    assert delta is not None
    assert delta < 1 / 200
    assert demo.alone(config).rounds == config.rounds


def python(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def test_help_and_import_stay_quick_by_leaving_heavy_imports_for_later() -> None:
    heavy = "{'torch', 'pandas', 'matplotlib', 'dp_accounting', 'sklearn', 'scipy', 'numpy', 'pydantic'}"
    program = f"import sys, tacit, tacit.cli.main; print(sorted({heavy} & set(sys.modules)))"
    process = python("-c", program)
    assert process.communicate()[0] == "[]\n"


def test_one_line_without_a_traceback_from_a_real_process(tmp_path: Path) -> None:
    process = python("-m", "tacit.cli", "run", "none.toml", cwd=tmp_path)
    out, error = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert error == "error: there is no file none.toml: give the path of an experiment, for example digits.toml\n"


def test_ctrl_c_ends_the_round_and_the_run_resumes_to_the_same_end(file: Path, tmp_path: Path) -> None:
    changes = ["rounds=200", "evaluate.every=100"]
    out = tmp_path / "runs"
    process = python("-m", "tacit.cli", "run", file, "--set", changes[0], "--set", changes[1], "--out", out)
    deadline = time.monotonic() + 60
    while not (out / "tiny-0" / "checkpoint.bin").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert re.search(r"Ended after \d+ of 200 rounds: stopped on request. To go on: tacit run .* --resume\n", error)
    config = with_overrides(load(file), changes)
    assert checkpoint.load(out / "tiny-0" / "checkpoint.bin")["round"] < 200
    run_config(config, out / "tiny-0", resume=True, progress=False)
    run_config(config, out / "straight", progress=False)
    one, other = (checkpoint.load(out / name / "checkpoint.bin")["model"] for name in ("tiny-0", "straight"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (out / "tiny-0" / "metrics.csv").read_bytes() == (out / "straight" / "metrics.csv").read_bytes()
