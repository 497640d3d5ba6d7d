"""Ledgers of earlier versions, which charged the queries of one batch as samples of their own: recognised, recomputed
and marked; and nothing else is touched."""

import json
from collections import Counter
from pathlib import Path

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.federation.protocol.client_store import _affords
from tacit.methods import FedAvg, PFedMe
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.accounting.sampling import round_event
from tacit.privacy.ledger.earlier_events import fitting, put_right, spent
from tacit.privacy.ledger.ledger import Charge, Entry, Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.plan import Account
from tacit.report.budget import ledger_table
from tacit.report.run_folder import epochs_in
from tacit.report.summary import open_run
from tacit.sampling.cohorts import PoissonBatches
from tests.experiments.tiny import run as tiny_run
from tests.worlds import RECORD, ragged, run

GAUSSIAN = dp.GaussianDpEvent(0.51527)
THOUSAND = PoissonBatches(10)


def earlier(rows: int, batches: PoissonBatches, queries: int, z: float = 0.51527, scope: str = "client:a") -> Charge:
    """What an earlier version charged for a round of a client."""
    event = batches.event(dp.GaussianDpEvent(z), rows)
    return Charge(scope, "record", "add/remove", event, batches.steps(rows) * queries)


def ledger_of(path: Path, *charges: Charge, rounds: int = 1) -> Ledger:
    ledger = Ledger.open(path)
    for charge in charges:
        ledger.budget(charge.scope, charge.unit, charge.relation, 8.0, 1e-5)
    for round in range(rounds):
        ledger.charge(round, charges)
    return ledger


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 4), st.integers(1, 12))
def test_the_number_of_queries_follows_from_the_count_and_the_epochs(
    rows: int, size: int, epochs: int, queries: int
) -> None:
    """For every size and batch; without the epochs the true number is never above the largest that fits."""
    batches = PoissonBatches(size, epochs)
    charge = earlier(rows, batches, queries)
    if not isinstance(charge.event, dp.PoissonSampledDpEvent):
        return  # every row in every batch: queries compose as they were charged
    known, unknown = (fitting(charge.event.sampling_probability, charge.count, e) for e in (epochs, None))
    assert queries in known
    assert max(known) <= 1.5 * queries  # the rate was rounded: of a few batches, two numbers may fit
    assert queries > 1 or known == (1,)
    assert set(known) <= set(unknown)


def test_a_charge_of_an_earlier_pfedme_is_recomputed_and_marked(tmp_path: Path) -> None:
    """With pFedMe's defaults: 8 were stated, and the same releases cost 27.65."""
    with ledger_of(tmp_path / "ledger.sqlite", earlier(1000, THOUSAND, 3)) as ledger:
        (line,) = statement(ledger, epochs=1)
        assert line.stated == pytest.approx(8.0, rel=1e-3)
        assert line.epsilon == pytest.approx(27.65, rel=2e-3)
        assert line.words.endswith("recomputed: earlier versions stated 8.00; the same releases cost 27.62")
        assert "100 times 3 queries with Gaussian noise" in line.words
        assert sum(ledger.spent("client:a").values()) == 300  # what was charged stays as it was written


def test_where_the_epochs_are_unknown_the_figure_is_a_bound_and_says_so(tmp_path: Path) -> None:
    with ledger_of(tmp_path / "ledger.sqlite", earlier(1000, PoissonBatches(10, 3), 1)) as ledger:
        (line,), (known,) = statement(ledger), statement(ledger, epochs=3)
    assert known.stated is None
    assert known.epsilon == pytest.approx(8.0, rel=1e-3)
    assert line.epsilon == pytest.approx(27.65, rel=2e-3)
    assert "did not write down how many private gradients a batch answered" in line.words
    assert "cost at most 27.62" in line.words


def test_one_query_of_each_batch_is_told_from_several_without_the_epochs_of_a_single_pass(tmp_path: Path) -> None:
    with ledger_of(tmp_path / "ledger.sqlite", earlier(1000, THOUSAND, 1), rounds=3) as ledger:
        (line,) = statement(ledger)
    assert line.stated is None
    assert "recomputed" not in line.words


def test_what_says_how_many_queries_it_answered_is_read_as_it_is(tmp_path: Path) -> None:
    event_of, count = round_event(PoissonBatches(10, 3), 1000, (1,) * 300)
    with ledger_of(tmp_path / "l.sqlite", Charge("client:a", "record", "add/remove", event_of(0.6), count)) as ledger:
        assert [line.stated for line in statement(ledger)] == [None]


@pytest.mark.parametrize(
    ("unit", "event", "count"),
    [
        ("client", dp.PoissonSampledDpEvent(0.01, GAUSSIAN), 300),
        ("record", GAUSSIAN, 300),
        ("record", dp.PoissonSampledDpEvent(0.01, dp.SelfComposedDpEvent(GAUSSIAN, 1)), 300),
        ("record", dp.PoissonSampledDpEvent(0.01, GAUSSIAN), 97),  # no plan draws so few batches
        ("record", dp.PoissonSampledDpEvent(0.01, GAUSSIAN), 101),
    ],
)
def test_other_charges_are_taken_at_their_word(unit: str, event: dp.DpEvent, count: int) -> None:
    entry = Entry(0, "client:a", unit, "add/remove", event, count, 0.0)
    assert put_right(entry) is entry


def test_a_client_that_spent_more_than_it_was_told_is_not_asked_again(tmp_path: Path) -> None:
    """In a federation its ledger is for life: later runs are paid from what is really left."""
    event_of, count = round_event(THOUSAND, 1000, (1,) * 100)
    account = Account("client:a", "record", "add/remove", event_of(3.0), count, 20.0, 1e-5)
    with ledger_of(tmp_path / "ledger.sqlite", earlier(1000, THOUSAND, 3)) as ledger:
        assert epsilon(ledger.spent("client:a"), 1e-5, "add/remove") < 8.01
        assert epsilon(spent(ledger, "client:a"), 1e-5, "add/remove") > 27
        assert spent(ledger, "client:a", until=0) == Counter()
        assert not _affords(ledger, account, "pld")


def as_before(path: Path, queries: int) -> None:
    """The ledger of a run as an earlier version would have written it: from the one that this version wrote."""
    with Ledger.read(path) as ledger:
        budgets, entries = ledger.budgets(), list(ledger.entries())
    path.unlink()
    with Ledger.open(path) as ledger:
        for line in budgets.values():
            ledger.budget(*(getattr(line, name) for name in ("scope", "unit", "relation", "epsilon", "delta")))
        for entry in entries:
            event = entry.event
            if isinstance(event, dp.PoissonSampledDpEvent):
                assert isinstance(event.event, dp.SelfComposedDpEvent)
                event = dp.PoissonSampledDpEvent(event.sampling_probability, event.event.event)
            ledger.charge(entry.round, [Charge(entry.scope, entry.unit, entry.relation, event, entry.count * queries)])


def test_the_ledger_in_a_runs_folder_is_recomputed_by_what_the_folder_says(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = (
        "data.clients=5",
        "levels.private.delta=1e-3",
        "method.name=pfedme",
        "privacy.plan=record",
        "choices=",
        "rounds=2",
        "epochs=2",
    )
    tiny_run(folder, *asked)
    before = {line.scope: line for line in ledger_table(folder / "ledger.sqlite", all=True).lines}
    as_before(folder / "ledger.sqlite", queries=3)
    for name in ("checkpoint.bin", "outcome.json", "clients.csv"):  # they keep heads of the ledger that was there
        (folder / name).unlink()
    assert epochs_in(folder) == 2
    found = {line.scope: line for line in ledger_table(folder / "ledger.sqlite", all=True).lines}
    assert {scope: line.epsilon for scope, line in found.items()} == {
        scope: line.epsilon for scope, line in before.items()
    }
    assert any(line.stated is not None and line.stated < line.epsilon for line in found.values())
    told = open_run(folder)
    assert "recomputed: earlier versions stated" in "".join(line.words for line in told.statement)
    assert any("Earlier versions stated" in line for line in told.guarantees())
    with pytest.raises(TacitError, match="begun by an earlier version"):
        tiny_run(folder, *asked, resume=True)


@pytest.mark.parametrize(("method", "goes_on"), [(FedAvg(), True), (PFedMe(), False)], ids=["one query", "three"])
def test_a_run_that_was_charged_too_little_cannot_go_on_and_others_can(method: FedAvg, goes_on: bool) -> None:
    it = run(method, RECORD, ragged(), epochs=2)
    charges = [
        earlier(n, PoissonBatches(4, 2), 1 if goes_on else 3, 1.0, f"client:c{k}") for k, n in enumerate((9, 10))
    ]
    it.ledger.charge(0, charges)
    if goes_on:
        assert it.go().progress.round == 5
        run(method, RECORD, ragged(), epochs=2)
    else:
        with pytest.raises(TacitError, match="start a new run"):
            type(it.budget)(it.plan, it.ledger)


@pytest.mark.parametrize(
    ("name", "text", "epochs"),
    [
        ("config.toml", "epochs = 4", 4),
        ("config.toml", '[training]\nvalue = "Training(rounds=2, batch=5, epochs=3, steps=None)"', 3),
        ("config.toml", "= broken", None),
        ("terms.json", json.dumps({"experiment": "epochs = 5"}), 5),
        ("terms.json", json.dumps({"experiment": "rounds = 5"}), 1),
        ("client.json", "{}", None),
    ],
)
def test_epochs_are_found_wherever_a_run_keeps_them(tmp_path: Path, name: str, text: str, epochs: int | None) -> None:
    (tmp_path / name).write_text(text)
    assert epochs_in(tmp_path) == epochs
