"""How long one client's upload takes under the distributed plan: encode, and decode of a round's sum.

python -m benchmarks.distributed [numbers]
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from tacit.core import Shared
from tacit.privacy.distributed import BODY, Distributed
from tacit.privacy.noise import Seeded
from tacit.privacy.release import Totals
from tacit.privacy.solver import solve


def median(action: Callable[[int], object], times: int = 5) -> float:
    """Seconds of the processor: what others do on the machine does not count."""
    action(0)
    taken = []
    for i in range(1, times + 1):
        began = time.process_time()
        action(i)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main(size: int = 1_000_000) -> None:
    torch.set_num_threads(1)
    release = Distributed(solve(1.0, size, 1.0, 18, 80, 120), {"model/w": torch.zeros(size, device="meta")}, 100.0)
    upload, state = Shared({"w": torch.randn(size)}), release.start()

    def encode(i: int) -> torch.Tensor:
        return release.encode(state, upload, torch.tensor(0), Seeded.of(i, "client")).body[BODY]

    totals = Totals({BODY: encode(0)[None]}, torch.zeros(1), torch.zeros(1), torch.tensor([100]))
    encoding = median(encode)
    decoding = median(lambda i: release.decode(state, totals, Seeded.of(i, "server")))
    each = f"encode {encoding:.3f} s, decode {decoding:.3f} s, together {encoding + decoding:.3f} s"
    print(f"{size:,} numbers, one thread: {each}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
