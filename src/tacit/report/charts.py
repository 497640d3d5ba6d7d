"""What a report draws, apart from how: series of numbers in panels, the same for the page and the image."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.privacy.ledger.statement import SIMULATION
from tacit.report.axes import Style
from tacit.report.metrics import ALL
from tacit.report.summary import RunSummary

# Paul Tol's bright scheme: told apart by colour-blind readers, legible on white and on black
PALETTE = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE")
NEUTRAL = "#888888"
BINS = np.linspace(0, 1, 11)


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars. `group` is what the legend switches on and off."""

    name: str
    group: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "solid"
    strong: bool = True


@dataclass(frozen=True)
class Panel:
    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    kind: Literal["line", "bar"] = "line"
    top: float | None = None  # of the y axis; None fits the data


@dataclass(frozen=True)
class Section:
    """A question and the panels that answer it. `simulation`: no deployment could show this for free."""

    title: str
    note: str
    panels: Sequence[Panel]
    simulation: bool = True

    @property
    def mark(self) -> str:
        """What keeps a reader from taking a simulation for more."""
        return "simulation only" if self.simulation else SIMULATION


@dataclass(frozen=True)
class Legend:
    """Colours by group: levels of one run, or runs beside each other."""

    colors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, several: Sequence[RunSummary]) -> "Legend":
        names = [f.title for f in several] if len(several) > 1 else [name for _, name in several[0].groups()]
        colored = [name for name in names if name != ALL or len(several) > 1]
        colors = {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(colored)}
        return cls({name: colors.get(name, NEUTRAL) for name in names})


def sections(several: Sequence[RunSummary]) -> list[Section]:
    """Accuracy over rounds, epsilon over rounds, and the spread over clients; empty ones are left out."""
    legend = Legend.of(several)
    found = [accuracy(several, legend), *epsilon(several, legend), spread(several, legend)]
    return [section for section in found if any(panel.series for panel in section.panels)]


def _by_level(several: Sequence[RunSummary]) -> list[tuple[str, str]]:
    """(label, name) of the levels of all runs, each once, all clients last."""
    names = dict.fromkeys(pair for findings in several for pair in findings.groups())
    return [*(pair for pair in names if pair[1] != ALL), *(pair for pair in names if pair[1] == ALL)]


def accuracy(several: Sequence[RunSummary], legend: Legend) -> Section:
    note = "Solid: personal models. Dotted: the shared model. Mean over clients, each on its own test rows."
    levels = _by_level(several)
    if len(several) == 1:
        lines = [line for place, name in levels for line in _lines(several[0], place, name, legend)]
        panels = [_accuracy_panel("", lines)]
    else:
        panels = [
            _accuracy_panel(
                "all clients" if name == ALL else name,
                [line for findings in several for line in _lines(findings, place, findings.title, legend)],
            )
            for place, name in levels
        ]
    return Section("Accuracy over rounds", note, panels)


def _accuracy_panel(title: str, lines: Sequence[Series]) -> Panel:
    return Panel(title, "round", "accuracy", lines, top=1.03)


def _lines(findings: RunSummary, place: str, group: str, legend: Legend) -> Iterator[Series]:
    styles: dict[str, Style] = {"personal": "solid", "shared": "dot"}
    for which, style in styles.items():
        rounds, values = findings.series(place, f"{which}_mean")
        if rounds:
            yield Series(f"{group}, {which}", group, legend.colors[group], rounds, values, style, style == "solid")


def epsilon(several: Sequence[RunSummary], legend: Legend) -> Iterator[Section]:
    """One section for each unit: record-level and client-level figures never share an axis."""
    for unit in ("client", "record"):
        held = [findings for findings in several if findings.facts.unit == unit]
        lines = [line for findings in held for line in _spending(findings, legend, len(several) > 1)]
        if lines:
            yield Section(
                f"{unit.capitalize()}-level epsilon over rounds",
                "What each level had spent, replayed from the ledger. Dashed: its budget. Dotted: the same by RDP, the "
                "looser accountant. "
                "Where clients have accounts of their own, the one that spent most.",
                [Panel("", "round", f"{unit}-level epsilon", lines)],
                simulation=False,
            )


def _spending(findings: RunSummary, legend: Legend, many: bool) -> Iterator[Series]:
    for promise in findings.facts.promises:
        group = findings.title if many else promise.level
        whose = f"{findings.title}, {promise.level}" if many else promise.level
        terms = f"{promise.relation}, delta {promise.delta:g}" if promise.delta else ""
        found = findings.spent_over_rounds(promise.level)
        for at, (name, (rounds, spent)) in enumerate(found.items()):
            text, style = f"{whose} ({name.upper()}, {terms})", "solid" if at == 0 else "dot"
            yield Series(text, group, legend.colors[group], [0, *rounds], [0.0, *spent], style, at == 0)
        if found and promise.budget is not None:
            ends, budget = [0, findings.facts.rounds], [promise.budget] * 2
            yield Series(
                f"{whose}: budget {promise.budget:g}", group, legend.colors[group], ends, budget, "dash", False
            )


def spread(several: Sequence[RunSummary], legend: Legend) -> Section:
    note = "Share of a level's clients by the accuracy of their personal models, at the last round."
    panels = []
    levels = _by_level(several)
    if len(several) == 1:
        bars = [_bars(several[0], name, name, legend) for _, name in levels if name != ALL or len(levels) == 1]
        panels.append(_spread_panel("", [each for each in bars if each]))
    else:
        for _, name in levels:
            bars = [_bars(findings, name, findings.title, legend) for findings in several]
            panels.append(_spread_panel("all clients" if name == ALL else name, [each for each in bars if each]))
    return Section("Spread over clients", note, [panel for panel in panels if panel.series])


def _spread_panel(title: str, bars: Sequence[Series]) -> Panel:
    return Panel(title, "accuracy of the personal model", "clients, %", bars, kind="bar")


def _bars(findings: RunSummary, level: str, group: str, legend: Legend) -> Series | None:
    values = findings.accuracies(None if level == ALL else level)
    if not values:
        return None
    shares = 100 * np.histogram(values, BINS)[0] / len(values)
    centres = np.round((BINS[:-1] + BINS[1:]) / 2, 3)
    return Series(group, group, legend.colors[group], centres.tolist(), shares.tolist())
