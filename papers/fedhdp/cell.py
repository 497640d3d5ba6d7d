"""One cell: a recipe, an arm and a seed become the figures of a row. Accuracies are simulation only."""

import time
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from papers.bench import Cell, Runner
from papers.fedhdp.recipe import MENU, OPTIMAL, Recipe
from tacit import models
from tacit.core import rng
from tacit.data.dataset import FederatedDataset, offsets_of
from tacit.data.loaders import npz_pool
from tacit.data.partition import Ids, Pool, divide
from tacit.experiments.build import Parts, build_privacy, build_training, method_of
from tacit.experiments.config import Config, decisive, full
from tacit.experiments.result import Result
from tacit.experiments.train import conduct
from tacit.rounds.loop import Schedule

OWN_ROWS: Final = 50  # test images of a one-digit client, drawn from those of its digit
COMPARED: Final = (OPTIMAL, MENU)  # arms of which every client's accuracy is kept, for the view of incentives
VALIDATION: Final = 1 / 6  # of the training images, for selection
_OPTIMAL_VERSION: Final = 2  # raised when the rule of `ratio = "optimal"` would choose other weights


def federation(recipe: Recipe, seed: int, validation: bool = False) -> FederatedDataset:
    """The clients of a recipe. For `validation`, training images stand in for the test set, which is left alone."""
    pool = npz_pool("mnist")
    pool = _scaled(set_aside(pool, VALIDATION, seed) if validation else pool, recipe)
    if recipe.partition == "writer":
        return divide(pool, partition="writer", clients=recipe.clients, seed=seed)
    dealt = divide(pool, partition=recipe.partition, clients=recipe.clients, test="matched", seed=seed)
    return tested_by_class(dealt, OWN_ROWS, seed)


def set_aside(pool: Pool, share: float, seed: int) -> Pool:
    """The pool with a share of its training rows, drawn at random, as the test set."""
    held = rng.generator(seed, "validation rows").random(len(pool.y)) < share
    kept, held = np.flatnonzero(~held), np.flatnonzero(held)
    ids = {name: Ids(each.train[kept]) for name, each in pool.ids.items()}
    return replace(pool, x=pool.x[kept], y=pool.y[kept], test=(pool.x[held], pool.y[held]), ids=ids)


def tested_by_class(of: FederatedDataset, rows: int, seed: int) -> FederatedDataset:
    """`of`, where each client's own test rows are `rows` of the common ones with the label of its first row."""
    assert of.common_x is not None
    assert of.common_y is not None
    places = [np.flatnonzero(of.common_y.numpy() == kind) for kind in range(of.classes)]
    chosen = []
    for client, start in enumerate(of.offsets[:-1]):
        held = places[int(of.y[start])]
        chosen.append(rng.generator(seed, "test rows", client).permutation(held)[:rows])
    index = np.concatenate(chosen)
    sizes = [len(own) for own in chosen]
    return replace(of, test_x=of.common_x[index], test_y=of.common_y[index], test_offsets=offsets_of(sizes))


def _scaled(pool: Pool, recipe: Recipe) -> Pool:
    if (recipe.shift, recipe.scale) == (0.0, 1.0):
        return pool

    def scaled(x: Tensor) -> Tensor:
        return (x.to(torch.float32) / 255 - recipe.shift) / recipe.scale

    assert pool.test is not None
    return replace(pool, x=scaled(pool.x), test=(scaled(pool.test[0]), pool.test[1]))


def start(recipe: Recipe, config: Config, clients: FederatedDataset) -> nn.Module:
    made = models.build(recipe.model, clients.input_shape, clients.classes, hidden=recipe.hidden)
    model = models.initialise(made, config.seed)
    with torch.no_grad():
        model.get_parameter("head.weight").mul_(recipe.head)
    return model


def train(recipe: Recipe, config: Config, clients: FederatedDataset, sample: int | None = None) -> Result:
    """The experiment on these clients, in memory and without a word."""
    parts = Parts(
        clients,
        start(recipe, config, clients),
        method_of(config),
        build_privacy(config),
        build_training(config),
        Schedule(config.evaluate.every, config.rounds, sample),
    )
    return conduct(parts, full(config), None, resume=False, progress=False)


def measure(bench: Runner, recipe: Recipe, arm: str, seed: int, strength: float | None = None) -> Cell:
    """All figures of one row of a table, in percent; variances across clients are 100 x those of the shares."""
    config = recipe.experiment(arm, seed, strength)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  {config.name}, lambda {config.method.strength:g}, seed {seed}", style="dim")
        result = train(recipe, config, federation(recipe, seed))
        seconds = time.perf_counter() - began
        own = {"own": own_accuracies(result)} if arm in COMPARED else {}
        return {**figures(result), **ledgers(result), **own, "seconds": seconds}

    return bench.cell(key(recipe, config, "row"), compute)


def validate(bench: Runner, recipe: Recipe, arm: str, seed: int, personal: bool = False) -> Cell:
    """Accuracies on validation images, which hyper-parameters are chosen by: the shared model's, and `personal` ones'.

    The mean over clients of the personal models' accuracies is that of the clients' own validation images.
    """
    config = recipe.experiment(arm, seed, personal=personal)

    def compute() -> Cell:
        began = time.perf_counter()
        bench.console.print(f"  validation: {config.name}", style="dim")
        clients = federation(recipe, seed, validation=True)
        result = train(recipe, config, clients, sample=None if personal else 1)
        own = {"personal": 100 * float(result.scores.personal.mean())} if personal else {}
        shared = {"accuracy": 100 * (result.scores.common or 0.0)}
        return {**shared, **own, "seconds": time.perf_counter() - began}

    return bench.cell(key(recipe, config, "validation"), compute)


def key(recipe: Recipe, config: Config, what: str) -> Cell:
    """What a cell is kept by: everything that decides its figures."""
    beside: Cell = {"inputs": [recipe.shift, recipe.scale], "head": recipe.head}
    rule = {"optimal": _OPTIMAL_VERSION} if config.privacy.get("ratio") == "optimal" else {}
    return {"what": what, "experiment": decisive(full(config)), **beside, **rule}


def figures(result: Result) -> Cell:
    found: Cell = {"global": 100 * (result.scores.common or 0.0)}
    private = np.array([promise.delta is not None for promise in result.findings.facts.promises])
    for group, wanted in (("private", True), ("open", False)):
        members = private[result.scores.level] == wanted
        if members.any():
            for name, values in (("global", result.scores.shared), ("personal", result.scores.personal)):
                found[f"{name}_{group}"] = 100 * float(values[members].mean())
                found[f"{name}_{group}_variance"] = 100 * float(values[members].var())
    for name in ("global", "personal"):
        if f"{name}_private" in found and f"{name}_open" in found:
            found[f"{name}_gain"] = found[f"{name}_open"] - found[f"{name}_private"]
    return found


def own_accuracies(result: Result) -> Cell:
    """Of every client, in the order of the federation: the shared and its personal model on its own test rows."""
    assert len(result.scores.clients) == result.run.engine.federation.clients
    scores = {"global": result.scores.shared, "personal": result.scores.personal}
    return {name: np.round(values, 3).tolist() for name, values in scores.items()}


def ledgers(result: Result) -> Cell:
    """By level: how many, what was promised and spent, its own accuracies; and the ratio of every round if it moved."""
    levels = {}
    for index, promise in enumerate(result.findings.facts.promises):
        shared, personal = (result.scores.summary(which, index).mean for which in ("shared", "personal"))
        levels[promise.level] = {
            "clients": promise.clients,
            "budget": promise.budget,
            "noise": promise.noise,
            "spent": result.findings.epsilons.get(promise.level),
            "global": 100 * shared,
            "personal": 100 * personal,
        }
    return {"levels": levels, "ratios": ratios(result)}


def ratios(result: Result) -> list[float]:
    """r of every round, under weights that move: the weight of one private client beside that of an open one."""
    table = result.metrics[result.metrics.metric == "weight"]
    if table.empty:
        return []
    weight = table.pivot(index="round", columns="level", values="value")
    count = {promise.level: promise.clients for promise in result.findings.facts.promises}
    private = [p.level for p in result.findings.facts.promises if p.noise and p.clients]
    each = weight[private].sum(axis=1) / sum(count[name] for name in private)
    return [round(float(value), 6) for value in each / (weight["open"] / count["open"])]
