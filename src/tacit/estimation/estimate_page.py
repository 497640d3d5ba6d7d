"""The page of `tacit estimate`: what was promised to the clients, what they gain, and how each one moves."""

from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core.files import write_atomically
from tacit.estimation.comparison import Comparison
from tacit.estimation.tables import RELATION
from tacit.privacy.ledger.statement import SIMULATION, risk_of_all, shown
from tacit.report.integrity import open_ledger
from tacit.report.page import Card, Table, document, facts, sections

if TYPE_CHECKING:
    from tacit.estimation.tables import Questions, TableEstimates


def write_html(
    result: "TableEstimates", source: Path, questions: "Questions | None", path: Path, purpose: str | None = None
) -> Path:
    """Writes the page to `path`: one file, nothing fetched.

    Args:
        result: what was estimated.
        source: the clients' table; its name stands on the page, none of its rows but those that are drawn.
        questions: the ledger of what was asked, if anything was private.
        path: where it goes.
        purpose: what it is for, for its readers.
    """
    write_atomically(path, page(result, source, questions, purpose).encode())
    return path


def page(result: "TableEstimates", source: Path, questions: "Questions | None", purpose: str | None = None) -> str:
    """The whole page, guarantee first."""
    origin = {
        "Date": datetime.now(UTC).date().isoformat(),
        "Data": source.name,
        "Version": f"Tacit {_version()}",
        "Purpose": purpose or "not stated",
    }
    centre = ", ".join(f"{each:.4g}" for each in result.estimator.centre_[:6])
    about = (
        f"{result.clients:,} clients around {centre}, which differ by {result.estimator.prior_variance_**0.5:.4g} "
        "(standard deviation)."
    )
    body = [
        f'<header><h1>Personal estimates: {escape(source.stem)}</h1><p class="quiet">{escape(about)}</p>',
        f"{facts(origin)}</header><h2>What each client is guaranteed</h2>",
        f'<div class="cards">{_card(result, questions).html()}</div>',
        _gains(result.comparison).html(),
        sections([result.moves.figure()]),
    ]
    return document(f"Personal estimates: {source.stem}", "".join(body))


def _version() -> str:
    try:
        return version("tacit-fl")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _card(result: "TableEstimates", questions: "Questions | None") -> Card:
    """Every epsilon is the ledger's: that of all questions that were asked of these clients."""
    estimator, clients = result.estimator, f"{result.clients:,} clients"
    sent = f"Sent: {estimator.privacy_}."
    if not estimator.sends:
        return Card("all clients", "nothing leaves", clients, sent)
    if questions is None:
        return Card("all clients", "no guarantee", clients, sent, look="bare")
    epsilon, _ = questions.spent()
    told = [f"{questions.summary()}.", sent, _meaning(questions)]
    mark = SIMULATION if estimator.seed is not None else ""
    return Card("all clients", f"epsilon {shown(epsilon)}", clients, " ".join(told), look="guaranteed", mark=mark)


def _meaning(questions: "Questions") -> str:
    """What the whole ledger lets an attacker find out who asks whose data a client's are."""
    with open_ledger(questions.path) as ledger:
        found = risk_of_all(ledger, RELATION)
    return (
        "In words: an attacker who knows two sets of data, one of which is a client's, and errs once in 100 about one "
        f"of them, tells the other at most {100 * found.found:.1f} times in 100; guessing does 1."
    )


def _gains(comparison: Comparison) -> Table:
    rows = [[row.name, f"{row.expected_mse:.4g}", f"{100 * row.gain:+.1f}%"] for row in comparison.rows]
    heads = ("estimate", "expected squared error", "saved of the local one")
    note = f"{comparison.verdict} Local: alone. Global: one estimate for all. Personal: each moved toward the centre."
    return Table("Is it worth working together?", heads, rows, note)
