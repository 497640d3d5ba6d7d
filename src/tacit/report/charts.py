"""What a report of runs draws: a metric and epsilon over rounds, the spread over clients, what an attacker gets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tacit.privacy.ledger.statement import SIMULATION
from tacit.report.facts import Promise
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series, Style
from tacit.report.metrics import ALL
from tacit.report.summary import RunSummary

BINS = 10
MEASURED = "simulation only"
"""The mark of what no deployment could show for free."""


@dataclass(frozen=True)
class Legend:
    """Colours by group: levels of one run, or runs beside each other."""

    colors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> "Legend":
        names = [f.title for f in runs] if len(runs) > 1 else [name for _, name in runs[0].groups()]
        colored = [name for name in names if name != ALL or len(runs) > 1]
        colors = {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(colored)}
        return cls({name: colors.get(name, NEUTRAL) for name in names})


def figures(runs: Sequence[RunSummary]) -> list[Figure]:
    """The metric and epsilon over rounds, the spread over clients, what an attacker gets; empty ones are left out."""
    legend = Legend.of(runs)
    drawn = [accuracy(runs, legend), *epsilon(runs, legend), spread(runs, legend), *trade_off(runs, legend)]
    return [figure for figure in drawn if any(panel.series for panel in figure.panels)]


def _by_level(runs: Sequence[RunSummary]) -> list[tuple[str, str]]:
    """(label, name) of the levels of all runs, each once, all clients last."""
    names = dict.fromkeys(pair for findings in runs for pair in findings.groups())
    return [*(pair for pair in names if pair[1] != ALL), *(pair for pair in names if pair[1] == ALL)]


def accuracy(runs: Sequence[RunSummary], legend: Legend) -> Figure:
    note = "Solid: personal models. Dotted: the shared model. Mean over clients, each on its own test rows."
    levels = _by_level(runs)
    if len(runs) == 1:
        below = sorted(levels, key=lambda level: level[1] != ALL)  # all clients first: a level's line lies on theirs
        lines = [line for place, name in below for line in _lines(runs[0], place, name, legend)]
        panels = [_metric_panel(runs, "", lines)]
    else:
        panels = [
            _metric_panel(
                runs,
                "all clients" if name == ALL else name,
                [line for findings in runs for line in _lines(findings, place, findings.title, legend)],
            )
            for place, name in levels
        ]
    return Figure("accuracy", note, panels, f"{runs[0].measure} over rounds", MEASURED)


def _metric_panel(runs: Sequence[RunSummary], title: str, lines: Sequence[Series]) -> Panel:
    bounded = _range(runs) == (0, 1)
    return Panel(title, "round", _name(runs), lines, y_range=(0, 1.03) if bounded else (None, None))


def _name(runs: Sequence[RunSummary]) -> str:
    return ", ".join(dict.fromkeys(findings.facts.metric for findings in runs))


def _range(runs: Sequence[RunSummary]) -> tuple[float, float]:
    """What the figures of clients lie in: as is known of the metric, else as they are."""
    known = {findings.facts.range for findings in runs}
    if known == {(0.0, 1.0)}:
        return 0, 1
    values = [value for findings in runs for value in findings.accuracies() if np.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def _lines(findings: RunSummary, place: str, group: str, legend: Legend) -> Iterator[Series]:
    styles: dict[str, Style] = {"personal": "solid", "shared": "dot"}
    for model, style in styles.items():
        rounds, values = findings.series(place, f"{model}_mean")
        if rounds:
            name, width = f"{group}, {model}", 1.8 if style == "solid" else 1.2
            yield Series(name, rounds, values, legend.colors[group], style=style, width=width, group=group)


def epsilon(runs: Sequence[RunSummary], legend: Legend) -> Iterator[Figure]:
    """One section for each unit: record-level and client-level figures never share an axis."""
    for unit in ("client", "record"):
        held = [findings for findings in runs if findings.facts.unit == unit]
        lines = [line for findings in held for line in _spending(findings, legend, len(runs) > 1)]
        if lines:
            yield Figure(
                "epsilon",
                "What each level had spent, replayed from the ledger. Dashed: its budget. Dotted: the same by RDP, the "
                "looser accountant. Where clients have accounts of their own, the one that spent most.",
                [Panel("", "round", f"{unit}-level epsilon", lines, y_range=(0, None))],
                f"{unit.capitalize()}-level epsilon over rounds",
                SIMULATION,
            )


def _held(findings: RunSummary) -> Iterator[Promise]:
    """The levels at which somebody is; the others have no colour, and nobody to tell of."""
    return (promise for promise in findings.facts.promises if promise.clients)


def _spending(findings: RunSummary, legend: Legend, named: bool) -> Iterator[Series]:
    for promise in _held(findings):
        group = findings.title if named else promise.level
        title = f"{findings.title}, {promise.level}" if named else promise.level
        terms = f"{promise.relation}, delta {promise.delta:g}" if promise.delta else ""
        color, spending = legend.colors[group], findings.spent_over_rounds(promise.level)
        for at, (name, (rounds, spent)) in enumerate(spending.items()):
            text, style, width = f"{title} ({name.upper()}, {terms})", ("dot" if at else "solid"), (1.2 if at else 1.8)
            yield Series(text, [0, *rounds], [0.0, *spent], color, style=style, width=width, group=group)
        if spending and promise.budget is not None:
            text, ends, budget = f"{title}: budget {promise.budget:g}", [0, findings.facts.rounds], [promise.budget] * 2
            yield Series(text, ends, budget, color, style="dash", width=1.2, group=group)


def trade_off(runs: Sequence[RunSummary], legend: Legend) -> Iterator[Figure]:
    """The best attacker's misses at each rate of false alarms, by level; a section for each unit."""
    for unit in ("client", "record"):
        held = [findings for findings in runs if findings.facts.unit == unit]
        lines = [line for findings in held for line in _attackers(findings, legend, len(runs) > 1)]
        if lines:
            guess = Series("guessing", [0, 1], [1, 0], NEUTRAL, style="dash", width=1.2)
            panel = Panel("", "false alarms", f"{unit}s missed", [guess, *lines], x_range=(0, 1), y_range=(0, 1.03))
            note = (
                f"Of the best possible attacker who asks whether a {unit} took part: the higher a line, the less it "
                "learns. Where clients have accounts of their own, the one that spent most."
            )
            yield Figure("trade-off", note, [panel], f"What an attacker learns of a {unit}, at most", SIMULATION)


def _attackers(findings: RunSummary, legend: Legend, named: bool) -> Iterator[Series]:
    for promise in _held(findings):
        risk = None if findings.spending is None else findings.spending.risk(promise.level)
        if risk is not None:
            group = findings.title if named else promise.level
            name = f"{findings.title}, {promise.level}" if named else promise.level
            alarms, misses = zip(*risk.curve, strict=True)
            yield Series(name, alarms, misses, legend.colors[group], group=group)


def spread(runs: Sequence[RunSummary], legend: Legend) -> Figure:
    note = f"Share of a level's clients by the {_name(runs)} of their personal models, at the last round."
    panels, ends = [], _range(runs)
    levels = _by_level(runs)
    if len(runs) == 1:
        bars = [_bars(runs[0], name, name, legend, ends) for _, name in levels if name != ALL or len(levels) == 1]
        panels.append(_spread_panel(runs, "", [each for each in bars if each]))
    else:
        for _, name in levels:
            bars = [_bars(findings, name, findings.title, legend, ends) for findings in runs]
            panels.append(_spread_panel(runs, "all clients" if name == ALL else name, [each for each in bars if each]))
    shown = [panel for panel in panels if panel.series]
    return Figure("spread", note, shown, "Spread over clients", MEASURED)


def _spread_panel(runs: Sequence[RunSummary], title: str, bars: Sequence[Series]) -> Panel:
    quantity = f"{_name(runs)} of the personal model"
    return Panel(title, quantity, "clients, %", bars, bars=True, x_range=_range(runs))


def _bars(findings: RunSummary, level: str, group: str, legend: Legend, ends: tuple[float, float]) -> Series | None:
    values = [value for value in findings.accuracies(None if level == ALL else level) if np.isfinite(value)]
    if not values:
        return None
    edges = np.linspace(*ends, BINS + 1)
    shares = 100 * np.histogram(values, edges)[0] / len(values)
    centres = np.round((edges[:-1] + edges[1:]) / 2, 3)
    return Series(group, centres.tolist(), shares.tolist(), legend.colors[group], group=group)
