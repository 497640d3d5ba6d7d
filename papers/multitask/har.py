"""Human activity recognition as in Hu et al. 2020: thirty people, sitting against the rest, rows of norm one."""

from functools import cache

import numpy as np
import torch

from tacit.core.rng import generator
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.data.loaders import npz_pool

SITTING = 3
TEST = 0.25
FOLDS = 5


@cache
def sitting(seed: int, centre_noise: float | None = None, fold: int | None = None) -> FederatedDataset:
    """A quarter of each person's segments tests, of sitting and of the rest; windows overlap, so never by row.

    Each device scales its own rows to norm one, as in the paper. With `centre_noise` it then takes off the mean of its
    training rows plus noise of that many sensitivities (1/n, adding or removing a record), and scales again: 0 is fine
    under a device-level plan, a record-level one pays for the mean as for one more query.

    With `fold` the quarter that tests is left alone: a fifth of the segments that train is held out in its place.
    """
    pool = npz_pool("uci_har")
    people, segments = pool.ids["subject"].train, pool.units
    assert segments is not None
    x, y = pool.x.numpy().astype(np.float64), (pool.y.numpy() == SITTING).astype(np.int64)
    clients = {}
    for who in np.unique(people):
        own = np.flatnonzero(people == who)
        test = np.isin(segments[own], _held_out(segments[own], y[own], seed, int(who)))
        if fold is not None:
            own = own[~test]
            test = np.isin(segments[own], _fold(segments[own], y[own], seed, int(who), fold))
        rows = x[own] / np.linalg.norm(x[own], axis=1, keepdims=True)
        if centre_noise is not None:
            rows = rows - _mean(rows[~test], centre_noise, seed, int(who))
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        clients[f"person {who}"] = (rows[~test], y[own][~test], rows[test], y[own][test])
    return from_clients(clients, classes=2, name="har sitting", dtype=torch.float32)


def _mean(rows: np.ndarray, noise: float, seed: int, who: int) -> np.ndarray:
    drawn = generator(seed, "har centre", who).normal(size=rows.shape[1])
    return rows.mean(0) + noise / len(rows) * drawn


def _held_out(segments: np.ndarray, y: np.ndarray, seed: int, who: int) -> np.ndarray:
    """Segments that test: a quarter of either class's, at least one."""
    draw, held = generator(seed, "har segments", who), []
    for kind in (0, 1):
        names = draw.permutation(np.unique(segments[y == kind]))
        held.append(names[: max(1, round(TEST * len(names)))])
    return np.concatenate(held)


def _fold(segments: np.ndarray, y: np.ndarray, seed: int, who: int, fold: int) -> np.ndarray:
    """Segments of one of five parts of either class's."""
    draw = generator(seed, "har folds", who)
    return np.concatenate([draw.permutation(np.unique(segments[y == kind]))[fold::FOLDS] for kind in (0, 1)])


def constant_error(seed: int) -> float:
    """Test error of whoever always says what most of a person's training rows are, mean over the people."""
    data = sitting(seed)
    wrong = []
    for k in range(data.clients):
        usual = int(data.y[data.rows(k)].double().mean() > 0.5)
        own = data.test_y[int(data.test_offsets[k]) : int(data.test_offsets[k + 1])]
        wrong.append(float((own != usual).double().mean()))
    return float(np.mean(wrong))
