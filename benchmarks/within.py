"""Tacit beside itself: personalization over plain averaging, unequal clients over equal ones, evaluation.

Every measurement is taken in turns with the one it is compared with, in one process.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.machine import CORES, machine
from tacit.core import Method
from tacit.engine.assemble import Privacy, Training, assemble
from tacit.engine.loop import Run, Schedule
from tacit.federation.cohort import FixedSize
from tacit.federation.data import Federation
from tacit.methods import Ditto, FedAvg
from tacit.models import MLP, FiveLayerCNN
from tacit.privacy.clip import Fixed
from tacit.privacy.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.requests import Central

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
CLIENTS, IMAGES, TESTS, COHORT, EPOCHS, BATCH = 2000, 30, 10, 100, 5, 10
NEVER = 10**9
MODELS = {"MLP": lambda: MLP(784, 10, (100,)), "CNN": lambda: FiveLayerCNN(1, 28, 10)}


class Comparison(NamedTuple):
    """Seconds of something, and of what it is measured against, scaled to the same work."""

    name: str
    against: str
    bar: str
    seconds: list[float]
    beside: list[float]

    def row(self) -> tuple[str, ...]:
        one, other = statistics.median(self.seconds), statistics.median(self.beside) if self.beside else None
        ratio = "" if other is None else f"{one / other:.2f}"
        return self.name, f"{one:.3f} s", self.against, "" if other is None else f"{other:.3f} s", ratio, self.bar


def federation(sizes: np.ndarray) -> Federation:
    """Random images, `sizes` of them to train on and some to test on."""
    draw = torch.Generator().manual_seed(0)
    rows, tests = int(sizes.sum()), TESTS * len(sizes)

    def images(several: int) -> torch.Tensor:
        return torch.randint(0, 256, (several, 28, 28), generator=draw, dtype=torch.uint8)

    def labels(several: int) -> torch.Tensor:
        return torch.randint(0, 10, (several,), generator=draw)

    return Federation(
        name="random",
        x=images(rows),
        y=labels(rows),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        test_x=images(tests),
        test_y=labels(tests),
        test_offsets=np.arange(len(sizes) + 1) * TESTS,
        common_x=None,
        common_y=None,
        ids=tuple(str(k) for k in range(len(sizes))),
        classes=10,
    )


def log_normal() -> np.ndarray:
    """From 10 to 1,000 images, most clients with few."""
    drawn = np.random.default_rng(0).lognormal(np.log(60), 1.0, CLIENTS)
    return np.clip(drawn, 10, 1000).astype(np.int64)


def prepare(model: str, method: Method, sizes: np.ndarray, epochs: int = EPOCHS) -> Run:
    privacy = Privacy(Central(Fixed(1.0)), (Level("private", delta=1e-4, noise=1.0),))
    training = Training(rounds=NEVER, sampler=FixedSize(COHORT), batch=BATCH, epochs=epochs)
    parts = assemble(federation(sizes), MODELS[model](), method, privacy, training)
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=NEVER, checkpoint_every=NEVER))
    for _ in range(3):
        run.step()
    return run


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(one: Callable[[], float], other: Callable[[], float], rounds: int, what: str) -> tuple[list[float], ...]:
    pairs = [(one(), other()) for _ in track(range(rounds), what)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def per_image(run: Run) -> Callable[[], float]:
    """Seconds of a round for each thousand images that its cohort trained on."""

    def measure() -> float:
        cohort = run.plan.setting.sampler.draw(run.engine.seed, run.progress.round, run.purse.eligible())
        return timed(run.step) / (run.engine.federation.sizes[cohort].sum() / 1000)

    return measure


def personalization(model: str, rounds: int) -> Comparison:
    equal = np.full(CLIENTS, IMAGES)
    ditto, average = prepare(model, Ditto(), equal), prepare(model, FedAvg(), equal)
    seconds = in_turns(lambda: timed(ditto.step), lambda: timed(average.step), rounds, f"Ditto, {model}")
    return Comparison(f"Ditto, {model}", "FedAvg", "2.2", *seconds)


def unequal(rounds: int) -> Comparison:
    sizes = log_normal()
    ragged, equal = (prepare("MLP", FedAvg(), each, 1) for each in (sizes, np.full(CLIENTS, int(sizes.mean()))))
    seconds = in_turns(per_image(ragged), per_image(equal), rounds, "unequal clients")
    return Comparison("unequal clients, 1,000 images", "equal clients", "1.25", *seconds)


def evaluation(rounds: int) -> Comparison:
    run = prepare("MLP", Ditto(), np.full(CLIENTS, IMAGES))
    everybody = np.arange(CLIENTS)
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    for some in np.array_split(everybody, 20):  # everybody has a model of its own
        run.store.write(some, {k: leaf.expand(len(some), *leaf.shape).clone() for k, leaf in first.items()})
    seconds = [timed(run.evaluate) for _ in track(range(rounds), "evaluation")]
    return Comparison(f"evaluating {CLIENTS:,} personal MLPs", "", "1 s", seconds, [])


HEADINGS = ("What", "Median", "Beside", "Median", "Ratio", "Bar")


def markdown(found: list[Comparison], rounds: int) -> str:
    sizes = log_normal()
    lines = ["| " + " | ".join(row) + " |" for row in (HEADINGS, ("---",) * len(HEADINGS), *(c.row() for c in found))]
    return f"""# Tacit beside itself

Written by `python -m benchmarks.within`; do not edit.

{chr(10).join(lines)}

DP-FedAvg and Ditto: cohorts of {COHORT} out of {CLIENTS:,} clients, {IMAGES} images each, {EPOCHS} epochs in batches of
{BATCH}, central plan; {rounds} rounds of each, in turns, in one process. A client's Ditto trains two models and keeps
one on disk. Unequal clients: a log-normal number of images, {sizes.min()} to {sizes.max()} (mean {sizes.mean():.0f}),
one epoch; seconds are for a thousand images that a cohort trained on, beside clients that all have the mean.
Evaluation is of every client's own model on {TESTS} images of its own, and of the shared model on all of them.

{machine()}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.within", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(CORES)
    found = [personalization(model, options.rounds) for model in MODELS]
    found += [unequal(options.rounds), evaluation(options.rounds)]
    table = Table(*HEADINGS, title="Tacit beside itself")
    for one in found:
        table.add_row(*one.row())
    Console().print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "speed-within.md").write_text(markdown(found, options.rounds))
    Console().print("written: results/speed-within.md")


if __name__ == "__main__":
    main()
