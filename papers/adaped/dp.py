"""Accuracy against epsilon: DP-AdaPeD in three readings, with and without fine-tuning, DP-FedEM, training alone."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from papers.adaped.cells import (
    METHODS,
    WRITERS_33,
    WRITERS_LR,
    Make,
    Setting,
    World,
    costs,
    federation,
    poisson,
    sized,
    trained,
)
from papers.bench import Reproduction, Runner
from papers.page import COLORS, Curve, Panel, Part, Picture, Results, over, spread
from tacit import methods as m
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed, Quantile
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.privacy.plan import Mechanism
from tacit.rounds.assemble import Privacy

DELTA, LR = 1e-3, WRITERS_LR
BOUND, PSI_BOUND = 1e-3, 5e-4  # of a step of mu and of psi: psi moves by about .006 in a step
SERVER: Final = Central(Fixed(0.05))  # of ten steps of both: a moving bound would run away with a noisy mu
EPSILONS: Final = (1.0, 16.0)
_ALONE: Final[Make] = lambda sgd, own: m.AdaPeDAlone(sgd, own)  # noqa: E731
WAYS: Final[dict[str, tuple[Make, Mechanism]]] = {
    "DP-AdaPeD, messages seen": (METHODS["AdaPeD"], Stepwise(BOUND, PSI_BOUND)),
    "DP-AdaPeD, sum seen": (METHODS["AdaPeD"], Stepwise(BOUND, PSI_BOUND, seen="sum")),
    "DP-AdaPeD, server's noise": (METHODS["AdaPeD"], SERVER),
    "DP-AdaPeD, server's noise, fine-tuned": (_ALONE, SERVER),
    "DP-FedEM, server's noise": (METHODS["FedEM"], Central(Quantile())),
}
FROZEN: Final = "frozen teacher, nothing sent"
OPEN: Final[dict[str, Make]] = {
    "local": METHODS["local"],
    # mu stays at its random start and psi at 4: distillation from it smooths labels, and nobody learns of anybody
    FROZEN: lambda sgd, own: m.AdaPeD(replace(sgd, lr=1e-30), own, psi_lr=0.0),
    "AdaPeD": METHODS["AdaPeD"],
    "AdaPeD, fine-tuned": _ALONE,
    "FedEM": METHODS["FedEM"],
}
Found = dict[str, list[Any]]


def measured(
    bench: Runner, world: World, name: str, make: Make, plan: Mechanism | None, epsilon: float | None
) -> Found:
    levels = (Level("private", epsilon=epsilon, delta=DELTA),) if plan is not None else ()
    privacy = Privacy() if plan is None else Privacy(plan, levels)
    config = {
        "way": name,
        "world": world.name,
        "rounds": world.rounds,
        "epsilon": epsilon,
        "plan": repr(plan),
        "lr": LR,
    }

    def cell(seed: int) -> dict[str, Any]:
        data = federation(world.data, seed)
        return trained(data, make, world, Setting(LR), seed, privacy=privacy, sampler=poisson(world))

    return bench.over_seeds(config, cell)


def make(bench: Runner) -> list[Part]:
    world = sized(WRITERS_33, bench.full)
    plain = {name: measured(_seeds(bench, name), world, name, method, None, None) for name, method in OPEN.items()}
    private = {
        name: {epsilon: measured(_seeds(bench, name), world, name, method, plan, epsilon) for epsilon in EPSILONS}
        for name, (method, plan) in WAYS.items()
    }
    return [
        _table(world, plain, private, bench),
        _beside_controls(plain, private),
        _shared(plain, private),
        _targets(plain, private),
        costs(world, {(name, "none"): row for name, row in plain.items()} | _by_epsilon(private)),
        _picture(plain, private),
        _published(private),
        _psi(plain, private),
        _WHAT,
    ]


def _seeds(bench: Runner, name: str) -> Runner:
    """Fine-tuning trains everybody in every round: one seed, but for --full."""
    return replace(bench, seeds=1) if name.endswith("fine-tuned") and not bench.full else bench


def _above(found: Found, other: Found) -> float:
    """Mean difference over the seeds that both have."""
    return float(np.mean([a - b for a, b in zip(found["personal"], other["personal"], strict=False)]))


def _mean(found: Found) -> float:
    return float(np.mean(found["personal"]))


def _figure(found: Found) -> str:
    return over(found["personal"])


def _table(world: World, plain: dict[str, Found], private: dict[str, dict[float, Found]], bench: Runner) -> Results:
    rows = [[name, *(_figure(found[e]) for e in EPSILONS), ""] for name, found in private.items()]
    rows += [[name, *[""] * len(EPSILONS), _figure(found)] for name, found in plain.items()]
    few = "" if bench.full or bench.seeds == 1 else " (fine-tuned: seed 0 alone)"
    note = (
        f"{world.name}, {world.rounds} rounds, seeds: {bench.seeds}{few}; personal accuracy in percent after the last "
        f"round. Client-level, delta {DELTA:g}, PLD. Messages: replace; sum: zero-out; server's noise: add/remove with "
        "amplification by Poisson sampling, against those who see the models but not who took part."
    )
    return Results("Accuracy", ["method", *(f"eps = {e:g}" for e in EPSILONS), "not private"], rows, note)


def paired(found: Found, other: Found) -> str:
    """Mean difference over the seeds that both have, and its standard error."""
    gaps = [a - b for a, b in zip(found["personal"], other["personal"], strict=False)]
    error = f" ± {spread(gaps) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
    return f"{np.mean(gaps):+.2f}{error}"


def _beside_controls(plain: dict[str, Found], private: dict[str, dict[float, Found]]) -> Results:
    """What is left of a private row once nothing was sent."""
    rows = []
    for name, found in [*((n, f) for n, f in private.items()), ("AdaPeD, not private", {0.0: plain["AdaPeD"]})]:
        for epsilon, row in found.items():
            rows.append([name, f"{epsilon:g}" if epsilon else "-", *(paired(row, plain[c]) for c in ("local", FROZEN))])
    note = (
        "Mean over seeds of the difference in points, with its standard error. Against the frozen teacher it is what "
        "the others add; what a row gains over training alone and not over the frozen teacher is smoothed labels."
    )
    return Results(
        "Less training alone, and less a teacher that never moves",
        ["method", "epsilon", "less local", "less frozen"],
        rows,
        note,
    )


def _shared(plain: dict[str, Found], private: dict[str, dict[float, Found]]) -> Results:
    rows = [[name, *(over(found[e]["shared"]) for e in EPSILONS), ""] for name, found in private.items()]
    rows += [[name, *[""] * len(EPSILONS), over(plain[name]["shared"])] for name in plain if name != "local"]
    note = "Accuracy of the shared model in percent; ten classes, so chance has 10."
    return Results("The shared model", ["method", *(f"eps = {e:g}" for e in EPSILONS), "not private"], rows, note)


def _by_epsilon(private: dict[str, dict[float, Found]]) -> dict[tuple[str, str], Found]:
    return {(name, f"{e:g}"): row for name, found in private.items() for e, row in found.items()}


def _targets(plain: dict[str, Found], private: dict[str, dict[float, Found]]) -> Results:
    rows = []
    for name, found in private.items():
        if name.startswith("DP-AdaPeD"):
            gaps = [_above(found[e], plain["local"]) for e in EPSILONS]
            kept = "yes" if min(gaps) >= -0.5 else "NO"
            rows.append([f"{name}: at least local - .5", *(f"{gap:+.2f}" for gap in gaps), kept])
    adaped, fedem = private["DP-AdaPeD, server's noise"], private["DP-FedEM, server's noise"]
    gaps = [_mean(fedem[e]) - _mean(adaped[e]) for e in EPSILONS]
    rows.append(["DP-FedEM below DP-AdaPeD", *(f"{gap:+.2f}" for gap in gaps), "yes" if gaps[0] < 0 else "NO"])
    messages = private["DP-AdaPeD, messages seen"]
    gaps = [_mean(adaped[e]) - _mean(messages[e]) for e in EPSILONS]
    rows.append(["server's noise above messages", *(f"{gap:+.2f}" for gap in gaps), "yes" if min(gaps) > 0 else "NO"])
    return Results("Targets, in points", ["target", *(f"eps = {e:g}" for e in EPSILONS), "met"], rows)


def _picture(plain: dict[str, Found], private: dict[str, dict[float, Found]]) -> Picture:
    curves = [
        Curve(name, EPSILONS, [_mean(found[e]) for e in EPSILONS], COLORS[at % len(COLORS)])
        for at, (name, found) in enumerate(private.items())
    ]
    curves.append(Curve("local", EPSILONS, [_mean(plain["local"])] * len(EPSILONS), "#888888", style="dash"))
    panel = Panel("", "epsilon, client-level", "personal accuracy, %", curves, log="x")
    return Picture("epsilon", "Accuracy against epsilon; training alone is private at any epsilon.", [panel])


def _published(private: dict[str, dict[float, Found]]) -> Results:
    """What Theorem 7 would have claimed for the same noise."""
    rows = []
    for name in [name for name in private if name.endswith(" seen")]:
        notes = {e: found["notes"][0] for e, found in private[name].items()}
        printed = {
            e: next((n for n in each if "as published" in n), "").split("epsilon ")[-1] for e, each in notes.items()
        }
        rows.append([name, *(printed[e].split(",")[0] for e in EPSILONS)])
    note = "The same noise by the printed theorem, which undercounts the steps of a round: not a guarantee."
    return Results("As published", ["method", *(f"provable eps = {e:g}" for e in EPSILONS)], rows, note)


def _psi(plain: dict[str, Found], private: dict[str, dict[float, Found]]) -> Picture:
    central = private["DP-AdaPeD, server's noise"]
    paths = {"not private": plain["AdaPeD"]["psi"][0], **{f"eps = {e:g}": central[e]["psi"][0] for e in EPSILONS}}
    curves = []
    for at, (name, path) in enumerate(paths.items()):
        curves.append(Curve(name, list(np.linspace(0, 1, len(path))), path, COLORS[at % len(COLORS)]))
    panel = Panel("", "share of the rounds", "psi", curves)
    return Picture("psi", "psi over rounds, the server's noise: small psi trusts the others.", [panel])


_WHAT: Final = f"""**What federation adds.** A teacher that stays at its random start and sends nothing smooths labels:
its outputs are nearly uniform. What a row has above that control is collaboration, and nothing else is.

**Setting.** 66 clients of three writers, a third of them in a round (Poisson), the 5-layer CNN, 10
steps a round at rate {LR:g}. Messages and sum: every step of mu clipped to {BOUND:g} and of psi to
{PSI_BOUND:g}. Server's noise: one clip of the update with psi, at {SERVER.clip.bound:g} (FedEM: of both components, at
their median). Bounds were set by the length of such steps without noise, not tuned. Everybody starts at random: a start
by FedAvg would have to be paid for. All epsilons are provable. Fine-tuned: everybody trains in every round, three times
as many steps as in the other rows, so training alone in as many steps is what it stands against, not the row of 60
rounds: [Table 1](adaped-table-1.md) has it after 240 rounds of a third of the clients."""

REPRODUCTION: Final = Reproduction(
    name="adaped/dp",
    title="DP-AdaPeD: accuracy against epsilon",
    paper="A generative framework, Section 4, Figures 1 to 3.",
    make=make,
    seeds=3,
    version=3,
    cells="adaped",
    fewest=1,
)
