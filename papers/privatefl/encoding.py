"""How long one upload takes under noise in shares: a client's encoding, and the decoding of a round's sum."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from papers.bench import Cell, Runner
from papers.page import Part, Results
from tacit.core.contract import Shared
from tacit.privacy.mechanisms.distributed import BODY, DistributedRelease
from tacit.privacy.mechanisms.integer_coding import solve
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.release import Totals

SIZES: Final = (100_000, 1_000_000, 10_000_000)
BITS: Final = 18
TIMES: Final = 5
TARGET: Final = (1_000_000, 0.5)  # seconds, encode and decode together
COHORT: Final = 100


def parts(bench: Runner) -> list[Part]:
    found = {size: bench.cell(_asked(size), lambda size=size: measure(size)) for size in SIZES}
    rows = [[f"{size:,}", *map(_seconds, (*cell.values(), sum(cell.values())))] for size, cell in found.items()]
    title = f"Processor seconds of one upload, {BITS} bits"
    note = (
        f"One thread; median of {TIMES} after one that is not counted. Decoding is done once a round, not by clients."
    )
    heads = ["numbers", "encode (a client)", "decode (a sum)", "together"]
    return [Results(title, heads, rows, note), _judge(found)]


def _asked(size: int) -> dict[str, object]:
    return {"what": "encode and decode", "numbers": size, "bits": BITS, "times": TIMES}


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _judge(found: dict[int, Cell]) -> str:
    size, target = TARGET
    together = sum(found[size].values())
    met = "met" if together < target else "NOT met"
    return f"Encode and decode of {size:,} numbers: {together:.3f} s; target: {target:g} s at most: {met}."


def measure(size: int) -> Cell:
    """Seconds of the processor, so that what others do on the machine does not count."""
    shape = {"model/w": torch.zeros(size, device="meta")}
    release = DistributedRelease(solve(1.0, size, 1.0, BITS, 80, 120), shape, float(COHORT))
    upload, state = Shared({"w": torch.randn(size)}), release.start()

    def encode(turn: int) -> torch.Tensor:
        return release.encode(state, upload, torch.tensor(0), Seeded.of(turn, "client")).body[BODY]

    with _one_thread():
        totals = Totals({BODY: encode(0)[None]}, torch.zeros(1), torch.zeros(1), torch.tensor([COHORT]))
        return {
            "encode": _median(encode),
            "decode": _median(lambda turn: release.decode(state, totals, Seeded.of(turn, "server"))),
        }


def _median(action: Callable[[int], object]) -> float:
    taken = []
    for turn in range(TIMES + 1):
        began = time.process_time()
        action(turn)
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:])


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
