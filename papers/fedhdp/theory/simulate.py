"""Monte Carlo of both problems: the same numbers for the same seed, whatever else was drawn before."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from papers.fedhdp.theory.linear import Regression
from papers.fedhdp.theory.multilevel import Menu, Shares
from tacit.core.rng import generator

TRUTH = 3.0
"""phi. No error depends on it, since all weights add up to 1; it is not 0 so that a wrong sum would show."""


class Measured(NamedTuple):
    """A mean over repetitions and its standard error."""

    value: float
    error: float

    def agrees(self, expected: float, errors: float = 3.0) -> bool:
        return abs(self.value - expected) <= errors * self.error


@dataclass(frozen=True)
class Draws:
    """Independent repetitions of one round: [repetitions, clients, coordinates]."""

    wanted: np.ndarray  # phi_j
    estimates: np.ndarray  # a client's own
    noise: np.ndarray  # added to it before it leaves
    level: np.ndarray  # [clients]

    @property
    def messages(self) -> np.ndarray:
        return self.estimates + self.noise


def point_draws(menu: Menu, repetitions: int = 20_000, seed: int = 0) -> Draws:
    """Federated point estimation: one coordinate, estimates drawn with their variance alpha^2."""
    size = (repetitions, menu.clients, 1)
    draw = generator(seed, "theory/point")
    wanted = TRUTH + np.sqrt(menu.tau2) * draw.standard_normal(size)
    estimates = wanted + np.sqrt(menu.alpha2) * draw.standard_normal(size)
    level = _levels(menu)
    return Draws(wanted, estimates, _noise(menu, level, size, draw), level)


def regression_draws(regression: Regression, repetitions: int = 2_000, seed: int = 0) -> Draws:
    """Federated linear regression from raw data: rows, noisy responses, and each client's least squares."""
    r, menu = regression, regression.coordinate.menu
    draw = generator(seed, "theory/linear")
    size = (repetitions, r.clients, r.dim)
    design = orthogonal_designs(r, seed)
    wanted = TRUTH + np.sqrt(r.tau2) * draw.standard_normal(size)
    responses = np.einsum("cnd,rcd->rcn", design, wanted)
    responses += np.sqrt(r.beta2) * draw.standard_normal(responses.shape)
    estimates = np.einsum("cnd,rcn->rcd", np.linalg.pinv(design).transpose(0, 2, 1), responses)
    level = _levels(menu)
    return Draws(wanted, estimates, _noise(menu, level, size, draw), level)


def orthogonal_designs(regression: Regression, seed: int = 0) -> np.ndarray:
    """[clients, n_s, dim]: a random F_j for each client with F_j^T F_j = n_s I."""
    shape = (regression.clients, regression.samples, regression.dim)
    basis, _ = np.linalg.qr(generator(seed, "theory/designs").standard_normal(shape))
    return basis * np.sqrt(regression.samples)


def shared_estimates(draws: Draws, shares: Shares) -> np.ndarray:
    """[repetitions, coordinates]"""
    return np.einsum("c,rcd->rd", client_weights(draws.level, shares), draws.messages)


def client_weights(level: np.ndarray, shares: Shares) -> np.ndarray:
    """Each client's weight: its level's share, divided equally."""
    counts = np.bincount(level, minlength=len(shares))
    return (np.asarray(shares) / np.maximum(counts, 1))[level]


def server(draws: Draws, shares: Shares) -> Measured:
    """Squared error of the shared estimate, summed over coordinates."""
    return _mean(((shared_estimates(draws, shares) - TRUTH) ** 2).sum(-1))


def personal(draws: Draws, shares: Shares, level: int, strength: float, *, knows_noise: bool = False) -> Measured:
    """Squared error of the personal estimates of a level's clients, summed over coordinates."""
    here = draws.level == level
    pull = 1.0 if np.isinf(strength) else strength / (1 + strength)
    received = shared_estimates(draws, shares)[:, None]
    if knows_noise:
        received = received - client_weights(draws.level, shares)[here][:, None] * draws.noise[:, here]
    guess = (1 - pull) * draws.estimates[:, here] + pull * received
    return _mean(((guess - draws.wanted[:, here]) ** 2).sum(-1).mean(-1))


def _levels(menu: Menu) -> np.ndarray:
    return np.repeat(np.arange(len(menu.groups)), [group.clients for group in menu.groups])


def _noise(menu: Menu, level: np.ndarray, size: tuple[int, int, int], draw: np.random.Generator) -> np.ndarray:
    std = np.sqrt([group.message_noise for group in menu.groups])[level]
    return std[None, :, None] * draw.standard_normal(size)


def _mean(values: np.ndarray) -> Measured:
    """Over repetitions, which are independent; clients of one repetition are not."""
    return Measured(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))
