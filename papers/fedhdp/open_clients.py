"""What open clients give beside their weight: spans, means of the last models, rounds of their own.

A sixth of the training images stands in for the test set; one seed, none of those that tables report. Trials that have
not been run are named as such: `python -m papers run fedhdp/open-clients --full` runs them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from papers.bench import NotRun, Reproduction, Runner
from papers.fedhdp.cell import validate
from papers.fedhdp.recipe import (
    DP_FEDAVG,
    MNIST,
    NON_PRIVATE,
    SKEWED,
    WRITERS_AT_PAPERS_NOISE,
    WRITERS_CNN,
    Recipe,
    at,
)
from papers.page import Part, Results

SEED: Final = 100
ROUNDS: Final = 200
SPAN: Final = {"span": 100, "rest": 0.1}
AVERAGE: Final = {"average": 50}


@dataclass(frozen=True)
class Trial:
    arm: str
    post: Mapping[str, float]

    @property
    def name(self) -> str:
        said = ", ".join(f"{key} {value:g}" for key, value in self.post.items())
        return f"{self.arm}, {said}" if said else self.arm


def trials(ratio: float) -> tuple[Trial, ...]:
    """In the order in which they are run: what an option is judged against comes first."""
    return (
        Trial(DP_FEDAVG, {}),
        Trial(at(ratio), {}),
        Trial(at(1), SPAN),
        Trial(NON_PRIVATE, {}),
        Trial(at(1), {**SPAN, **AVERAGE}),
        Trial(at(ratio), AVERAGE),
        Trial(at(ratio), {"open_rounds": 50}),
        Trial(DP_FEDAVG, AVERAGE),
        Trial(at(0), {}),  # open clients alone: what there is without anybody private
    )


def short(recipe: Recipe) -> Recipe:
    """Fewer rounds, and every ratio at FedHDP's own hyper-parameters."""
    return replace(recipe, rounds=ROUNDS, noisy=2.0)


FEDERATIONS: Final[Mapping[str, tuple[Recipe, float]]] = {
    "Writers, at the paper's noise": (short(WRITERS_AT_PAPERS_NOISE), 0.025),
    "Writers, at the paper's noise, 169 of 539 opted out": (
        short(replace(WRITERS_AT_PAPERS_NOISE, opted_out=169 / 539)),
        0.025,
    ),
    "One-digit clients of MNIST": (short(MNIST), 0.01),
    "All who opted out hold the digit 7": (short(SKEWED), 0.1),
    "Writers, convolutional network": (short(WRITERS_CNN), 0.01),
}

BARS: Final = {
    "Writers, at the paper's noise": 40.0,
    "Writers, at the paper's noise, 169 of 539 opted out": 200 / 3,
    "One-digit clients of MNIST": 60.0,
}
_REACHED: Final = (
    "Open clients alone (r=0) have no noise: what is missing to non-private there is the data of the others, which "
    "come with their noise."
)


def make(bench: Runner) -> list[Part]:
    """Runs what is missing with `--full`; without it shows what there is."""
    found = {name: run(bench, *given) for name, given in FEDERATIONS.items()}
    return [_ABOUT, reached(found), *(table(name, values) for name, values in found.items())]


def reached(found: Mapping[str, Mapping[str, float | None]]) -> Results:
    """What was aimed at, what open clients close of the gap by themselves, and the best of what was run."""
    lines = []
    for name, least in BARS.items():
        values, shares = found[name], {}
        low, high = values[DP_FEDAVG], values[NON_PRIVATE]
        if low is not None and high is not None:
            shares = {trial: 100 * (v - low) / (high - low) for trial, v in values.items() if v is not None}
        shares.pop(NON_PRIVATE, None)
        top = max(shares, key=shares.__getitem__, default="")
        alone = f"{shares[at(0)]:.0f}%" if at(0) in shares else "not run"
        best = f"{shares[top]:.0f}%" if top else "not run"
        met = "" if not top else "yes" if shares[top] >= least else "**no**"
        lines.append([name, f"at least {least:.0f}%", alone, best, top, met])
    heads = ["", "aim", "open clients alone", "best of those run", "by", "met"]
    return Results("Share of the gap that is closed", heads, lines, _REACHED)


def run(bench: Runner, recipe: Recipe, ratio: float) -> dict[str, float | None]:
    some = bench if bench.full else replace(bench, only_kept=True)
    return {trial.name: _accuracy(some, recipe, trial) for trial in trials(ratio)}


def _accuracy(bench: Runner, recipe: Recipe, trial: Trial) -> float | None:
    """On validation images; None if it has not been run."""
    with suppress(NotRun):
        return validate(bench, replace(recipe, post=trial.post), trial.arm, SEED)["accuracy"]
    return None


def table(name: str, values: Mapping[str, float | None]) -> Results:
    low, high = values[DP_FEDAVG], values[NON_PRIVATE]
    lines = [[trial, *_line(value, low, high)] for trial, value in values.items()]
    return Results(name, ["", "validation, %", "of the gap"], lines)


def _line(value: float | None, low: float | None, high: float | None) -> Sequence[str]:
    if value is None:
        return ["not run", ""]
    known = low is not None and high is not None and high != low
    return [f"{value:.2f}", f"{100 * (value - low) / (high - low):.0f}%" if known else ""]  # pyright: ignore


_ABOUT: Final = (
    f"{ROUNDS} rounds instead of 500, one seed, validation images. Options of the plan `grouped` that cost no privacy: "
    "`span` and `rest` keep of private means what lies in the span of the open clients' last means, and a share of the "
    "rest; `average` takes the mean of the last models; `open_rounds` asks open clients alone first, and private ones "
    "have less noise afterwards where it is calibrated (not where the noise is given). Each ratio has FedHDP's "
    "hyper-parameters, chosen for 500 rounds without these options. r=0 asks open clients alone. "
    "The gap is the one between DP-FedAvg and non-private."
)

REPRODUCTION: Final = Reproduction(
    "fedhdp/open-clients",
    "FedHDP: what open clients give",
    "Beside N. Aldaghri, H. Mahdavifar, A. Beirami: Federated Learning with Heterogeneous Differential Privacy.",
    make,
    seeds=1,
    cells="fedhdp",
    fewest=1,
)
