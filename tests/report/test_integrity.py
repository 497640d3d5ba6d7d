"""A run whose files were changed is neither gone on with nor predicted with, and no command writes over a run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.estimation.tables import beside
from tacit.experiments.train import reopen_run
from tacit.report.run_folder import Folder
from tacit.report.summary import open_run
from tests.experiments.tiny import run
from tests.report.test_verify import shorten


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("whole") / "tiny-0")
    run(folder.path)
    return folder


def copy_of(whole: Folder, to: Path) -> Folder:
    shutil.copytree(whole.path, to / "tiny-0")
    return Folder(to / "tiny-0")


def without_what_kept_a_head(folder: Folder) -> None:
    """Charges taken off, with every file that knew of them but the metrics."""
    shorten(folder.ledger, 2)
    for place in (folder.checkpoint, folder.outcome, folder.clients):
        place.unlink()


def test_a_run_whose_ledger_lost_charges_is_not_gone_on_with(whole: Folder, tmp_path: Path) -> None:
    folder = copy_of(whole, tmp_path)
    without_what_kept_a_head(folder)
    before = folder.metrics.read_bytes()
    with pytest.raises(TacitError, match="charges"):
        run(folder.path, resume=True)
    assert folder.metrics.read_bytes() == before  # what shows it is still there


def test_metrics_of_rounds_that_no_charge_covers_are_refused_by_every_command(whole: Folder, tmp_path: Path) -> None:
    folder = copy_of(whole, tmp_path)
    without_what_kept_a_head(folder)
    lines = [line for line in folder.metrics.read_text().splitlines() if ",charges," not in line]
    folder.metrics.write_text("\n".join(lines) + "\n")
    for command in (["ledger"], ["show"], ["ledger", "--verify"]):
        told = CliRunner().invoke(app, [command[0], str(folder.path), *command[1:]])
        assert told.exit_code != 0, command
        assert "3." not in told.output.replace(str(folder.path), ""), command


def test_an_outcome_that_was_taken_away_is_noticed(whole: Folder, tmp_path: Path) -> None:
    folder = copy_of(whole, tmp_path)
    folder.outcome.unlink()
    with pytest.raises(TacitError, match="taken away"):
        open_run(folder.path)


def test_a_run_goes_on_where_the_promises_were_about_to_be_written(whole: Folder, tmp_path: Path) -> None:
    folder = copy_of(whole, tmp_path)
    folder.facts.unlink()  # as after a kill between the digest and the file
    with pytest.raises(TacitError, match=r"facts\.json"):
        open_run(folder.path)
    run(folder.path, resume=True)
    assert open_run(folder.path).metrics.equals(open_run(whole.path).metrics)


@pytest.mark.parametrize("name", ["checkpoint", "ledger"])
def test_no_model_is_handed_out_that_is_not_the_runs(whole: Folder, tmp_path: Path, name: str) -> None:
    folder = copy_of(whole, tmp_path)
    for place in folder.path.glob(f"{getattr(folder, name).name}*"):
        place.unlink()
    with pytest.raises(TacitError):
        reopen_run(folder.path)
    assert not getattr(folder, name).exists()


BROKEN: dict[str, Callable[[Folder], object]] = {
    "metrics of another encoding": lambda folder: folder.metrics.write_bytes(b"round,level\xff\n1,a\n"),
    "an outcome that is a list": lambda folder: folder.outcome.write_text("[]"),
    "an outcome with a number for a head": lambda folder: folder.outcome.write_text(
        json.dumps(json.loads(folder.outcome.read_text()) | {"ledger": 5})
    ),
    "clients of something else": lambda folder: folder.clients.write_text("what,is\nthis,1\n"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_damaged_files_are_one_line_with_a_remedy(whole: Folder, tmp_path: Path, how: str) -> None:
    folder = copy_of(whole, tmp_path)
    BROKEN[how](folder)
    with pytest.raises(TacitError, match="restore"):
        open_run(folder.path)


def rows(path: Path, *more: str) -> Path:
    path.write_text(",".join(f"x{k}" for k in range(64)) + "\n" + ",".join(["1"] * 64 + [*more]) + "\n")
    return path


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (["predict", "RUN", "ROWS", "--out", "RUN/ledger.sqlite"], "RUN/ledger.sqlite"),
        (["predict", "RUN", "ROWS", "--out", "ROWS"], "ROWS"),
        (["predict", "RUN", "ROWS", "--out", "ROWS", "--force"], "ROWS"),
        (["predict", "RUN", "ROWS", "--out", "RUN/clients.csv"], "RUN/clients.csv"),
        (["show", "RUN", "--html", "RUN/metrics.csv"], "RUN/metrics.csv"),
        (["show", "RUN", "--png", "RUN/facts.json"], "RUN/facts.json"),
    ],
)
def test_no_command_writes_over_a_file_of_a_run_or_its_input(
    whole: Folder, tmp_path: Path, command: list[str], target: str
) -> None:
    folder, table = copy_of(whole, tmp_path), rows(tmp_path / "rows.csv")
    filled = [part.replace("RUN", str(folder.path)).replace("ROWS", str(table)) for part in (*command, target)]
    before = Path(filled[-1]).read_bytes()
    told = CliRunner().invoke(app, filled[:-1])
    assert told.exit_code == 2
    assert Path(filled[-1]).read_bytes() == before


def test_rows_with_a_value_too_many_are_no_rows(whole: Folder, tmp_path: Path) -> None:
    table = rows(tmp_path / "rows.csv", "7")
    told = CliRunner().invoke(app, ["predict", str(whole.path), str(table)])
    assert told.exit_code == 2
    assert "more values" in told.output


def test_a_link_to_a_table_has_the_ledger_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "poll.csv").write_text("client,yes,asked\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "poll.csv")
    assert beside(tmp_path / "link.csv") == beside(tmp_path / "poll.csv")


def test_the_ledger_of_a_run_takes_no_questions(whole: Folder, tmp_path: Path) -> None:
    folder = copy_of(whole, tmp_path)
    table = tmp_path / "poll.csv"
    table.write_text("client,yes,asked\n" + "".join(f"{k},{k % 2},5\n" for k in range(30)))
    before = folder.ledger.read_bytes()
    options = [
        "--id",
        "client",
        "--successes",
        "yes",
        "--trials",
        "asked",
        "--epsilon",
        "1",
        "--ledger",
        str(folder.ledger),
    ]
    options += ["--out", str(tmp_path / "out.csv")]
    told = CliRunner().invoke(app, ["estimate", "rates", str(table), *options])
    assert told.exit_code == 2
    assert "ledger of a run" in told.output
    assert folder.ledger.read_bytes() == before


@pytest.mark.parametrize("name", ["", "a\nb", "\x00"])
def test_a_level_has_a_name_that_can_be_printed(name: str) -> None:
    with pytest.raises(TacitError, match="printable"):
        tacit.Level(name)
