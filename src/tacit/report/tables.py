"""Tables for the terminal. Figures are marked as simulation only, every epsilon stands beside its unit."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from tacit.report import wording
from tacit.report.facts import Promise
from tacit.report.metrics import ALL, label
from tacit.report.summary import RunSummary

FIGURES = (
    ("shared\nmean", "shared_mean"),
    ("personal\nmean", "personal_mean"),
    ("personal\nvariance", "personal_variance"),
    ("worst\ndecile", "personal_worst_decile"),
)


def level_table(findings: RunSummary) -> Table:
    """Levels below each other; each has its own guarantee and its own epsilon. Fits 80 columns."""
    facts = findings.facts
    common = findings.value(ALL, "common")
    shared = "" if common is None else f"; the shared model on the common test set: {common:.3f}"
    table = _table(
        f"{findings.title}: {facts.method}, plan {facts.plan}",
        "\n".join(part for part in (f"{_when(findings)}{shared}", wording.simulation(facts)) if part),
    )
    table.add_column("level", overflow="fold")
    table.add_column("clients", justify="right", no_wrap=True)
    table.add_column("guarantee and\nepsilon spent")
    _add_figures(table)
    for promise in facts.promises:
        if promise.clients:
            cells = [promise.level, f"{promise.clients:,}", _privacy(findings, promise)]
            table.add_row(*cells, *_accuracy(findings, label(promise.level)))
    table.add_section()
    table.add_row("all", f"{facts.clients:,}", "", *_accuracy(findings, ALL))
    return table


def _when(findings: RunSummary) -> str:
    spent = "" if findings.timing is None else f"; privacy spent {findings.timing.partition('privacy spent ')[2][:-1]}"
    if not findings.last:
        return f"no {findings.facts.metric} was measured yet{spent}"
    return f"{_figures_of(findings)} after round {findings.last}, simulation only{spent}"


def _figures_of(findings: RunSummary) -> str:
    """What the figures of a table are of."""
    metric = findings.measure[:1].lower() + findings.measure[1:]
    return "accuracies" if metric == "accuracy" else metric


def _last(runs: Sequence[RunSummary]) -> str:
    whats = dict.fromkeys(_figures_of(findings) for findings in runs)
    return f"{', '.join(whats)} at the last evaluated round, simulation only"


def _metric(runs: Sequence[RunSummary]) -> str:
    return ", ".join(dict.fromkeys(findings.facts.metric for findings in runs))


def comparison(runs: Sequence[RunSummary]) -> Group:
    """Runs below each other, level by level. A local-only run is the baseline of every personal figure."""
    accuracy = _table(_metric(runs), _last(runs))
    privacy = _table("privacy", next(filter(None, (wording.simulation(findings.facts) for findings in runs)), None))
    for table in (accuracy, privacy):
        table.add_column("run", overflow="fold")
        table.add_column("level", overflow="fold")
    accuracy.add_column("clients", justify="right", no_wrap=True)
    _add_figures(accuracy)
    privacy.add_column("guarantee and epsilon spent")
    for findings in runs:
        held = [promise for promise in findings.facts.promises if promise.clients]
        for promise in held:
            row = [findings.title, promise.level]
            accuracy.add_row(*row, f"{promise.clients:,}", *_accuracy(findings, label(promise.level)))
            privacy.add_row(*row, _privacy(findings, promise))
        if len(held) > 1:
            accuracy.add_row(findings.title, "all", f"{findings.facts.clients:,}", *_accuracy(findings, ALL))
        accuracy.add_section()
        privacy.add_section()
    return Group(accuracy, "", privacy)


def profile_table(seconds: Mapping[str, float], total: float) -> Table:
    """Where a run's time went; what is in no section (data, calibration, reports) is the last row."""
    table = _table("where the time went", "wall clock; storage is also read and written inside of training")
    table.add_column("section")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for name, duration in [*seconds.items(), ("data, calibration, reports", total - sum(seconds.values()))]:
        table.add_row(name, f"{duration:.2f}", f"{duration / total:.0%}")
    table.add_section()
    table.add_row("all", f"{total:.2f}", "")
    return table


def _table(title: str, caption: str | None) -> Table:
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)


def _add_figures(table: Table) -> None:
    for name, _ in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)


def _accuracy(findings: RunSummary, place: str) -> list[str]:
    values = [findings.value(place, metric) for _, metric in FIGURES]
    return ["-" if value is None else f"{value:.3f}" for value in values]


def _privacy(findings: RunSummary, promise: Promise) -> str:
    kind = wording.guarantee(promise, findings.facts)
    if promise.standing != "protected":
        return kind
    return f"{kind}: epsilon {wording.spent(promise, findings.epsilons.get(promise.level))}"


def over_seeds(runs: Sequence[RunSummary]) -> Table:
    """Mean and standard deviation over runs that differ in nothing but the seed."""
    table = _table(f"{runs[0].facts.name}: mean and standard deviation over {len(runs)} seeds", _last(runs))
    table.add_column("level")
    _add_figures(table)
    for place, name in runs[0].groups():
        table.add_row(name, *(_mean_and_std(runs, place, metric) for _, metric in FIGURES))
    return table


def _mean_and_std(runs: Sequence[RunSummary], place: str, metric: str) -> str:
    values = [value for findings in runs if (value := findings.value(place, metric)) is not None]
    if not values:
        return "-"
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {spread:.3f}"
