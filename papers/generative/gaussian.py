"""Figure 4: squared error of private personal means against eps0; and the bound that nothing can beat."""

import math
from typing import Any, Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.generative.bounds import gaussian_mse, van_trees_gaussian
from papers.page import COLORS, Curve, Panel, Part, Picture, Results
from tacit.core import rng
from tacit.estimation.messages import Central, LocalGaussian, Message, Quantized, RandomisedResponse
from tacit.estimation.shrinkage import GaussianMeans, suggest_radius

M, N, MEAN, PRIOR, NOISE, DELTA, BOUND = 10_000, 15, 0.2, 0.01, 0.25, 1e-5, 0.5
WORST: Final = {"variance 0": 0.0, "as v": NOISE / N, "10 v": 10 * NOISE / N, "60 v": 60 * NOISE / N}
EPSILONS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
RADIUS: Final = suggest_radius(BOUND, PRIOR, NOISE, N, M)


def error(seed: int, m: int = M, n: int = N, prior: float = PRIOR, d: int = 1, **parameters: Any) -> Cell:
    """Measured squared error of one draw, and what the estimator expected."""
    source = rng.generator(seed, "gaussian")
    truth = MEAN + math.sqrt(prior) * source.normal(size=(m, d))
    x = truth + math.sqrt(NOISE / n) * source.normal(size=(m, d))
    found = GaussianMeans(noise_variance=NOISE, seed=seed, radius=RADIUS, **parameters).fit(x, sizes=n)
    return {
        "mse": float(np.square(found.estimates_ - truth).sum(1).mean()),
        "expected": float(found.expected_mse_.mean()),
        "gain": 100 * _given_what_was_learned(found, NOISE / n, prior),
    }


def _given_what_was_learned(found: GaussianMeans, own: float, prior: float) -> float:
    """Share of the local error saved, expected over clients of one dimension, given pull and centre."""
    away = float(np.square(found.centre_ - MEAN).mean())
    return 1 - float(np.mean(np.square(1 - found.pull_) * own + np.square(found.pull_) * (prior + away))) / own


def make(bench: Runner) -> list[Part]:
    return [*_against_epsilon(bench), _bits(bench), _worst(bench), _WORST, *_bound(bench)]


def _mean(bench: Runner, config: dict[str, Any], **parameters: Any) -> tuple[float, float, float]:
    cells = bench.over_seeds(config, lambda seed: error(seed, **parameters))
    return (
        float(np.mean(cells["mse"])),
        float(np.std(cells["mse"], ddof=1) / math.sqrt(bench.seeds)),
        float(np.mean(cells["expected"])),
    )


def printed_mse(epsilon: float) -> float:
    """With the paper's own noise, sqrt(8 log(2 / delta)) b / eps0, and its own b (stated for eps0 < 1)."""
    spread = math.sqrt(PRIOR) + math.sqrt(NOISE / N)
    b = BOUND + spread * math.sqrt(math.log(M**2 * N))
    return gaussian_mse(PRIOR, NOISE, N, M, 1, (b / epsilon) ** 2 * 8 * math.log(2 / DELTA))


_HEADS = [
    "",
    "Theorem 2",
    "measured, prior variance known",
    "with the printed noise",
    "prior variance learned",
    "central, learned",
]
_CURVES = {
    "known": ("private, prior variance known", COLORS[0]),
    "learned": ("private, learned", COLORS[3]),
    "central": ("trusted server, learned", COLORS[2]),
}
Measured = dict[str, dict[float, tuple[float, float, float]]]


def _curves(kinds: Measured, local: float) -> list[Curve]:
    curves = [Curve("local", EPSILONS, [local] * len(EPSILONS), COLORS[1], style="dash")]
    for kind, (name, color) in _CURVES.items():
        y, se = ([float(kinds[kind][e][part]) for e in EPSILONS] for part in (0, 1))
        curves.append(Curve(name, EPSILONS, y, color, se))
    curves.append(Curve("with the printed noise", EPSILONS, list(map(printed_mse, EPSILONS)), COLORS[4], style="dot"))
    lower = float(van_trees_gaussian(PRIOR, NOISE, [N] * M)[0])
    return [*curves, Curve("van Trees bound = no privacy", EPSILONS, [lower] * len(EPSILONS), "#888888", style="dash")]


def _against_epsilon(bench: Runner) -> list[Part]:
    local, personal = NOISE / N, gaussian_mse(PRIOR, NOISE, N, M)
    open_ = _mean(bench, {"message": "exact"}, prior_variance=PRIOR)
    kinds: Measured = {"known": {}, "learned": {}, "central": {}}
    for e in EPSILONS:
        message = LocalGaussian(e, DELTA)
        kinds["known"][e] = _mean(bench, {"known": e}, message=message, prior_variance=PRIOR)
        kinds["learned"][e] = _mean(bench, {"learned": e}, message=message)
        kinds["central"][e] = _mean(bench, {"central": e}, message=Central(e, DELTA))
    rows = [["no privacy", f"{personal:.6f}", _text(open_), "", "", ""]]
    for e in EPSILONS:
        known = kinds["known"][e]
        cells = [f"{known[2]:.6f}", _text(known), f"{printed_mse(e):.6f}", _text(kinds["learned"][e])]
        rows.append([f"eps0 = {e:g}", *cells, _text(kinds["central"][e])])
    rows.append(["local", f"{local:.6f}", "", "", "", ""])
    note = (
        f"{M:,} clients of {N} samples, s_theta .1, s_x .5, delta {DELTA:g}, |mean| at most {BOUND}, so radius "
        f"{RADIUS:.2f}; {bench.seeds} repetitions, ± one standard error. Client-level, replace, analytic Gaussian."
    )
    panel = Panel("", "eps0", "squared error", _curves(kinds, local), log="x")
    return [
        Results("Squared error against eps0", _HEADS, rows, note),
        Picture("epsilon", "Figure 4 again: between personal without privacy and local.", [panel]),
        _READING,
    ]


def _bits(bench: Runner) -> Results:
    rows = []
    for width in (1, 2, 4, 8):
        message: Message = Quantized(width)
        known = _mean(bench, {"bits": width}, message=message, prior_variance=PRIOR)
        learned = _mean(bench, {"bits learned": width}, message=message)
        rows.append([str(width), f"{known[2]:.6f}", _text(known), _text(learned)])
    heads = ["bits", "Theorem 2 (bound)", "measured, prior variance known", "learned by the split"]
    return Results("Squared error of quantized messages", heads, rows)


def _worst(bench: Runner) -> Results:
    messages: dict[str, Message] = {
        "1 bit": Quantized(1),
        "4 bits": Quantized(4),
        "Gaussian, eps0 = 1": LocalGaussian(1.0, DELTA),
        "randomised response, eps0 = 1": RandomisedResponse(1.0),
        "trusted server, eps0 = 1": Central(1.0, DELTA),
    }
    rows = []
    for name, message in messages.items():
        cells = []
        for m in (200, 2000):
            for prior in WORST.values():
                config = {"worst": name, "clients": m, "prior": prior}
                found = bench.over_seeds(
                    config, lambda seed, m=m, t=prior, q=message: error(seed, m=m, prior=t, message=q)
                )
                cells.append(f"{np.mean(found['gain']):+.1f} ({np.min(found['gain']):+.1f})")
        rows.append([name, *cells])
    heads = ["message", *(f"{m:,} clients, {name}" for m in (200, 2000) for name in WORST)]
    note = f"Prior variance learned; v = {NOISE / N:.4f} is the local error. Mean (least) of {bench.seeds} repetitions."
    return Results("Worst cases: gain over local given what was learned, percent", heads, rows, note)


def _bound(bench: Runner) -> list[Part]:
    sizes, priors = (1, 2, 5, 15, 50, 200), (0.001, 0.01, 0.1)
    curves, rows = [], []
    for at, prior in enumerate(priors):
        found = [
            _mean(bench, {"bound": prior, "n": n}, m=200, n=n, prior=prior, d=20, prior_variance=prior) for n in sizes
        ]
        lower = [float(van_trees_gaussian(prior, NOISE, [n] * 200, 20)[0]) for n in sizes]
        curves.append(Curve(f"bound, t = {prior:g}", sizes, lower, COLORS[at]))
        means, errors = [f[0] for f in found], [f[1] for f in found]
        curves.append(Curve(f"measured, t = {prior:g}", sizes, means, COLORS[at], errors, style="none", mark="filled"))
        away = [(f[0] - low) / f[1] for f, low in zip(found, lower, strict=True)]
        rows.append([f"{prior:g}", *(f"{each:+.1f}" for each in away)])
    panel = Panel("200 clients of 20 dimensions", "samples of a client", "squared error", curves, log="xy")
    heads = ["prior variance", *(f"n = {n}" for n in sizes)]
    table = Results("Measured error above van Trees' bound, in standard errors: it touches it", heads, rows)
    return [Picture("bound", "The estimator lies on van Trees' bound.", [panel]), table]


def _text(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.6f} ± {found[1]:.6f}"


_READING: Final = """**Reading.** With the prior's variance known the curve is Theorem 2's, and the paper's: it leaves
the non-private error only for strong privacy, and never crosses the local one. Where the variance must be learned
behind local noise, one message of this radius says little about a prior of standard deviation .1 unless eps0 is large,
and the estimator stays near local, as it should: it moves no farther than does no harm at the upper limit of what the
variance may be. A trusted server has no such trouble."""

_WORST: Final = """Pulled by b, a client's expected error is a parabola that is back at the local error at twice the
best b. So nobody is pulled by more than twice what would be best at the upper confidence limit of the learned variance
(three standard deviations; for counted answers Wilson's): harm needs a draw beyond that limit, less than one in 700.
Behind much noise this costs part of the gain, and is meant to."""

REPRODUCTION: Final = Reproduction(
    name="estimation/gaussian-dp",
    title="Personal means under local privacy: Gaussian clients",
    paper="A generative framework, Figure 4; Theorems 1 and 2, Section 5.1.3.",
    make=make,
    version=3,
)
