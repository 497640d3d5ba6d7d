"""A thousand devices of 300 x 561: seconds an outer round (its inner rounds and the covariance) and peak memory.

    python benchmarks/multitask.py [--devices 1000] [--inner 5]

Prints one line of JSON. The bars: 30 s and 4 GB.
"""

import argparse
import json
import resource
import time

import numpy as np
import torch

from tacit.engine.assemble import Privacy, Training, assemble
from tacit.engine.loop import Run
from tacit.federation.cohort import Poisson
from tacit.federation.data import Federation, offsets_of
from tacit.methods import Multitask
from tacit.models import SoftmaxRegression
from tacit.privacy.ledger import Ledger

ROWS, FEATURES = 300, 561


def federation(devices: int) -> Federation:
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
    return Federation("bench", x, y, offsets, x[:0], y[:0], offsets * 0, None, None, ids, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--inner", type=int, default=5)
    given = parser.parse_args()
    method = Multitask("hinge", 1e-3, inner=given.inner)
    training = Training(2 * given.inner, Poisson(1.0), batch=50)
    model = SoftmaxRegression(FEATURES, 2)
    run = Run(*assemble(federation(given.devices), model, method, Privacy(), training), Ledger.open(":memory:"))
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(given.inner):
            run.progress = run._release(run._draw(run.progress.round))  # the round alone, without an evaluation
        seconds.append(round(time.perf_counter() - began, 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({**vars(given), "outer_round_seconds": seconds, "peak_gb": round(peak, 2)}))


if __name__ == "__main__":
    main()
