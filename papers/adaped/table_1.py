"""AdaPeD's Table 1: personal accuracy of eight methods on MNIST and on groups of writers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from papers.adaped.cells import (
    EVERYBODY,
    METHODS,
    MNIST,
    VERSIONS,
    WRITERS_15,
    WRITERS_33,
    World,
    costs,
    federation,
    setting_of,
    trained,
)
from papers.bench import Reproduction, Runner
from papers.page import Part, Results, over, spread

COLUMNS: Final = (MNIST, WRITERS_33, WRITERS_15)
PAPER: Final[dict[str, tuple[str, str, str]]] = {
    "FedAvg": ("92.93 ± 0.09", "93.14 ± 0.15", "92.18 ± 0.13"),
    "FedAvg + fine-tuning": ("95.42 ± 0.25", "93.81 ± 0.30", "94.12 ± 0.26"),
    "AdaPeD": ("98.53 ± 0.11", "96.88 ± 0.29", "96.55 ± 0.32"),
    "AdaPeD, random start": ("", "", ""),
    "pFedMe": ("97.83 ± 0.04", "94.03 ± 0.61", "94.95 ± 0.55"),
    "Per-FedAvg": ("95.88 ± 0.27", "93.28 ± 0.41", "93.51 ± 0.31"),
    "QuPeD (FP)": ("98.14 ± 0.39", "96.11 ± 0.13", "95.99 ± 0.08"),
    "Federated ML": ("97.93 ± 0.33", "94.83 ± 0.59", "95.12 ± 0.18"),
    "local": ("", "", ""),
}
TRAINED: Final = tuple(name for name in PAPER if name in METHODS)
Table = dict[str, dict[str, list[float]]]


def measured(bench: Runner, world: World, name: str) -> dict[str, list[float]]:
    setting = setting_of(world, name)
    config = {"method": name, "world": world.name, "rounds": world.rounds, **setting.config, **VERSIONS.get(name, {})}
    return bench.over_seeds(
        config, lambda seed: trained(federation(world.data, seed), METHODS[name], world, setting, seed)
    )


def make(bench: Runner) -> list[Part]:
    tables = [_rows({name: measured(bench, world, name) for name in _asked(world, bench.full)}) for world in COLUMNS]
    return [
        _table(tables, bench.seeds),
        _differences(tables),
        _verdicts(tables),
        _settings(),
        costs(MNIST, {(name, "none"): row for name, row in tables[0].items()}),
        _WHAT,
        _START,
    ]


def _asked(world: World, full: bool) -> list[str]:
    """The random start of the writers only with --full."""
    return [name for name in TRAINED if full or world is MNIST or name != "AdaPeD, random start"]


def _rows(found: dict[str, dict[str, list[float]]]) -> Table:
    """FedAvg's run is two rows: its shared model, and the same after tuning on each client."""
    fedavg = found["FedAvg"]
    rows = {"FedAvg": {**fedavg, "personal": fedavg["shared"], "worst": []}, "FedAvg + fine-tuning": fedavg}
    return {name: rows.get(name) or found[name] for name in PAPER if name in rows or name in found}


def _table(tables: list[Table], seeds: int) -> Results:
    rows = []
    for name in tables[0]:
        pairs = zip(PAPER[name], tables, strict=True)
        cells = [[text, over(table[name]["personal"]) if name in table else ""] for text, table in pairs]
        rows.append([name, *(cell for pair in cells for cell in pair)])
    heads = ["method", *(head for world in COLUMNS for head in (f"{world.name}: paper", "ours"))]
    lengths = ", ".join(f"{world.name}: {world.rounds} rounds" for world in COLUMNS)
    note = f"Personal test accuracy in percent, mean over clients, after the last round; seeds: {seeds}. {lengths}."
    return Results("Table 1", heads, rows, note)


def _differences(tables: list[Table]) -> Results:
    """AdaPeD less each other method, seed by seed: both have the same clients, rows and start of a seed."""
    rows = [[name, *(_difference(table, name) for table in tables)] for name in tables[0] if name != "AdaPeD"]
    note = "Mean over seeds and its standard error, in points; above 0 AdaPeD is better."
    return Results("AdaPeD less each method", ["method", *(world.name for world in COLUMNS)], rows, note)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of the differences by seed, and its standard error."""
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    return float(np.mean(gaps)), spread(gaps) / len(gaps) ** 0.5


def _difference(table: Table, name: str) -> str:
    if name not in table:
        return ""
    mean, error = paired(table["AdaPeD"]["personal"], table[name]["personal"])
    return f"{mean:+.2f} ± {error:.2f}"


def _settings() -> Results:
    """The chosen settings, by column."""
    rows = []
    for name in TRAINED:
        chosen = [setting_of(world, name) for world in COLUMNS[:2]]
        rows.append([name, *(text for each in chosen for text in each.words)])
    heads = ["method", *(f"{which}: {what}" for which in ("MNIST", "writers") for what in ("rate", "own", "start"))]
    note = "`own`: the rate of a model that a client keeps or tunes. `start`: share of the rounds that are FedAvg's."
    return Results("Settings", heads, rows, note)


def _verdicts(tables: list[Table]) -> Results:
    """Each claim of the paper beside what was measured, met or not."""
    rows = []
    for at, (world, table) in enumerate(zip(COLUMNS, tables, strict=True)):
        mean = {name: float(np.mean(row["personal"])) for name, row in table.items()}
        best = max(mean, key=lambda name: mean[name])
        gap, error = paired(table["AdaPeD"]["personal"], table[best]["personal"])
        text = best if best == "AdaPeD" else f"{best} is better by {-gap:.2f} ± {error:.2f}"
        rows.append([world.name, "AdaPeD is best within one standard error", text, _said(gap >= -error)])
        if world.data == "mnist":
            rows.append([world.name, "AdaPeD at least 98.53", f"{mean['AdaPeD']:.2f}", _said(mean["AdaPeD"] >= 98.53)])
        for name, paper in PAPER.items():
            if paper[at] and name != "AdaPeD" and world.data == "mnist":
                low = float(paper[at].split(" ")[0]) - 1
                rows.append([world.name, f"{name} at least {low:.2f}", f"{mean[name]:.2f}", _said(mean[name] >= low)])
        if world.data == "writers":
            for name in ("FedAvg", "FedAvg + fine-tuning", "pFedMe", "Per-FedAvg"):
                gap, error = paired(table["AdaPeD"]["personal"], table[name]["personal"])
                text = f"{gap:+.2f} ± {error:.2f}"
                rows.append([world.name, f"AdaPeD above {name} by a standard error", text, _said(gap > error)])
    return Results("The paper's claims as targets", ["data", "target", "ours", "met"], rows)


def _said(kept: bool) -> str:
    return "yes" if kept else "NO"


def make_everybody(bench: Runner) -> list[Part]:
    """AdaPeD, and with `--full` FedEM, with every client in every round."""
    world = EVERYBODY if bench.full else replace(EVERYBODY, epochs=20)
    asked = {"AdaPeD": ("99.04 ± 0.11", 99.04)} | ({"FedEM": ("98.90 ± 0.20", 97.90)} if bench.full else {})
    found = {name: measured(bench, world, name) for name in asked}
    rows = [
        [name, paper, over(row["personal"]), over(row["worst"]), over(row["shared"]), _compare(row["personal"], target)]
        for (name, row), (paper, target) in zip(found.items(), asked.values(), strict=True)
    ]
    heads = ["method", "paper", "ours", "worst decile", "shared model", "target"]
    note = f"{world.rounds} rounds of {TAU_TEXT} (the paper's: {EVERYBODY.rounds}); seeds: {bench.seeds}."
    return [Results("MNIST, 50 clients of three classes, full participation", heads, rows, note), _EVERYBODY]


def _compare(found: list[float], target: float) -> str:
    difference = float(np.mean(found)) - target
    return f"at least {target:.2f}: {'met' if difference >= 0 else 'NOT met'} ({difference:+.2f})"


TAU_TEXT: Final = "10 steps of 20 rows"
_EVERYBODY: Final = """AdaPeD starts from what FedAvg found in 90% of the rounds, as chosen on validation rows
([what was tried](adaped-selection.md)). A start of 50% had been seen on test rows before: 98.94 after 60 rounds and
98.64 after 120. With everybody asked in every round psi falls to its floor, the others' outputs then weigh as much as a
client's own labels, and at a rate of .1 some clients' models suffer: longer personal training made it worse."""
_WHAT: Final = """**Setting.** A 5-layer CNN (conv 5x5x6, 5x5x16, linear 256-120-84-10), 10 local steps a round, 6
rounds an epoch, rate x .99 an epoch, weight decay 1e-4; pixels less .1307, over .3081. MNIST: 50 clients of three
classes with about 1,200 rows each, test rows in the same proportions; every row of the table, also FedAvg's, is the
mean over clients on such rows. Writers: 66 clients of three real writers of MNIST digits (about 310 training rows),
who stand in for FEMNIST; the paper's network has ten outputs and its clients 203 to 336 rows, so it probably has
digits alone, too. AdaPeD: psi starts at 4, rate .03, floor .5. pFedMe: lambda .5, eta .2, 3 inner steps.
Per-FedAvg: first order, alpha .01, and 10 steps of it on the client's own training rows before it predicts (the
paper's .001 would leave the model where it is). QuPeD: distillation weight .25. Federated ML: alpha = beta = .25, the
weight of the labels, as in its paper; .75 is distillation. Fine-tuning: 10 steps on the client's own training rows.
Nothing is ever adapted on test rows, and the last round counts, not the best one.

**Rates** on MNIST are the paper's own (.1, Per-FedAvg .075, FedEM .2); those for the writers, and the starts, were
chosen on validation rows of another seed ([what was tried](adaped-selection.md)). The paper's list ends at .05; own
models take smaller steps on the writers, because with batches of five rows larger ones do them harm. FedAvg's rates .2
and .15 were a little better on the writers' validation rows, but ended in NaN in the training of seed 0: .1, the next
of the list, is used."""

_START: Final = """**Where AdaPeD starts.** Algorithm 5 leaves its first models theta_i and mu open. From a random start
a client that is asked every tenth round takes 300 steps on its own rows in all, and hears of the others only through
mu's outputs on these rows: the features that others learned never reach it. So AdaPeD, QuPeD and Federated ML start
from what FedAvg found in a share of the rounds, which counts as part of them; AdaPeD as printed, from a random start,
stands beside it on MNIST (with `--full` on the writers, too). That start was thought of after AdaPeD's test accuracy
from a random start had been seen for seed 0 of MNIST (98.40, below the claim; its cell was not kept), and the writers
were looked at again after seed 0 had shown AdaPeD below FedAvg at a quarter of the rounds; seeds 1 and 2 were not seen
by anybody who chose.

**Our FedAvg is better than the paper's**, which had 92.93 and 93.14 and is not described: there is less to gain over
it here. **Writers** differ little and have few rows each. On their validation rows mu hardly moves after the start
(AdaPeD, QuPeD and eq. (65) end with the same shared accuracy to a hundredth): what AdaPeD adds to FedAvg there is a
model of one's own that is kept and taught, not a better shared one. psi was not tuned."""

REPRODUCTION: Final = Reproduction(
    name="adaped/table-1",
    title="AdaPeD beside seven methods (Table 1)",
    paper="A generative framework, Section 4, Table 1.",
    make=make,
    seeds=3,
    version=3,
    cells="adaped",
    fewest=1,
)
