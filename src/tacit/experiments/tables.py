"""Tables for the terminal. Accuracies are marked as simulation only, every epsilon stands beside its unit."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from tacit.experiments import words
from tacit.experiments.findings import Findings
from tacit.experiments.metrics import ALL, label

FIGURES = (
    ("shared\nmean", "shared_mean"),
    ("personal\nmean", "personal_mean"),
    ("personal\nvariance", "personal_variance"),
    ("worst\ndecile", "personal_worst_decile"),
)


def level_table(findings: Findings) -> Table:
    """Levels below each other; each has its own guarantee and its own epsilon."""
    facts = findings.facts
    common = findings.value(ALL, "common")
    shared = "" if common is None else f"; the shared model on the common test set: {common:.3f}"
    caption = f"accuracies at round {findings.last}, simulation only{shared}"
    table = _table(f"{findings.title}: {facts.method}, plan {facts.plan}", caption, "level")
    for promise in facts.promises:
        if promise.clients:
            table.add_row(promise.level, *_row(findings, promise.level))
    table.add_section()
    table.add_row("all", *_row(findings, None))
    return table


def comparison(several: Sequence[Findings]) -> Table:
    """Runs below each other, level by level. A local-only run is the baseline of every personal figure."""
    table = _table("runs side by side", "accuracies at the last round, simulation only", "run", "level")
    for findings in several:
        for promise in findings.facts.promises:
            if promise.clients:
                table.add_row(findings.title, promise.level, *_row(findings, promise.level))
        table.add_row(findings.title, "all", *_row(findings, None))
        table.add_section()
    return table


def _table(title: str, caption: str, *first: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name in first:
        table.add_column(name, overflow="fold")
    table.add_column("clients", justify="right")
    table.add_column("guarantee", max_width=24)
    table.add_column("epsilon spent", max_width=26)
    for name, _ in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _row(findings: Findings, level: str | None) -> list[str]:
    facts = findings.facts
    accuracy = [findings.value(ALL if level is None else label(level), metric) for _, metric in FIGURES]
    figures = ["-" if value is None else f"{value:.3f}" for value in accuracy]
    if level is None:
        return [f"{facts.clients:,}", "", "", *figures]
    promise = next(each for each in facts.promises if each.level == level)
    spent = words.spent(promise, facts, findings.epsilons.get(level))
    return [f"{promise.clients:,}", words.guarantee(promise, facts), spent, *figures]


def over_seeds(several: Sequence[Findings]) -> Table:
    """Mean and standard deviation over runs that differ in nothing but the seed."""
    table = Table(
        title=f"{several[0].facts.name}: mean and standard deviation over {len(several)} seeds",
        caption="accuracies at the last round, simulation only",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("level")
    for name, _ in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    for place, name in several[0].groups():
        table.add_row(name, *(_mean_and_std(several, place, metric) for _, metric in FIGURES))
    return table


def _mean_and_std(several: Sequence[Findings], place: str, metric: str) -> str:
    values = [value for findings in several if (value := findings.value(place, metric)) is not None]
    if not values:
        return "-"
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {spread:.3f}"
