"""A run of a second, for tests of everything around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.experiments.config import Config, parse, with_overrides
from tacit.experiments.result import Result
from tacit.experiments.train import run_config

CONTENT = {
    "name": "tiny",
    "rounds": 8,
    "rate": 0.3,
    "batch": 20,
    "data": {"clients": 20},
    "model": {"name": "softmax"},
    "method": {"name": "ditto", "lr": 0.5},
    "levels": {"private": {"epsilon": 6.0, "delta": 1e-2}, "open": {}},
    "choices": {"open": 0.2},
    "evaluate": {"every": 2},
    "run": {"checkpoint_every": 3},
    "performance": {"threads": 1},
}
TEXT = """
name = "tiny"
rounds = 8
rate = 0.3
batch = 20
data = { clients = 20 }
model = { name = "softmax" }
method = { name = "ditto", lr = 0.5 }
levels = { private = { epsilon = 6.0, delta = 1e-2 }, open = {} }
choices = { open = 0.2 }
evaluate = { every = 2 }
run = { checkpoint_every = 3 }
performance = { threads = 1 }
"""


def tiny(*changes: str) -> Config:
    return with_overrides(parse(CONTENT), changes)


def run(folder: Path, *changes: str, resume: bool = False) -> Result:
    return run_config(tiny(*changes), folder, resume, progress=False)


def stopping_after(rounds: int) -> Callable[[], object]:
    """Stands in for Ctrl-C pressed in the given round."""

    @contextmanager
    def stop() -> Iterator[Callable[[], bool]]:
        asked = iter(range(rounds))
        yield lambda: next(asked, None) is None

    return stop
