"""Samples before and after the clients' transforms, over rounds (Figures 9 and 10): what the layer does to an image."""

from typing import Any, Final

import numpy as np
import torch

from papers.bench import Cell, Reproduction, Runner
from papers.page import Panel, Part, Picture
from papers.privatefl.recipe import LAYER, MNIST, Arm, experiment
from papers.privatefl.tuned import MNIST_CENTRAL
from tacit.data.dataset import as_input
from tacit.experiments.build import build
from tacit.experiments.config import decisive, full
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.figures import Heat
from tacit.rounds.assemble import assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.round import Report

SHOWN: Final = 10  # clients
ROUNDS: Final = (0, 10, 30, MNIST_CENTRAL.rounds)
ARM: Final = Arm("central", 8.0, transform=LAYER)


class Album:
    """After some rounds, what a client's transform makes of its first image."""

    def __init__(self, wanted: tuple[int, ...]) -> None:
        self.run: Run | None = None
        self.wanted, self.pages = wanted, {}

    def after_round(self, report: Report) -> None:
        if report.round in self.wanted:
            self.take(report.round)

    def take(self, round: int) -> None:
        assert self.run is not None
        engine, who = self.run.engine, np.arange(SHOWN)
        first = engine.method.join(self.run.progress.server.view, engine.start)
        states = self.run.store.read(who, first)
        images = as_input(engine.federation.x[torch.from_numpy(engine.federation.offsets[:SHOWN])])
        alpha, beta = (_leaf(states, name) for name in ("alpha", "beta"))
        seen = alpha.reshape(SHOWN, -1, 1) * images.reshape(SHOWN, 1, -1) + beta.reshape(SHOWN, 1, -1)
        self.pages[round] = np.round(seen.reshape(images.shape).numpy(), 3).tolist()


def _leaf(states: Any, name: str) -> torch.Tensor:
    return next(leaf for key, leaf in states.items() if key.endswith(f"transform.{name}"))


def make(bench: Runner) -> list[Part]:
    config = experiment(MNIST, ARM, MNIST_CENTRAL, 0)

    def compute() -> Cell:
        parts = build(config)
        album = Album(ROUNDS)
        made = assemble(*parts[:5])
        schedule = Schedule(evaluate_every=10**9)
        album.run = Run(*made, ledger=Ledger.open(":memory:"), schedule=schedule, watchers=[album])
        album.take(0)
        album.run.go()
        return {str(round): page for round, page in album.pages.items()}

    pages = bench.cell({"what": "pictures", "rounds": list(ROUNDS), "experiment": decisive(full(config))}, compute)
    low, high = _range(pages)
    caption = (
        f"The first image of {SHOWN} clients (columns) after {', '.join(map(str, ROUNDS))} rounds (rows) of their "
        f"transforms; client-level, epsilon 8, delta 1e-3. Black is {low:.2f}, white is {high:.2f}; pixels are 0 to 1 "
        "before the transform."
    )
    return [Picture("samples", caption, [draw(pages)])]


def _range(pages: Cell) -> tuple[float, float]:
    """The smallest and the largest value on any of the pages."""
    every = np.array(list(pages.values()))
    return float(every.min()), float(every.max())


def draw(pages: Cell) -> Panel:
    """All images in one: a row for each round, a column for each client, gaps between."""
    low, high = _range(pages)
    framed = [[np.pad(np.array(image).squeeze(), 1, constant_values=high) for image in row] for row in pages.values()]
    size = framed[0][0].shape[0]
    names = {size * (at + 0.5): f"round {round}" for at, round in enumerate(pages)}
    heat = Heat(np.block(framed), ("#000000", "#ffffff"), low, high, scale=False)
    return Panel("", "", "", x_names={-1: ""}, y_names=names, heat=heat, height=2.0)


REPRODUCTION: Final = Reproduction(
    "privatefl/pictures",
    "What personal transforms do to images",
    "PrivateFL, Figures 9 and 10, on MNIST.",
    make,
    seeds=1,
    cells="privatefl",
)
