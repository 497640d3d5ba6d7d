"""The setting of the speed benchmark and the way its driver talks to every system.

A system is a script beside this file that hands `run` one function: `build(model)`, which prepares everything and
returns a function that does one round. Run with `--rounds`, a script times that many rounds and prints one JSON line.
Run with `--serve`, it prints a JSON line when it is warm, and then answers every line "go" on its standard input with
the seconds and the processor seconds that one round took, so that a driver can take turns between systems.

Only the standard library is used here: every system runs in an environment of its own.
"""

import argparse
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple, TextIO

MODELS = ("mlp", "cnn", "writers")

CLIENTS = 2000
IMAGES_PER_CLIENT = 30
IMAGE_SIDE = 28
CLASSES = {"mlp": 10, "cnn": 10, "writers": 62}
COHORT = {"mlp": 100, "cnn": 100, "writers": 30}
LOCAL_EPOCHS = 5
BATCH = 10
LOCAL_RATE = 0.1
CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
SERVER_RATE = 1.0
WARM_UP_ROUNDS = 2
RECORD_CLIENTS, RECORD_ROWS, RECORD_BATCH = 100, 128, 64  # two steps of DP-SGD for each client
RECORD_HIDDEN = (600, 100)
OPACUS_SHARE = 20  # Opacus takes about a minute for all clients: one in so many is timed
RECORD_CLASSES = 10
SEED = 0

TESTS = 10  # images of each client that its own model is evaluated on


class Training(NamedTuple):
    """The clients of a workload, and how a round trains them."""

    clients: int
    examples: int  # of each client
    cohort: int
    epochs: int
    batch: int
    rate: float
    clip: float


FIELD = {
    "cifar": Training(1000, 50, 50, 1, 10, 0.1, 0.4),  # pfl-research's own benchmark, with its central privacy
    "words": Training(100, 64, 20, 1, 16, 0.3, 0.5),  # StackOverflow's shape: sentences of 20 words out of 10,000
    "lora": Training(50, 20, 10, 1, 10, 0.1, 1.0),  # a vision transformer that is frozen, with adapters
}
SIDE, SENTENCE, WORDS = 32, 20, 10_000
WIDTH, FEED_FORWARD, HEADS, LAYERS = 96, 1536, 8, 2  # of the model of words
PATCH, VIT_WIDTH, VIT_HEADS, VIT_LAYERS, RANK = 4, 192, 3, 12, 8  # ViT-tiny


def training(model: str) -> Training:
    if model in FIELD:
        return FIELD[model]
    sizes = CLIENTS, IMAGES_PER_CLIENT, COHORT[model]
    return Training(*sizes, LOCAL_EPOCHS, BATCH, LOCAL_RATE, CLIP_NORM)


Round = Callable[[], float | None]  # what it returns is how much work it was; nothing for the usual amount
Build = Callable[[str], Round]


def run(
    system: str,
    build: Build,
    set_threads: Callable[[int], None],
    packages: tuple[str, ...],
    models: tuple[str, ...] = MODELS,
) -> None:
    """Be the whole program of one system: read the arguments, warm up, then time rounds."""
    options = _arguments(system, (*models, *FIELD) if models == MODELS else models)
    replies = _take_stdout()
    set_threads(options.threads)
    one_round = build(options.model)
    for _ in range(WARM_UP_ROUNDS):
        one_round()
    about: dict[str, Any] = {
        "system": system,
        "model": options.model,
        "threads": options.threads,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }
    if options.serve:
        _serve(about, one_round, replies)
    else:
        about["rounds"] = [_timed(one_round) for _ in range(options.rounds)]
        _reply(replies, about)


def _arguments(system: str, models: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Time training rounds of {system}.")
    parser.add_argument("--model", choices=models, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to time, after the warm-up")
    parser.add_argument("--threads", type=int, default=1, help="threads a tensor operation may use")
    parser.add_argument("--serve", action="store_true", help='run one round for each line "go" on standard input')
    return parser.parse_args()


def _take_stdout() -> TextIO:
    """Keep standard output for replies alone: whatever a library prints goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def _serve(about: dict[str, Any], one_round: Round, replies: TextIO) -> None:
    _reply(replies, about)
    for line in sys.stdin:
        if line.strip() != "go":
            raise SystemExit(f'expected "go", got {line!r}')
        _reply(replies, _timed(one_round))


def _timed(one_round: Round) -> tuple[float, float]:
    """Seconds of a round and of processors that it took, for the usual amount of work."""
    start, processor = time.perf_counter(), time.process_time()
    work = one_round() or 1.0
    return (time.perf_counter() - start) / work, (time.process_time() - processor) / work


def unequal_sizes() -> list[int]:
    """Images of each client: log-normal around 60, from 10 to 1,000; most have few."""
    draw = random.Random(SEED)
    return [int(min(max(draw.lognormvariate(math.log(60), 1.0), 10), 1000)) for _ in range(CLIENTS)]


def _reply(replies: TextIO, value: dict[str, Any] | tuple[float, float]) -> None:
    print(json.dumps(value), file=replies, flush=True)
