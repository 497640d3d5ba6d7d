"""Ten small federations of different kind, on whose validation rows defaults are chosen (`benchmarks.defaults`).

What is measured is a client's validation rows: a part of its training rows. Test rows are not in them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

import tacit
from tacit.core.rng import generator
from tacit.data.dataset import FederatedDataset, hold_out, offsets_of

SEEDS: Final = (100, 101, 102)  # none of those that any page reports
VALIDATION: Final = 0.3


@dataclass(frozen=True)
class World:
    """A federation whose test rows are validation rows, and the model that it learns."""

    data: FederatedDataset
    model: Callable[[], nn.Module]


def on_validation(data: FederatedDataset, seed: int, clients: int | None = None, most: int = 60) -> FederatedDataset:
    """The first `clients`, at `most` rows each, who hold out some; test rows and the common test set are taken away."""
    count = data.clients if clients is None else clients
    kept: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for client in range(count):
        rows = generator(seed, "rows", client).permutation(np.arange(*data.offsets[client : client + 2]))[:most]
        train, own = hold_out(len(rows), VALIDATION, seed, client)
        kept.append(rows[train])
        held.append(rows[own])
    train, own = (torch.from_numpy(np.concatenate(parts)) for parts in (kept, held))
    return replace(
        data, x=data.x[train], y=data.y[train], offsets=offsets_of([len(part) for part in kept]),
        test_x=data.x[own], test_y=data.y[own], test_offsets=offsets_of([len(part) for part in held]),
        common_x=None, common_y=None, ids=data.ids[:count],
    )  # fmt: skip


def softmax(inputs: int, classes: int) -> Callable[[], nn.Module]:
    return lambda: tacit.models.SoftmaxRegression(inputs, classes=classes)


def mlp(inputs: int, classes: int, width: int = 32) -> Callable[[], nn.Module]:
    return lambda: tacit.models.MLP(inputs, classes=classes, hidden=(width,))


def digits_by_class(seed: int) -> World:
    return World(on_validation(tacit.load("digits", clients=200, classes_each=2, seed=seed), seed), softmax(64, 10))


def digits_dirichlet(seed: int) -> World:
    how = {"partition": "dirichlet", "alpha": 0.3, "minimum": 5}
    return World(on_validation(tacit.load("digits", clients=100, seed=seed, **how), seed), mlp(64, 10))


def digits_alike(seed: int) -> World:
    return World(on_validation(tacit.load("digits", clients=60, partition="iid", seed=seed), seed), mlp(64, 10))


def mnist_by_class(seed: int) -> World:
    data = tacit.load("mnist", clients=2000, classes_each=3, seed=seed)
    return World(on_validation(data, seed, 150), mlp(784, 10, 16))


def mnist_writers(seed: int) -> World:
    return World(on_validation(tacit.load("mnist", partition="writer", seed=seed), seed, 100), softmax(784, 10))


def fashion(seed: int) -> World:
    data = tacit.load("fashion_mnist", clients=1500, partition="dirichlet", alpha=0.5, minimum=8, seed=seed)
    return World(on_validation(data, seed, 150), mlp(784, 10, 16))


def activities(seed: int) -> World:
    return World(on_validation(tacit.load("uci_har", seed=seed), seed), softmax(561, 6))


def places(seed: int) -> World:
    data = tacit.load("location30", clients=150, classes_each=5, seed=seed)
    return World(on_validation(data, seed), softmax(446, 30))


def regressions(seed: int) -> World:
    """Linear regressions whose coefficients differ from client to client; r2 is measured."""
    draw, common = generator(seed, "regressions"), 6
    mean = draw.normal(size=common)
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for client in range(200):
        x, own = draw.normal(size=(int(draw.integers(8, 40)), common)), mean + 0.5 * draw.normal(size=common)
        rows[f"{client:03d}"] = x, x @ own + 0.5 * draw.normal(size=len(x))
    data = tacit.from_clients(rows, test_fraction=0.0)
    return World(on_validation(data, seed), lambda: nn.Linear(common, 1))


WORDS: Final = 200


class BagOfWords(nn.Module):
    """Words are vectors, a text is their mean."""

    def __init__(self, classes: int = 4, width: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(-2))


def texts(seed: int) -> World:
    """Texts of 20 words by Zipf's law on four subjects; every client has words of its own that mean something."""
    draw = generator(seed, "texts")
    usual = 1.0 / np.arange(1, WORDS + 1)
    subjects = [usual * draw.gamma(0.5, size=WORDS) for _ in range(4)]
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for client in range(200):
        y = draw.choice(4, size=int(draw.integers(10, 40)), p=draw.dirichlet(np.full(4, 0.7)))
        own = [subject * draw.gamma(1.0, size=WORDS) for subject in subjects]
        x = [draw.choice(WORDS, size=20, p=own[kind] / own[kind].sum()) for kind in y]
        rows[f"{client:03d}"] = np.array(x), y
    return World(on_validation(tacit.from_clients(rows, test_fraction=0.0, classes=4), seed), BagOfWords)


FEDERATIONS: Final[Mapping[str, Callable[[int], World]]] = {
    "digits, 200 clients of 2 classes, softmax": digits_by_class,
    "digits, 100 clients, Dirichlet 0.3, MLP": digits_dirichlet,
    "digits, 60 clients alike, MLP": digits_alike,
    "MNIST, 150 clients of 3 classes, MLP": mnist_by_class,
    "MNIST, 100 writers, softmax": mnist_writers,
    "Fashion-MNIST, 150 clients, Dirichlet 0.5, MLP": fashion,
    "UCI HAR, 30 subjects, softmax": activities,
    "Location30, 150 clients of 5 classes, softmax": places,
    "drawn linear regressions, 200 clients": regressions,
    "drawn texts, 200 clients, embedding": texts,
}
