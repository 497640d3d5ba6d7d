"""Writes benchmarks/results/federation.md from what the scripts found."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.federation.evil import KINDS
from benchmarks.federation.faults import FAULTS
from benchmarks.federation.worlds import METHODS, PLANS, noted

PAGE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "federation.md"
MISSING = "not measured"
PARTS = ("parity", "faults", "orphans", "hostile", "liar", "outsider", "neighbour", "restored", "quiet")


def parity(found: dict[str, Any], dtype: str) -> str:
    """The largest difference of server and clients, by method and plan."""
    lines = ["| method | " + " | ".join(PLANS) + " |", "|---|" + "---:|" * len(PLANS)]
    for method in METHODS:
        cells = [found.get(f"{method}/{plan}/{dtype}") for plan in PLANS]
        shown = [MISSING if c is None else f"{max(c['server'], c['clients']):.1e}" for c in cells]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def parity_words(found: dict[str, Any], dtype: str, limit: float) -> str:
    known = [value for key, value in found.items() if key.endswith(dtype)]
    good = sum(max(v["server"], v["clients"]) < limit and v["draws"] for v in known)
    every = len(METHODS) * len(PLANS)
    return f"**{good} of {every}** within {limit:g}, with the same draws and charges ({len(known)} measured)."


def faults(found: dict[str, Any]) -> str:
    lines = [
        "| fault | trials | struck | completed, finite | ledgers agree | took part, by round |",
        "|---|---|---|---|---|---|",
    ]
    for name in FAULTS:
        runs = [value for key, value in found.items() if key.startswith(f"{name}/") and "skipped" not in value]
        if not runs:
            lines.append(f"| {name} | {MISSING} | | | | |")
            continue
        n = len(runs)
        struck = sum(run["struck"] for run in runs)
        done = sum(run["completed"] and run["finite"] for run in runs)
        agree = sum(run["ledgers agree"] and run["charged at least what was released"] for run in runs)
        part = "; ".join("-".join(str(k) for k in run["took part"]) for run in runs)
        lines.append(f"| {name} | {n} | {struck} of {n} | {done} of {n} | {agree} of {n} | {part} |")
    return "\n".join(lines)


def hostile(found: dict[str, Any]) -> str:
    plans = sorted({key.partition("/")[0] for key in found})
    if not plans:
        return MISSING
    lines = ["| plan | lie | took part | rejected as |", "|---|---|---|---|"]
    for plan in plans:
        for kind in KINDS:
            row = found.get(f"{plan}/{kind}")
            if row is not None:
                reasons = ", ".join(row["rejected"]) or _otherwise(kind)
                lines.append(f"| {plan} | {kind} | {row['took part']} of 5 | {reasons} |")
        end = found.get(f"{plan}/end")
        if end is not None:
            lines.append(
                f"| {plan} | end: {end['rounds']} rounds, finite {end['finite']} | | {end['door']} at the door |"
            )
    return "\n".join(lines)


def _otherwise(kind: str) -> str:
    """What became of a lie that the server application never saw."""
    return "counted once (Flower drops the second)" if kind == "duplicate" else "-"


def outsider(found: dict[str, Any]) -> str:
    rows = [f"| {who} | {what} |" for who, what in found.items()] or [f"| {MISSING} | |"]
    return "\n".join(["| what was tried | what became of it |", "|---|---|", *rows])


def liar(found: dict[str, Any]) -> str:
    rows = [f"| {what} | {became} |" for what, became in found.items()] or [f"| {MISSING} | |"]
    return "\n".join(["| what the server says | what the member does |", "|---|---|", *rows])


def orphans(found: dict[str, Any]) -> str:
    """What was left of killed owners, by kind of owner."""
    lines = [
        "| killed | times | processes then | gone after, at most | silent | a drop-out | joined again, once |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in ("join", "serve"):
        runs = [value for key, value in found.items() if key.startswith(f"{kind}/")]
        if not runs:
            lines.append(f"| `tacit {kind}` | {MISSING} | | | | | |")
            continue
        n, took = len(runs), [run["seconds"] for run in runs]
        slowest = "never" if None in took else f"{max(took):.2f} s"
        silent = f"{sum(run['silent'] for run in runs)} of {n}"
        dropped, again = "-", "-"
        if kind == "join":
            dropped = f"{sum(run['dropped out'] for run in runs)} of {n}"
            again = f"{sum(run['joined again'] and run['nodes at once'] == 1 for run in runs)} of {n}"
        were = "-".join(str(run["processes"]) for run in runs)
        lines.append(f"| `tacit {kind}` | {n} | {were} | {slowest} | {silent} | {dropped} | {again} |")
    last = found.get("end")
    if last is not None:
        whole = "go on with everybody" if last["goes on with everybody"] else "DO NOT go on with everybody"
        lines += ["", f"After the last restart rounds {whole}; SuperNodes of the members: {last['nodes']}."]
    return "\n".join(lines)


def quiet(found: dict[str, Any]) -> str:
    if not found:
        return MISSING
    outside = found["addresses outside loopback"]
    return (
        f"A whole federation in a network namespace of its own, under strace: {found['run']}.\nAddresses inside "
        f"loopback: {', '.join(found['addresses inside'])}. Addresses outside: **{', '.join(outside) or 'none'}**."
    )


TEXT = """# A real federation, on loopback

Written by `make federation`; do not edit. Five nodes over Flower's own processes, with TLS, node keys and the door.

## Simulation and federation

The same seeds, three rounds: the largest difference of the server's state and of every client's own. Under
`distributed` the sums are masked by secure aggregation.

In float64: {words64}

{parity64}

In float32: {words32}

{parity32}

## Faults

One fault in the second of three rounds, while the victim computes; noise is fresh. Afterwards the server's ledger and
every client's own must agree, row by row, and cover what was released.

{faults}

## Killed owners

`kill -9` of `tacit join` and of `tacit serve`, and of nothing else, at random moments: while they start, and while they
take part. Afterwards none of their processes may be left within 5 s, and a member that was killed answers nothing.

{orphans}

## A hostile member

One node of five lies, each turn in another way, under `distributed` with masks; the turn completes without it. A
gigabyte is sent to the door in the member's own name, which turns it away and tells the server.

{hostile}

## A lying server

A member's folder as `tacit join` leaves it, and a server that says what suits it: made-up members, numbers of rows and
labels to read the refusals by, files and engines to open. "Refused" is the same one word for all of them. Under "how
many rows", "which labels" and the like, two members with other rows gave the same answers to everything.

{liar}

## Outsiders

{outsider}

## Files that were restored, lost or edited

{restored}

## Another user of the machine

A process of another user of the server's and a member's machine reaches every port on loopback, reads every command
line, and has the federation's certificate authority.

{neighbour}

## Nothing calls home

{quiet}
"""


def page(folder: Path) -> str:
    one = {name: noted(folder / f"{name}.json") for name in PARTS}
    return TEXT.format(
        words64=parity_words(one["parity"], "float64", 1e-9),
        parity64=parity(one["parity"], "float64"),
        words32=parity_words(one["parity"], "float32", 1e-4),
        parity32=parity(one["parity"], "float32"),
        faults=faults(one["faults"]),
        orphans=orphans(one["orphans"]),
        hostile=hostile(one["hostile"]),
        liar=liar(one["liar"]),
        outsider=outsider(one["outsider"]),
        restored=outsider(one["restored"]),
        neighbour=outsider(one["neighbour"]),
        quiet=quiet(one["quiet"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.page", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/federation"))
    PAGE.write_text(page(parser.parse_args().results))


if __name__ == "__main__":
    main()
