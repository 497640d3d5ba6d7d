"""`tacit estimate`: tables in, tables out, whole or in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from tacit.cli.main import Commands
from tacit.cli.main import app as whole
from tacit.estimation import BernoulliRates, GaussianMeans, table_files
from tacit.estimation.cli import estimate
from tacit.estimation.messages import RandomisedResponse
from tacit.privacy.accounting.gaussian import gaussian_epsilon, gaussian_multiplier
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import SIMULATION, shown, statement

app = typer.Typer(cls=Commands)
app.add_typer(estimate, name="estimate")


@app.callback()
def _main() -> None: ...


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)])


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    n = draw.integers(2, 30, 400)
    table = pd.DataFrame(
        {"county": [f"{i:05d}" for i in range(400)], "wins": draw.binomial(n, draw.beta(4, 4, 400)), "n": n}
    )
    table.to_csv(tmp_path / "counts.csv", index=False)
    table.to_parquet(tmp_path / "counts.parquet")
    return tmp_path / "counts.csv"


RATES = ("--id", "county", "--successes", "wins", "--trials", "n", "--no-pictures", "--seed", 3)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_command_gives_what_the_estimator_gives(counts: Path, kind: str) -> None:
    out = counts.with_name(f"out.{kind}")
    told = run("rates", counts.with_suffix(f".{kind}"), *RATES, "--epsilon", 2, "-o", out)
    assert told.exit_code == 0, told.output
    assert "epsilon 2" in told.output
    given = pd.read_csv(counts)
    table = pd.read_csv(out, dtype={"county": str}) if kind == "csv" else pd.read_parquet(out)
    found = BernoulliRates(message=RandomisedResponse(2.0), seed=3).fit(given["wins"], trials=given["n"])
    assert np.allclose(table["rate_personal"], found.estimates_)
    low, high = found.intervals()
    assert np.allclose(table[["rate_low", "rate_high"]], np.column_stack([low, high]))
    assert table["county"].iloc[7] == "00007"
    assert not out.with_name(out.name + ".part").exists()


def test_pictures_lie_beside_the_table(counts: Path) -> None:
    out = counts.with_name("o.csv")
    told = run("rates", counts, *(a for a in RATES if a != "--no-pictures"), "-o", out)
    assert told.exit_code == 0, told.output
    assert out.with_suffix(".png").stat().st_size > 10_000
    page = out.with_suffix(".html").read_text()
    assert "alone" in page
    assert "<script src=" not in page
    assert "give each client its own row only" in page


def test_samples_are_pooled_by_client(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    who = np.repeat(np.arange(50), 4)
    x = draw.normal(size=50)[who] * 0.3 + draw.normal(size=200)
    pd.DataFrame({"who": who, "x": x}).to_csv(tmp_path / "s.csv", index=False)
    told = run("means", tmp_path / "s.csv", "--id", "who", "--value", "x", "--no-pictures", "-o", tmp_path / "o.csv")
    assert told.exit_code == 0, told.output
    table = pd.read_csv(tmp_path / "o.csv").sort_values("who")
    found = GaussianMeans().fit(x, groups=who)
    assert np.allclose(table["x_personal"], found.estimates_)


def test_means_of_known_sizes_and_several_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    table = pd.DataFrame(draw.normal(size=(300, 2)), columns=["a", "b"])
    table["who"], table["n"] = [f"w{i}" for i in range(300)], draw.integers(1, 9, 300)
    table.to_parquet(tmp_path / "m.parquet")
    options = ("--id", "who", "--value", "a", "--value", "b", "--size", "n", "--noise-variance", 2.0)
    told = run("means", tmp_path / "m.parquet", *options, "--no-pictures", "-o", tmp_path / "o.parquet")
    assert told.exit_code == 0, told.output
    found = GaussianMeans(noise_variance=2.0).fit(table[["a", "b"]], sizes=table["n"])
    assert np.allclose(pd.read_parquet(tmp_path / "o.parquet")[["a_personal", "b_personal"]], found.estimates_)
    private = ("--epsilon", 3, "--delta", 1e-5, "--radius", 6, "--seed", 1, "--no-pictures")
    told = run("means", tmp_path / "m.parquet", *options, *private, "-o", tmp_path / "p.csv")
    assert told.exit_code == 0, told.output
    assert "delta 1e-05" in told.output


def test_pieces_do_not_change_the_result(counts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pd.concat(table_files.chunks(counts, "county", ["wins"]))
    monkeypatch.setattr(table_files, "CHUNK", 64)
    pieces = list(table_files.chunks(counts.with_suffix(".parquet"), "county", ["wins"]))
    assert [len(piece) for piece in pieces] == [64] * 6 + [16]
    assert np.array_equal(pd.concat(pieces)["wins"], whole["wins"])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.assign(wins=-1), "at least 0"),
        (lambda t: t.assign(wins=99), "more successes"),
        (lambda t: t.assign(n=1, wins=0), "one trial"),
        (lambda t: t.assign(wins=t["wins"].astype(object).mask(t.index == 5, "many")), "row 6"),
        (lambda t: t.assign(wins=t["wins"].astype(float).mask(t.index == 5)), "row 6"),
        (lambda t: t.assign(county="same"), "399 rows"),
        (lambda t: t.head(1), "one client"),
        (lambda t: t.head(0), "no rows"),
        (lambda t: t.drop(columns="n"), "no column 'n'"),
    ],
)
def test_bad_tables_are_refused_in_one_line_and_leave_nothing(counts: Path, change: Any, word: str) -> None:
    change(pd.read_csv(counts, dtype={"county": str})).to_csv(counts, index=False)
    told = run("rates", counts, *RATES, "-o", counts.with_name("out.csv"))
    assert told.exit_code == 2
    assert word in told.output
    assert len(told.output.strip().splitlines()) == 1
    assert not list(counts.parent.glob("out*"))


def test_options_that_contradict_each_other_are_refused(counts: Path) -> None:
    out = ("-o", counts.with_name("o.csv"))
    for options, word in (
        (("--message", "gaussian", "--epsilon", 1), "--delta"),
        (("--message", "central"), "--epsilon"),
        (("--bits", 2, "--epsilon", 1), "--bits"),
        (("--message", "exact", "--epsilon", 1), "exact"),
        (("--message", "gaussian", "--epsilon", 1, "--delta", 0.5), "delta"),
    ):
        told = run("rates", counts, *RATES, *options, *out)
        assert told.exit_code == 2
        assert word in told.output
    assert run("rates", counts.with_name("none.csv"), *RATES, *out).exit_code == 2


PRIVATE = ("--epsilon", 1)


def test_asking_twice_costs_twice_and_is_said(counts: Path) -> None:
    kept = counts.with_name("counts.csv.ledger.sqlite")
    for times, total in ((1, "1"), (2, "2"), (3, "3")):
        told = run("rates", counts, *RATES, *PRIVATE, "-o", counts.with_name(f"o{times}.csv"))
        assert told.exit_code == 0, told.output
        assert f"epsilon {total} in all (client-level, replace, pure)" in " ".join(told.output.split())
    with Ledger.read(kept) as ledger:
        (line,) = statement(ledger)
    assert line.epsilon == pytest.approx(3.0, abs=1e-9)
    assert line.rounds == 3


def test_gaussian_messages_compose_and_other_deltas_add_up(counts: Path) -> None:
    def ask(number: int, *more: Any) -> str:
        options = (*RATES, "--message", "gaussian", *PRIVATE, *more, "-o", counts.with_name(f"o{number}.csv"))
        told = run("rates", counts, *options)
        assert told.exit_code == 0, told.output
        return " ".join(told.output.split())

    assert "epsilon 1 in all (client-level, replace, delta 1e-05)" in ask(1, "--delta", 1e-5)
    both = gaussian_epsilon(gaussian_multiplier(1.0, 1e-5) / 2**0.5, 1e-5)
    assert 1 < both < 2
    assert f"epsilon {shown(both)} in all" in ask(2, "--delta", 1e-5)
    assert f"epsilon {shown(both + 1)} in all (client-level, replace, delta 1.1e-05)" in ask(3, "--delta", 1e-6)


def test_a_budget_stops_the_question_that_would_pass_it(counts: Path) -> None:
    for number, code in ((1, 0), (2, 0), (3, 2)):
        told = run("rates", counts, *RATES, *PRIVATE, "--budget", 2, "-o", counts.with_name(f"o{number}.csv"))
        assert told.exit_code == code, told.output
    assert "would take the clients to epsilon 3, past the budget of 2" in " ".join(told.output.split())
    assert not counts.with_name("o3.csv").exists()
    with Ledger.read(counts.with_name("counts.csv.ledger.sqlite")) as ledger:
        assert ledger.rounds() == 1


def test_the_ledger_may_lie_elsewhere_and_can_be_read(counts: Path) -> None:
    kept = counts.with_name("asked.sqlite")
    assert run("rates", counts, *RATES, *PRIVATE, "--ledger", kept, "-o", counts.with_name("o.csv")).exit_code == 0
    assert not counts.with_name("counts.csv.ledger.sqlite").exists()
    told = CliRunner(env={"COLUMNS": "200"}).invoke(whole, ["ledger", str(kept)])
    assert "each client, pure" in told.output
    assert "│ 1 " in told.output


def test_what_failed_or_sent_nothing_is_not_charged(counts: Path) -> None:
    kept = counts.with_name("counts.csv.ledger.sqlite")
    assert run("rates", counts, *RATES, "-o", counts.with_name("o.csv")).exit_code == 0
    known = ("--prior-mean", 0.5, "--prior-variance", 0.01)
    assert run("rates", counts, *RATES, *PRIVATE, *known, "-o", counts.with_name("p.csv")).exit_code == 0
    pd.read_csv(counts).assign(wins=99).to_csv(counts, index=False)
    assert run("rates", counts, *RATES, *PRIVATE, "-o", counts.with_name("q.csv")).exit_code == 2
    assert not kept.exists()


def test_seeded_messages_are_marked_as_a_simulation(counts: Path) -> None:
    seeded = run("rates", counts, *RATES, *PRIVATE, "-o", counts.with_name("a.csv"))
    assert SIMULATION in " ".join(seeded.output.split())
    secure = tuple(each for each in RATES if each not in ("--seed", 3))
    told = run("rates", counts, *secure, *PRIVATE, "-o", counts.with_name("b.csv"))
    assert told.exit_code == 0
    assert "simulation" not in told.output
    given = pd.read_csv(counts)
    fitted = BernoulliRates(message=RandomisedResponse(1.0), seed=3).fit(given["wins"], trials=given["n"])
    assert SIMULATION in fitted.privacy_


def test_the_input_is_never_written_over_and_nothing_else_without_force(counts: Path, tmp_path: Path) -> None:
    before = counts.read_bytes()
    link = tmp_path / "link.csv"
    link.hardlink_to(counts)
    for out in (counts, link, tmp_path / "." / "counts.csv"):
        for force in ((), ("--force",)):
            told = run("rates", counts, *RATES, *force, "-o", out)
            assert told.exit_code == 2
            assert "is the table that is read" in told.output
    assert counts.read_bytes() == before
    plain = tuple(each for each in RATES if each != "--no-pictures")
    for name in ("o.csv", "o.png", "o.html"):
        (tmp_path / name).write_text("mine")
        told = run("rates", counts, *plain, "-o", tmp_path / "o.csv")
        assert told.exit_code == 2
        assert f"{name} is there already" in "".join(told.output.split("\n"))
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    (tmp_path / "o.csv").write_text("mine")
    assert run("rates", counts, *RATES, "--force", "-o", tmp_path / "o.csv").exit_code == 0
    assert "rate_personal" in (tmp_path / "o.csv").read_text()
    assert run("rates", counts, *RATES, "-o", tmp_path / "o.ods").exit_code == 2


@pytest.mark.parametrize("there", [True, False], ids=["an old ledger", "no ledger yet"])
@pytest.mark.parametrize("link", [None, "hard", "symbolic", "another way"])
def test_the_ledger_is_never_written_over(counts: Path, there: bool, link: str | None) -> None:
    """Without it nobody knows what the clients have spent: the next question would seem to be the first."""
    ledger = counts.with_name("ledger.csv")
    if there:
        assert (
            run("rates", counts, *RATES, *PRIVATE, "--ledger", ledger, "-o", counts.with_name("a.csv")).exit_code == 0
        )
    out = {None: ledger, "another way": counts.parent / ".." / counts.parent.name / "ledger.csv"}.get(link)
    if out is None:
        out = counts.with_name("link.csv")
        if link == "hard" and not there:
            pytest.skip("a file that is not there has no second name")
        out.hardlink_to(ledger) if link == "hard" else out.symlink_to(ledger)
    before = ledger.read_bytes() if there else None
    told = run("rates", counts, *RATES, *PRIVATE, "--ledger", ledger, "-o", out, "--force")
    assert told.exit_code == 2, told.output
    assert "is the ledger" in " ".join(told.output.split())
    assert (ledger.read_bytes() if ledger.exists() else None) == before


def test_pictures_and_the_table_itself_are_no_place_for_a_ledger(counts: Path) -> None:
    before, plain = counts.read_bytes(), tuple(each for each in RATES if each != "--no-pictures")
    for options in (
        (*plain, "--ledger", counts.with_name("o.png"), "-o", counts.with_name("o.csv")),
        (*plain, "--ledger", counts.with_name("o.html"), "-o", counts.with_name("o.csv")),
        (*RATES, "--ledger", counts, "-o", counts.with_name("o.csv")),
    ):
        told = run("rates", counts, *PRIVATE, *options, "--force")
        assert told.exit_code == 2, told.output
    assert counts.read_bytes() == before
    assert not counts.with_name("o.csv").exists()


MEANS = ("means", "--id", "county", "--value", "wins", "--no-pictures")
RATE = ("rates", "--id", "county", "--successes", "wins", "--trials", "n", "--no-pictures")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*RATE, "--epsilon", -1), "--epsilon -1: give a finite number above 0"),
        ((*RATE, "--epsilon", "nan"), "--epsilon nan"),
        ((*RATE, "--epsilon", 1, "--delta", 1e-5), "--delta 1e-05: randomised response has none"),
        ((*RATE, "--epsilon", 1, "--message", "exact"), "--epsilon 1: an exact message has none"),
        ((*RATE, "--delta", 1e-5, "--message", "exact"), "--delta 1e-05 without --epsilon"),
        ((*RATE, "--delta", 1e-5, "--bits", 3), "--delta 1e-05 without --epsilon"),
        ((*MEANS, "--epsilon", 1, "--delta", 2), "--delta 2: give a number between 0 and 1"),
        ((*RATE, "--bits", 3, "--message", "exact"), "--bits 3 and --message exact: give one of the two"),
        ((*RATE, "--bits", 3, "--epsilon", 1), "--bits"),
        ((*RATE, "--bits", 0), "--bits 0: give 1 to 52"),
        ((*RATE, "--seed", -5), "--seed -5: give a whole number of at least 0"),
        ((*RATE, "--prior-variance", -1), "--prior-variance -1"),
        ((*RATE, "--prior-mean", 7, "--prior-variance", 0.1), "--prior-mean 7: give"),
        ((*MEANS, "--size", "n"), "add --noise-variance"),
        ((*MEANS, "--epsilon", 1, "--delta", 1e-5), "add --noise-variance"),
        ((*MEANS, "--epsilon", 1, "--delta", 1e-5, "--noise-variance", 1), "add --radius"),
        ((*MEANS, "--bits", 3, "--noise-variance", 1), "add --radius"),
    ],
    ids=lambda each: " ".join(map(str, each[6:])) if isinstance(each, tuple) else "",
)
def test_an_option_that_is_wrong_missing_or_unused_is_named(counts: Path, arguments: Any, says: str) -> None:
    told = run(arguments[0], counts, *arguments[1:], "-o", counts.with_name("o.csv"))
    assert told.exit_code == 2, told.output
    assert says in " ".join(told.output.split())
    assert {path.name for path in counts.parent.iterdir()} == {"counts.csv", "counts.parquet"}


def test_a_delta_without_an_epsilon_is_no_privacy_and_refused(counts: Path) -> None:
    for command in (("rates", counts, *RATES), ("means", counts, "--id", "county", "--value", "wins")):
        told = run(*command, "--delta", 1e-4, "-o", counts.with_name("o.csv"))
        assert told.exit_code == 2
        assert "--delta 0.0001 without --epsilon" in told.output
    told = run("rates", counts, *RATES, "--epsilon", 0, "-o", counts.with_name("o.csv"))
    assert told.exit_code == 2
    assert "epsilon 0" in told.output
    assert not counts.with_name("o.csv").exists()
