"""Section V: Definition 1's theta measured, Lemmas 1 to 3 and Theorems 3 and 4 beside what a run did, also with noise.

On made-up devices, whose optimum can be found to many digits, and for a few rounds on human activities (training rows
alone). The proofs are in `bounds.py`, the problem in `blocks.py`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from papers.bench import Cell, Reproduction, Runner
from papers.multitask import bounds
from papers.multitask.blocks import Blocks
from papers.multitask.heterogeneity import published
from papers.multitask.reproduce import DELTA
from papers.multitask.runs import PLAIN, ROW, WHOLE, Recipe, certified, started
from papers.page import COLORS, Curve, Panel, Part, Picture, Results
from tacit.core.dual_losses import with_intercept
from tacit.data.dataset import FederatedDataset, as_input
from tacit.data.from_rows import from_clients
from tacit.estimation.multitask import multitask_of
from tacit.methods import Multitask
from tacit.rounds.loop import Run
from tacit.sampling.availability import Availability

DEVICES, ROWS, FEATURES = 12, 40, 10
ROUNDS: Final = 60
REAL_ROUNDS: Final = 5
NOISY_ROUNDS: Final = 100
LONG: Final = 2000  # the paper's K; looked at after every so many rounds
EVERY: Final = 20
LOSSES: Final = {"smooth-hinge": 0.5, "hinge": 0.0}
"""By name, mu."""
SETTINGS: Final = (("xi = 1", 1.0, 0.0), ("xi = .5", 0.5, 0.0), ("xi = 1, drop = .2", 1.0, 0.2))
_STEPS: Final = (1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)  # s at which Lemma 2 is looked at
_SHARED: dict[str, Any] = {"strength": 0.3, "covariance": "mean", "ridge": 0.1, "intercept": 0.1}
_SLACK: Final = 0.04
NOISY, REAL = "convergence with noise", "convergence on human activities"


def sdca(loss: str, xi: float, drop: float, rounds: int = ROUNDS) -> Recipe:
    """Algorithm 1 without noise; a round is one pass over a device's rows, sixteen at a time."""
    devices = Availability(drop=drop)
    return Recipe(Multitask(loss, **_SHARED, xi=xi), rounds, batch=16, devices=devices, centre=0.0)


@cache
def made_up(seed: int) -> FederatedDataset:
    """Devices with rows of norm one, whose true models lie near a common one; a tenth of the labels is wrong."""
    draw = np.random.default_rng(seed)
    common, clients = draw.normal(size=FEATURES), {}
    for t in range(DEVICES):
        x = draw.normal(size=(ROWS, FEATURES))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = (x @ (common + 0.5 * draw.normal(size=FEATURES)) > 0) ^ (draw.random(ROWS) < 0.1)
        clients[f"device {t}"] = (x, y.astype(np.int64), x[:1], y[:1].astype(np.int64))
    return from_clients(clients, classes=2, name="made up", dtype=torch.float32)


def blocks_of(run: Run) -> Blocks:
    method, data = multitask_of(run), run.engine.federation
    x = [with_intercept(as_input(data.x[data.rows(t)]), method.intercept).double() for t in range(data.clients)]
    y = [2.0 * data.y[data.rows(t)].double() - 1 for t in range(data.clients)]
    return Blocks(method.loss, x, y, run.progress.server.view.extra["covariance"].double(), method.strength)


def duals_of(run: Run, problem: Blocks) -> list[Tensor]:
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    alpha = run.store.read(np.arange(len(problem.y)), first)["alpha"].double().squeeze(-1)
    return [each[: len(y)] for each, y in zip(alpha, problem.y, strict=True)]


def sums_of(run: Run) -> Tensor:
    return run.progress.server.view.extra["sums"].double().squeeze(1)


def measure(recipe: Recipe, seed: int, real: bool = False) -> Cell:
    """By round: dual, gap, theta of every device, by how much Lemmas 1 and 2 held; and the problem's constants."""
    run = started(recipe, seed, None if real else made_up(seed))
    problem, beta = blocks_of(run), float(run.progress.server.view.extra["beta"])
    least = problem.dual(problem.solve())
    seen, now = [], duals_of(run, problem)
    while run.progress.round < recipe.rounds:
        run.step()
        after = duals_of(run, problem)
        seen.append(one_round(problem, now, after, beta, multitask_of(run).xi))
        now = after
    return {
        "least": least,
        "gaps": [problem.dual([0 * y for y in problem.y]) - least, *(each["dual"] - least for each in seen)],
        "thetas": [each["thetas"] for each in seen],
        "duality": [each["gap"] for each in seen],
        "lemma 1": [each["lemma 1"] for each in seen],
        "lemma 2": [each["lemma 2"] for each in seen],
        "beta": beta,
        "rows": [len(y) for y in problem.y],
        "weights": (problem.omega.diagonal() * problem.tops).tolist(),
    }


def one_round(problem: Blocks, now: Sequence[Tensor], after: Sequence[Tensor], beta: float, xi: float) -> Cell:
    """What a round did. Lemmas: what the left side has more than the right one; at least 0 but for rounding."""
    sums = problem.sums(now)
    models = problem.models(sums)
    gained, best, thetas = 0.0, 0.0, []
    for t, (old, new) in enumerate(zip(now, after, strict=True)):
        stay = problem.block(t, old, models[t], torch.zeros_like(old), beta)
        found = problem.block(t, old, models[t], (new - old) / xi, beta)
        exact = problem.block(t, old, models[t], problem.solve_block(t, old, models[t], beta), beta)
        thetas.append(min(1.0, (found - exact) / (stay - exact)) if stay > exact else 0.0)
        gained, best = gained + stay - found, best + stay - exact
    dual = problem.dual(after)
    fell, gap = problem.dual(now) - dual, problem.gap(now)
    lemma_2 = min(best - right_side(problem, now, models, gap, beta, s) for s in _STEPS)
    return {
        "dual": dual,
        "gap": problem.gap(after),
        "thetas": thetas,
        "lemma 1": fell - xi * gained,
        "lemma 2": lemma_2,
    }


def right_side(problem: Blocks, now: Sequence[Tensor], models: Tensor, gap: float, beta: float, s: float) -> float:
    """s G + sum_t J_t of Lemma 2."""
    total = s * gap
    for t, old in enumerate(now):
        apart = problem.slopes(t, models[t]) - old
        moved = apart @ problem.x[t]
        curve = beta * s**2 * float(problem.omega[t, t]) / (4 * problem.strength)
        total += LOSSES[problem.loss] * (1 - s) * s / 2 * float(apart @ apart) - curve * float(moved @ moved)
    return total


def measure_noisy(recipe: Recipe, seed: int) -> Cell:
    """By round, how far the sums of a private run are from the optimum's, and the primal above its least."""
    run = started(recipe, seed, made_up(seed))
    problem, method = blocks_of(run), multitask_of(run)
    alpha = problem.solve()
    best, q = problem.sums(alpha), _curvatures(run, problem)
    least = problem.primal(best)
    found = {"distance": [_distance(best, 0 * best, q)], "primal": [problem.primal(0 * best) - least]}
    feasible = []
    while run.progress.round < recipe.rounds and not run.budget.exhausted():
        run.step()
        if recipe.rounds > NOISY_ROUNDS and run.progress.round % EVERY:
            continue
        sums = sums_of(run)
        found["distance"].append(_distance(best, sums, q))
        found["primal"].append(problem.primal(sums) - least)
        held = duals_of(run, problem)
        inside = [((a * y >= 0) & (a * y <= 1)).double().mean() for a, y in zip(held, problem.y, strict=True)]
        feasible.append(float(torch.stack(inside).mean()))
    z = recipe.privacy.levels[0].noise or 0.0 if recipe.privacy.levels else 0.0  # of one query: a record's length
    length = ROW * (1 + method.slack)
    return {
        **found, "feasible": feasible, "noise": z * length, "error": ROW / 2 * method.slack, "numbers": best.shape[1],
        "q": q.tolist(), "contraction": bounds.contraction(problem, float(run.progress.server.view.extra["beta"])),
        "rows": problem.rows,
    }  # fmt: skip


def _curvatures(run: Run, problem: Blocks) -> Tensor:
    beta = float(run.progress.server.view.extra["beta"]) / multitask_of(run).xi
    return beta * problem.omega.diagonal() / (2 * problem.strength)


def _distance(best: Tensor, sums: Tensor, q: Tensor) -> float:
    return float((q * (sums - best).square().sum(1)).sum())


def make(bench: Runner) -> list[Part]:
    cells = {(loss, name): _kept(bench, sdca(loss, xi, drop)) for loss in LOSSES for name, xi, drop in SETTINGS}
    name, xi, drop = SETTINGS[0]
    real = {("HAR, hinge", name): _kept(bench, sdca("hinge", xi, drop, REAL_ROUNDS), REAL)}
    return [
        _ABOUT,
        _updates(cells | real),
        *(part for loss in LOSSES for part in _theorem(loss, {name: cells[loss, name] for name, *_ in SETTINGS})),
        *_private(bench),
        _READING,
    ]


def _kept(bench: Runner, recipe: Recipe, what: str = "convergence") -> Cell:
    def compute() -> Cell:
        bench.console.print(f"  {what}: {recipe.method}, {recipe.devices}", style="dim")
        if what == NOISY:
            return measure_noisy(recipe, bench.first)
        return measure(recipe, bench.first, real=what == REAL)

    size = [DEVICES, ROWS, FEATURES]
    return bench.cell({"what": what, "recipe": repr(recipe), "seed": bench.first, "made up": size}, compute)


def theta(cell: Cell, drop: float) -> float:
    """Theta: the largest theta of a device that took part, any round; and those that drop out."""
    seen = np.array(cell["thetas"])
    most = float(seen[seen < 1].max()) if (seen < 1).any() else 0.0
    return drop + (1 - drop) * most


def constants(loss: str, cell: Cell, xi: float, drop: float) -> bounds.Constants:
    rows, weights = tuple(cell["rows"]), tuple(cell["weights"])
    return bounds.Constants(
        xi, theta(cell, drop), cell["beta"], _SHARED["strength"], rows, weights, smooth=LOSSES[loss]
    )


def _updates(cells: dict[tuple[str, str], Cell]) -> Results:
    drops, lines = {name: drop for name, _, drop in SETTINGS}, []
    for (loss, name), cell in cells.items():
        seen = np.array(cell["thetas"])
        took = seen[seen < 1]
        later = [float(row[row < 1].mean()) for row in (seen[0], seen[len(seen) // 2], seen[-1])]
        worst = [min(cell[lemma]) for lemma in ("lemma 1", "lemma 2")]
        lines.append([
            f"{loss}, {name}", f"{took.mean():.3f}", f"{took.max():.3f}", f"{np.mean(seen == 1):.2f}",
            f"{theta(cell, drops[name]):.3f}", ", ".join(f"{each:.2f}" for each in later),
            *(f"{each:+.1e}" for each in worst),
        ])  # fmt: skip
    heads = [
        "", "mean theta", "largest", "dropped", "Theta", "mean in the first, middle, last round",
        "Lemma 1, least slack", "Lemma 2, least slack",
    ]  # fmt: skip
    note = (
        f"{ROUNDS} rounds ({REAL_ROUNDS} of HAR), one pass of SDCA a round in batches of 16. theta: what is left of "
        "the best possible fall of a device's own objective (7). Slack: the left side less the right one, least over "
        f"rounds and s in {', '.join(f'{s:g}' for s in _STEPS)}, in units of the dual; the solver's "
        "tolerance is 5e-5."
    )
    return Results("Definition 1 and Lemmas 1 and 2, measured", heads, lines, note)


def _theorem(loss: str, cells: dict[str, Cell]) -> list[Part]:
    """Measured D(alpha) - D* beside what the theorem says, as printed and as it follows from Lemma 2."""
    marks, lines, panels = (1, 5, 20, 40, ROUNDS), [], []
    for name, xi, drop in SETTINGS:
        cell = cells[name]
        about, start = constants(loss, cell, xi, drop), cell["gaps"][0]
        followed = bounds.followed(about, start, ROUNDS)
        curves = [
            Curve("measured", range(ROUNDS + 1), _above_zero(cell["gaps"]), COLORS[0]),
            Curve("from Lemma 2", range(ROUNDS + 1), followed, COLORS[1]),
        ]
        if about.smooth:
            printed = bounds.printed(about, ROUNDS)
            curves.append(Curve("as printed", range(ROUNDS + 1), printed, COLORS[2]))
            told = [f"{printed[k]:.0f}" for k in marks]
        else:
            told = [_count(bounds.printed_rounds(about, cell["gaps"][k])) for k in marks]
        panels.append(Panel(f"{loss}, {name}", "round", "D - D*", curves, "y"))
        lines.append([f"{name}: measured", *(f"{cell['gaps'][k]:.3g}" for k in marks)])
        lines.append(["from Lemma 2", *(f"{followed[k]:.4g}" for k in marks)])
        lines.append(["Theorem 3 as printed" if about.smooth else "rounds that Theorem 4 asks for this gap", *told])
        ok = all(a <= b * (1 + 1e-6) for a, b in zip(cell["gaps"], followed, strict=True))
        lines.append(["measured below the bound in every round", "yes" if ok else "**no**", *[""] * (len(marks) - 1)])
    which = "Theorem 3 (smooth-hinge)" if LOSSES[loss] else "Theorem 4 (hinge)"
    table = Results(f"{which}: D(alpha) - D* after so many rounds", ["", *map(str, marks)], lines)
    return [table, Picture(f"theorem-{3 if LOSSES[loss] else 4}", f"{which}, measured and bounds.", panels)]


def _above_zero(values: Sequence[float]) -> list[float]:
    return [max(value, 1e-3) for value in values]


def _count(rounds: float) -> str:
    return "infinitely many" if rounds == float("inf") else f"{rounds:,.0f}"


def _private(bench: Runner) -> list[Part]:
    """Rounds with noise: the bound for certified solutions, and what noise does to the printed one."""
    method, away = Multitask("hinge", **_SHARED, solver="certified", slack=_SLACK), Availability(drop=0.2)
    arms = {
        "certified, no noise": Recipe(method, NOISY_ROUNDS, batch=WHOLE, centre=0.0),
        **{
            name: certified(method, epsilon, DELTA, NOISY_ROUNDS, devices, centred=False)
            for name, epsilon, devices in (
                ("certified, eps 8", 8.0, PLAIN),
                ("certified, eps 8, drop .2", 8.0, away),
                ("certified, eps 100", 100.0, PLAIN),
            )
        },
    }
    marks, lines, panels = (0, 1, 20, 40, NOISY_ROUNDS), [], []
    for name, recipe in arms.items():
        cell = _kept(bench, recipe, NOISY)
        bound = noisy(cell, recipe).over(cell["distance"][0], recipe.rounds)
        above = sum(a > b * (1 + 1e-6) for a, b in zip(cell["distance"], bound, strict=True))
        primal = cell["primal"]
        lines += [
            [f"{name}: measured", *(f"{cell['distance'][k]:.3g}" for k in marks), str(above)],
            ["bound", *(f"{bound[k]:.3g}" for k in marks), ""],
            ["P(W) - P*", *(f"{primal[k]:.3g}" for k in marks), ""],
        ]
        both = {"measured": cell["distance"], "bound with noise": bound}
        curves = [Curve(who, range(recipe.rounds + 1), v, COLORS[at]) for at, (who, v) in enumerate(both.items())]
        panels.append(Panel(name, "round", "|v - v*|^2 in Q", curves, "y"))
    note = (
        "Record level, delta 1e-3. The squared distance of the sums, in Q, is at least twice lambda tr((W - W*) "
        "Omega^-1 (W - W*)'). The bound is of its mean over noise and over who drops out: one run can be above it, as "
        "in the first round, where nearly all is noise and it counts how many take part (tests take means over draws)."
    )
    heads = ["", *(f"round {k}" for k in marks), "rounds above the bound"]
    return [
        Results("With noise: how far the sums are from the optimum's", heads, lines, note),
        Picture("noise", "Rounds with noise, measured and bound.", panels),
        _long(bench, method),
        _as_published(bench),
    ]


def _long(bench: Runner, method: Multitask) -> Results:
    """The paper's number of rounds, at eps 8 for all of them."""
    marks, recipe = (0, EVERY, 10 * EVERY, 50 * EVERY, LONG), certified(method, 8.0, DELTA, LONG, centred=False)
    cell, z = _kept(bench, recipe, NOISY), recipe.privacy.levels[0].noise
    bound, at = noisy(cell, recipe).over(cell["distance"][0], LONG), [k // EVERY for k in marks]
    lines = [
        [f"P(W) - P*, noise of {z:.3g} records a message", *(f"{cell['primal'][k]:.3g}" for k in at)],
        ["squared distance in Q, measured", *(f"{cell['distance'][k]:.3g}" for k in at)],
        ["bound", *(f"{bound[k]:.3g}" for k in marks)],
    ]
    note = "Noise goes with the root of the rounds: the more there are, the farther from the optimum they end."
    return Results(
        f"K = {LONG:,} rounds, as in the paper, certified, eps 8", ["", *(f"round {k:,}" for k in marks)], lines, note
    )


def noisy(cell: Cell, recipe: Recipe) -> bounds.Noisy:
    return bounds.Noisy(
        cell["contraction"], tuple(cell["q"]), cell["noise"], cell["numbers"], cell["error"],
        present=1 - recipe.devices.drop,
    )  # fmt: skip


def _as_published(bench: Runner) -> Results:
    recipe = published(8.0, NOISY_ROUNDS)
    cell, marks = _kept(bench, recipe, NOISY), (1, 20, 40, NOISY_ROUNDS)
    inside = [f"{100 * cell['feasible'][k - 1]:.0f}%" for k in marks]
    lines = [
        ["P(W) - P*", *(f"{cell['primal'][k]:.3g}" for k in marks)],
        ["rows whose alpha is feasible", *inside],
        ["D(alpha) - D*", *["infinite" if cell["feasible"][k - 1] < 1 else "finite" for k in marks]],
    ]
    note = f"At the start P(W) - P* = {cell['primal'][0]:.3g}. Record-level claim of eps 8, in no ledger."
    return Results("As published, with its noise (hinge)", ["", *(f"round {k}" for k in marks)], lines, note)


_ABOUT: Final = f"""{DEVICES} made-up devices with {ROWS} rows of {FEATURES} features each, and UCI HAR (30 people,
training rows) for a few rounds; lambda = .3, the covariance fixed ("mean", ridge .1), beta the least safe one (11.0
times xi for 12 devices, 27.4 for 30; the paper's is m times xi). D is (5), to be made small; D* is found by solving one
device after the other exactly, to a duality gap of 1e-6 of P. Theta takes the largest of any device and round for
Theta_max, which Assumption 1 allows. One run each: expectations in the theorems are over who drops out and noise."""
_READING: Final = """**Two defects of the printed theorems.** (1) They contain 1 / (1 - xi): at xi = 1, where devices
add their whole steps, Theorem 3's bound never falls and Theorem 4 asks for infinitely many rounds, although the
measured gap falls there as fast as anywhere. Lemma 2 has no such factor, and it alone gives the rows above, which
hold at xi = 1. (2) The recursion (13) to (15) has no noise term, and none can be added to it: noise on alpha leaves
the interval where the hinge's conjugate is finite, so that D(alpha) of the private algorithm is infinite from the
first round on. For certified solutions, whose noise lies on the message, there is a bound with noise; its contraction
comes from Omega being positive definite, not from strong convexity. It is loose: it takes the worst direction for
every one, where the noise of most directions is damped at once. In Theorem 4 the n^2 of a mean of losses stands
beside a sum of losses, and k_0 multiplies where its source divides: the table has it as printed."""

REPRODUCTION: Final = Reproduction(
    name="multitask/convergence",
    title="Multitask learning: convergence, the theorems beside what is measured",
    paper="Personalized federated learning with differential privacy, Section V: Definition 1, Lemmas 1 to 3, "
    "Theorems 3 and 4.",
    make=make,
    seeds=1,
    fewest=1,
    first=20,
    cells="multitask/har",
    version=2,
)
