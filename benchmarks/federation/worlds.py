"""Experiments that can be simulated and federated, and what is compared between the two."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.data.dataset import FederatedDataset
from tacit.experiments.build import build
from tacit.experiments.config import Config, parse
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.terms import Rows, Terms
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import Agreement, Offer
from tacit.federation.service.serve import Local
from tacit.federation.service.server_dir import ServerFolder, Settings
from tacit.federation.service.tls import make_node_key
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds import checkpoint
from tacit.rounds.assemble import assemble
from tacit.rounds.loop import Run, Schedule

NODES = 5
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "ditto": {"name": "ditto"},
    "scaffold": {"name": "scaffold"},
    "keep-local": {"name": "ditto", "keep": ["head"]},
}
PRIVATE = {"private": {"noise": 1.0, "delta": 1e-3}}
PLANS: dict[str, dict[str, Any]] = {
    "open": {},
    "central": {"privacy": {"plan": "central", "clip": 0.5}, "levels": PRIVATE},
    "grouped": {
        "privacy": {"plan": "grouped", "clip": 0.5},
        "levels": PRIVATE | {"open": {}},
        "choices": {"open": 0.4},
    },
    "local": {"privacy": {"plan": "local", "clip": 0.5}, "levels": PRIVATE},
    "record": {"privacy": {"plan": "record", "bound": 0.5}, "levels": PRIVATE},
    "distributed": {"privacy": {"plan": "distributed", "clip": 0.5}, "levels": PRIVATE},
}


def config_of(method: str, plan: str, rounds: int = 3, dtype: str = "float64", **more: Any) -> Config:
    content = {
        "name": f"{method}-{plan}-{dtype}",
        "rounds": rounds,
        "rate": 0.8,
        "seed": 3,
        "batch": 32,
        "data": {"source": "digits", "clients": NODES},
        "model": {"hidden": [16]},
        "method": METHODS[method],
        "run": {"dtype": dtype},
    }
    return parse(content | PLANS[plan] | more)


@dataclass(frozen=True)
class World:
    config: Config
    fresh: bool = False

    @property
    def data(self) -> FederatedDataset:
        return build(self.config).federation

    def simulated(self) -> tuple[Run, list[int]]:
        """The run, and how many clients it asked in each round."""
        parts = build(self.config)
        engine, shapes = assemble(*parts[:5])
        engine = replace(engine, identity="")  # noise by the seed alone: no party of a federation has all the data
        run = Run(engine, shapes, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
        return run, [report.cohort for report in run.go().reports]

    @property
    def plain(self) -> Config:
        """Members choose their levels themselves."""
        return self.config.model_copy(update={"choices": {}})

    @property
    def offer(self) -> Offer:
        return Offer.on(self.data, experiment.text_of(self.plain))

    def agreements(self) -> Iterator[tuple[Agreement, Rows]]:
        """Each client's word and its rows."""
        parts, offer = build(self.config), self.offer
        choices = parts.privacy.choose(parts.federation, self.config.seed)
        for k, name in enumerate(parts.federation.ids):
            word = Agreement.to(offer, name, choices.of(k).name)
            yield replace(word, fresh=self.fresh), Rows.of(parts.federation, k)

    def terms(self, run: str, fed: Local) -> Terms:
        seats = tuple(
            experiment.seat(self.plain, agreement.name, agreement.level, len(rows.x), public_key(fed, agreement.name))
            for agreement, rows in self.agreements()
        )
        return self.offer.terms(run, seats)

    def run_folder(self, folder: Path, run: str, fed: Local, deadline: float = 300.0) -> ServerFolder:
        run_folder = ServerFolder(folder / run)
        run_folder.open(self.terms(run, fed), fed.nodes, Settings(deadline, self.fresh))
        return run_folder


def public_key(fed: Local, name: str) -> str:
    return make_node_key(fed.home(name).folder / "node.key").decode()


@contextmanager
def federation(folder: Path, world: World) -> Iterator[Local]:
    """Five nodes, registered and started, with TLS and keys."""
    with Local(folder) as fed:
        for agreement, rows in world.agreements():
            fed.admit(agreement, rows)
            fed.start(agreement.name)
        yield fed


def largest(a: Tree, b: Tree) -> float:
    assert a.keys() == b.keys()
    return max((float((leaf.double() - b[name].double()).abs().max()) for name, leaf in a.items()), default=0.0)


def ledger_rows(ledger: Ledger, scopes: set[str] | None = None) -> list[tuple[Any, ...]]:
    entries = (e for e in ledger.entries() if scopes is None or e.scope in scopes)
    return sorted((e.round, e.scope, str(e.event), e.count) for e in entries)


def compare(world: World, run_folder: ServerFolder, stores: dict[str, ClientStore]) -> dict[str, Any]:
    """The federation's end beside the simulation's."""
    run, asked = world.simulated()
    saved = checkpoint.load(run_folder.folder / "checkpoint.bin")
    view = run.progress.server.view
    server = max(largest(saved["model"], view.model), largest(saved["extra"], view.extra))
    first = run.engine.method.join(view, run.engine.start)
    states = 0.0
    for place, store in enumerate(stores.values()):
        if run.store.touched[place] and first:
            mine = store.state(run_folder.terms.run, world.config.rounds, first)
            theirs = tree.each(lambda leaf: leaf[0], run.store.read(np.array([place]), first))
            states = max(states, largest(mine, theirs))
    with run_folder.ledger() as ledger:
        same = ledger_rows(ledger) == ledger_rows(run.ledger)
    took = [row["took_part"] for row in run_folder.told()]
    return {"server": server, "clients": states, "draws": same, "took part": took, "whole": took == asked}


def finite(run_folder: ServerFolder) -> bool:
    model = checkpoint.load(run_folder.folder / "checkpoint.bin")["model"]
    return all(bool(torch.isfinite(leaf).all()) for leaf in model.values())


def note(path: Path, key: str, value: Any) -> None:
    """Adds a result to a file of results; what is there already stays."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known | {key: value}, indent=1))
    sys.stdout.write(f"{key}: {value}\n")
    sys.stdout.flush()


def noted(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
