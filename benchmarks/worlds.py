"""One population for the scale benchmark, as a process: a round for each line "go", its memory for each line "memory".

Ditto on an MLP of 79,510 parameters under a central plan. Images are bytes, random, ten to train and two to test for
each client; states lie in a sparse file in a temporary folder.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tacit.core.contract import Tree
from tacit.data.dataset import FederatedDataset
from tacit.methods import Ditto
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize

TRAIN, TEST, COHORT, SAMPLE = 10, 2, 100, 1000
NEVER = 10**9


def population(clients: int) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)

    def images(rows: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, 784), generator=draw, dtype=torch.uint8)

    def labels(rows: int) -> torch.Tensor:
        return torch.randint(0, 10, (rows,), generator=draw)

    return FederatedDataset(
        name="random",
        x=images(clients * TRAIN),
        y=labels(clients * TRAIN),
        offsets=np.arange(clients + 1) * TRAIN,
        test_x=images(clients * TEST),
        test_y=labels(clients * TEST),
        test_offsets=np.arange(clients + 1) * TEST,
        common_x=None,
        common_y=None,
        ids=tuple(str(k) for k in range(clients)),
        classes=10,
    )


def prepare(clients: int, folder: Path) -> Run:
    privacy = Privacy(Central(Fixed(1.0)), (Level("private", delta=1e-6, noise=1.0),))
    training = Training(rounds=NEVER, sampler=FixedSize(COHORT), batch=10, epochs=5)
    parts = assemble(population(clients), initialise(MLP(784, 10, (100,)), 0), Ditto(), privacy, training)
    schedule = Schedule(evaluate_every=NEVER, checkpoint_every=NEVER, sample=SAMPLE)
    return Run(*parts, ledger=Ledger.open(folder / "ledger.sqlite"), schedule=schedule, folder=folder)


def write_states(run: Run, several: int) -> None:
    """States of the first `several` clients, really on disk."""
    first: Tree = run.engine.method.join(run.progress.server.view, run.engine.start)
    for begin in range(0, several, 100):
        clients = np.arange(begin, min(begin + 100, several))
        rows = {name: leaf.expand(len(clients), *leaf.shape).clone() for name, leaf in first.items()}
        run.store.write(clients, rows)
    run.store.prepare()
    run.store.commit()


def serve(run: Run, folder: Path) -> None:
    for line in sys.stdin:
        if line.strip() == "go":
            start = time.perf_counter()
            run.step()
            answer = {"seconds": time.perf_counter() - start}
        elif line.strip() == "evaluate":
            start = time.perf_counter()
            scores = run.evaluate()
            answer = {"seconds": time.perf_counter() - start, "clients": len(scores.clients)}
        else:
            file = (folder / "states.bin").stat()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            answer = {"peak": peak, "nominal": file.st_size, "on_disk": file.st_blocks * 512}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--written", type=int, default=0, help="states that are on disk before the first round")
    parser.add_argument("--folder", type=Path, default=None, help="where states go; a temporary folder by default")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="tacit-scale-", dir=options.folder) as name:
        run = prepare(options.clients, Path(name))
        write_states(run, options.written)
        for _ in range(3):
            run.step()
        print(json.dumps({"ready": options.clients}), flush=True)
        serve(run, Path(name))


if __name__ == "__main__":
    main()
