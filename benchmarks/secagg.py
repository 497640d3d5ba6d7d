"""What secure aggregation costs each client and the server: processor time of its own computation, and bytes sent.

python -m benchmarks.secagg [numbers] [clients] [--out benchmarks/results/secure-aggregation.md]
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.machine import machine
from tacit.secagg.client import State
from tacit.secagg.identity import Identity
from tacit.secagg.local import answer, run
from tacit.secagg.messages import Terms, packed_bytes

BITS = 18
STAGES = ("advertise keys", "share keys", "masked input", "consistency", "unmask")
LIMIT = 3.0  # seconds of a client's own computation for 10^6 numbers and 20 clients


class Measured(NamedTuple):
    clients: dict[int, list[float]]  # seconds of each stage, by member
    sent: dict[int, int]
    server: float
    exact: bool


def measure(size: int, clients: int, silent: dict[int, int]) -> Measured:
    """A round over encoded messages; each member's own time is taken around its answers, the rest is the server's."""
    terms = Terms.of("benchmark", 0, tuple(range(clients)), size=size, bits=BITS)
    draw = np.random.default_rng(0)
    vectors = {member: draw.integers(-1000, 1000, size) for member in terms.members}
    seconds: dict[int, list[float]] = defaultdict(list)
    sent: dict[int, int] = defaultdict(int)

    def timed(identity: Identity, state: State | None, message: bytes, vector: np.ndarray) -> tuple[State, bytes]:
        began = time.process_time()
        after, reply = answer(identity, state, message, vector)
        seconds[identity.member].append(time.process_time() - began)
        sent[identity.member] += len(reply)
        return after, reply

    began = time.process_time()
    found = run(terms, vectors, silent, timed)
    whole = time.process_time() - began
    plain = sum((vectors[m] for m in found.survivors), np.zeros(size, np.int64)) % 2**BITS
    server = whole - sum(map(sum, seconds.values()))
    return Measured(dict(seconds), dict(sent), server, np.array_equal(plain, found.total))


def report(size: int, clients: int) -> str:
    cases = {
        "nobody drops out": {},
        "one drops out at each stage": {stage: stage for stage in range(len(STAGES)) if clients > 2 * len(STAGES)},
        "a quarter drops out before the masked input": dict.fromkeys(range(clients // 4), 2),
    }
    measured = {name: measure(size, clients, silent) for name, silent in cases.items()}
    return "\n".join([*_head(size, clients), *_totals(measured), *_stages(measured["nobody drops out"]), ""])


def _head(size: int, clients: int) -> list[str]:
    return [
        "# Secure aggregation: what it costs",
        "",
        f"`python -m benchmarks.secagg {size} {clients}` on {machine()}.",
        f"{size:,} integers of {BITS} bits, {clients} clients; seconds of the processor (one thread), over encoded",
        "messages; identities are Ed25519 keys.",
        "",
    ]


def _totals(measured: dict[str, Measured]) -> list[str]:
    lines = ["| | slowest client | median client | server | sent by a client | sum |", "|---|---|---|---|---|---|"]
    for name, found in measured.items():
        each = [sum(parts) for parts in found.clients.values()]
        exact = "exact" if found.exact else "WRONG"
        lines.append(
            f"| {name} | {max(each):.3f} s | {statistics.median(each):.3f} s | {found.server:.3f} s "
            f"| {max(found.sent.values()):,} bytes | {exact} |"
        )
    slowest = max(sum(parts) for found in measured.values() for parts in found.clients.values())
    verdict = "under" if slowest < LIMIT else "NOT under"
    return [*lines, "", f"The slowest client needs {slowest:.2f} s: {verdict} the {LIMIT:g} s that it may take.", ""]


def _stages(found: Measured) -> list[str]:
    by_stage = zip(*found.clients.values(), strict=True)
    rows = [f"| {name} | {statistics.median(times):.4f} s |" for name, times in zip(STAGES, by_stage, strict=True)]
    return ["| stage, nobody drops out | median client |", "|---|---|", *rows]


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="?", type=int, default=1_000_000)
    parser.add_argument("clients", nargs="?", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = report(given.numbers, given.clients)
    print(text)
    print(f"an input in plain has {packed_bytes(given.numbers, BITS):,} bytes")
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
