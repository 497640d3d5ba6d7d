"""One point of a scaling curve, as a process of its own: seconds of a round, and the most memory it ever had."""

import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tacit.data.dataset import FederatedDataset
from tacit.methods import Ditto, FedAvg
from tacit.models import MLP
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize

NEVER = 10**9
BATCH = 10


@dataclass(frozen=True)
class Point:
    """What a curve holds fixed, unless it is the curve's own."""

    cohort: int = 100
    population: int = 5000
    hidden: int = 100
    steps: int = 5
    threads: int = 2
    inputs: int = 784
    rows: int = BATCH
    personal: bool = False
    rounds: int = 7


def population(point: Point) -> FederatedDataset:
    """Random bytes; `rows` to train on and one to test on for each client."""
    draw = torch.Generator().manual_seed(0)
    n = point.population

    def inputs(rows: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, point.inputs), generator=draw, dtype=torch.uint8)

    def labels(rows: int) -> torch.Tensor:
        return torch.randint(0, 10, (rows,), generator=draw)

    return FederatedDataset(
        name="random",
        x=inputs(n * point.rows),
        y=labels(n * point.rows),
        offsets=np.arange(n + 1) * point.rows,
        test_x=inputs(n),
        test_y=labels(n),
        test_offsets=np.arange(n + 1),
        common_x=None,
        common_y=None,
        ids=tuple(map(str, range(n))),
        classes=10,
    )


def prepare(point: Point, folder: Path) -> Run:
    privacy = Privacy(Central(Fixed(1.0)), (Level("private", delta=1e-9, noise=1.0),))
    training = Training(rounds=NEVER, sampler=FixedSize(point.cohort), batch=BATCH, epochs=point.steps)
    method = Ditto() if point.personal else FedAvg()
    parts = assemble(population(point), MLP(point.inputs, 10, (point.hidden,)), method, privacy, training)
    schedule = Schedule(evaluate_every=NEVER, checkpoint_every=NEVER)
    return Run(*parts, ledger=Ledger.open(folder / "ledger.sqlite"), schedule=schedule, folder=folder)


def timed(run: Run) -> float:
    start = time.perf_counter()
    run.step()
    return time.perf_counter() - start


def main() -> None:
    point = Point(**json.loads(sys.argv[1]))
    torch.set_num_threads(point.threads)
    with tempfile.TemporaryDirectory(prefix="tacit-scaling-") as name:
        run = prepare(point, Path(name))
        for _ in range(2):
            run.step()
        seconds = statistics.median(timed(run) for _ in range(point.rounds))
        states = Path(name) / "states.bin"
        disk = states.stat().st_blocks * 512 if states.exists() else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "disk": disk}))


if __name__ == "__main__":
    main()
