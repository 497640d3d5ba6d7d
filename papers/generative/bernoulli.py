"""Gains of personal rates over local ones, Section 4 (synthetic, Bernoulli), and what privacy leaves of them."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.page import COLORS, Curve, Panel, Part, Picture, Results, plus_minus
from tacit.core import rng
from tacit.estimation.bernoulli import BernoulliRates
from tacit.estimation.messages import Central, LocalGaussian, Message, RandomisedResponse

M, N, DELTA = 10_000, 14, 1e-5
Draw = Callable[[np.random.Generator, int], np.ndarray]
PRIORS: Final[dict[str, tuple[Draw, float, float, float]]] = {
    # draw, the paper's gain and its deviation, the linear oracle's gain, all in percent
    "normal(.5, .15)": (lambda r, m: np.clip(r.normal(0.5, 0.15, m), 0, 1), 37.1, 3.9, 41.9),
    "uniform": (lambda r, m: r.random(m), 12.0, 1.6, 12.5),
    "3-spike": (lambda r, m: r.choice([0.25, 0.5, 0.75], m), 24.3, 2.8, 26.3),
    "Beta(4, 4)": (lambda r, m: r.beta(4, 4, m), 34.0, 3.7, 36.4),
}
EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
WORST: Final[dict[str, Draw]] = {
    "Beta(.2, .2)": lambda r, m: r.beta(0.2, 0.2, m),
    "uniform": lambda r, m: r.random(m),
    "Beta(4, 4)": lambda r, m: r.beta(4, 4, m),
    "Beta(2, 40)": lambda r, m: r.beta(2, 40, m),
    "one rate for all": lambda r, m: np.full(m, 0.5),
}


def gain(draw: Draw, seed: int, m: int = M, **parameters: Any) -> Cell:
    """Measured gain over local, in percent, for one draw of clients."""
    source = rng.generator(seed, "bernoulli")
    rates = draw(source, m)
    won = source.binomial(N, rates)
    row = BernoulliRates(seed=seed, **parameters).fit(won, trials=N).compare(rates)["personal"]
    return {"gain": 100 * (row.measured_gain or 0.0)}


def measured(bench: Runner, prior: str, kind: str, message: Message | None = None, **more: Any) -> np.ndarray:
    draw = PRIORS[prior][0]
    config = {"prior": prior, "message": repr(message), "kind": kind}
    return np.array(bench.over_seeds(config, lambda s: gain(draw, s, message=message, **more))["gain"])


def make(bench: Runner) -> list[Part]:
    return [_open(bench), *_private(bench), _worst(bench), _WHY]


def _open(bench: Runner) -> Results:
    rows = []
    for prior, (_, paper, sd, oracle) in PRIORS.items():
        printed = measured(bench, prior, "as-published", moments="as-published")
        debiased = measured(bench, prior, "debiased")
        se = debiased.std(ddof=1) / np.sqrt(len(debiased))
        near = abs(debiased.mean() - oracle) / se
        rows.append(
            [
                prior,
                plus_minus(paper, sd),
                plus_minus(printed.mean(), printed.std(ddof=1)),
                "yes" if abs(printed.mean() - paper) <= sd else "NO",
                f"{debiased.mean():.2f} ± {se:.2f}",
                f"{oracle:.1f}",
                f"{near:.1f} se" + ("" if near <= 2 else " (FALLS SHORT)"),
            ]
        )
    heads = ["prior", "paper", "as-published", "within 1 sd of paper", "debiased (± se)", "linear oracle", "away by"]
    note = (
        f"{M:,} clients of {N} trials, {bench.seeds} repetitions. ± is a standard deviation where not said otherwise."
    )
    return Results("Gain over local estimates, percent of the squared error", heads, rows, note)


def _private(bench: Runner) -> list[Part]:
    rows, curves = [], []
    for at, prior in enumerate(PRIORS):
        found = {e: measured(bench, prior, "split", RandomisedResponse(e)) for e in EPSILONS}
        printed = measured(bench, prior, "as-published", RandomisedResponse(1.0), moments="as-published")
        local, central = (measured(bench, prior, "joint", kind(1.0, DELTA)) for kind in (LocalGaussian, Central))
        worst = min(each.min() for each in found.values())
        cells = [plus_minus(found[e].mean(), found[e].std(ddof=1)) for e in (1.0, 2.0, 4.0)]
        others = [plus_minus(each.mean(), each.std(ddof=1)) for each in (printed, local, central)]
        rows.append([prior, *cells, f"{worst:.1f}", *others])
        error = [float(found[e].std(ddof=1) / np.sqrt(bench.seeds)) for e in EPSILONS]
        curves.append(Curve(prior, EPSILONS, [float(found[e].mean()) for e in EPSILONS], COLORS[at], error))
        curves.append(Curve(f"{prior}, oracle", EPSILONS, [PRIORS[prior][3]] * len(EPSILONS), COLORS[at], style="dot"))
    heads = ["prior", "eps0 = 1", "2", "4", "worst draw", "as-published, 1", "Gaussian, 1", "central, 1"]
    note = (
        f"Client-level, replace; randomised response is local and pure, the Gaussian columns have delta {DELTA:g}. "
        f"Worst draw: the least gain of any repetition at eps0 from {EPSILONS[0]:g} to {EPSILONS[-1]:g}."
    )
    table = Results("Private gains: one message a client, the prior's variance by the split", heads, rows, note)
    panel = Panel("", "eps0 of each client's one bit", "gain over local, %", curves, log="x")
    return [table, Picture("private", "Gain of private personal rates; dotted: the linear oracle.", [panel])]


def _worst(bench: Runner) -> Results:
    """Small and hostile settings: few clients, priors far from what helps."""
    ways: dict[str, Message | None] = {
        "open": None,
        "eps0 = 1": RandomisedResponse(1.0),
        "eps0 = .25": RandomisedResponse(0.25),
    }
    rows = []
    for prior, draw in WORST.items():
        cells = []
        for m in (10, 100, 10_000):
            for name, message in ways.items():
                many = max(20_000 // m, 10)
                config = {"worst": prior, "m": m, "way": name, "draws": many}
                figure = bench.cell(
                    config, lambda d=draw, m=m, message=message, many=many: _mean_gain(d, m, message, many)
                )
                cells.append(f"{figure['gain']:+.1f}")
        rows.append([prior, *cells])
    heads = ["prior", *(f"{m:,} clients, {name}" for m in (10, 100, 10_000) for name in ways)]
    return Results("Worst cases: gain over local, percent of the mean local error", heads, rows)


def _mean_gain(draw: Draw, m: int, message: Message | None, many: int) -> Cell:
    """Over many draws: mean personal error against mean local error."""
    personal, local = 0.0, 0.0
    for seed in range(many):
        source = rng.generator(seed, "worst")
        rates = draw(source, m)
        won = source.binomial(N, rates)
        found = BernoulliRates(message=message, seed=seed).fit(won, trials=N)
        personal += float(np.square(found.estimates_ - rates).mean())
        local += float(np.square(won / N - rates).mean())
    return {"gain": 100 * (1 - personal / local)}


_WHY: Final = """**Reading.** The printed formula takes the variance of the observed shares for that of the prior;
debiased, the same messages give the linear oracle's gain. With randomised response the printed private weight is a
function of the mean alone and gains next to nothing. In the split, a random half of the clients sends
(Z/n - 1/2)^2, which lies in [0, 1/4], instead of Z/n: a quarter of the range of a square, so a quarter of the noise.
The weight is best for the mean of what the prior's variance may be, so that a low draw cannot pull everybody to the
centre, and behind messages nobody is pulled farther than does no harm at that variance's upper limit, three standard
deviations above. Where messages cannot rule out that every rate is near 0 or 1 (rare successes, few clients, small
eps0), each client may be exact alone, and so nobody moves: the zeros of the last table are the price of doing no
harm."""

REPRODUCTION: Final = Reproduction(
    name="estimation/bernoulli",
    title="Personal rates: Bernoulli clients",
    paper="A generative framework, Section 4, synthetic Bernoulli experiments; Theorems 3 and 4.",
    make=make,
    version=4,
)
