"""What a sweep shows: one tidy frame over runs, means over seeds, paired differences, and a page that compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tacit.privacy.ledger.statement import SIMULATION
from tacit.report.charts import MEASURED
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series
from tacit.report.html import origin
from tacit.report.metrics import ALL
from tacit.report.page import Table, document, facts, mark, sections
from tacit.report.summary import RunSummary

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable

FIGURES: Final = {"shared": "shared_mean", "personal": "personal_mean", "worst decile": "personal_worst_decile"}
TUNING: Final = (
    "A sweep looks at the accuracy of every run. Whoever publishes the best of them has spent more than its epsilon, "
    "unless the scores came from public data."
)


@dataclass(frozen=True, eq=False)
class Measured:
    """A finished run of a sweep, with what was set for it."""

    settings: Mapping[str, Any]
    seed: int
    run: RunSummary

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings.items()) or self.run.facts.name

    @property
    def epsilon(self) -> float | None:
        """The largest of its levels, by the tightest accountant that the ledger has; None if nothing was charged."""
        spent = [min(by.values()) for by in self.run.epsilons.values() if by]
        return max(spent, default=None)

    def figure(self, name: str) -> float:
        value = self.run.value(ALL, FIGURES[name])
        return float("nan") if value is None else value


def by_setting(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Runs that differ in the seed alone, together."""
    groups: dict[str, list[Measured]] = {}
    for each in measured:
        groups.setdefault(each.name, []).append(each)
    return groups


def sweep_frame(measured: Sequence[Measured]) -> "pd.DataFrame":
    """A row a run: its settings, seed, accuracies, epsilon of each level, rounds, and the name of its folder."""
    import pandas as pd

    rows = [
        {
            **each.settings,
            "seed": each.seed,
            **{name.replace(" ", "_"): each.figure(name) for name in FIGURES},
            **{f"epsilon_{level}": min(by.values()) for level, by in each.run.epsilons.items() if by},
            "rounds": each.run.rounds_done,
            "run": each.run.title,
        }
        for each in measured
    ]
    return pd.DataFrame(rows)


def sweep_table(measured: Sequence[Measured]) -> "RichTable":
    return means(measured).rich()


def difference_table(measured: Sequence[Measured]) -> "RichTable":
    return differences(measured).rich()


def means(measured: Sequence[Measured]) -> Table:
    """One row for each setting."""
    rows = [
        [
            name,
            str(len(runs)),
            *(_mean_and_spread([run.figure(each) for run in runs]) for each in FIGURES),
            _spent(runs),
        ]
        for name, runs in by_setting(measured).items()
    ]
    note = f"Mean and standard deviation over seeds, at the last evaluation: {MEASURED}. {SIMULATION}"
    return Table("Settings", ["setting", "runs", *FIGURES, "epsilon spent"], rows, note)


def differences(measured: Sequence[Measured]) -> Table:
    """Personal accuracy of each setting minus that of the first, seed by seed."""
    groups = by_setting(measured)
    names = list(groups)
    rows = [[name, *_paired(groups[names[0]], groups[name])] for name in names[1:]]
    note = "Paired by seed, in points of personal accuracy; the standard error needs two seeds."
    first = names[0] if names else "the first"
    return Table(f"Difference to {first}", ["setting", "pairs", "difference", "standard error"], rows, note)


def _paired(first: Sequence[Measured], second: Sequence[Measured]) -> list[str]:
    base = {run.seed: run.figure("personal") for run in first}
    gaps = [100 * (run.figure("personal") - base[run.seed]) for run in second if run.seed in base]
    if not gaps:
        return ["0", "-", "-"]
    error = f"{np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.2f}" if len(gaps) > 1 else "-"
    return [str(len(gaps)), f"{np.mean(gaps):+.2f}", error]


def _mean_and_spread(values: Sequence[float]) -> str:
    numbers = [value for value in values if not np.isnan(value)]
    if not numbers:
        return "-"
    return f"{np.mean(numbers):.3f}" + (f" ± {np.std(numbers, ddof=1):.3f}" if len(numbers) > 1 else "")


def _spent(runs: Sequence[Measured]) -> str:
    values = [run.epsilon for run in runs if run.epsilon is not None]
    return f"{max(values):.2f}" if values else "-"


def sweep_figures(measured: Sequence[Measured]) -> list[Figure]:
    """Accuracy over rounds with bands over seeds, and accuracy against epsilon with its Pareto front."""
    groups = by_setting(measured)
    best = sorted(groups, key=lambda name: -_mean(groups[name]))[: len(PALETTE)]
    colors = dict(zip(best, PALETTE, strict=False))
    lines = [_line(name, groups[name], colors.get(name, NEUTRAL)) for name in groups]
    shown = Panel("", "round", "personal accuracy", [line for line in lines if len(line.x)], y_range=(0, 1.03))
    note = f"Mean over seeds and clients; bands are one standard deviation over seeds. {_greyed(groups)}"
    drawn = [Figure("rounds", note.rstrip(), [shown], "Accuracy over rounds", MEASURED)]
    for unit in ("client", "record"):
        held = {
            name: runs for name, runs in groups.items() if runs[0].run.facts.unit == unit and _cost(runs) is not None
        }
        if held:
            drawn.append(_pareto(held, colors, unit))
    return drawn


def _greyed(groups: Mapping[str, Sequence[Measured]]) -> str:
    return f"The best {len(PALETTE)} of {len(groups)} settings have colours." if len(groups) > len(PALETTE) else ""


def _line(name: str, runs: Sequence[Measured], color: str) -> Series:
    """Rounds at which every run of the setting was evaluated."""
    curves = [dict(zip(*run.run.series(ALL, "personal_mean"), strict=True)) for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[round] for round in rounds] for curve in curves])
    band = values.std(0, ddof=1).tolist() if len(runs) > 1 and len(rounds) else None
    label = name if color != NEUTRAL else ""
    return Series(label, rounds, values.mean(0).tolist(), color, band=band, group=name)


def _pareto(groups: Mapping[str, Sequence[Measured]], colors: Mapping[str, str], unit: str) -> Figure:
    points = {name: (_cost(runs) or 0.0, _mean(runs)) for name, runs in groups.items()}
    errors = {name: _error(runs) for name, runs in groups.items()}
    dots = [
        Series(
            name if name in colors else "",
            [x],
            [y],
            colors.get(name, NEUTRAL),
            [errors[name]],
            "none",
            "filled",
            group=name,
        )
        for name, (x, y) in points.items()
    ]
    front = pareto_front(list(points.values()))
    costs, values = [cost for cost, _ in front], [value for _, value in front]
    edge = Series("best for its epsilon", costs, values, NEUTRAL, style="dash", width=1.2)
    note = "Up and to the left is better. Bars are the standard error over seeds; epsilon is the ledger's."
    panel = Panel("", f"{unit}-level epsilon spent", "personal accuracy", [edge, *dots])
    return Figure(f"pareto-{unit}", note, [panel], f"Accuracy against {unit}-level epsilon", SIMULATION)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both: a smaller first number and a larger second one. By the first number."""
    front: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not np.isnan(value) and (not front or value > front[-1][1]):
            front.append((cost, value))
    return front


def _mean(runs: Sequence[Measured]) -> float:
    return float(np.mean([run.figure("personal") for run in runs]))


def _error(runs: Sequence[Measured]) -> float:
    values = [run.figure("personal") for run in runs]
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _cost(runs: Sequence[Measured]) -> float | None:
    values = [run.epsilon for run in runs if run.epsilon is not None]
    return max(values) if values else None


def sweep_page(title: str, measured: Sequence[Measured]) -> str:
    """The whole page: what was tried, figures, means, paired differences."""
    groups = by_setting(measured)
    keys = dict.fromkeys(key for each in measured for key in each.settings)
    about = f"{len(measured)} runs of {len(groups)} settings ({', '.join(keys) or 'seeds alone'})."
    body = [
        f"<header><h1>{escape(title)}: a sweep{mark(SIMULATION)}</h1>",
        f'<p class="quiet">{escape(about)}</p>{facts(origin(measured[0].run)) if measured else ""}',
        f'<p class="alert">{escape(TUNING)}</p></header>',
        sections(sweep_figures(measured)) if measured else "<p>No run has ended yet.</p>",
        means(measured).html(),
        differences(measured).html() if len(groups) > 1 else "",
    ]
    return document(f"{title}: a sweep", "".join(body))
