"""A client's folder: who it is, what it agreed to, its rows. Readable by its owner alone."""
# pyright: reportMissingImports=false

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import load, save

from tacit.deployment.experiment import client_side, evaluates, experiment_of, plan_name
from tacit.engine.assemble import Assembled
from tacit.engine.checkpoint import storage, write_atomically
from tacit.engine.flower.client import Client, Refusal
from tacit.engine.flower.custody import Custody
from tacit.engine.flower.own import Rows
from tacit.engine.flower.terms import Terms
from tacit.errors import TacitError


@dataclass(frozen=True)
class Agreement:
    """What the owner of the data said yes to. The server's word changes nothing about it."""

    name: str
    level: str
    plan: str
    epsilon: float | None
    delta: float | None
    fresh: bool = True  # False: noise from the experiment's seed, to compare with a simulation
    sums_in_the_open: bool = False  # True: sends without a mask what only a sum should show, to compare
    evaluated: bool = False  # reports accuracies on its own test rows: with noise, or plainly if it opted out
    noise: float | None = None  # of a level that has no epsilon, or is not calibrated to it

    def check(self, terms: Terms) -> None:
        """Refuses terms that are not those of the agreement."""
        config = experiment_of(terms.experiment)
        level = config.levels.get(self.level)
        given = (level.epsilon, level.delta, level.noise) if level else (None, None, None)
        mine = terms.roster[terms.place(self.name)].level
        told = (mine, given, plan_name(config), evaluates(config))
        if told != (self.level, (self.epsilon, self.delta, self.noise), self.plan, self.evaluated):
            raise Refusal("agreement")


@dataclass(frozen=True)
class Home:
    folder: Path

    @property
    def agreement(self) -> Agreement:
        path = self.folder / "client.json"
        if not path.exists():
            raise TacitError(f"{self.folder} is not the folder of a client: join a federation first")
        with storage(path):
            return Agreement(**json.loads(path.read_text()))

    def settle(self, agreement: Agreement, rows: Rows | None = None) -> None:
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.chmod(self.folder, 0o700)
        if rows is not None:
            write_atomically(self.folder / "rows.safetensors", save({k: v.clone() for k, v in rows._asdict().items()}))
        write_atomically(self.folder / "client.json", json.dumps(asdict(agreement), indent=2).encode())

    def rows(self) -> Rows:
        path = self.folder / "rows.safetensors"
        with storage(path):
            return Rows(**load(path.read_bytes()))

    def client(self) -> Client:
        agreement = self.agreement

        def made(terms: Terms) -> Assembled:
            agreement.check(terms)
            return client_side(terms, agreement.name, self.rows())

        key, open_sums = self.folder / "node.key", agreement.sums_in_the_open
        return Client(agreement.name, Custody(self.folder), made, agreement.fresh, key, open_sums)
