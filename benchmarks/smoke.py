"""A guard against lost speed: three workloads beside a plain PyTorch loop, in turns, in one process and one thread.

python -m benchmarks.smoke           # compare with benchmarks/results/smoke.json; exit 1 on a loss of more than 30%
python -m benchmarks.smoke --write   # measure, and keep what was measured as the reference

What is compared is a ratio of medians of processor time, ours against the loop's. Both take turns, so a machine that is
busy is so for both. References are kept by processor: one that has none yet is measured, and nothing is said of a loss.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks.machine import processor

PEERS: Final = Path(__file__).resolve().parent / "peers"
REFERENCE: Final = Path(__file__).resolve().parent / "results" / "smoke.json"
LOST: Final = 0.3  # share of the speed that may be lost
TURNS: Final = 5
TRIES: Final = 2  # a ratio that is too low is measured once more before it counts


class Pair(NamedTuple):
    """One round of ours and one of the loop's, and how many times as much work ours is."""

    tacit: Callable[[], object]
    loop: Callable[[], object]
    work: float = 1.0


def networks(model: str) -> Pair:
    import tacit_rounds
    import torch_loop

    return Pair(tacit_rounds.build(model), torch_loop.build(model))


def records() -> Pair:
    """Record-level DP-SGD of all clients beside SGD, without any privacy, of one in twenty."""
    import protocol
    import tacit_record
    from torch import nn

    draw = torch.Generator().manual_seed(protocol.SEED)
    several = protocol.RECORD_CLIENTS // protocol.OPACUS_SHARE
    x = torch.rand(several, protocol.RECORD_ROWS, protocol.IMAGE_SIDE**2, generator=draw)
    y = torch.randint(protocol.RECORD_CLASSES, x.shape[:2], generator=draw)
    widths = (protocol.IMAGE_SIDE**2, *protocol.RECORD_HIDDEN, protocol.RECORD_CLASSES)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    network = nn.Sequential(*layers[:-1])

    def loop() -> None:
        for rows, labels in zip(x, y, strict=True):
            optimizer = torch.optim.SGD(network.parameters(), lr=protocol.LOCAL_RATE)
            for step, at in zip(rows.split(protocol.RECORD_BATCH), labels.split(protocol.RECORD_BATCH), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(step), at).backward()
                optimizer.step()

    return Pair(tacit_record.build("dnn"), loop, float(protocol.OPACUS_SHARE))


WORKLOADS: Final[dict[str, Callable[[], Pair]]] = {
    "a: DP-FedAvg, MLP": lambda: networks("mlp"),
    "b: DP-FedAvg, small CNN": lambda: networks("cnn"),
    "e: record-level DP-SGD": records,
}


def seconds(program: Callable[[], object]) -> float:
    """Processor time, so that what else the machine does counts little."""
    begun = time.process_time()
    program()
    return time.process_time() - begun


def speed(pair: Pair) -> float:
    """How many times as long the loop takes for the same work: medians of turns, after two rounds that do not count."""
    for program in (pair.tacit, pair.loop) * 2:
        program()
    turns = [(seconds(pair.tacit), seconds(pair.loop)) for _ in range(TURNS)]
    ours, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
    return theirs * pair.work / ours


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="keep what is measured as the reference")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(PEERS))
    torch.set_num_threads(1)
    references: dict[str, dict[str, float]] = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    if options.write:
        references[processor()] = {name: round(speed(build()), 2) for name, build in WORKLOADS.items()}
        REFERENCE.write_text(json.dumps(references, indent=1) + "\n")
        print(json.dumps(references[processor()], indent=1))
        return 0
    before = references.get(processor())
    if before is None:
        print(f"no reference for this processor ({processor()}): --write keeps one")
    return sum(not holds(name, build(), 0.0 if before is None else before[name]) for name, build in WORKLOADS.items())


def holds(name: str, pair: Pair, before: float) -> bool:
    """Whether no more than `LOST` of the speed is lost; prints what was measured."""
    for _ in range(TRIES):
        now = speed(pair)
        kept = now >= (1 - LOST) * before
        print(f"{name}: {now:.2f} times a PyTorch loop's speed; {before:.2f} before{'' if kept else ': LOST'}")
        if kept:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
