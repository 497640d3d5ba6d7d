"""Owners that are killed: `kill -9` of `tacit join` and of `tacit serve` at random moments. Does anything go on?

A server and three members, as their owners start them. Two members are killed again and again, now while they start,
now while they take part; then the server is. After every kill: how long until none of its processes is left, did the
member answer anything after that, and does a restart join once?
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.federation.worlds import note, noted
from tacit.data.loaders import load
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.service.serve import free_port
from tacit.federation.service.server_dir import ServerFolder

WITHIN = 5.0  # seconds until nothing may be left
WATCHED = 10.0  # seconds in which nothing may be answered afterwards
NODES = 3
STARTING, TAKING_PART = "while it starts", "while it takes part"
EXPERIMENT = """name = "orphans"
rounds = 2000
rate = 1.0
batch = 32
[data]
source = "digits"
clients = 5
[model]
hidden = [16]
[privacy]
plan = "local"
clip = 0.5
participations = 2000
[levels]
private = { noise = 1.0, delta = 1e-3 }
[federation]
inputs = [64]
classes = 10
nodes = 3
deadline = 20
"""


@dataclass
class Owner:
    """A `tacit` command and its folder, by which its processes are known: they have it in their environment."""

    arguments: list[str]
    folder: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with open(self.log, "ab") as out:
            tacit = [sys.executable, "-c", "from tacit.cli.main import main; main()"]
            self.process = subprocess.Popen(
                [*tacit, *(arguments or self.arguments)],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self) -> float | None:
        """Kills the owner, and nothing else; the seconds until none of its processes is left, or None."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        began = time.monotonic()
        while time.monotonic() < began + 4 * WITHIN:
            if not self.left():
                return time.monotonic() - began
            time.sleep(0.05)
        return None

    def left(self) -> list[int]:
        return _with_home(self.folder.resolve() / "flower")

    def nodes(self) -> int:
        return sum(
            any(name in _words(pid) for name in ("process supernode", "flower-supernode")) for pid in self.left()
        )

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in self.left():  # what this script must not leave behind, whatever it found
            os.kill(pid, signal.SIGKILL)


def _with_home(home: Path) -> list[int]:
    """All processes, but zombies, that have this folder as Flower's."""
    mark, found = f"FLWR_HOME={home}\0".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes() + b"\0":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@dataclass
class Trials:
    """The whole scene."""

    folder: Path
    results: Path
    chance: random.Random
    members: list[Owner] = field(default_factory=list)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        port, link, file = free_port(), free_port(), self.folder / "orphans.toml"
        file.write_text(EXPERIMENT)
        self.server = Owner(
            [
                "serve",
                str(file),
                "--port",
                str(port),
                "--link-port",
                str(link),
                "--folder",
                str(self.folder / "server"),
            ],
            self.folder / "server",
            self.folder / "serve.log",
        )

    def gather(self) -> None:
        """Server and members, joined by invitation, and the first round behind them."""
        self.server.start()
        _wait(lambda: self.server.log.read_text().count("tacit join") == NODES, 120, "no invitations")
        lines = [line.split() for line in self.server.log.read_text().splitlines() if "tacit join" in line]
        for k, words in enumerate(lines):
            table, place = self.folder / f"{k}.csv", self.folder / f"member-{k}"
            _table(table, k)
            member = Owner(["join", "--folder", str(place)], place, self.folder / f"join-{k}.log")
            asked = ["--data", str(table), "--name", f"m{k}", "--level", "private", "--folder", str(place)]
            member.start("join", words[2], words[3], *asked)
            self.members.append(member)
        _wait(lambda: len(self.told()) > 0, 240, "no round")

    def told(self) -> list[dict[str, Any]]:
        return ServerFolder(self.folder / "server" / "run").told()

    def answers(self, member: Owner) -> int:
        return ClientStore(member.folder).answers()

    def kill_member(self, member: Owner, name: str, when: str) -> None:
        """One trial. The member runs when it begins, and has been started again and takes part when it ends."""
        if when == STARTING:
            self.restart(member, self.chance.uniform(0.1, 16.0))
        else:
            time.sleep(self.chance.uniform(0.0, 10.0))
        at_once, were = member.nodes(), len(member.left())
        seconds = member.kill()
        before, rounds = self.answers(member), len(self.told())
        time.sleep(WATCHED)
        silent = self.answers(member) == before
        dropped = _soon(lambda: any(row["dropped"] for row in self.told()[rounds:]), 60.0)
        member.start()
        joined = _soon(lambda: self.answers(member) > before, 180.0)
        found = {
            "when": when,
            "processes": were,
            "seconds": None if seconds is None else round(seconds, 2),
            "silent": silent,
            "dropped out": dropped,
            "joined again": joined,
            "nodes at once": max(at_once, member.nodes()),
        }
        self.write(name, found)

    def restart(self, member: Owner, seconds: float) -> None:
        assert member.process is not None
        member.process.send_signal(signal.SIGINT)
        member.process.wait(60)
        member.start()
        time.sleep(seconds)

    def kill_server(self, name: str) -> None:
        """One trial; the server is started again."""
        time.sleep(self.chance.uniform(0.1, 45.0))
        were = len(self.server.left())
        seconds, rounds = self.server.kill(), len(self.told())
        time.sleep(2.0)
        quiet = len(self.told()) == rounds and not self.server.left()
        self.server.start()
        took = None if seconds is None else round(seconds, 2)
        found = {"when": "", "processes": were, "seconds": took, "silent": quiet}
        self.write(name, found)

    def goes_on(self) -> dict[str, Any]:
        """Whether rounds go on with everybody after the last restart, and a second owner is told who is there."""
        rounds = len(self.told())
        whole = _soon(lambda: any(row["took_part"] == NODES for row in self.told()[rounds:]), 240.0)
        second = subprocess.run(
            [sys.executable, "-c", "from tacit.cli.main import main; main()", *self.members[0].arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = " ".join((second.stdout + second.stderr).split())[-200:]
        return {"goes on with everybody": whole, "a second join": said, "nodes": [m.nodes() for m in self.members]}

    def write(self, name: str, found: Any) -> None:
        with self.writing:
            note(self.results, name, found)

    def end(self) -> None:
        for owner in (*self.members, self.server):
            owner.end()


def _table(path: Path, client: int) -> None:
    data = load("digits", clients=5, classes_each=10)
    rows = data.rows(client)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"p{k}" for k in range(64)), "label"])
        for x, y in zip(data.x[rows], data.y[rows], strict=True):
            writer.writerow([*(f"{value:.4f}" for value in x.reshape(-1).tolist()), int(y)])


def _soon(test: Any, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if test():
            return True
        time.sleep(0.3)
    return False


def _wait(test: Any, seconds: float, otherwise: str) -> None:
    if not _soon(test, seconds):
        raise RuntimeError(otherwise)


def run(trials: Trials, count: int) -> None:
    trials.gather()
    whens = [STARTING if k % 3 == 0 else TAKING_PART for k in range(count)]

    def one(member: Owner, numbers: range) -> None:
        for k in numbers:
            trials.kill_member(member, f"join/{k}", whens[k])

    victims = [
        threading.Thread(target=one, args=(trials.members[k], range(k - 1, count, 2)), daemon=True) for k in (1, 2)
    ]
    for victim in victims:
        victim.start()
    for victim in victims:
        victim.join()
    for k in range(count):
        trials.kill_server(f"serve/{k}")
    trials.write("end", trials.goes_on())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.orphans", description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/orphans.json"))
    options = parser.parse_args()
    if "end" in noted(options.results):
        return
    with tempfile.TemporaryDirectory(prefix="tacit-orphans-") as name:
        trials = Trials(Path(name), options.results, random.Random(options.seed))
        try:
            run(trials, options.trials)
        except BaseException:
            for log in sorted(Path(name).glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text()[-1500:]}\n")
            raise
        finally:
            trials.end()
    found = json.loads(options.results.read_text())
    sys.stdout.write(f"{sum('seconds' in v and v['seconds'] is not None for v in found.values())} kills seen through\n")


if __name__ == "__main__":
    main()
