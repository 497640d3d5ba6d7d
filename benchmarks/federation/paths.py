"""A server names files, engines and devices in its experiment: a member opens none of them.

An audit hook sees every file that Python opens. A pipe that nobody writes to would hang whoever opens it.
"""

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.federation import liar
from tacit.experiments.toml import dumps
from tacit.federation.protocol.terms import Terms

LOCAL = {"plan": "local", "clip": 0.5}


def lies(pipe: str) -> dict[str, dict[str, Any]]:
    """By what a server would like, what it adds to its experiment."""
    table = {"source": "csv", "path": pipe, "label": "label", "client": "client"}
    return {
        "choices in a file": {"choices": pipe},
        "changes in a file": {"changes": pipe},
        "a table of data": {"data": table},
        "data from a hub": {"data": {"source": "hub", "path": "a/b"}},
        "a Ray cluster": {"run": {"dtype": "float32", "engine": "ray"}},
        "a device": {"run": {"dtype": "float32", "device": "cuda:0"}},
        "threads": {"run": {"dtype": "float32", "threads": 64}},
        "a Ray cluster, in its present place": {"performance": {"engine": "ray"}},
        "code of its own": {"method": {"name": "os:system"}},
        "a model of its own": {"model": {"name": "tacit.federation.service.cli:join"}},
        "choices by share": {"choices": {"private": 1.0}},
        "slow devices": {"devices": {"drop": 0.5}},
        "an unknown table": {"plugins": {"load": "os"}},
        "a table in a level": {"levels": {"private": {"epsilon": 8.0, "delta": 1e-3, "more": {"path": pipe}}}},
    }


def attacks(folder: Path) -> dict[str, str]:
    text = liar.text(LOCAL)
    home = liar.joined(folder / "member", liar.offered(text), liar.some_rows(9))
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    opened: list[str] = []
    watching = [True]  # a hook stays for as long as the process does

    def watch(event: str, given: tuple[object, ...]) -> None:
        if watching and event == "open" and str(given[0]) == str(pipe):
            opened.append(str(pipe))
            raise PermissionError("a pipe that a server named was opened")
        if watching and event == "import" and str(given[0]).split(".")[0] == "ray":
            opened.append("ray")

    sys.addaudithook(watch)

    def terms(run: str, told: str) -> Terms:
        return Terms(run, told, liar.INPUTS, liar.CLASSES, liar.roster(home, dict.fromkeys("abcd", "")))

    found = {"the honest experiment": liar.accepted(liar.answered(home, terms("honest", text)))}
    for number, (what, lie) in enumerate(lies(str(pipe)).items()):
        told = dumps(tomllib.loads(text) | lie)
        became = liar.verdict(liar.answered(home, terms(f"lie-{number}", told)))
        found[what] = f"LET IN (opened {opened.pop()})" if opened else became
    watching.clear()
    return found


if __name__ == "__main__":
    liar.run(attacks, __doc__, "paths")
