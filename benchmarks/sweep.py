"""A sweep of 24 runs: how much faster two processes are, and what is lost or repeated when it is killed.

`python -m benchmarks.sweep speed` and `... kills` measure; both write results/sweep.md. Killed: SIGKILL to `tacit
sweep` at a random moment, then the same command again, until a call comes to its end. A run is repeated if it was done
at a kill and its outcome was written again afterwards; it is lost if it is not there in the end. Every run is then
compared with the same run of a sweep that was never killed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tacit.privacy.ledger.ledger import Ledger

RESULTS: Final = Path(__file__).resolve().parent / "results"
STORE: Final = RESULTS / "sweep.json"
EXPERIMENT: Final = """name = "grid"
rounds = {rounds}
rate = 0.25
batch = 5
data = {{ source = "digits", clients = 200, classes_each = 3 }}
model = {{ name = "softmax" }}
method = {{ name = "ditto" }}
levels = {{ private = {{ epsilon = 4.0, delta = 1e-3 }}, open = {{}} }}
choices = {{ open = 0.1 }}
evaluate = {{ every = 50 }}
"""
GRID: Final = ("--set", "method.lr=.1,.2,.3,.5", "--set", "levels.private.epsilon=2,8", "--seeds", "3")
RUNS: Final = 24
BAR: Final = 1.7


def command(folder: Path, rounds: int, jobs: int) -> list[str]:
    file = folder / "grid.toml"
    file.write_text(EXPERIMENT.format(rounds=rounds))
    return [
        sys.executable,
        "-m",
        "tacit.cli",
        "sweep",
        str(file),
        *GRID,
        "-j",
        str(jobs),
        "--out",
        str(folder),
        "--quiet",
    ]


def seconds(rounds: int, jobs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(command(Path(folder), rounds, jobs), check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def measure_speed(rounds: int) -> dict[str, Any]:
    alone, two = seconds(rounds, 1), seconds(rounds, 2)
    return {"rounds": rounds, "cores": os.cpu_count(), "one": round(alone, 1), "two": round(two, 1)}


def done(folder: Path) -> dict[str, int]:
    """Finished runs, with the moment at which the outcome was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (folder / "grid").glob("*/outcome.json")}


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """By run: its metrics, and how many charges its ledger holds."""
    found: dict[str, tuple[bytes, int]] = {}
    for run in sorted((folder / "grid").iterdir()):
        if run.is_dir():
            with Ledger.open(run / "ledger.sqlite") as ledger:
                found[run.name] = (run / "metrics.csv").read_bytes(), len(list(ledger.entries()))
    return found


def kill_once(folder: Path, rounds: int, draw: random.Random, whole: float) -> dict[str, int]:
    """Kills a sweep at random moments until it ends by itself."""
    kills, repeated, known = 0, 0, dict[str, int]()
    while True:
        process = subprocess.Popen(command(folder, rounds, 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=draw.uniform(0.1, 0.6) * whole if kills < 3 else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            time.sleep(1.0)  # its processes notice that they are alone
        now = done(folder)
        repeated += sum(now.get(name) != moment for name, moment in known.items())
        known = now
        if process.returncode == 0:
            return {"kills": kills, "repeated": repeated, "lost": RUNS - len(now)}


def measure_kills(rounds: int, tries: int) -> dict[str, Any]:
    draw, found = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(command(Path(folder), rounds, 2), check=True, stdout=subprocess.DEVNULL)
        whole, expected = time.perf_counter() - began, contents(Path(folder))
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            ended = kill_once(Path(folder), rounds, draw, whole)
            ended["different"] = sum(contents(Path(folder)).get(name) != run for name, run in expected.items())
            found.append(ended)
            print(ended, flush=True)
    return {"rounds": rounds, "tries": found}


def page(known: dict[str, Any]) -> str:
    about = "four learning rates, two epsilons, three seeds; Ditto on digits with 200 clients"
    lines = [f"# Sweeps\n\nWritten by `python -m benchmarks.sweep`. {RUNS} runs: {about}.\n"]
    if speed := known.get("speed"):
        ratio = speed["one"] / speed["two"]
        lines += [
            f"**Speed.** {speed['rounds']} rounds a run, on {speed['cores']} cores: one after the other "
            f"{speed['one']:.0f} s, with `-j 2` {speed['two']:.0f} s, **{ratio:.2f} times as fast** "
            f"(bar: {BAR:g}, {'met' if ratio >= BAR else 'missed'}).\n"
        ]
    if kills := known.get("kills"):
        total = {name: sum(each[name] for each in kills["tries"]) for name in kills["tries"][0]}
        lines += [
            f"**Kills.** {len(kills['tries'])} sweeps of {RUNS} runs ({kills['rounds']} rounds each) with `-j 2`, "
            f"killed {total['kills']} times at random moments and started again: **{total['repeated']} runs repeated, "
            f"{total['lost']} lost**, {total['different']} with other metrics or another number of charges than in a "
            "sweep that was never killed.\n"
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("speed", "kills"))
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    known = json.loads(STORE.read_text()) if STORE.is_file() else {}
    if options.what == "speed":
        known["speed"] = measure_speed(options.rounds or 150)
    else:
        known["kills"] = measure_kills(options.rounds or 40, options.tries)
    STORE.write_text(json.dumps(known, indent=1) + "\n")
    (RESULTS / "sweep.md").write_text(page(known))


if __name__ == "__main__":
    main()
