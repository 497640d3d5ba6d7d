"""What a private search costs and gains on MNIST: `tacit tune` with 10 and with 30 trials on average.

Every row of the table keeps the same budget. The control spends all of it on one training of the default settings; the
searches spend a part of it, and are scored on rows that are held out of training. Test rows are looked at once, at the
end. The last row is nobody's to have: for each seed the setting of the best score of a search that cost nothing.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from tacit.data.partition import validation_split
from tacit.evidence.tuning import VALIDATION, Search, score_of, tune
from tacit.experiments.build import build
from tacit.experiments.config import Config, full, parse, with_overrides
from tacit.experiments.result import Result
from tacit.experiments.train import conduct, run_config
from tacit.methods import FedAvg
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement

RESULTS = Path(__file__).resolve().parent / "results"
EPSILON, DELTA = 8.0, 1e-3
CHOICES = {"method.lr": ("0.01", "0.03", "0.1", "0.3", "1"), "batch": ("10", "50")}
EXPERIMENT: dict[str, Any] = {
    "name": "tuning",
    "rounds": 30,
    "rate": 0.1,
    "data": {"source": "mnist", "clients": 600, "classes_each": 4},
    "model": {"name": "softmax"},
    "method": {"name": "fedavg"},
    "privacy": {"plan": "central", "clip": 0.5},
    "levels": {"private": {"epsilon": EPSILON, "delta": DELTA}},
    "evaluate": {"every": 1000},
    "performance": {"threads": 1},
}
SEARCHES = {"10 trials on average": 10.0, "30 trials on average": 30.0}


def experiment(seed: int) -> Config:
    return with_overrides(parse(EXPERIMENT), [f"seed={seed}"])


def told(result: Result, chosen: Mapping[str, str]) -> dict[str, Any]:
    promise = result.findings.facts.promises[0]
    assert result.folder is not None
    with Ledger.read(result.folder / "ledger.sqlite") as ledger:
        (stated,) = (line for line in statement(ledger) if line.scope == "level:private")
    return {
        "accuracy": float(np.nanmean(result.scores.personal)),
        "epsilon": stated.epsilon,
        "accountant": stated.accountant,
        "noise": promise.noise,
        "chosen": dict(chosen),
    }


def default(seed: int) -> dict[str, Any]:
    """One training of the default settings, with all of the budget."""
    with tempfile.TemporaryDirectory() as folder:
        return told(run_config(experiment(seed), Path(folder) / "run", progress=False), {})


def searched(seed: int, mean: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        chosen, result = tune(experiment(seed), Search(CHOICES, mean), Path(folder) / "run")
        return told(result, chosen)


def free(seed: int) -> dict[str, Any]:
    """Every setting scored without noise and without a charge, and the best trained with all of the budget."""
    scores: dict[tuple[str, ...], float] = {}
    for values in itertools.product(*CHOICES.values()):
        config = with_overrides(experiment(seed), _changes(values))
        parts = build(config)
        held_out = validation_split(parts.federation, VALIDATION, seed)
        run = conduct(parts._replace(federation=held_out), full(config), None, False, False)
        scores[values] = score_of(run.scores)
    best = max(scores, key=lambda values: scores[values])
    with tempfile.TemporaryDirectory() as folder:
        config = with_overrides(experiment(seed), _changes(best))
        return told(run_config(config, Path(folder) / "run", progress=False), dict(zip(CHOICES, best, strict=True)))


def _changes(values: tuple[str, ...]) -> list[str]:
    return [f"{key}={value}" for key, value in zip(CHOICES, values, strict=True)]


def _work() -> dict[str, Callable[[int], dict[str, Any]]]:
    found: dict[str, Callable[[int], dict[str, Any]]] = {"default settings, no search": default}
    for name, mean in SEARCHES.items():
        found[name] = lambda seed, mean=mean: searched(seed, mean)
    return found | {"a search that is not charged": free}


# --- the page


def _row(name: str, cells: list[Mapping[str, Any]], control: list[Mapping[str, Any]]) -> str:
    scores = 100 * np.array([cell["accuracy"] for cell in cells])
    gains = scores - 100 * np.array([cell["accuracy"] for cell in control])[: len(scores)]
    stated = max(cell["epsilon"] for cell in cells)
    words = "; ".join(_setting(cell["chosen"]) for cell in cells)
    told = f"{stated:.2f}" if name != "a search that is not charged" else f"{stated:.2f}, which is not true of it"
    gain = "" if cells is control else f"{gains.mean():+.1f} ({_error(gains):.1f})"
    return (
        f"| {name} | {told} | {np.mean([cell['noise'] for cell in cells]):.2f} | {scores.mean():.1f} "
        f"({_error(scores):.1f}) | {gain} | {words} | {np.mean([cell['seconds'] for cell in cells]):.0f} |\n"
    )


def _setting(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{key.removeprefix('method.')} {value}" for key, value in chosen.items()) or "defaults"


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def markdown(known: Mapping[str, Mapping[str, Any]], seeds: int) -> str:
    """The page of what was measured."""
    cells = {name: [known[f"{name}/{seed}"] for seed in range(seeds)] for name in _work()}
    control = next(iter(cells.values()))
    table = "".join(_row(name, found, control) for name, found in cells.items())
    defaults = FedAvg().local
    return f"""# The price of tuning

Written by `python -m benchmarks.tuning`; do not edit. {machine()}; one thread.

MNIST, {EXPERIMENT["data"]["clients"]} clients of {EXPERIMENT["data"]["classes_each"]} classes each, softmax regression,
FedAvg under `central`, {EXPERIMENT["rounds"]} rounds at rate {EXPERIMENT["rate"]}; budget epsilon {EPSILON:g} at delta
{DELTA:g}, client-level. Searched: {", ".join(f"{key} in {', '.join(values)}" for key, values in CHOICES.items())}
(the defaults are lr {defaults.lr:g}, batch {experiment(0).batch}). Accuracy on test rows, in %, mean over {seeds}
seeds with its standard error; gains are paired by seed.

| | epsilon of search and training | noise multiplier | accuracy | gain over the default | chosen | s |
| --- | ---: | ---: | ---: | ---: | --- | ---: |
{table}
The noise multiplier is what the search costs: with the same budget, everything that is released has more of it. Trials
are scored on a fifth of the clients' training rows, with noise of {Search(CHOICES).score_noise:g} clients. The last row
shows what there was to gain: it looks at every score for nothing, so no epsilon can be stated of it.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("runs/tuning.json"), help="what is there is not repeated")
    options = parser.parse_args()
    known = json.loads(options.results.read_text()) if options.results.exists() else {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for seed, (name, work) in itertools.product(range(options.seeds), _work().items()):
        if f"{name}/{seed}" not in known:
            began = time.process_time()
            known[f"{name}/{seed}"] = work(seed) | {"seconds": time.process_time() - began}
            options.results.write_text(json.dumps(known, indent=1))
            print(name, seed, known[f"{name}/{seed}"], flush=True)
    (RESULTS / "tuning.md").write_text(markdown(known, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
