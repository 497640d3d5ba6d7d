"""Machines that die: five nodes with TLS and keys, one fault in the second round, each kind three times.

After every run: did training complete, is the model finite, do the server's ledger and every client's own ledger agree,
and is neither below what was released?
"""

import argparse
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.federation.worlds import World, config_of, federation, finite, ledger_rows, note, noted
from tacit.errors import TacitError
from tacit.federation.flower.processes import end
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.service.serve import Local
from tacit.federation.service.server_dir import ServerFolder

VICTIM = "1"
ROUNDS = 3
EPOCHS = 100  # seconds of work in a round, so that a fault strikes while the victim computes
PLANS = ("local", "central", "local")


@dataclass(frozen=True)
class Fault:
    """`strike` at the moment when the victim computes; `mend` so many seconds later, or when that round is over."""

    strike: Callable[[Local], None]
    mend: Callable[[Local], None]
    seconds: float | None = 0.0
    deadline: float = 90.0


def _group(fed: Local, sign: signal.Signals) -> None:
    for process in fed.running[VICTIM].running.values():
        os.killpg(process.pid, sign)


def _kill_link(fed: Local) -> None:
    end(fed.site.running.pop("superlink"), kill=True)


def _start_link(fed: Local) -> None:
    fed.site.running["superlink"] = fed.site.link.superlink()


def _kill_server_app(fed: Local) -> None:
    """The process in which the rounds run, started by our own executor."""
    session = fed.site.running["superexec"].pid
    for entry in Path("/proc").iterdir():
        try:
            ours = entry.name.isdecimal() and os.getsid(int(entry.name)) == session
            if ours and b"\0serverapp\0" in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def _fill(fed: Local) -> None:
    folder = fed.home(VICTIM).folder
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(65_536)):
                pass
        except OSError:
            return


def _terminate(fed: Local) -> None:
    """Whoever looks after the nodes (`Local.revive`) starts it again: a second node of one key would be refused."""
    end(fed.running[VICTIM].running["supernode"], 20.0)


FAULTS = {
    "SIGKILL of a node, and its return": Fault(lambda f: f.stop(VICTIM, kill=True), lambda f: f.start(VICTIM), 1.0),
    "SIGTERM of a node, and its return": Fault(_terminate, lambda _: None),
    "a node that hangs": Fault(
        lambda f: _group(f, signal.SIGSTOP), lambda f: _group(f, signal.SIGCONT), None, deadline=60.0
    ),
    "SuperLink killed for 10 s": Fault(_kill_link, _start_link, 10.0),
    "server application killed and resumed": Fault(_kill_server_app, lambda _: None),
    "disk full on a client": Fault(_fill, lambda f: (f.home(VICTIM).folder / "filler").unlink(), None, deadline=60.0),
}


def run_one(fed: Local, name: str, trial: int, before: dict[str, Counter]) -> dict[str, Any]:
    fault, plan = FAULTS[name], PLANS[trial]
    world = World(config_of("ditto", plan, rounds=ROUNDS, rate=1.0, epochs=EPOCHS), fresh=True)
    for agreement, _ in world.agreements():
        fed.home(agreement.name).settle(agreement)
    run = f"{list(FAULTS).index(name)}-{trial}-{plan}"
    run_folder = world.run_folder(fed.folder / "server" / "runs", run, fed, fault.deadline)
    store, struck = ClientStore(fed.home(VICTIM).folder), threading.Event()
    waiting = threading.Thread(target=_strike, args=(fed, fault, run_folder, store, struck), daemon=True)
    waiting.start()
    began = time.monotonic()
    fed.site.conduct([run_folder], 900, fed.revive)
    waiting.join(120)
    return {
        "plan": plan,
        "struck": struck.is_set(),
        "completed": bool(run_folder.outcome and run_folder.outcome["round"] == ROUNDS),
        "finite": finite(run_folder),
        "took part": [row["took_part"] for row in run_folder.told()],
        "turns": [row["turn"] for row in run_folder.told()],
        **_compare(fed, run_folder, before),
        "charged at least what was released": _covered(run_folder),
        "seconds": round(time.monotonic() - began),
    }


def _strike(fed: Local, fault: Fault, run_folder: ServerFolder, store: ClientStore, struck: threading.Event) -> None:
    while not _answered(store, run_folder.terms.run):
        time.sleep(0.05)
    rounds = len(run_folder.told())
    fault.strike(fed)
    struck.set()
    if fault.seconds is not None:
        time.sleep(fault.seconds)
    while fault.seconds is None and len(run_folder.told()) == rounds:
        time.sleep(0.1)
    fault.mend(fed)


def _answered(store: ClientStore, run: str) -> bool:
    try:
        return store.answered(run, 1)
    except TacitError:  # its ledger is being made at this moment
        return False


def _compare(fed: Local, run_folder: ServerFolder, before: dict[str, Counter]) -> dict[str, Any]:
    """Each member's ledger beside what it had before this run and what the server's ledger has against it.

    Charges that the server alone has are of turns for which a member was charged and that it never saw. Charges that a
    member alone has would be releases that the server did not pay for.
    """
    server_alone, member_alone = 0, 0
    with run_folder.ledger() as server:
        level = run_folder.terms.roster[0].level
        for name in fed.nodes:
            scopes = {f"client:{name}", f"server:{name}", f"level:{level}", f"released:{level}"}
            expected = before.setdefault(name, Counter()) + Counter(ledger_rows(server, scopes))
            with ClientStore(fed.home(name).folder).ledger() as ledger:
                before[name] = Counter(ledger_rows(ledger))
            server_alone += (expected - before[name]).total()
            member_alone += (before[name] - expected).total()
    alike = server_alone == member_alone == 0
    return {"ledgers agree": alike, "charged by the server alone": server_alone, "by a member alone": member_alone}


def _covered(run_folder: ServerFolder) -> bool:
    """Each turn in which somebody took part has been charged, to a level or to as many clients."""
    with run_folder.ledger() as ledger:
        charged = Counter(entry.round for entry in ledger.entries())
    return all(charged[row["turn"]] >= (1 if charged else 0) for row in run_folder.told() if row["took_part"])


def _small_disk(folder: Path) -> bool:
    """A disk of 256 MB for the victim, so that it can be filled; one of 32 was full before the fault."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.faults", description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none later; the next call goes on")
    parser.add_argument("--results", type=Path, default=Path("runs/federation/faults.json"))
    options = parser.parse_args()
    known, began = noted(options.results), time.monotonic()
    wanted = [(n, t) for t in range(options.trials) for n in FAULTS if options.only in n and f"{n}/{t}" not in known]
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="tacit-faults-") as name:
        folder = Path(name)
        mounted = _small_disk(folder / "clients" / VICTIM)
        try:
            with federation(folder, World(config_of("ditto", "local", rate=1.0), fresh=True)) as fed:
                before: dict[str, Counter] = {}
                for fault, trial in wanted:
                    if time.monotonic() > began + options.seconds:
                        return
                    if "disk" in fault and not mounted:
                        note(options.results, f"{fault}/{trial}", {"skipped": "no right to mount a small disk"})
                        continue
                    note(options.results, f"{fault}/{trial}", run_one(fed, fault, trial, before))
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(folder / "clients" / VICTIM)], check=False)


if __name__ == "__main__":
    main()
