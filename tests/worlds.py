"""Small federations and models that many tests share."""

from collections import OrderedDict
from typing import Literal

import numpy as np
import torch
from torch import nn

from tacit.core.contract import Method, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.methods import Multitask
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Assembled, Performance, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson

PRIVATE = Level("private", delta=1e-3, noise=1.0)
OPEN = Level("open")
CENTRAL = Privacy(plans.Central(Fixed(0.5)), (PRIVATE,))
GROUPED = Privacy(plans.Grouped(Fixed(0.5)), (PRIVATE, OPEN), {"open": 0.3})
LOCAL = Privacy(plans.Local(Fixed(0.5)), (PRIVATE,))
RECORD = Privacy(plans.Record(0.5), (PRIVATE,), allow_large_delta=True)
DISTRIBUTED = Privacy(plans.Distributed(Fixed(0.5)), (PRIVATE,))
PLANS = {
    "open": Privacy(),
    "central": CENTRAL,
    "grouped": GROUPED,
    "local": LOCAL,
    "record": RECORD,
    "distributed": DISTRIBUTED,
}


def ragged(clients: int = 20, scale: float = 1.0, seed: int = 0, most: int = 12) -> FederatedDataset:
    """Clients of 1 to `most` rows with 6 features and 3 classes; the first has a single row."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(3, 6)) * 2
    data = {}
    for k in range(clients):
        n = 1 if k == 0 else int(draw.integers(2, most + 1))
        y = draw.integers(3, size=n + 3)
        x = (centres[y] + draw.normal(size=(n + 3, 6))) * scale
        data[f"c{k}"] = (x[:n], y[:n], x[n:], y[n:])
    return from_clients(data, classes=3, dtype=torch.float64)


def net(seed: int = 0) -> nn.Module:
    """A small model whose second layer is named so that KeepLocal's default finds it."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        [("body", nn.Linear(6, 8)), ("act", nn.Tanh()), ("norm", nn.GroupNorm(2, 8)), ("head", nn.Linear(8, 3))]
    )
    return initialise(nn.Sequential(layers), seed)


def assembled(
    method: Method,
    privacy: Privacy = CENTRAL,
    federation: FederatedDataset | None = None,
    *,
    rounds: int = 5,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
    epochs: int = 1,
    rate: float = 0.5,
    steps: int | None = None,
    engine: Literal["local", "ray"] = "local",
) -> Assembled:
    training = Training(rounds, Poisson(rate), 4, epochs, steps, seed=3, dtype=dtype)
    performance = Performance(chunk=chunk, engine=engine)
    return assemble(federation or ragged(), model_for(method), method, privacy, training, performance=performance)


def model_for(method: Method) -> nn.Module:
    """The small net, or a linear model for methods that know no other."""
    return initialise(SoftmaxRegression(6, 3), 0) if isinstance(method, Multitask) else net()


def run(
    method: Method, privacy: Privacy = CENTRAL, federation: FederatedDataset | None = None, **options: object
) -> Run:
    """A run that has not started."""
    parts = assembled(method, privacy, federation, **options)  # pyright: ignore[reportArgumentType]
    return Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))


def states(of: Run) -> Tree:
    """All clients' states after a run."""
    view = of.progress.server.view
    everybody = np.arange(of.engine.federation.clients)
    return of.store.read(everybody, of.engine.method.join(view, of.engine.start))


def largest_difference(a: Tree, b: Tree) -> float:
    assert a.keys() == b.keys()
    return max((float((leaf - b[name]).abs().max()) for name, leaf in a.items()), default=0.0)
