"""Attacks on whole runs: twelve pairs of plan and method in one training each, and faults that must be found.

Digits through random features, softmax regression, eight rounds, everybody in every round: nobody's draw to hide
behind. Faults are planted in the code that is attacked; the claim stays what an honest run would state. Two controls: a
run whose noise drowns everything, where the attack must find nothing, and the faults' own runs without the fault.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.machine import machine
from tacit import methods
from tacit.core import tree
from tacit.core.contract import Losses, Method, Reply, Shared, Site, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.loaders import load
from tacit.evidence.repeated_audit import audit_repeatedly
from tacit.evidence.run_audit import RunAudit, audit_run
from tacit.experiments.build import Parts
from tacit.methods import FedAvg, LocalSgd
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import grouped, record, release
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Performance, Privacy, Training
from tacit.rounds.loop import Schedule
from tacit.sampling.cohorts import Poisson

RESULTS = Path(__file__).resolve().parent / "results"
WIDTH = 256
CENTRAL = plans.Central(Fixed(0.1))
FEDAVG = FedAvg(LocalSgd(0.5))
EXPOSED = 600  # canaries of the pairs
BAR = 0.3  # of the claim: what the attack must find where nothing hides a canary


@cache
def embedded_digits(clients: int = 20) -> FederatedDataset:
    """Digits through random features: as many canaries as there are features times classes."""
    data = load("digits", clients=clients, classes_each=10, seed=0)
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(64, WIDTH)) / 8).float()

    def embed(x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1).float() @ weights).relu()

    common = None if data.common_x is None else embed(data.common_x)
    return replace(data, x=embed(data.x), test_x=embed(data.test_x), common_x=common)


def parts_of(
    plan: Any = CENTRAL,
    method: Method = FEDAVG,
    z: float = 3.5,
    rate: float = 1.0,
    rounds: int = 8,
    batch: int = 5,
    steps: int | None = None,
    clients: int = 20,
) -> Parts:
    """An experiment to attack: one private level of noise `z`."""
    privacy = Privacy(plan, (Level("private", delta=1e-3, noise=z),), allow_large_delta=True)
    training = Training(rounds, Poisson(rate), batch=batch, steps=steps, seed=1)
    model = initialise(SoftmaxRegression(WIDTH, 10), 0)
    return Parts(embedded_digits(clients), model, method, privacy, training, Schedule(), Performance())


def attack(*what: Any, canaries: int = 300, cohort_known: bool = False, **options: Any) -> RunAudit:
    """One training, attacked."""
    return audit_run(parts_of(*what, **options), canaries, cohort_known=cohort_known)


@dataclass(frozen=True)
class Pair:
    """A plan and a method; `z`: the noise multiplier."""

    plan: Any
    method: Method
    z: float = 1.5
    options: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{type(self.plan).__name__.lower()}, {type(self.method).__name__}"

    def attacked(self, canaries: int = EXPOSED) -> RunAudit:
        return attack(self.plan, self.method, self.z, canaries=canaries, **(self.options or {}))


PAIRS = (
    Pair(CENTRAL, FEDAVG),
    Pair(plans.Grouped(Fixed(0.1)), FEDAVG),
    Pair(plans.Local(Fixed(0.1)), FEDAVG),
    Pair(plans.Record(0.1), FEDAVG, 2.0, {"batch": 2000}),
    Pair(plans.Distributed(Fixed(0.1)), FEDAVG),
    Pair(plans.Stepwise(0.1), FEDAVG, options={"steps": 1}),
    Pair(CENTRAL, methods.Ditto(FEDAVG)),
    Pair(plans.Grouped(Fixed(0.1)), methods.Ditto(FEDAVG)),
    Pair(plans.Record(0.1), methods.Ditto(FEDAVG), 2.0, {"batch": 2000}),
    Pair(CENTRAL, methods.Scaffold()),
    Pair(CENTRAL, methods.APFL()),
    Pair(plans.Local(Fixed(0.1)), methods.FineTuned(FEDAVG)),
)


def _control() -> RunAudit:
    return attack(z=300.0, canaries=EXPOSED)


# --- planted faults: what is attacked with the fault, and the same without it


@dataclass(frozen=True)
class Fault:
    """`planted` has a fault in it that breaks the claim; `honest` is the same run without it."""

    planted: Callable[[], RunAudit]
    honest: Callable[[], RunAudit]


def _half_the_noise() -> RunAudit:
    honest = grouped.noises.add
    with patch.object(grouped.noises, "add", lambda total, std, noise: honest(total, std / 2, noise)):
        return attack(canaries=1500)


def _noise_in_one_round_alone() -> RunAudit:
    honest, rounds = grouped.noises.add, iter(range(100))
    with patch.object(grouped.noises, "add", lambda t, std, noise: t if next(rounds) else honest(t, std, noise)):
        return attack()


def _no_clip_on_a_tensor() -> RunAudit:
    honest = release.clipped_upload_sum

    def planted(uploads: Any, bound: Any, levels: int) -> Any:
        clipped, bare = honest(uploads, bound, levels), honest(uploads, bound * 100, levels)
        last = sorted(clipped.totals)[-1]
        return clipped._replace(totals={**clipped.totals, last: bare.totals[last]})

    with patch.object(release, "clipped_upload_sum", planted):
        return attack()


_SAMPLED: dict[str, Any] = {"z": 1.0, "rate": 0.1, "rounds": 40, "canaries": 1500}


@dataclass(frozen=True)
class AsksAgain(FedAvg):
    """Asks every batch so many times and takes the mean: the noise averages out."""

    times: int = 16

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def mean(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            several = [site.private_grad(params, step, losses) for _ in range(self.times)]
            return tree.each(lambda *leaves: sum(leaves) / len(leaves), *several)  # type: ignore[arg-type]

        trained = self.local.run(view.model, site, mean, guarded=True)
        return Reply(Shared(tree.sub(trained, view.model)), state)


_RECORD: dict[str, Any] = {"z": 6.0, "canaries": EXPOSED, "batch": 2000}


def _a_batch_asked_again() -> RunAudit:
    """Charged as if each batch had been asked once."""
    honest = record.round_event
    with patch.object(record, "round_event", lambda batches, rows, asked: honest(batches, rows, [1] * len(asked))):
        return attack(plans.Record(0.1), AsksAgain(LocalSgd(0.5)), **_RECORD)


FAULTS: dict[str, Fault] = {
    "noise halved": Fault(_half_the_noise, lambda: attack(canaries=1500)),
    "noise in the first round alone": Fault(_noise_in_one_round_alone, attack),
    "no clip on one tensor": Fault(_no_clip_on_a_tensor, attack),
    "a cohort that is known": Fault(lambda: attack(**_SAMPLED, cohort_known=True), lambda: attack(**_SAMPLED)),
    "a batch asked 16 times, charged once": Fault(
        _a_batch_asked_again, lambda: attack(plans.Record(0.1), FEDAVG, **_RECORD)
    ),
}


# --- small federations: one canary, many trainings

SMALL: dict[str, Any] = {"clients": 5, "rounds": 4}


def attack_repeatedly(runs: int = 400, z: float = 1.5) -> RunAudit:
    """Five clients and a canary: `runs` trainings."""
    return audit_repeatedly(parts_of(z=z, **SMALL), runs)


def _small_with_half_the_noise(runs: int) -> RunAudit:
    honest = grouped.noises.add
    with patch.object(grouped.noises, "add", lambda total, std, noise: honest(total, std / 2, noise)):
        return attack_repeatedly(runs)


def _work(runs: int) -> Iterable[tuple[str, Callable[[], RunAudit]]]:
    yield from ((f"pair: {pair.name}", pair.attacked) for pair in PAIRS)
    yield "control: noise that drowns everything", _control
    for name, fault in FAULTS.items():
        yield f"fault: {name}", fault.planted
        yield f"honest: {name}", fault.honest
    yield "small: honest", lambda: attack_repeatedly(runs)
    yield "small: noise halved", lambda: _small_with_half_the_noise(runs)


# --- the page


def _row(found: Mapping[str, Any]) -> str:
    bound = max(found["lower_bound"], found["gaussian_lower_bound"])
    return (
        f"{found['claim']:.2f} | {found['lower_bound']:.2f} | {found['gaussian_lower_bound']:.2f} | "
        f"{bound / found['claim']:.2f} | {found['correct']} of {found['guesses']} | "
        f"{'**disproved**' if found['disproved'] else 'not disproved'} | {found['path'].partition(' (')[0]} | "
        f"{found['seconds']:.0f}"
    )


_HEADS = "claimed | at least | along Gaussian curves | share | right guesses | verdict | client programs | s |\n"
_RULE = "| --- " + "| ---: " * 5 + "| --- | --- | ---: |\n"


def _table(first: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    return f"| {first} | {_HEADS}{_RULE}" + "".join(f"| {name} | {_row(found)} |\n" for name, found in rows)


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of whatever was measured."""
    kinds = {kind: [(n.partition(": ")[2], f) for n, f in results.items() if n.startswith(kind)]
             for kind in ("pair", "control", "fault", "honest", "small")}  # fmt: skip
    sound = [f for _, f in kinds["pair"] if not f["disproved"] and _bound(f) < f["claim"]]
    found = [f for _, f in kinds["fault"] if f["disproved"]]
    wrong = [f for _, f in kinds["honest"] if f["disproved"]]
    exposed = dict(kinds["pair"]).get(PAIRS[0].name)
    share = _bound(exposed) / exposed["claim"] if exposed else float("nan")
    longest = max((f["seconds"] for f in results.values()), default=0.0)
    return f"""# Whole runs, attacked

Written by `python -m benchmarks.audits`; do not edit. {machine()}; one thread.

Digits through {WIDTH} random features, softmax regression, 20 clients, 8 rounds, everybody in every round, delta 1e-3,
95% confidence ([how it works](../../docs/how-to/audit-a-run.md)).

- **{len(sound)} of {len(PAIRS)} pairs** of plan and method: not disproved, and both lower bounds below the claim.
- The most exposed one (central, nothing to hide behind): the bound is **{share:.2f} of the claim** (asked for: {BAR}).
- **{len(found)} of {len(FAULTS)} planted faults** found; without their fault {len(wrong)} of these runs are disproved.
- The longest audit took {longest:.0f} s, on a machine that others used as well.

## Twelve pairs, one training each, {EXPOSED} canaries

{_table("plan, method", kinds["pair"])}
Share: the larger bound, of the claim. Under `local` and `stepwise` the attacker sees the released models only, and not
each message: the bound is far below the claim, which holds against the server. Programs of plan `record` draw batches
of random size, and none such is recorded: the plain program is what users run there.

## Control: noise multiplier 300

{_table("what", kinds["control"])}
## Planted faults, and the same runs without them

{_table("fault", kinds["fault"])}
{_table("without", kinds["honest"])}
## A small federation: five clients, one canary, many trainings

`tacit audit --runs`: a canary among five clients, there or not by a coin for each training.

{_table("what", kinds["small"])}"""


def _bound(found: Mapping[str, Any]) -> float:
    return max(found["lower_bound"], found["gaussian_lower_bound"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audits", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="trainings of the small federation")
    parser.add_argument("--results", type=Path, default=Path("runs/audits.json"), help="what is there is not repeated")
    options = parser.parse_args()
    known = json.loads(options.results.read_text()) if options.results.exists() else {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for name, audit in _work(options.runs):
        if name not in known:
            began = time.perf_counter()
            found = audit()
            known[name] = asdict(found) | {
                "disproved": found.disproved,
                "seconds": time.perf_counter() - began,
            }
            options.results.write_text(json.dumps(known, indent=1))
            print(f"{name}: {found}", flush=True)
    (RESULTS / "audits.md").write_text(markdown(known), encoding="utf-8")


if __name__ == "__main__":
    main()
