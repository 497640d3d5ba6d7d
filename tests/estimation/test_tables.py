"""`tacit estimate`: tables in, tables out, whole or in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from tacit.cli import Commands
from tacit.estimation import BernoulliRates, GaussianMeans, files
from tacit.estimation.cli import estimate
from tacit.privacy.messages import RandomisedResponse

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
    whole = pd.concat(files.chunks(counts, "county", ["wins"]))
    monkeypatch.setattr(files, "CHUNK", 64)
    pieces = list(files.chunks(counts.with_suffix(".parquet"), "county", ["wins"]))
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
