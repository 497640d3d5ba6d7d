"""Political tendencies of counties: five elections to learn from, one to be judged by; and a poll with known truth."""

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner, data_folder
from papers.page import Part, Results, plus_minus
from tacit.core import rng
from tacit.estimation.bernoulli import BernoulliRates
from tacit.estimation.comparison import Moves
from tacit.estimation.messages import Message, RandomisedResponse

ASKED, EPSILONS = (5, 20, 100), (1.0, 2.0, 4.0)
FILE: Final = "elections/county_pres_2000_2020.npz"


def load() -> dict[str, Any]:
    with np.load(data_folder() / FILE) as data:
        return {name: data[name] for name in data.files}


def make(bench: Runner) -> list[Part]:
    data = load()
    return [_wins(bench, data), _WHY, *_poll(bench, data)]


def _wins(bench: Runner, data: dict[str, Any]) -> Results:
    ways: dict[str, dict[str, Any]] = {"as-published": {"moments": "as-published"}, "debiased": {}}
    ways |= {f"split, eps0 = {e:g}": {"message": RandomisedResponse(e)} for e in EPSILONS}
    rows = []
    for name, way in ways.items():
        cells = [
            bench.cell({"wins": name, "held out": at}, lambda at=at, way=way: held_out(data, at, way))
            for at in range(6)
        ]
        gains = np.array([cell["gain"] for cell in cells])
        spread = math.sqrt(float(np.mean([cell["variance"] for cell in cells])))
        paper = "10.7 ± 1.9" if name == "as-published" else ""
        folds = " ".join(f"{gain:+.1f}" for gain in gains)
        theory = [f"{np.mean([cell[against] for cell in cells]):.1f}" for against in ("outcome", "rate")]
        rows.append([name, paper, plus_minus(gains.mean(), gains.std(ddof=1), 2), folds, *theory, f"{spread:.3f}"])
    years = " ".join(map(str, data["years"]))
    heads = ["", "paper", "gain, %", f"held out {years}", "expected, % against an outcome", "against the rate itself"]
    note = (
        f"{len(data['fips']):,} counties (the paper has 3,112), 1 if the Republican candidate won; each election held "
        "out once. Squared error against the held-out outcome, ± standard deviation over folds. Expected: by the "
        "theorem, for elections that are draws of one rate."
    )
    return Results("Five elections to learn from, one to be judged by", [*heads, "spread of rates (sd)"], rows, note)


def held_out(data: dict[str, Any], at: int, way: dict[str, Any]) -> Cell:
    """Gain over local, in percent, against the outcome of election `at`; and as expected by the theorem.

    The squared error against an outcome is the one against the rate p plus p (1 - p), n times the local error.
    """
    won = data["rep_won"].astype(float)
    outcome, train = won[:, at], np.delete(won, at, axis=1).sum(1)
    found = BernoulliRates(seed=at, **way).fit(train, trials=5)
    local, personal = (float(np.square(each - outcome).mean()) for each in (train / 5, found.estimates_))
    rate = 100 * found.compare().gain
    expected = {"rate": rate, "outcome": rate / (1 + 5)}
    return {"gain": 100 * (1 - personal / local), "local": local, "variance": found.prior_variance_, **expected}


def poll(data: dict[str, Any], seed: int, asked: int) -> tuple[np.ndarray, np.ndarray]:
    """True Republican share of 2020 in each county, and how many of `asked` voters said so."""
    votes = data["rep_votes"][:, -1].astype(float)
    truth = votes / (votes + data["dem_votes"][:, -1])
    return truth, rng.generator(seed, "poll").binomial(asked, truth)


def _poll(bench: Runner, data: dict[str, Any]) -> list[Part]:
    rows = []
    for asked in ASKED:
        cells = []
        for message in (None, *map(RandomisedResponse, EPSILONS)):
            config = {"poll": asked, "message": repr(message)}
            gains = bench.over_seeds(config, lambda seed, a=asked, m=message: _gain(data, seed, a, m))["gain"]
            cells.append(plus_minus(float(np.mean(gains)), float(np.std(gains, ddof=1))))
        rows.append([f"{asked} voters", *cells])
    heads = ["asked in each county", "open", *(f"eps0 = {e:g}" for e in EPSILONS)]
    note = f"Drawn from the real votes of 2020, so the truth is known. {bench.seeds} draws, ± standard deviation."
    table = Results("A poll in every county: gain over local, percent", heads, rows, note)
    return [table, replace(_moves(data).figure(), name="poll", note=_CAPTION)]


def _gain(data: dict[str, Any], seed: int, asked: int, message: Message | None) -> Cell:
    truth, said = poll(data, seed, asked)
    row = BernoulliRates(message=message, seed=seed).fit(said, trials=asked).compare(truth)["personal"]
    return {"gain": 100 * (row.measured_gain or 0.0)}


def _moves(data: dict[str, Any]) -> Moves:
    _, said = poll(data, 0, 20)
    found = BernoulliRates(message=RandomisedResponse(1.0), seed=0).fit(said, trials=20)
    low, high = found.intervals()
    names = [f"{county}, {state}" for county, state in zip(data["county"], data["state"], strict=True)]
    title = "20 voters asked in each of 3,111 counties; one private bit from each county (eps0 = 1)"
    return Moves(
        names, found.local_, found.estimates_, low, high, float(found.global_), title, "Republican share, 2020"
    )


_CAPTION: Final = "36 counties, evenly over the ranks of their polls: each moves toward the centre, the extreme most."
_WHY: Final = """**Reading.** The paper reports 10.7%. The setting here is the paper's as far as it is stated: six
elections, five to learn from, won or lost, squared error against the sixth, mean of the six folds. The plain formulas
then give about 1%, with folds on both sides of zero. Two reasons, both arithmetic. Most counties always vote for the
same party: rates lie near 0 and 1, their spread is nearly the largest possible, and shrinking saves less than a tenth
of the local error. And an outcome is 0 or 1: of the local estimate's squared error against it, five sixths are the
outcome's own variance, which no estimator can save. A figure near the paper's would need the error against the rates
themselves, which nobody knows; there is a column for what the theorem expects of that. The rest is decided by whether
the held-out election swung toward or away from the common mean, because elections are not draws of one rate. The bound
on harm holds for draws of one rate; it is not a promise about another year. A poll of few voters, below, is where
personal estimates help."""

REPRODUCTION: Final = Reproduction(
    name="estimation/elections",
    title="Personal rates: counties and their elections",
    paper="A generative framework, Section 4, political tendencies on county level.",
    make=make,
    version=3,
)
