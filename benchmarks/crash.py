"""Kills a run at random moments and resumes it to the same result; the ledger never shows less than was released.

Every killed run is a real `tacit run` process that gets SIGKILL. Afterwards, before anything is resumed, the durable
ledger is compared with everything the run has left behind: a round that shows in the metrics or in the checkpoint must
have been charged. Then the run is resumed to its end and compared with one that was never killed, to the bit.
"""

import argparse
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from tacit.errors import TacitError
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds import checkpoint

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
EXPERIMENT = """
name = "crash"
rounds = {rounds}
rate = 0.3
changes = [{{ round = 3, clients = ["0", "1"], level = "open" }}, {{ round = 6, clients = ["0"], level = "private" }}]
[data]
clients = 60
[model]
hidden = [32]
[method]
name = "ditto"
[privacy]
plan = "grouped"
[levels]
private = {{ noise = 1.0, delta = 1e-3 }}
open = {{}}
[choices]
open = 0.2
[evaluate]
every = 1
[run]
checkpoint_every = 4
threads = 1
"""


@dataclass(frozen=True)
class Moment:
    """What lay on disk when a run was killed; rounds count from 1, 0 stands for none."""

    charged: int
    measured: int
    saved: int

    @property
    def honest(self) -> bool:
        return self.charged >= max(self.measured, self.saved)


def start(file: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tacit.cli", "run", str(file), "--out", str(out), "--quiet", *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"a run ended with {process.returncode}: {errors.decode()[-2000:]}")


def kill_after(process: subprocess.Popen[bytes], run: Path, seconds: float) -> bool:
    """SIGKILL `seconds` after the first charge. False if the run was over before."""
    while not charged(run) and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    over = process.poll() is not None
    if not over:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return not over


def charged(run: Path) -> int:
    try:
        with Ledger.read(run / "ledger.sqlite") as ledger:
            return ledger.rounds() + 1
    except TacitError:  # not there, or its tables are not made yet
        return 0


def look(run: Path) -> Moment:
    saved = run / "checkpoint.bin"
    metrics = run / "metrics.csv"
    measured = 0
    if metrics.exists():
        with metrics.open() as file:
            measured = max((int(row["round"]) for row in csv.DictReader(file) if row["round"]), default=0)
    return Moment(charged(run), measured, checkpoint.load(saved)["round"] if saved.exists() else 0)


def state(run: Path) -> tuple[Any, ...]:
    """All that must be the same at the end: model, client states, ledger."""
    saved = checkpoint.load(run / "checkpoint.bin")
    with Ledger.read(run / "ledger.sqlite") as ledger:
        rows = sorted((e.round, e.scope, str(e.event), e.count) for e in ledger.entries())
        stays = ledger.level_periods()
    return saved["round"], saved["model"], saved["store"], saved["public"], rows, stays


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@dataclass(frozen=True)
class Outcome:
    seconds: float  # of rounds in the run that was not killed
    moments: tuple[Moment, ...]
    alike: int  # resumed runs that ended as the one that was not killed


def trial(kills: int, rounds: int, seed: int, folder: Path, watch: Any = None) -> Outcome:
    """`kills` runs, each killed once at a moment drawn uniformly over the whole training."""
    file = folder / "crash.toml"
    file.write_text(EXPERIMENT.format(rounds=rounds))
    whole = start(file, folder / "whole")
    run = folder / "whole" / "crash-0"
    while not charged(run) and whole.poll() is None:
        time.sleep(0.002)
    began = time.perf_counter()
    finish(whole)
    seconds, expected = time.perf_counter() - began, state(run)
    draw, moments, alike = random.Random(seed), [], 0
    for number in watch(range(kills)) if watch else range(kills):
        out = folder / str(number)
        run = out / "crash-0"
        while not kill_after(start(file, out), run, draw.uniform(0, seconds)):
            shutil.rmtree(out)  # the run was quicker this time: it was over before the moment came
        moments.append(look(run))
        finish(start(file, out, "--resume"))
        alike += same(state(run), expected)
        shutil.rmtree(out)
    return Outcome(seconds, tuple(moments), alike)


def markdown(outcome: Outcome, rounds: int) -> str:
    rows = "\n".join(f"| {k + 1} | {m.charged} | {m.measured} | {m.saved} |" for k, m in enumerate(outcome.moments))
    return f"""# Killed and resumed

Written by `make crash`; do not edit.

{len(outcome.moments)} runs of {rounds} rounds ({outcome.seconds:.1f} s of training), each killed with SIGKILL at a
random moment: the ledger showed at least what had been released in **{sum(m.honest for m in outcome.moments)} of
{len(outcome.moments)}**, and the resumed run ended with the same model, client states and ledger, to the bit, in
**{outcome.alike} of {len(outcome.moments)}**.

What lay on disk at the moment of the kill, in rounds:

| kill | charged in the ledger | in the metrics | in the checkpoint |
| ---: | ---: | ---: | ---: |
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-crash-") as name:
        outcome = trial(options.kills, options.rounds, options.seed, Path(name), lambda it: track(it, "kills"))
    text = markdown(outcome, options.rounds)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "crash.md").write_text(text)
    Console().print(text, highlight=False)
    if outcome.alike < options.kills or not all(moment.honest for moment in outcome.moments):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
