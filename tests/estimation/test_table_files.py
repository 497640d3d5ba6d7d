"""Tables as people have them: semicolons, decimal commas, Excel's encodings, names in errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.estimation.table_files import Dialect, chunks
from tests.estimation.test_tables import run

OPTIONS = ("--id", "Laden", "--value", "Umsatz", "--no-pictures")


def shops(clients: int = 30) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    names = np.repeat([f"Köln {i:02d}" for i in range(clients)], 4)
    return pd.DataFrame({"Laden": names, "Umsatz": (1000 + 300 * draw.normal(size=4 * clients)).round(2)})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_european_tables_give_what_plain_ones_give(tmp_path: Path, separator: str, encoding: str) -> None:
    table = shops()
    table.to_csv(tmp_path / "plain.csv", index=False)
    table.to_csv(tmp_path / "eu.csv", index=False, sep=separator, decimal=",", encoding=encoding)
    assert run("means", tmp_path / "plain.csv", *OPTIONS, "-o", tmp_path / "a.csv").exit_code == 0
    told = run("means", tmp_path / "eu.csv", *OPTIONS, "-o", tmp_path / "b.csv")
    assert told.exit_code == 0, told.output
    assert "decimal comma" in told.output
    assert encoding in told.output
    there = pd.read_csv(tmp_path / "b.csv", sep=separator, decimal=",", encoding=encoding)
    assert there["Laden"].iloc[3] == "Köln 03"
    pd.testing.assert_frame_equal(there, pd.read_csv(tmp_path / "a.csv"))


@given(
    value=st.decimals(-99999, 99999, places=2),
    decimal=st.sampled_from([".", ","]),
    grouped=st.booleans(),
    separator=st.sampled_from([";", "\t"]),
)
@settings(deadline=None, max_examples=60)
def test_a_number_is_read_as_it_was_written(value: Any, decimal: str, grouped: bool, separator: str) -> None:
    import tempfile

    text = f"{value:,.2f}" if grouped else f"{value:.2f}"
    if decimal == ",":
        text = text.translate(str.maketrans(",.", ".,"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text(f"who{separator}x\na{separator}{text}\n")
        found = Dialect().guess(path, ["who", "x"])
        frame = pd.read_csv(path, sep=found.separator, decimal=found.decimal or ".", thousands=found.thousands)
        assert float(frame["x"].iloc[0]) == float(value)


def test_a_comma_that_could_be_either_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Laden;Umsatz\na;27,000\nb;31,500\n")
    told = run("means", path, *OPTIONS, "--noise-variance", 1, "-o", tmp_path / "o.csv")
    assert told.exit_code == 2
    assert "row 1 has '27,000' as Umsatz: give --thousands , or --decimal ," in " ".join(told.output.split())
    for option, value in (("--thousands", 31500.0), ("--decimal", 31.5)):
        told = run("means", path, *OPTIONS, "--noise-variance", 1, option, ",", "-o", tmp_path / f"o{option}.csv")
        assert told.exit_code == 0, told.output
        text = (tmp_path / f"o{option}.csv").read_text().splitlines()[2]
        assert float(text.split(";")[2].replace(",", ".")) == value


def test_one_cell_that_is_no_number_is_named_among_numbers_with_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Laden;Umsatz\na;1.027,25\nb;31,5\nc;viel\nd;4,5\n")
    told = run("means", path, *OPTIONS, "--noise-variance", 1, "-o", tmp_path / "o.csv")
    assert told.exit_code == 2
    assert "row 3 (Laden c) has 'viel' as Umsatz" in " ".join(told.output.split())


def test_errors_name_the_row_and_the_client(tmp_path: Path) -> None:
    head, rows = "who,won,n\n", ["a1,1,4\n", "b2,2,4\n", "c3,9,4\n"]
    options = ("--id", "who", "--successes", "won", "--trials", "n", "--no-pictures")
    path = tmp_path / "t.csv"
    for text, says in (
        ("".join(rows), "client c3 has 9 successes in 4 trials"),
        ("".join(rows[:2]) + "c3,many,4\n", "row 3 (who c3) has 'many' as won"),
        ("".join(rows[:2]) + ",2,4\n", "row 3 has no who"),
        ("".join(rows[:2]) + "  ,2,4\n", "row 3 has no who"),
        ("".join(rows[:2]) + "a1,2,4\n", "for instance 'a1'"),
    ):
        path.write_text(head + text)
        told = run("rates", path, *options, "-o", tmp_path / "o.csv")
        assert told.exit_code == 2
        assert says in " ".join(told.output.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sep", ";;"), "--sep ';;': give one character"),
        (("--decimal", "x"), "--decimal 'x': give a point or a comma"),
        (("--decimal", ",", "--thousands", ","), "are both ','"),
        (("--encoding", "klingon"), "--encoding klingon: not known"),
        (("--encoding", "ascii"), "is not written in ascii"),
        (("--sheet", "one"), "is no Excel file"),
    ],
)
def test_a_wrong_option_of_reading_is_named(tmp_path: Path, options: Any, says: str) -> None:
    shops().to_csv(tmp_path / "t.csv", index=False)
    told = run("means", tmp_path / "t.csv", *OPTIONS, *options, "-o", tmp_path / "o.csv")
    assert told.exit_code == 2
    assert says in " ".join(told.output.split())


def test_excel_in_and_out(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="pip install 'tacit-fl[excel]'")
    table = shops()
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame({"a": [1]}).to_excel(book, sheet_name="notes", index=False)
        table.to_excel(book, sheet_name="Läden", index=False)
    table.to_csv(tmp_path / "t.csv", index=False)
    told = run("means", tmp_path / "t.xlsx", *OPTIONS, "--sheet", "Läden", "-o", tmp_path / "o.xlsx")
    assert told.exit_code == 0, told.output
    assert run("means", tmp_path / "t.csv", *OPTIONS, "-o", tmp_path / "o.csv").exit_code == 0
    pd.testing.assert_frame_equal(pd.read_excel(tmp_path / "o.xlsx"), pd.read_csv(tmp_path / "o.csv"))
    told = run("means", tmp_path / "t.xlsx", *OPTIONS, "-o", tmp_path / "p.xlsx")
    assert told.exit_code == 2
    assert "no column 'Laden'" in told.output


def test_without_openpyxl_excel_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    told = run("means", tmp_path / "t.xlsx", *OPTIONS, "-o", tmp_path / "o.csv")
    assert "tacit-fl[excel]" in told.output


def test_json_has_what_the_words_say_and_the_ledgers_epsilon(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"who": [f"w{i}" for i in range(200)], "won": draw.binomial(9, 0.4, 200), "n": 9})
    table.to_csv(tmp_path / "t.csv", index=False)
    options = ("--id", "who", "--successes", "won", "--trials", "n", "--no-pictures", "--epsilon", 1, "--json")
    for times in (1, 2):
        told = run("rates", tmp_path / "t.csv", *options, "-o", tmp_path / f"o{times}.csv")
        found = json.loads(told.output)
        assert found["spent"]["epsilon"] == pytest.approx(times)
        assert found["spent"]["questions"] == times
    assert found["clients"] == 200
    assert [row["name"] for row in found["comparison"]] == ["local", "global", "personal"]
    low, high = found["prior_variance_interval"]
    assert 0 <= low < high <= 0.25


def test_a_dialect_of_an_empty_file_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("")
    told = run("means", tmp_path / "t.csv", *OPTIONS, "-o", tmp_path / "o.csv")
    assert told.exit_code == 2
    with pytest.raises(TacitError, match="no file"):
        next(chunks(tmp_path / "none.csv", "a", []))
