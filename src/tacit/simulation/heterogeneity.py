"""How different the clients are: earth mover's distances between their training losses (PrivateFL, Section 2.3).

In every round a client's local model, as trained in that round, has a mean loss on the rows it was trained on. Over the
rounds these make one distribution for each client; heterogeneity is the mean distance between two clients' of them.
Simulation only: a deployment reports no losses.
"""

from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core import rng, tree
from tacit.core.contract import Method, Reply, Shared, Site
from tacit.models.functional import Loss

MOST: Final = 500  # clients whose losses are kept; a random sample of more than these


class Spread(NamedTuple):
    """Mean and standard deviation of the distances between two clients, over all pairs."""

    mean: float
    std: float


class LossRecorder:
    """Losses by round and client; not a number where a client did not take part."""

    def __init__(self, clients: int, rounds: int, seed: int) -> None:
        kept = rng.generator(seed, "diary").permutation(clients)[:MOST]
        self._place = np.full(clients, -1)
        self._place[kept] = np.arange(len(kept))
        self.losses = torch.full((rounds, len(kept)), torch.nan, dtype=torch.float64)

    def write(self, round: int, clients: np.ndarray, losses: Tensor) -> None:
        place = torch.from_numpy(self._place[clients])
        kept = place >= 0
        self.losses[round, place[kept]] = losses[kept].double()

    def spread(self) -> Spread | None:
        """None until two clients have taken part."""
        known = [losses[~losses.isnan()].numpy() for losses in self.losses.T]
        found = distances([each for each in known if len(each)])
        return Spread(float(found.mean()), float(found.std())) if len(found) else None


def local_loss(method: Method, view: Shared, reply: Reply, site: Site, loss: Loss) -> Tensor:
    """Mean loss of the client's own model after the round's training, on the rows of the round; NaN without rows."""
    moved = tree.add(tree.pick(view.model, reply.upload.model), reply.upload.model)
    local = Shared(view.model | moved, view.extra)
    total, rows = torch.zeros(()), torch.zeros(())
    for step in range(site.steps):
        x, y, mask = site.batch(step)
        each, real = loss(method.predict(site.task, local, reply.state, x), y), mask & site.live[step]
        total, rows = total + torch.where(real, each, 0.0).sum(), rows + real.sum()
    return total / rows


def distances(samples: list[np.ndarray]) -> np.ndarray:
    """The earth mover's distance of each pair of samples: the area between their distribution functions."""
    if len(samples) < 2:
        return np.zeros(0)
    if len({len(sample) for sample in samples}) == 1:  # between quantile functions: the sorted samples themselves
        rows = torch.from_numpy(np.sort(np.stack(samples).astype(np.float64), axis=1))
        return torch.nn.functional.pdist(rows, p=1).numpy() / rows.shape[1]
    places = np.sort(np.concatenate(samples))
    below = np.stack([np.searchsorted(np.sort(each), places[:-1], side="right") / len(each) for each in samples])
    widths = np.diff(places)
    return np.concatenate([np.abs(below[k + 1 :] - below[k]) @ widths for k in range(len(samples) - 1)])
