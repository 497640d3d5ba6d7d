"""One cell of PrivateFL's tables: an experiment becomes accuracies, each measured in a way that is named.

(a) `own`: each client's own extended model on test rows of its own classes, after the last round. The authors report
this one, of the round that was best on test rows.
(b) `whole`: the shared model on the whole test set. A transform is not part of it: it is reset to its start.
(c) `own` of training alone, and of a personal transform before a random head that nobody trains.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
from torch import nn

from papers.adaped.cells import validated
from papers.bench import Cell, NotRun, Runner
from papers.privatefl.recipe import LAYER, Arm, Tuned, World, experiment
from tacit import methods
from tacit.data.dataset import FederatedDataset
from tacit.experiments.build import Parts, build, load_data
from tacit.experiments.config import Config, decisive, full
from tacit.experiments.result import Result
from tacit.experiments.train import conduct
from tacit.models.input_transform import NAME

SELECTION_SEED: Final = 100
VALIDATION_SEEDS: Final = (100,)  # of choices that are made for each row
_KEPT: Final = 6  # federations in memory: a table goes through its seeds for one row after another
_LOADED: Final[dict[tuple[str, int], FederatedDataset]] = {}
ALONE: Final = Arm("open", method={"name": "local-only"})
HEAD: Final = Arm("open", method={"name": "local-only"}, transform=LAYER, privacy={"frozen": "head"})
"""What personalization reaches without any federation: a model of one's own; a transform before a random head."""


def measure(bench: Runner, world: World, arm: Arm, tuned: Tuned, seed: int) -> Cell:
    """All figures of one cell, in shares."""
    return _cell(bench, world, arm, tuned, seed, validation=False)


def validate(bench: Runner, world: World, arm: Arm, tuned: Tuned, seed: int = SELECTION_SEED) -> Cell:
    """The same on rows held out of the training rows; hyper-parameters are chosen by these."""
    return _cell(bench, world, arm, tuned, seed, validation=True)


def _cell(bench: Runner, world: World, arm: Arm, tuned: Tuned, seed: int, validation: bool) -> Cell:
    frozen = arm.privacy.get("frozen") == "head"
    config = experiment(world, replace(arm, privacy={}) if frozen else arm, tuned, seed)
    key = {"experiment": decisive(full(config)), "validation": validation, **({"head": "frozen"} if frozen else {})}

    def compute() -> Cell:
        began = time.process_time()
        parts = build(config, _federation(config, validation))
        parts = _frozen(parts) if frozen else parts
        result = conduct(parts, full(config), None, resume=False, progress=False)
        cell = figures(result) | {"seconds": time.process_time() - began}
        said = f"own {cell['own']:.4f}, whole {cell['whole']:.4f}, {cell['seconds']:.0f} s"
        bench.console.print(f"  {world.name}, {described(arm)}, {tuned}, seed {seed}: {said}", style="dim")
        return cell

    with suppress(NotRun):
        return replace(bench, only_kept=True).cell({**key, "experiment": _earlier(key["experiment"])}, compute)
    return bench.cell(key, compute)


def _earlier(content: Mapping[str, Any]) -> dict[str, Any]:
    """As cells were written before there was a precision, and when a server's step was named."""
    kept = {name: value for name, value in content.items() if name != "precision"}
    server = kept["method"].get("server")
    return kept | {"method": {**kept["method"], "server": {"name": "sgd", **server}}} if server else kept


def _federation(config: Config, validation: bool) -> FederatedDataset:
    """Loaded once for all cells that share it."""
    data = full(config)["data"]
    key = (json.dumps(data, sort_keys=True), data.get("seed") or config.seed)
    if key not in _LOADED:
        while len(_LOADED) >= _KEPT:
            del _LOADED[next(iter(_LOADED))]
        _LOADED[key] = load_data(config)
    return validating(_LOADED[key]) if validation else _LOADED[key]


def described(arm: Arm) -> str:
    guarantee = "" if arm.kind == "open" else f" eps {arm.epsilon:g}"
    layer = "" if arm.transform is None else f", transform {dict(arm.transform)}"
    return f"{arm.kind}{guarantee}, {arm.method['name']}{layer}"


def validating(data: FederatedDataset) -> FederatedDataset:
    """Clients' held-out rows, a fifth of the training rows, in place of all test rows."""
    held = validated(data, 0)
    return replace(held, common_x=held.test_x, common_y=held.test_y)


def _frozen(parts: Parts) -> Parts:
    """Only the transform learns; the rest stays as it was drawn."""
    model: nn.Module = parts.model
    for name, leaf in model.named_parameters():
        leaf.requires_grad_(NAME in name and leaf.requires_grad)
    return parts._replace(method=methods.LocalOnly(_local(parts.method)))


def _local(method: Any) -> methods.LocalSgd:
    return method.local if hasattr(method, "local") else _local(method.base)


def figures(result: Result) -> Cell:
    personal, shared = (result.scores.summary(which) for which in ("personal", "shared"))
    spread = result.run.heterogeneity()
    epsilons: Mapping[str, Any] = result.findings.epsilons.get("private") or {}
    return {
        "own": personal.mean,
        "worst": personal.worst_decile,
        "whole": float(result.scores.common or np.nan),
        "shared_on_own": shared.mean,
        "shared_worst": shared.worst_decile,
        "spent": dict(epsilons),
        "emd": None if spread is None else float(spread.mean),
        "losses": _path(result, "common_loss"),
        "stopped": result.stopped or "",
        "notes": list(result.findings.facts.notes),
    }


def _path(result: Result, metric: str) -> list[float]:
    """A metric at every evaluation."""
    return result.metrics[result.metrics.metric == metric].value.round(5).tolist()
