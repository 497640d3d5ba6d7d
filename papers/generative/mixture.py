"""Clients of a few kinds: Theorem 5 and Algorithm 1, against the integral and against expectation-maximisation."""

import math
from typing import Any, Final

import numpy as np

from papers.bench import Cell, Reproduction, Runner
from papers.generative.bounds import mixture_mse
from papers.page import COLORS, Curve, Panel, Part, Picture, Results, plus_minus
from tacit.core import rng
from tacit.estimation.messages import Domain, LocalGaussian
from tacit.estimation.mixture import MixtureMeans, lemma_radius

M, N, NOISE, DELTA = 4000, 5, 1.0, 1e-5
SHARES: Final = np.array([0.7, 0.3])
GAPS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
EPSILONS: Final = (2.0, 5.0, 10.0, 20.0, 50.0)
WITHIN: Final = (0.0, 0.02, 0.1, 0.5)
FAR: Final = 2.0
NARROW: Final = 2.0


def error(seed: int, gap: float, known: bool = False, spread: float = 0.0, **parameters: Any) -> Cell:
    """Squared error, gain over local and coverage of the 95% intervals, both in percent, of one draw."""
    source = rng.generator(seed, "mixture")
    centres = np.array([[-gap / 2], [gap / 2]])
    truth = centres[source.choice(2, M, p=SHARES)]
    truth = truth + math.sqrt(spread) * rng.generator(seed, "within").normal(size=truth.shape)
    x = truth + math.sqrt(NOISE / N) * source.normal(size=truth.shape)
    given = {"centres": centres, "weights": SHARES} if known else {}
    found = MixtureMeans(n_kinds=2, noise_variance=NOISE, seed=seed, **given, **parameters).fit(x, sizes=N)
    row, (low, high) = found.compare(truth)["personal"], found.intervals()
    cover = 100 * float(np.mean((low <= truth) & (truth <= high)))
    return {"mse": row.measured_mse or 0.0, "gain": 100 * (row.measured_gain or 0.0), "cover": cover}


def make(bench: Runner) -> list[Part]:
    ways: dict[str, dict[str, Any]] = {
        "prior known": {"known": True},
        "debiased (EM)": {},
        "Algorithm 1": {"moments": "as-published", "rounds": 10},
    }
    found = {name: [_mean(bench, gap, name, way) for gap in GAPS] for name, way in ways.items()}
    exact = [mixture_mse([-gap / 2, gap / 2], SHARES, NOISE, N) for gap in GAPS]
    rows = [
        [f"{gap:g}", f"{exact[at]:.4f}", *(f"{f[at][0]:.4f} ± {f[at][1]:.4f}" for f in found.values())]
        for at, gap in enumerate(GAPS)
    ]
    note = f"{M:,} clients of {N} samples, noise 1, shares .7 and .3; {bench.seeds} repetitions, ± se."
    curves = [
        Curve("Theorem 5, integral", GAPS, exact, "#888888"),
        Curve("local", GAPS, [NOISE / N] * len(GAPS), COLORS[1], style="dash"),
    ]
    for at, (name, each) in enumerate(found.items()):
        means, errors = [f[0] for f in each], [f[1] for f in each]
        curves.append(Curve(name, GAPS, means, COLORS[(0, 2, 3)[at]], errors, style="none", mark="filled"))
    panel = Panel("", "distance of the two centres", "squared error", curves, log="x")
    table = Results("Squared error of two kinds in one dimension", ["distance", "Theorem 5", *found], rows, note)
    picture = Picture("kinds", "Theorem 5 and what is learned.", [panel])
    return [table, picture, _READING, _differing(bench), _DIFFERING, _private(bench), _PRIVATE]


def _mean(bench: Runner, gap: float, name: str, way: dict[str, Any]) -> tuple[float, float]:
    mse = bench.over_seeds({"gap": gap, "way": name}, lambda seed: error(seed, gap, **way))["mse"]
    return float(np.mean(mse)), float(np.std(mse, ddof=1) / math.sqrt(bench.seeds))


def _differing(bench: Runner) -> Results:
    ways: dict[str, dict[str, Any]] = {
        "variance within learned": {},
        "taken for 0": {"within_variance": 0.0},
        "Algorithm 1": {"moments": "as-published", "rounds": 10},
    }
    rows = []
    for spread in WITHIN:
        cells = []
        for name, way in ways.items():
            config = {"within": spread, "way": name}
            found = bench.over_seeds(config, lambda seed, way=way, s=spread: error(seed, FAR, spread=s, **way))
            gains, cover = np.array(found["gain"]), np.array(found["cover"])
            cells += [plus_minus(gains.mean(), gains.std(ddof=1)), plus_minus(cover.mean(), cover.std(ddof=1))]
        rows.append([f"{spread:g}", *cells])
    heads = ["variance within", *(head for name in ways for head in (f"{name}: gain, %", "coverage, %"))]
    note = f"Distance {FAR:g}; each client's own mean has a variance of {NOISE / N:g}. Nominal coverage 95%. ± sd."
    return Results(
        "Kinds whose clients differ: gain over local, and how often intervals hold the truth", heads, rows, note
    )


def clients_needed(std: float, gap: float) -> float:
    """How many messages it takes to know both centres as well as a client knows its own mean, whatever the estimator.

    From the information of one message about centres and shares (Cramer and Rao), by numerical integration; `std` is
    that of a message around its kind's centre.
    """
    centres = np.array([-gap / 2, gap / 2])
    x = np.linspace(-gap - 10 * std, gap + 10 * std, 8001)
    joint = SHARES * np.exp(-0.5 * np.square((x[:, None] - centres) / std)) / (std * math.sqrt(2 * math.pi))
    density = joint.sum(1)
    kind = joint / density[:, None]
    scores = np.column_stack([kind * (x[:, None] - centres) / std**2, (kind / SHARES) @ [1.0, -1.0]])
    scale = np.sqrt(np.trapezoid(np.square(scores) * density[:, None], x, axis=0))
    scaled = scores / scale
    information = np.trapezoid(scaled[:, :, None] * scaled[:, None, :] * density[:, None, None], x, axis=0)
    return float((np.diag(np.linalg.inv(information)) / scale**2)[:2].max() / (NOISE / N))


def _private(bench: Runner) -> Results:
    wide = lemma_radius(FAR / 2, NOISE, N, M, 1)
    heads = ["eps0", "noise of a message (sd)", "clients needed", "squared error", "gain, %", "clients of a kind alike"]
    heads += ["Algorithm 1, 5 rounds", f"radius {NARROW:g}: clients needed", "gain, alike", "worst of ours"]
    note = (
        f"{M:,} clients at distance {FAR:g}, local error {NOISE / N:g}; radius {wide:.2f} (Lemma 1) but where said, "
        f"delta {DELTA:g}, client-level, local, replace, for all rounds together. Gain over local, percent, ± sd. "
        "Needed: until centres are known as well as a client knows its own mean, by the information in the messages."
    )
    rows = [_private_row(bench, e, wide) for e in EPSILONS]
    return Results("Private kinds: squared error and gain against eps0", heads, rows, note)


def _private_row(bench: Runner, epsilon: float, wide: float) -> list[str]:
    ways: dict[str, dict[str, Any]] = {
        "learned": {"radius": wide},
        "alike": {"radius": wide, "within_variance": 0.0},
        "printed": {"radius": wide, "moments": "as-published", "rounds": 5},
        "narrow": {"radius": NARROW, "within_variance": 0.0},
    }
    message, found = LocalGaussian(epsilon, DELTA), {}
    for name, way in ways.items():
        config = {"epsilon": epsilon, "private": name}
        found[name] = bench.over_seeds(config, lambda seed, way=way: error(seed, FAR, message=message, **way))
    noise = [message.std(Domain(radius)) for radius in (wide, NARROW)]
    needed = [f"{clients_needed(math.hypot(each, math.sqrt(NOISE / N)), FAR):,.0f}" for each in noise]
    gains = {name: np.array(cells["gain"]) for name, cells in found.items()}
    told = [plus_minus(each.mean(), each.std(ddof=1)) for each in gains.values()]
    worst = min(float(each.min()) for name, each in gains.items() if name != "printed")
    mse = f"{np.mean(found['learned']['mse']):.4f}"
    return [f"{epsilon:g}", f"{noise[0]:.1f}", needed[0], mse, *told[:3], needed[1], told[3], f"{worst:.1f}"]


_READING: Final = """**Reading.** With the prior known the error is the integral of Theorem 5. Algorithm 1 clusters by
k-means, whose centres are biased where kinds overlap, up to several times the local error; expectation-maximisation on
one message is not. Where kinds are too close to be told apart, clients are taken for one kind, as Gaussian."""

_DIFFERING: Final = """The paper's model puts all clients of a kind at one point. Where they differ, however little,
that model is confident and wrong: many samples make a client ever surer of a centre that is not its own. So the
variance within kinds is learned along with the centres; `within_variance=0` asks for the paper's model. Coverage above
the nominal: where kinds are points, an interval often holds one of them for certain. The variance is the same for every
kind and coordinate; clients that differ in another way are outside this model too."""

_PRIVATE: Final = """**Why kinds stay hidden at small eps0.** Mean and variance of the messages are shared by many
mixtures: two centres and their shares show first in the third moment, and behind noise of standard deviation s that
takes a number of clients that grows as the sixth power of s over their distance. The column "clients needed" is a
bound for every unbiased estimator that gets one such message a client. So it is inherent, not a defect of the method:
below eps0 of about 10 nobody can see these kinds. What is gained there comes from taking all clients for one kind,
which needs no more than mean and variance. More clients help slowly; a smaller public radius helps by its sixth power
(values outside are brought to the edge, which biases the centres a little), and so does knowing that clients of a
kind are alike. Algorithm 1, which believes its centres, is ruined by the noise."""

REPRODUCTION: Final = Reproduction(
    name="estimation/mixture",
    title="Personal means: clients of a few kinds",
    paper="A generative framework, Section 2.3: Theorem 5, Algorithm 1, Lemma 1. It prints no figures.",
    make=make,
    seeds=10,
    version=3,
)
