"""What is reported is what was spent: every place that shows an epsilon shows the ledger's, or refuses."""

import errno
import io
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import tacit
from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.experiments import progress_bar, train
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import SIMULATION, shown, statement
from tacit.report import wording
from tacit.report.charts import figures
from tacit.report.html import open_all, page, tell
from tacit.report.metrics import Metrics
from tacit.report.run_folder import Folder
from tacit.report.summary import open_run
from tacit.rounds.loop import SimulatedCohort
from tacit.rounds.round import Progress, Replies
from tests.experiments.tiny import run, stopping_after
from tests.report.test_verify import edit, shorten

PLANS = ("grouped", "local")  # levels pay, clients pay


class Killed(BaseException):
    """As `kill -9`: nothing is tidied up. What was committed is on disk, and nothing else."""


def killed_after_charging(round: int) -> Callable[..., Replies]:
    whole = SimulatedCohort.collect

    def collect(self: SimulatedCohort, progress: Progress, cohort: np.ndarray, turn: int) -> Replies:
        if progress.round == round - 1:
            raise Killed
        return whole(self, progress, cohort, turn)

    return collect


def full_disk(rows: int) -> Callable[[Metrics, object], None]:
    whole = Metrics.append

    def append(self: Metrics, new: object) -> None:
        if len(self.rows) > rows:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, new)  # type: ignore[arg-type]

    return append


def interrupt(patch: pytest.MonkeyPatch, how: str) -> None:
    kind, _, round = how.partition(" ")
    if kind == "ctrl-c":
        patch.setattr(train, "interruptible", stopping_after(int(round)))
    elif kind == "kill":
        patch.setattr(SimulatedCohort, "collect", killed_after_charging(int(round)))
    elif kind == "disk":
        patch.setattr(Metrics, "append", full_disk(26))


STOPS = {"never": 8, "ctrl-c 3": 3, "kill 1": 1, "kill 5": 5, "kill 8": 8, "disk full": 4}
"""How a run ended, and how many rounds it had charged by then."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Runs under each plan, stopped in every way."""
    parent, found = tmp_path_factory.mktemp("stopped"), {}
    for plan in PLANS:
        for how in STOPS:
            folder = parent / f"{plan} {how}" / "tiny-0"
            with pytest.MonkeyPatch.context() as patch:
                interrupt(patch, how)
                with suppress(Killed, TacitError, OSError):
                    run(folder, f"privacy.plan={plan}", "rate=0.9")
            found[plan, how] = folder
    return found


# places


def terminal(folder: Path) -> str:
    return in_words(*tell([open_run(folder)]))


def in_words(*parts: object) -> str:
    console = Console(width=500, color_system=None, markup=False)
    with console.capture() as caught:
        console.print(*parts, sep="\n")
    return caught.get()


def the_page(folder: Path) -> str:
    return re.sub(
        r"<style>.*?</style>|<script.*?</script>|<svg.*?</svg>", "", page([open_run(folder)]), flags=re.DOTALL
    )


def charts(folder: Path) -> str:
    """What both page and image draw: where each line ends."""
    about = [section for section in figures([open_run(folder)]) if "epsilon" in section.title]
    lines = [line for section in about for panel in section.panels for line in panel.series if line.style != "dash"]
    return " ".join(f"epsilon {wording.number(line.y[-1])}" for line in lines)


def from_python(folder: Path) -> str:
    found = tacit.open_run(folder)
    return " ".join(
        [*found.guarantees(), *(f"epsilon {wording.number(e)}" for e in found.epsilons["private"].values())]
    )


def show(folder: Path) -> str:
    told = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["show", str(folder)])
    if told.exit_code:
        raise TacitError(told.stderr)
    return told.stdout


def ledger(folder: Path, *options: str) -> str:
    told = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["ledger", str(folder), *options])
    if isinstance(told.exception, Exception):
        raise told.exception  # not a refusal: nobody foresaw it
    if told.exit_code:
        raise TacitError(told.output)
    rows = re.findall(r"(?:level|client):\S+ +│ +([\d.]+) +│ +\w+ +│ +([\d.]+)", told.stdout)
    return " ".join([told.stdout, *(f"epsilon {each}" for row in rows for each in row)])


def verify(folder: Path) -> str:
    return ledger(folder, "--verify")


PLACES = {
    "terminal": terminal,
    "page": the_page,
    "charts": charts,
    "open_run": from_python,
    "ledger": ledger,
    "verify": verify,
}


def spent_by_ledger(folder: Path) -> set[str]:
    """Every way to write what the dearest account has spent."""
    with Ledger.read(folder / "ledger.sqlite") as kept:
        lines = [line for line in statement(kept) if line.scope.startswith(("level:", "client:"))]
    both = [each for line in lines for each in (line.epsilon, line.epsilon_rdp)]
    worst = max(line.epsilon for line in lines), max(line.epsilon_rdp for line in lines)
    return {wording.number(each) for each in worst} | {shown(each) for each in both}


def epsilons_in(text: str) -> list[str]:
    return [found.rstrip(".") for found in re.findall(r"epsilon (?:spent )?(\d[\d.,]*)", text)]


# damages


def untouched(folder: Path) -> None: ...


def metrics_cut(folder: Path) -> None:
    place = Folder(folder).metrics
    if place.exists():
        place.write_bytes(place.read_bytes()[:300])


def metrics_gone(folder: Path) -> None:
    Folder(folder).metrics.unlink(missing_ok=True)


def metrics_with_an_epsilon(folder: Path) -> None:
    place = Folder(folder).metrics
    if place.exists():
        last = place.read_text().splitlines()[-1].partition(",")[0]
        place.write_text(place.read_text() + f"{last},private,client_epsilon_pld,0.01\n")


def metrics_of_later_rounds(folder: Path) -> None:
    place = Folder(folder).metrics
    rows = place.read_text() if place.exists() else "round,level,metric,value\n"
    place.write_text(rows + "80,all,strangers,0.0\n")


def facts(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads(Folder(folder).facts.read_text())
        change(content)
        Folder(folder).facts.write_text(json.dumps(content))

    return edit


def ledger_without(rows: str) -> Callable[[Path], None]:
    def delete(folder: Path) -> None:
        db = sqlite3.connect(Folder(folder).ledger)
        db.execute("DROP TRIGGER charges_no_delete")
        db.execute(f"DELETE FROM charges WHERE {rows}")
        db.commit()
        db.close()

    return delete


def ledger_edited(*statements: str) -> Callable[[Path], None]:
    """With the guards taken away and put back: nothing but the chain shows it."""

    def change(folder: Path) -> None:
        edit(Folder(folder).ledger, *statements)

    return change


def ledger_without_guards(folder: Path) -> None:
    with closing(sqlite3.connect(Folder(folder).ledger)) as db:
        db.execute("DROP TRIGGER run_once")


def file_edited(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")

    return change


def ledger_gone(folder: Path) -> None:
    for place in folder.glob("ledger.sqlite*"):
        place.unlink()


def outcome_of(round: int) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        Folder(folder).outcome.write_text(json.dumps({"round": round, "stopped": None}))

    return edit


LESS_COSTLY = """UPDATE charges SET event = replace(event, '"noise_multiplier": ', '"noise_multiplier": 9')"""
RENAMED = [f"UPDATE {table} SET scope = scope || '-2'" for table in ("scopes", "budgets", "charges")]
DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "none": (untouched, False),
    "metrics cut short": (metrics_cut, False),
    "metrics gone": (metrics_gone, False),
    "an epsilon of its own in the metrics": (metrics_with_an_epsilon, False),
    "metrics of rounds that were never charged": (metrics_of_later_rounds, False),
    "another delta in the facts": (facts(lambda f: f["promises"][0].update(delta=1e-9)), True),
    "another epsilon in the facts": (facts(lambda f: f["promises"][0].update(budget=0.5)), True),
    "another standing in the facts": (facts(lambda f: f["promises"][0].update(standing="nothing leaves")), True),
    "no clients in the facts": (facts(lambda f: f["promises"][0].update(clients=0)), True),
    "more clients in the facts": (facts(lambda f: f["promises"][0].update(clients=999)), True),
    "a level gone from the facts": (facts(lambda f: f["promises"].pop(0)), True),
    "another unit in the facts": (facts(lambda f: f.update(unit="record")), True),
    "another accountant in the facts": (facts(lambda f: f.update(accountant="rdp")), True),
    "another relation in the facts": (facts(lambda f: f["promises"][0].update(relation="zero-out")), True),
    "another plan in the facts": (facts(lambda f: f.update(plan="distributed")), True),
    "another note in the facts": (facts(lambda f: f.update(notes=["all is well"])), True),
    "another noise in the facts": (facts(lambda f: f["promises"][0].update(noise=99.0)), True),
    "the facts gone": (lambda folder: Folder(folder).facts.unlink(), True),
    "the configuration edited": (file_edited("config.toml"), True),
    "the key of another run": (file_edited("digest.key"), True),
    "the ledger gone": (ledger_gone, True),
    "an event that costs less": (ledger_edited(LESS_COSTLY), True),
    "a scope renamed": (ledger_edited("UPDATE charges SET scope = scope || '-2'"), True),
    "a scope renamed everywhere": (ledger_edited(*RENAMED), True),
    "a budget raised": (ledger_edited("UPDATE budgets SET epsilon = 60, delta = 0.1"), True),
    "guards taken away": (ledger_without_guards, True),
    "an outcome of fewer rounds": (outcome_of(0), True),
}
"""What is done to a run's files, and whether it must be refused for every run, everywhere."""


SOME = ("never", "kill 1", "kill 5")
"""With all files, with no head and no metrics, and with some of each: enough where the run's end plays no part."""
CASES = [(plan, how, d) for plan in PLANS for how in STOPS for d in DAMAGES if how in SOME or not DAMAGES[d][1]]


@pytest.mark.parametrize(("plan", "how", "damage"), CASES)
def test_every_place_shows_what_the_ledger_has_or_refuses(
    stopped: dict[tuple[str, str], Path], tmp_path: Path, plan: str, how: str, damage: str
) -> None:
    folder = tmp_path / "tiny-0"
    shutil.copytree(stopped[plan, how], folder)
    spent, (harm, refused) = spent_by_ledger(folder), DAMAGES[damage]
    harm(folder)
    for name, place in PLACES.items():
        try:
            text = place(folder)
        except TacitError:
            if damage == "none":
                raise
            continue
        assert not refused, name
        assert epsilons_in(text), name
        assert set(epsilons_in(text)) <= spent, name


@pytest.mark.parametrize("how", ["never", "ctrl-c 3"])  # a file has kept the last head
@pytest.mark.parametrize("plan", PLANS)
def test_a_ledger_without_its_last_round_and_its_links_is_refused_everywhere(
    stopped: dict[tuple[str, str], Path], tmp_path: Path, plan: str, how: str
) -> None:
    shutil.copytree(stopped[plan, how], tmp_path / "tiny-0")
    shorten(tmp_path / "tiny-0" / "ledger.sqlite", 1)
    for place in PLACES.values():
        with pytest.raises(TacitError, match="shortened or restored"):
            place(tmp_path / "tiny-0")


@pytest.mark.parametrize("how", STOPS)
def test_the_ledger_of_another_run_of_the_same_configuration_is_refused(
    stopped: dict[tuple[str, str], Path], tmp_path: Path, how: str
) -> None:
    folder, other = tmp_path / "tiny-0", stopped["grouped", "kill 1" if how == "never" else "never"]
    shutil.copytree(stopped["grouped", how], folder)
    ledger_gone(folder)
    for place in other.glob("ledger.sqlite*"):
        shutil.copy(place, folder)
    for place in PLACES.values():
        with pytest.raises(TacitError, match="the ledger is that of another run"):
            place(folder)


@pytest.mark.parametrize("rows", ["round = 2", "round >= 6", "round = 7", "1 = 1"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_ledger_that_lost_charges_is_refused(
    stopped: dict[tuple[str, str], Path], tmp_path: Path, plan: str, rows: str
) -> None:
    shutil.copytree(stopped[plan, "never"], tmp_path / "tiny-0")
    ledger_without(rows)(tmp_path / "tiny-0")
    with pytest.raises(TacitError, match="restore"):
        open_run(tmp_path / "tiny-0")


def test_a_finished_run_with_metrics_cut_short_is_refused_and_told_what_to_do(
    stopped: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    shutil.copytree(stopped["grouped", "never"], tmp_path / "tiny-0")
    metrics_cut(tmp_path / "tiny-0")
    told = CliRunner().invoke(app, ["show", str(tmp_path / "tiny-0")])
    assert told.exit_code == 2
    assert "outcome.json says 8 rounds, and metrics.csv ends at round 2: restore the run's files" in told.stderr


@pytest.mark.parametrize("how", STOPS)
def test_the_commands_say_after_which_round_what_was_measured_and_spent(
    stopped: dict[tuple[str, str], Path], how: str
) -> None:
    folder = stopped["grouped", how]
    charged, found = STOPS[how], open_run(folder)
    assert found.spending is not None
    assert found.spending.rounds == charged
    text = terminal(folder)
    if found.last != charged:
        assert f"privacy spent after round {charged}" in text
        assert f"privacy spent after round {charged}" in the_page(folder)
    assert ("Ended after" in text) == (how != "never")
    assert f"Ended after {charged} of 8 rounds" in text or how == "never"


def test_the_commands_themselves_show_the_ledgers_epsilon(stopped: dict[tuple[str, str], Path]) -> None:
    folder = stopped["grouped", "kill 5"]
    spent = spent_by_ledger(folder)
    for command in (show, ledger):
        text = command(folder)
        assert SIMULATION in text
        assert any(each in text for each in spent)
        assert set(epsilons_in(text)) <= spent


def test_runs_side_by_side_show_each_its_own(stopped: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    both = []
    for how in ("kill 5", "ctrl-c 3"):
        shutil.copytree(stopped["grouped", how], tmp_path / how.replace(" ", "-"))
        both.append(tmp_path / how.replace(" ", "-"))
    text = in_words(*tell(open_all(both)))
    assert set(epsilons_in(text)) <= spent_by_ledger(both[0]) | spent_by_ledger(both[1])
    assert "Accuracy after round 4; privacy spent after round 5." in text


def test_an_interrupted_result_counts_what_the_ledger_has_of_later_rounds(tmp_path: Path) -> None:
    """Killed in round 5, resumed from the checkpoint of round 3, stopped at once: five rounds are paid for."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, "kill 5")
        with pytest.raises(Killed):
            run(tmp_path / "tiny-0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "interruptible", stopping_after(0))
        result = run(tmp_path / "tiny-0", resume=True)
    assert result.findings.rounds_done == 3
    assert "Accuracy after round 3; privacy spent after round 5." in str(result)
    assert set(epsilons_in(str(result))) <= spent_by_ledger(tmp_path / "tiny-0")


def test_the_bar_shows_the_ledgers_epsilon_after_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    whole = progress_bar.Bar._status

    def status(self: progress_bar.Bar, report: object) -> str:
        said.append(whole(self, report))  # type: ignore[arg-type]
        return said[-1]

    monkeypatch.setattr(progress_bar, "_SHARE", 1e9)
    monkeypatch.setattr(progress_bar.Bar, "_status", status)
    monkeypatch.setattr(progress_bar, "Console", lambda stderr: Console(file=io.StringIO(), force_terminal=True))
    from tests.experiments.tiny import run_config, tiny

    result = run_config(tiny("evaluate.every=8"), tmp_path / "tiny-0")
    (rounds, values), _ = result.findings.spent_over_rounds("private").values()
    for round, value, text in zip(rounds, values, said, strict=True):
        assert f"private eps {wording.number(value)} after round {round}" in text


# what is kept


def test_neither_metrics_nor_facts_hold_an_epsilon(stopped: dict[tuple[str, str], Path]) -> None:
    folder = Folder(stopped["grouped", "never"])
    assert "epsilon" not in folder.metrics.read_text()
    assert not [key for promise in json.loads(folder.facts.read_text())["promises"] for key in promise if "eps" in key]


def test_a_run_without_an_evaluation_names_no_round_of_one(stopped: dict[tuple[str, str], Path]) -> None:
    for place in (terminal, the_page):
        text = place(stopped["grouped", "kill 1"])
        assert "o accuracy was measured yet" in text
        assert "round 0" not in text


def test_a_simulation_says_on_page_terminal_and_in_facts_that_nobody_is_protected(
    stopped: dict[tuple[str, str], Path],
) -> None:
    folder = stopped["grouped", "never"]
    assert SIMULATION == "simulation: the noise is seeded, nobody is protected by this run"
    assert the_page(folder).count(SIMULATION) >= 3  # the heading, the card of the protected level, the chart
    assert SIMULATION in terminal(folder)
    assert json.loads(Folder(folder).facts.read_text())["simulation"] == SIMULATION
    assert wording.as_sentence(SIMULATION) in open_run(folder).guarantees()


def test_where_nothing_is_promised_nothing_is_said_of_noise(tmp_path: Path) -> None:
    result = run(tmp_path / "a", "rounds=2", "method.name=local-only", "privacy.plan=open")
    assert SIMULATION not in str(result)
