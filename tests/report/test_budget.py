"""What `tacit budget` and `tacit ledger` print: both accountants, the unit beside every figure, no mixed columns."""

import math
from pathlib import Path

import dp_accounting as dp
import pytest
from rich.console import Console, RenderableType

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.report.budget import budget, ledger_table


def printed(what: RenderableType) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_the_papers_budget_needs_1_400_by_pld_and_1_502_by_rdp() -> None:
    report = budget()
    assert report.noise_multiplier == pytest.approx(1.400, rel=1e-3)
    assert report.noise_multiplier_rdp == pytest.approx(1.502, rel=1e-3)
    assert [price.rounds for price in report.prices] == [1, 10, 100, 500]
    assert 3.59 < report.epsilon <= 3.6
    assert all(price.epsilon <= price.epsilon_rdp for price in report.prices)
    text = printed(report)
    for word in ("1.400", "1.502", "client-level, add/remove, delta 0.0001, PLD", "Poisson", "q = 0.05", "500 rounds"):
        assert word in text


def test_given_the_noise_it_says_the_epsilon() -> None:
    report = budget(noise_multiplier=1.4, population=2000)
    event = dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.4))
    assert report.epsilon == epsilon({event: 500}, 1e-4, "add/remove")
    assert report.noise_multiplier_rdp is None
    assert report.warnings == ()


def test_fixed_size_cohorts_are_rdp_only_and_replace_one() -> None:
    report = budget(fixed_size=50, population=1000, rounds=20, noise_multiplier=3.0)
    assert (report.accountant, report.relation, report.rate) == ("rdp", "replace-one", 0.05)
    text = printed(report)
    assert "client-level, replace-one, delta 0.0001, RDP" in text
    assert "only RDP models this" in text
    assert "PLD" not in text
    assert "z x 2 C" in text


def test_record_level_counts_local_steps() -> None:
    report = budget(unit="record", rate=0.1, rounds=20, steps=7, noise_multiplier=1.0, delta=1e-5)
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
    assert report.epsilon == epsilon({event: 140}, 1e-5, "add/remove")
    assert "record-level, add/remove, delta 1e-05" in printed(report)
    assert "client-level" not in printed(report)


def test_queries_of_one_batch_compose_inside_its_sample() -> None:
    report = budget(unit="record", rate=0.1, rounds=20, steps=7, queries=3, noise_multiplier=1.5, delta=1e-5)
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5 / 3**0.5))
    assert report.epsilon == pytest.approx(epsilon({event: 140}, 1e-5, "add/remove"), rel=1e-6)
    assert "3 noisy gradients of one batch, composed" in " ".join(printed(report).split())
    with pytest.raises(TacitError, match="leave queries out"):
        budget(queries=3)


def test_a_large_epsilon_is_allowed_with_a_warning() -> None:
    report = budget(noise_multiplier=0.5, population=100)
    assert report.epsilon > 10
    assert "above 10" in printed(report)


def test_a_delta_of_one_over_the_population_is_refused_unless_told_otherwise() -> None:
    with pytest.raises(TacitError, match=r"delta 0.0005 is not below 1/2000.*choose at most 5e-05"):
        budget(delta=5e-4, population=2000)
    assert budget(delta=5e-4, population=2000, noise_multiplier=1.0, allow_large_delta=True).delta == 5e-4


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"delta": 2.0},
        {"rate": 0.0},
        {"rate": 1.5},
        {"rate": math.nan},
        {"rounds": 0},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"unit": "person"},
        {"steps": 5},
        {"population": 0},
        {"fixed_size": 10},
        {"fixed_size": 10, "population": 5},
    ],
)
def test_impossible_budgets_are_refused_in_one_line(wrong: dict) -> None:
    with pytest.raises(TacitError) as caught:
        budget(**wrong)
    assert "\n" not in str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two levels, one opted out, beside 30 clients with record-level accounts of different lengths."""
    path = tmp_path / "ledger.db"
    sampled = dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.4))
    with Ledger.open(path) as ledger:
        ledger.budget("level:private", "client", "add/remove", 3.6, 1e-4)
        ledger.budget("level:open", "client", "add/remove", None, 1e-4)
        for k in range(30):
            ledger.budget(f"client:[{k}]", "record", "add/remove", 3.0, 1e-5)
        for round in range(30):
            clients = [f"client:[{k}]" for k in range(round, 30)]
            records = [Charge(name, "record", "add/remove", dp.GaussianDpEvent(9.0), 2) for name in clients]
            levels = [
                Charge("level:private", "client", "add/remove", sampled),
                Charge("level:open", "client", "add/remove", dp.NonPrivateDpEvent()),
            ]
            ledger.charge(round, levels + records)
    return path


def test_client_level_and_record_level_never_share_a_table(path: Path) -> None:
    groups = ledger_table(path).groups()
    assert [{(line.unit, line.relation, line.delta) for line in group} for group in groups] == [
        {("client", "add/remove", 1e-4)},
        {("record", "add/remove", 1e-5)},
    ]


def test_levels_have_their_own_lines_and_opting_out_reads_no_guarantee(path: Path) -> None:
    lines = printed(ledger_table(path)).splitlines()
    (private,) = [line for line in lines if "level:private" in line]
    (opted_out,) = [line for line in lines if "level:open" in line]
    assert "PLD" in private
    assert "3.6" in private
    assert "30 times Gaussian noise, multiplier 1.400, on a Poisson sample of 5% of the clients" in private
    assert "no guarantee" in opted_out
    assert any("client-level, add/remove neighbours, delta 0.0001" in line for line in lines)
    assert any("record-level, add/remove neighbours, delta 1e-05: 30 accounts" in line for line in lines)


def test_many_clients_are_summarised_with_the_ten_largest(path: Path) -> None:
    text = printed(ledger_table(path))
    assert "median" in text
    assert text.count("client:[") == 10
    assert "client:[29]" in text
    assert "exceeded" in text
    assert printed(ledger_table(path, all=True)).count("client:[") == 30


def test_reading_a_ledger_leaves_it_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    ledger_table(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_or_empty_ledger_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="there is no run at"):
        ledger_table(tmp_path / "none.db")
    Ledger.open(tmp_path / "new.db").close()
    assert "nothing was charged" in printed(ledger_table(tmp_path / "new.db"))
