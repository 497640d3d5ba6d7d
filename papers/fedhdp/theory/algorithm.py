"""FeO2's Lemma 7: the training programs themselves, with eta = 1 and eta_p = 1 / (1 + lambda), give the closed form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from papers.fedhdp.theory import point
from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.simulate import TRUTH, client_weights, orthogonal_designs
from tacit.core import tree
from tacit.core.contract import Batch, Server, Shared, Site, Task, Tree
from tacit.core.rng import generator
from tacit.methods import Ditto, FedAvg, LocalSgd
from tacit.privacy.mechanisms.gradient import Exact

_NAME = "weight"


@dataclass(frozen=True)
class Least(Task):
    """Half the squared error of a row. Over n_s orthogonal rows its mean is eq. (14) of FeO2 plus a constant.

    Eq. (12) of FeO2 as printed (no 1/2) has twice that gradient: there eta = 1 would overshoot.
    """

    def apply(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x @ params[_NAME]

    def losses(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.apply(params, x), y)

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda outputs, y: (outputs - y).square() / 2


@dataclass(frozen=True)
class Trained:
    """What the programs ended with, and what they started from."""

    shared: np.ndarray  # [dim], after the last round
    received: np.ndarray  # [dim], what clients received in the last round
    personal: np.ndarray  # [clients, dim]
    estimates: np.ndarray  # [clients, dim], least squares
    messages: np.ndarray  # [clients, dim], estimates with the last round's noise
    weights: np.ndarray  # [clients]


def train(
    regression: Regression, strength: float, *, ratio: float | None = None, rounds: int = 2, fresh_noise: bool = False,
    seed: int = 0,
) -> Trained:  # fmt: skip
    """Ditto over FedAvg for some rounds, everybody taking part, from a model of zeros.

    From the second round on `shared` is the closed form, and `personal` is the closed form in what was received. With
    `fresh_noise`, as in training, the shared estimate is drawn anew in each round and costs privacy each time; the
    proof of the lemma keeps the first round's noise.
    """
    r = point.optimal_ratio(regression.coordinate) if ratio is None else ratio
    level = np.repeat([point.PRIVATE, point.OPEN], [regression.private, regression.clients - regression.private])
    weights = client_weights(level, point.shares(regression.coordinate, r))
    design, responses = _data(regression, seed)
    method = Ditto(FedAvg(LocalSgd(1.0)), strength, LocalSgd(1 / (1 + strength)))
    sites = [_site(f, x) for f, x in zip(design, responses, strict=True)]
    start = {_NAME: torch.zeros(regression.dim, dtype=torch.float64)}
    server = method.init(start)
    states = [method.join(server.view, start) for _ in sites]
    received, noise = server.view.model, np.zeros(())
    for t in range(rounds):
        noise = _noise(regression, level, seed, t if fresh_noise else 0)
        received = server.view.model
        server, states = _round(method, server, states, sites, weights, noise)
    estimates = np.einsum("cnd,cn->cd", np.linalg.pinv(design).transpose(0, 2, 1), responses)
    personal = np.stack([tree.strip("personal", state)[_NAME].numpy() for state in states])
    shared = server.view.model[_NAME].numpy()
    return Trained(shared, received[_NAME].numpy(), personal, estimates, estimates + noise, weights)


def _round(
    method: Ditto, server: Server, states: list[Tree], sites: list[Site], weights: np.ndarray, noise: np.ndarray
) -> tuple[Server, list[Tree]]:
    replies = [method.client(server.view, state, site) for state, site in zip(states, sites, strict=True)]
    uploads = torch.stack([reply.upload.model[_NAME] for reply in replies])
    mean = torch.from_numpy(weights) @ (uploads + torch.from_numpy(noise))
    return method.server(server, Shared({_NAME: mean}), 1.0), [reply.state for reply in replies]


def _site(design: np.ndarray, responses: np.ndarray) -> Site:
    """The whole data in one step."""
    here = Batch(torch.from_numpy(design), torch.from_numpy(responses), torch.ones(len(design), dtype=torch.bool))
    gradient = Exact(Least(), lambda _: here)
    return Site(
        task=Least(),
        steps=1,
        live=torch.ones(1, dtype=torch.bool),
        batch=lambda _: here,
        grad=gradient,
        private_grad=gradient,
    )


def _data(regression: Regression, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = generator(seed, "theory/algorithm/data")
    design = orthogonal_designs(regression, seed)
    wanted = TRUTH + np.sqrt(regression.tau2) * draw.standard_normal((regression.clients, regression.dim))
    responses = np.einsum("cnd,cd->cn", design, wanted)
    return design, responses + np.sqrt(regression.beta2) * draw.standard_normal(responses.shape)


def _noise(regression: Regression, level: np.ndarray, seed: int, t: int) -> np.ndarray:
    drawn = generator(seed, "theory/algorithm/noise", t).standard_normal((regression.clients, regression.dim))
    std = np.sqrt(regression.coordinate.message_noise)
    return np.where((level == point.PRIVATE)[:, None], std * drawn, 0.0)
