"""README's and the tutorial's first examples over ten seeds: are personal models better than shared ones, and alone?

`python -m benchmarks.first_examples` takes the very blocks out of the documents, puts another seed wherever they say
`seed=0`, runs them, and writes results/first-examples.md.
"""

import argparse
import contextlib
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
STORE: Final = RESULTS / "first-examples.json"
BAR: Final = 2.0  # points
SLOWEST: Final = 30.0  # seconds a block


@dataclass(frozen=True)
class Example:
    """A result of a document that is compared, by the name that the document gives it."""

    title: str
    document: str
    result: str


EXAMPLES: Final = (
    Example("README, epsilon 4", "README.md", "result"),
    Example("Tutorial, without privacy", "docs/tutorial.md", "plain"),
    Example("Tutorial, epsilon 4", "docs/tutorial.md", "result"),
)
OWN_METHOD: Final = "signs"  # of the tutorial: it has a shared model alone
Figures = dict[str, float]


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def run_document(document: str, seed: int) -> Figures:
    """What the document's Python gives with another seed, in points, and its slowest block's processor time."""
    names: dict[str, Any] = {"__name__": "page"}
    slowest = 0.0
    for block in blocks(document):
        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(block.replace("seed=0", f"seed={seed}"), names)
        slowest = max(slowest, time.process_time() - began)
    found: Figures = {"seconds": round(slowest, 2), "local": 100 * float(names["alone"].scores.personal.mean())}
    for name in ("result", "plain", OWN_METHOD):
        if name in names:
            scores = names[name].scores
            found |= {f"{name} {which}": 100 * float(getattr(scores, which).mean()) for which in ("shared", "personal")}
    return found


def measure(seeds: int) -> dict[str, list[Figures]]:
    """By document and seed; what is kept of the same text is not run again."""
    known: dict[str, Any] = json.loads(STORE.read_text()) if STORE.is_file() else {}
    found: dict[str, list[Figures]] = {}
    for document in dict.fromkeys(example.document for example in EXAMPLES):
        kept = known.get(document, {})
        if kept.get("text") != blocks(document):
            kept = {"text": blocks(document), "seeds": []}
        while len(kept["seeds"]) < seeds:
            kept["seeds"].append(run_document(document, len(kept["seeds"])))
            known[document] = kept
            STORE.write_text(json.dumps(known, indent=1) + "\n")
            print(document, len(kept["seeds"]), kept["seeds"][-1], flush=True)
        found[document] = kept["seeds"][:seeds]
    return found


def gap(first: Sequence[float], second: Sequence[float]) -> str:
    """The mean difference and its standard error, paired by seed."""
    apart = np.subtract(first, second)
    return f"{apart.mean():+.1f} ± {apart.std(ddof=1) / np.sqrt(len(apart)):.1f}"


def page(found: Mapping[str, Sequence[Figures]]) -> str:
    seeds = len(next(iter(found.values())))
    lines = [
        "# The first examples\n",
        f"Written by `python -m benchmarks.first_examples`: the Python of README and tutorial, taken out of them, with "
        f"{seeds} seeds (data, start, draws, noise). Accuracies in percent, mean over seeds, of 200 clients with 40 "
        "test rows each; differences are paired by seed, with their standard errors. Alone: `LocalOnly` with the same "
        "rounds and rows.\n",
        "| example | personal | shared | alone | personal - shared | personal - alone | bar: 2 points each |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for example in EXAMPLES:
        runs = found[example.document]
        personal, shared = ([run[f"{example.result} {which}"] for run in runs] for which in ("personal", "shared"))
        local = [run["local"] for run in runs]
        least = min(float(np.mean(np.subtract(personal, other))) for other in (shared, local))
        cells = [f"{np.mean(each):.1f}" for each in (personal, shared, local)]
        cells += [gap(personal, shared), gap(personal, local), "met" if least >= BAR else f"missed: {least:.1f}"]
        lines.append(f"| {example.title} | {' | '.join(cells)} |")
    own = [run[f"{OWN_METHOD} shared"] for run in found["docs/tutorial.md"]]
    slowest = {document: max(run["seconds"] for run in runs) for document, runs in found.items()}
    took = ", ".join(f"{document} {seconds:.1f} s" for document, seconds in slowest.items())
    lines += [
        f"\nThe tutorial's own method (signs of updates, epsilon 4): shared model {np.mean(own):.1f}, from "
        f"{min(own):.1f} to {max(own):.1f}; guessing among ten digits gives 10.\n",
        f"The slowest block of each document, over all seeds, in processor time: {took} (bar: "
        f"{SLOWEST:.0f} s, {'met' if max(slowest.values()) < SLOWEST else 'missed'}).\n",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    (RESULTS / "first-examples.md").write_text(page(measure(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
