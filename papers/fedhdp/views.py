"""What a page of FedHDP shows of its cells: tables beside the paper, order of the arms, ratios, levels, recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from papers.bench import Cell
from papers.fedhdp.paper import FIGURES, SPREADS, ratios, repetitions
from papers.fedhdp.recipe import DP_FEDAVG, NON_PRIVATE, OPTIMAL, Recipe, at
from papers.page import COLORS, Curve, Panel, Part, Picture, Results, plus_minus
from tacit.report.wording import number

HEADS = ("Acc_g", "Acc_g,p", "Acc_g,np", "Δ_g", "Acc_l,p", "Acc_l,np", "Δ_l")


@dataclass(frozen=True)
class Row:
    """One arm at one lambda: the paper's figures, if it has them, and a cell for each seed."""

    arm: str
    strength: float
    paper: Mapping[str, float]
    cells: Sequence[Cell]

    def values(self, name: str) -> list[float]:
        return [cell[name] for cell in self.cells if name in cell]

    @property
    def accuracy(self) -> float:
        """Of the shared model, mean over seeds."""
        return float(np.mean(self.values("global")))


def spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def setting(recipe: Recipe, private: Row, note: str) -> str:
    level = private.cells[0]["levels"]["private"]
    spent = ", ".join(f"{number(value)} by {name.upper()}" for name, value in level["spent"].items())
    return (
        f"{note} {recipe.clients:,} clients, each asked with probability {recipe.rate:g} in each of {recipe.rounds} "
        f"rounds; {_opted_out(recipe)} opted out. Private clients: epsilon {spent}, delta 1e-4, client-level, "
        f"add/remove; noise multiplier {level['noise']:.3f}, the clip bound's bits included. Who opted out has no "
        "guarantee."
    ).strip()


def _opted_out(recipe: Recipe) -> str:
    share = recipe.opted_out["share"] if isinstance(recipe.opted_out, Mapping) else recipe.opted_out
    return f"{100 * share:.3g}%"


def table(recipe: Recipe, rows: Sequence[Row], seeds: int) -> Results:
    lines = [line for row in rows for line in _lines(row)]
    note = (
        f"Mean ± standard deviation over {seeds} seeds; in brackets the variance across clients, as 100 x that of "
        "shares. Acc_g: the shared model on the common test set; Acc_g,p and Acc_g,np on private and opted-out "
        "clients' own test images; Acc_l: personal models on these."
    )
    strength = rows[0].strength
    return Results(f"{recipe.table}, lambda = {strength:g}", ["", "", *HEADS], lines, note)


def _lines(row: Row) -> list[list[str]]:
    paper = [_paper(row.paper, name) for name in FIGURES]
    measured = [_measured(row, name) for name in FIGURES]
    return ([[row.arm, "paper", *paper]] if row.paper else []) + [[row.arm, "ours", *measured]]


def _paper(figures: Mapping[str, float], name: str) -> str:
    if name not in figures:
        return "-"
    variance = figures.get(f"{name}_variance")
    return f"{figures[name]:.2f}" + (f" ({variance:g})" if variance is not None else "")


def _measured(row: Row, name: str) -> str:
    values = row.values(name)
    if not values:
        return "-"
    text = plus_minus(float(np.mean(values)), spread(values), 2)
    return text + (f" ({np.mean(row.values(f'{name}_variance')):.2g})" if name in SPREADS else "")


def papers_spread(recipe: Recipe) -> Results:
    """What the paper's own tables say of chance: their three lambda blocks repeat the same shared model."""
    private, free = repetitions(recipe.table, DP_FEDAVG), repetitions(recipe.table, NON_PRIVATE)
    tried = {at(ratio): repetitions(recipe.table, at(ratio)) for ratio in ratios(recipe.table)}
    top = max(tried, key=lambda arm: float(np.mean(tried[arm])))
    gain = float(np.mean(tried[top]) - np.mean(private))
    error = float(np.hypot(spread(private), spread(tried[top])) / np.sqrt(len(private)))
    share = gain / float(np.mean(free) - np.mean(private))
    line = [
        mean_of(free),
        mean_of(private),
        top,
        mean_of(tried[top]),
        plus_minus(gain, error, 2),
        f"{gain / error:.1f}",
    ]
    heads = [NON_PRIVATE, DP_FEDAVG, "best r", "at it", "gain ± standard error", "t", "gap closed"]
    note = (
        "Ditto does not touch the shared model, so the three lambdas are three repetitions of Acc_g (our reading). The "
        "best r is the one with the highest mean of its three."
    )
    return Results("The paper's own spread", heads, [[*line, f"{100 * share:.0f}%"]], note)


def skew(recipe: Recipe, rows: Mapping[str, Row]) -> Results:
    """Why no ratio gains much where all who opted out hold one digit: what it takes from the noise it adds as bias."""
    share = recipe.opted_out["share"] if isinstance(recipe.opted_out, Mapping) else recipe.opted_out
    held = 1 / 10  # of all clients, each digit about alike
    lines = []
    for arm, row in tuned(rows).items():
        ratio = float(arm.removeprefix("r="))
        private = ratio * (1 - share) / (share + ratio * (1 - share))
        digit = 1 - private + private * (held - share) / (1 - share)
        noise = private / (1 - share)
        lines.append([arm, f"{100 * noise:.0f}%", f"{100 * digit:.0f}%", mean_of(row.values("global"))])
    heads = ["", "noise, of DP-FedAvg's", "the digit's part in the mean", "Acc_g"]
    note = (
        f"In closed form: {100 * share:.3g}% of the clients opted out, all with one digit of which {100 * held:.0f}% "
        "of all clients are. A ratio that takes a third of the noise makes the digit's part nearly four times what it "
        "is among all clients, in every round: noise averages out over rounds, this does not. In the paper the gain is "
        "not clear either (below)."
    )
    return Results("What a ratio takes from the noise, it adds as bias", heads, lines, note)


def tuned(rows: Mapping[str, Row]) -> dict[str, Row]:
    return {arm: row for arm, row in rows.items() if arm.startswith("r=")}


def best(rows: Mapping[str, Row]) -> Row:
    """The tuned ratio with the highest mean accuracy of the shared model."""
    return max(tuned(rows).values(), key=lambda row: row.accuracy)


def closed(rows: Mapping[str, Row]) -> float:
    """The share of the gap between DP-FedAvg and non-private that the best ratio closes."""
    private, free = rows[DP_FEDAVG].accuracy, rows[NON_PRIVATE].accuracy
    return (best(rows).accuracy - private) / (free - private) if free != private else float("nan")


def order(rows: Mapping[str, Row]) -> Results:
    """The papers' claim, seed by seed: max(DP-FedAvg, r=1) < best r < non-private."""
    top = best(rows)
    shown = [rows[DP_FEDAVG], rows["r=1"], top, rows[OPTIMAL], rows[NON_PRIVATE]]
    several = zip(*(row.values("global") for row in shown), strict=True)
    lines = []
    for seed, (private, uniform, found, optimal, free) in enumerate(several):
        holds = "yes" if max(private, uniform) < found < free else "no"
        lines.append([str(seed), *(f"{value:.2f}" for value in (private, uniform, found, optimal, free)), holds])
    note = (
        f"The best ratio, {top.arm}, closes {100 * closed(rows):.0f}% of the gap between DP-FedAvg and non-private. It "
        "is the best of those shown, by their mean on the test set; no r was chosen on validation images."
    )
    heads = ["seed", DP_FEDAVG, "r=1", f"best ({top.arm})", OPTIMAL, NON_PRIVATE, "max of the first two < best < last"]
    return Results("Acc_g, seed by seed", heads, lines, note)


def gap(rows: Mapping[str, Row]) -> Results:
    """How far each step goes from DP-FedAvg to non-private: here, in the paper, and here from the paper's DP-FedAvg."""
    top = best(rows)
    shown = {"DP-FedAvg": DP_FEDAVG, "opted-out alone": "r=0", f"best ratio, {top.arm}": top.arm}
    shown["non-private"] = NON_PRIVATE
    here = {name: rows[arm].accuracy for name, arm in shown.items()}
    there = {name: rows[arm].paper["global"] for name, arm in shown.items() if rows[arm].paper}
    low, high, weak, strong = here["DP-FedAvg"], here["non-private"], there["DP-FedAvg"], there["non-private"]
    lines = []
    for name, value in here.items():
        paper = [f"{there[name]:.2f}", _share(there[name], weak, strong)] if name in there else ["-", "-"]
        lines.append([name, f"{value:.2f}", _share(value, low, high), _share(value, weak, high), *paper])
    heads = ["", "Acc_g", "of the gap", f"of the gap above {weak:.2f}", "paper, Acc_g", "paper, of its gap"]
    note = (
        f"The gap is the one between DP-FedAvg and non-private; the one above {weak:.2f} begins at the paper's "
        "DP-FedAvg, which had the same noise per mean."
    )
    return Results("How much of the gap is closed", heads, lines, note)


def _share(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / (high - low):.0f}%" if high != low else "-"


def against_ratio(recipe: Recipe, rows: Mapping[str, Row]) -> Picture:
    inner = {float(arm.removeprefix("r=")): row for arm, row in tuned(rows).items() if arm != "r=0"}
    x = list(inner)
    errors = [spread(row.values("global")) for row in inner.values()]
    curves = [Curve("ours", x, [row.accuracy for row in inner.values()], COLORS[0], errors)]
    known = {ratio: row.paper["global"] for ratio, row in inner.items() if "global" in row.paper}
    if known:
        curves.append(Curve("paper", list(known), list(known.values()), "#888888", style="dash"))
    for arm, color in ((NON_PRIVATE, COLORS[2]), (OPTIMAL, COLORS[3]), (DP_FEDAVG, COLORS[1])):
        curves.append(Curve(arm, x, [rows[arm].accuracy] * len(x), color, style="dot"))
    panel = Panel("", "ratio r", "Acc_g, %", curves, log="x")
    return Picture(
        f"{recipe.name}-ratio", "The shared model's accuracy against the weight of private clients.", [panel]
    )


def chosen_ratios(recipe: Recipe, optimal: Row, top: Row) -> list[Part]:
    """What `ratio = "optimal"` chose, round by round, and how it did beside the best tuned ratio."""
    several: list[list[float]] = [cell["ratios"] for cell in optimal.cells]
    rounds = list(range(1, len(several[0]) + 1))
    marks = [r for r in (1, 10, 50, 100, 200, 300, 400, 500) if r <= len(rounds)]
    lines = [[str(seed), *(f"{chosen[r - 1]:.3g}" for r in marks)] for seed, chosen in enumerate(several)]
    note = (
        f'`ratio = "optimal"`, untuned, comes to {optimal.accuracy:.2f}; the best tuned ratio, {top.arm}, to '
        f"{top.accuracy:.2f}: {optimal.accuracy - top.accuracy:+.2f} points."
    )
    curves = [Curve(f"seed {seed}", rounds, chosen, COLORS[seed % len(COLORS)]) for seed, chosen in enumerate(several)]
    panel = Panel("", "round", "ratio r", curves, "y")
    picture = Picture(f"{recipe.name}-optimal", "The ratio that was chosen in every round.", [panel])
    return [Results("The ratio that was chosen, by round", ["seed", *map(str, marks)], lines, note), picture]


def menu(rows: Mapping[str, Row]) -> Results:
    """Three levels beside the two federations that have only one of the private ones."""
    lines = []
    for arm, row in rows.items():
        lines.append([arm, "", "", "", "", "", mean_of(row.values("global")), ""])
        for name, level in row.cells[0]["levels"].items():
            own = [cell["levels"][name] for cell in row.cells]
            accuracies = [mean_of([each[which] for each in own]) for which in ("global", "personal")]
            lines.append([f"- {name}", str(level["clients"]), *_guarantee(level), *accuracies])
    heads = ["", "clients", "budget", "spent, PLD", "spent, RDP", "z", "Acc_g", "Acc_l"]
    note = "Acc_g of a federation is on the common test set, that of a level on its clients' own test images."
    return Results("Three levels: each has its own epsilon", heads, lines, note)


def _guarantee(level: Mapping[str, Any]) -> list[str]:
    if not level["noise"]:
        return ["no guarantee", "-", "-", "-"]
    budget = "-" if level["budget"] is None else f"{level['budget']:g}"
    return [budget, *(number(level["spent"][name]) for name in ("pld", "rdp")), f"{level['noise']:.3f}"]


def mean_of(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return plus_minus(float(np.mean(values)), spread(values), 2)


def recipe(of: Recipe, cells: Sequence[Cell]) -> str:
    """What was chosen where the paper prints nothing, and how long a cell took."""
    kinds = [f"- {kind}: {', '.join(f'{k} {v:g}' for k, v in asdict(each).items())}" for kind, each in of.tuned.items()]
    seconds = [cell["seconds"] for cell in cells]
    return "\n".join(
        [
            f"**Recipe.** {of.model}, hidden {list(of.hidden)}, head at {of.head:g} x its usual start; inputs "
            f"(pixel - {of.shift:g}) / {of.scale:g}; batches of {of.batch}, {_local(of)}; personal learning rate "
            f"{of.personal_lr:g}. Chosen on validation images: [every setting that was tried](fedhdp-selection.md).",
            "",
            *kinds,
            "",
            f"A cell took {min(seconds):.0f} to {max(seconds):.0f} seconds (median {np.median(seconds):.0f}), on a "
            "machine that was shared with other work.",
        ]
    )


def _local(of: Recipe) -> str:
    return "one epoch" if of.steps is None else f"{of.steps} local step" + "s" * (of.steps > 1)
