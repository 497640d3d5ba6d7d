"""A thousand devices of 300 x 561: seconds an outer round (its inner rounds and the covariance) and peak memory.

    python benchmarks/multitask.py [--devices 1000] [--inner 5]
    python benchmarks/multitask.py --har       seconds to a relative duality gap of 1e-3 on UCI HAR (needs TACIT_DATA)

Prints one line of JSON. The bars: 30 s and 4 GB; a minute.
"""

import argparse
import json
import resource
import time

import numpy as np
import torch

from tacit.data.dataset import FederatedDataset, offsets_of
from tacit.methods import Multitask
from tacit.models import SoftmaxRegression
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run
from tacit.sampling.cohorts import Poisson

ROWS, FEATURES = 300, 561


def federation(devices: int) -> FederatedDataset:
    """Unit rows, classes by a model that devices share but for a part of their own."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(devices * ROWS, FEATURES, generator=draw)
    x /= x.norm(dim=1, keepdim=True)
    shared = torch.randn(FEATURES, generator=draw)
    own = torch.randn(devices, FEATURES, generator=draw)
    scores = (x.view(devices, ROWS, FEATURES) @ (shared + 0.3 * own).unsqueeze(-1)).reshape(-1)
    offsets = offsets_of(np.full(devices, ROWS))
    ids = tuple(f"d{k}" for k in range(devices))
    y = (scores > 0).long()
    return FederatedDataset("bench", x, y, offsets, x[:0], y[:0], offsets * 0, None, None, ids, 2)


def to_gap(wanted: float = 1e-3, strength: float = 0.1) -> dict[str, float]:
    """Hinge, a learned covariance, the paper's rows: until the gap is `wanted` of the primal, two changes on."""
    from papers.multitask.runs import Recipe, started
    from tacit.estimation.multitask import objective

    method = Multitask("hinge", strength, inner=100)
    run = started(Recipe(method, rounds=3000, rate=1 / 6), seed=0)
    seconds, cpu, found = 0.0, 0.0, objective(run)
    while run.progress.round < 300 or (found.relative_gap > wanted and run.progress.round < 2999):
        began, used = time.perf_counter(), time.process_time()
        run.take_round()
        seconds, cpu = seconds + time.perf_counter() - began, cpu + time.process_time() - used
        found = objective(run) if run.progress.round % 20 == 19 else found
    took = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    return {"rounds": run.progress.round, "relative_gap": found.relative_gap, **took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--inner", type=int, default=5)
    parser.add_argument("--har", action="store_true")
    given = parser.parse_args()
    if given.har:
        print(json.dumps(to_gap()))
        return
    method = Multitask("hinge", 1e-3, inner=given.inner)
    training = Training(2 * given.inner, Poisson(1.0), batch=50)
    model = SoftmaxRegression(FEATURES, 2)
    run = Run(*assemble(federation(given.devices), model, method, Privacy(), training), Ledger.open(":memory:"))
    seconds, cpu = [], []
    for _ in range(2):
        began, used = time.perf_counter(), time.process_time()
        for _ in range(given.inner):
            run.take_round()  # the round alone, without an evaluation
        seconds.append(round(time.perf_counter() - began, 2))
        cpu.append(round(time.process_time() - used, 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({**vars(given), "outer_round_seconds": seconds, "cpu_seconds": cpu, "peak_gb": round(peak, 2)}))


if __name__ == "__main__":
    main()
