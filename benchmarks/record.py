"""Record-level DP-SGD: Tacit beside Opacus, client by client, taking turns round by round in one run.

100 clients, a DNN of three layers with the widths of PrivateFL's (784-600-100-10), batches of 64 drawn by Poisson
sampling, every client in every round; each system in the better of one and all threads.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.machine import CORES
from benchmarks.peers import protocol
from benchmarks.serving import PeerError
from benchmarks.speed import RESULTS, Peer, take_turns
from benchmarks.systems import Setting, System, opacus_python, this_python

BAR = 5.0
HEAD = "| | setting | seconds a round, median | least to most | times Tacit's |"
SETTINGS = (Setting(1, 1), Setting(1, CORES)) if CORES > 1 else (Setting(1, 1),)
SYSTEMS = {
    "Tacit": (System("tacit", "Tacit", "tacit_record.py", this_python, SETTINGS), "dnn"),
    "Opacus": (System("opacus", "Opacus", "opacus_record.py", opacus_python, SETTINGS), "dnn"),
    "Opacus, ghost clipping": (
        System("opacus-ghost", "Opacus", "opacus_record.py", opacus_python, SETTINGS),
        "dnn-ghost",
    ),
}


def measure(repeats: int, console: Console) -> dict[str, tuple[Setting, list[float]]]:
    """Seconds of each system's rounds in its best setting; the settings are tried with one round each."""
    best = {}
    for name, (system, model) in SYSTEMS.items():
        tried = {setting: _once(system, model, setting) for setting in system.settings}
        best[name] = min(tried, key=tried.__getitem__)
        console.print(f"{name}: {', '.join(f'{setting}: {seconds:.2f} s' for setting, seconds in tried.items())}")
    peers = {name: Peer(*SYSTEMS[name], best[name]) for name in SYSTEMS}
    try:
        for peer in peers.values():
            peer.__enter__()
        seconds = take_turns(peers, repeats, lambda name: None)
    finally:
        for peer in peers.values():
            peer.close()
    return {name: (best[name], seconds[name]) for name in SYSTEMS}


def _once(system: System, model: str, setting: Setting) -> float:
    with Peer(system, model, setting) as peer:
        return peer.round()


def page(found: dict[str, tuple[Setting, list[float]]], command: str, load: float) -> str:
    medians = {name: statistics.median(seconds) for name, (_, seconds) in found.items()}
    own = medians["Tacit"]
    rows = [
        f"| {name} | {setting} | {medians[name]:.2f} | {min(seconds):.2f} to {max(seconds):.2f} "
        f"| {medians[name] / own:.1f} |"
        for name, (setting, seconds) in found.items()
    ]
    ratio = medians["Opacus"] / own
    steps = protocol.RECORD_ROWS // protocol.RECORD_BATCH
    lines = [
        "# Record-level DP-SGD beside Opacus",
        f"Written by a run, not by hand. To repeat it: `{command}`",
        (
            f"{protocol.RECORD_CLIENTS} clients, {steps} steps of {protocol.RECORD_BATCH} rows each in a round, "
            f"784-{'-'.join(map(str, protocol.RECORD_HIDDEN))}-10. Load average before the run: {load:.1f}."
        ),
        "\n".join([HEAD, "|:--|--:|--:|--:|--:|", *rows]),
        f"Tacit is {ratio:.1f} times as fast as Opacus client by client; the bar is {BAR:g}: "
        f"{'reached' if ratio >= BAR else 'NOT reached'}.",
    ]
    return "\n\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each system")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for record-speed.md")
    options = parser.parse_args(arguments)
    console, load = Console(), os.getloadavg()[0]
    try:
        found = measure(options.repeats, console)
    except PeerError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise SystemExit(1) from error
    text = page(found, f"python -m benchmarks.record --repeats {options.repeats}", load)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "record-speed.md").write_text(text)
    console.print(text, markup=False)


if __name__ == "__main__":
    main()
