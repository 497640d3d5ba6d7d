"""Small federations in one process: every client a `Client` with its own rows and its own disk, no Flower between."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset, LocalView
from tacit.data.layout import Layout
from tacit.federation.protocol.client import Client
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Arrived
from tacit.federation.protocol.server import FederationServer
from tacit.federation.protocol.terms import Participant, Rows, Terms, public_view, with_own_rows
from tacit.privacy import mechanisms as plans
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.round import Report
from tacit.sampling.cohorts import Poisson
from tests.worlds import CENTRAL, model_for, ragged


@dataclass
class World:
    """One experiment, to be simulated or federated."""

    method: Method
    privacy: Privacy = CENTRAL
    federation: FederatedDataset = field(default_factory=lambda: ragged(5))
    rounds: int = 3
    rate: float = 0.8
    steps: int | None = None
    dtype: torch.dtype = torch.float64
    run_id: str = "run-1"
    fresh: bool = False
    keys: dict[str, str] = field(default_factory=dict)  # public keys, where sums are masked
    model: nn.Module | None = None  # instead of the method's

    @property
    def training(self) -> Training:
        steps, draw = self.steps, Poisson(self.rate)
        return Training(rounds=self.rounds, sampler=draw, batch=4, steps=steps, seed=3, dtype=self.dtype)

    def simulated(self) -> Run:
        engine, shapes = assemble(
            self.federation, self.model or model_for(self.method), self.method, self.privacy, self.training
        )
        engine = replace(engine, identity="")  # noise by the seed alone: no party of a federation has all the data
        return Run(engine, shapes, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))

    @property
    def public(self) -> bool:
        """Whether numbers of rows are."""
        return isinstance(self.privacy.plan, plans.Record)

    @property
    def terms(self) -> Terms:
        choices = self.privacy.choose(self.federation, 3)
        sizes = self.federation.sizes if self.public else [0] * self.federation.clients
        roster = tuple(
            Participant(name, choices.of(k).name, int(n), self.keys.get(name, ""))
            for k, (name, n) in enumerate(zip(self.federation.ids, sizes, strict=True))
        )
        data = self.federation
        return Terms(self.run_id, "", data.input_shape, data.classes, roster, Layout.of(data))

    def assembled(self, terms: Terms, view: LocalView) -> Assembled:
        choices = {seat.name: seat.level for seat in terms.roster}
        privacy = replace(self.privacy, choices=choices)
        sizes = terms.sizes(view, self.public)
        return assemble(view, self.model or model_for(self.method), self.method, privacy, self.training, sizes)

    def rows(self, place: int) -> Rows:
        return Rows.of(self.federation, place)

    def seen_by(self, place: int, terms: Terms, rows: Rows) -> Assembled:
        made = self.assembled(terms, public_view(terms, self.dtype, place))
        return with_own_rows(made, place, terms, rows, self.public)

    def client(self, place: int, folder: Path) -> Client:
        name = self.federation.ids[place]

        @cache
        def made(terms: Terms) -> Assembled:
            return self.seen_by(terms.place(name), terms, self.rows(place))

        return Client(name, ClientStore(folder / name), made, self.fresh, folder / name / "node.key", not self.keys)

    def clients(self, folder: Path) -> dict[str, Client]:
        return {name: self.client(k, folder) for k, name in enumerate(self.federation.ids)}

    def conductor(
        self, folder: Path, transport: "Wire | None" = None, ledger: Ledger | None = None
    ) -> FederationServer:
        server = folder / "server"
        server.mkdir(parents=True, exist_ok=True)
        terms = self.terms
        return FederationServer(
            self.assembled(terms, public_view(terms, self.dtype)),
            terms,
            ledger or Ledger.open(server / "ledger.sqlite"),
            transport or Wire(self.clients(folder)),
            server,
            fresh=self.fresh,
            sums_in_the_open=not self.keys,
        )


class Reports(list[Report]):
    """A watcher that keeps what it is told."""

    def after_round(self, report: Report) -> None:
        self.append(report)


Tamper = Callable[[str, bytes], Sequence[tuple[str, Arrived]]]
"""What arrives instead of a client's answer: none, one or several, each from somebody."""


@dataclass
class Wire:
    """A transport that calls the clients one after the other."""

    clients: Mapping[str, Client]
    tamper: Tamper = lambda name, blob: [(name, blob)]
    offline: set[str] = field(default_factory=set)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    answers: list[tuple[str, bytes]] = field(default_factory=list)

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            self.asked.append((name, blob))
            if name in self.offline:
                continue
            answer = self.clients[name].answer(blob)
            self.answers.append((name, answer))
            yield from self.tamper(name, answer)
