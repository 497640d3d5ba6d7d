"""The kinds of clients: their centres and shares, learned by Algorithm 1 or by expectation-maximisation."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from tacit import rng
from tacit.estimation.linear import guarantee
from tacit.privacy.messages import Domain, Message, source

Array = NDArray[np.float64]
_STARTS: Final = 4
_STEPS: Final = 300
_STILL: Final = 1e-6


@dataclass(frozen=True)
class Kinds:
    centres: Array  # [k, dimension]
    weights: Array  # [k], sum to 1

    def log_joint(self, values: Array, variance: Array) -> Array:
        """log of share times density, but for terms that all kinds share; no overflow however far a value lies."""
        nearness = values @ self.centres.T - np.square(self.centres).sum(1) / 2
        with np.errstate(divide="ignore"):
            return np.log(self.weights) + nearness / variance[:, None]

    def posterior(self, values: Array, variance: Array) -> Array:
        """Equation (9): how likely each kind is for each client; rows sum to 1."""
        joint = self.log_joint(values, variance)
        return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))


def k_means(values: Array, k: int, seed: int | None, starts: int = _STARTS) -> Kinds:
    """Lloyd's algorithm from several starts; where fewer than k values differ, some centres coincide."""
    from sklearn.cluster import KMeans

    k_found = min(k, len(np.unique(values, axis=0)))
    state = int(rng.generator(0 if seed is None else seed, "k-means").integers(1 << 31))
    found: Any = KMeans(k_found, n_init=starts, random_state=state).fit(values)  # type: ignore[arg-type]
    counts = np.bincount(found.labels_, minlength=k_found) / len(values)
    extra = k - k_found
    centres = np.concatenate([found.cluster_centers_, np.repeat(found.cluster_centers_[:1], extra, axis=0)])
    return Kinds(centres, np.concatenate([counts, np.zeros(extra)]))


def alternate(
    values: Array, own: Array, k: int, rounds: int, message: Message, domain: Domain, seed: int | None
) -> tuple[Kinds, str]:
    """Algorithm 1: clients send their current estimates, the server clusters them. One message a round, each clipped,
    all rounds together within the message's budget."""
    each = message.repeated(rounds)
    current, kinds = values, None
    for at in range(rounds):
        sent = each.send(current, domain, source(seed, "mixture", at))
        kinds = k_means(sent, k, seed, starts=1 if at else _STARTS)
        current = kinds.posterior(values, own) @ kinds.centres
    assert kinds is not None
    return kinds, guarantee(message, domain, rounds)


def expectation_maximisation(sent: Array, variance: Array, k: int, seed: int | None) -> Kinds:
    """The likeliest centres and shares, given messages whose variance around them is known; starts at k-means."""
    kinds = k_means(sent, k, seed)
    for _ in range(_STEPS):
        weight = kinds.posterior(sent, variance)
        precise = weight / variance[:, None]
        mass = precise.sum(0)
        moved = np.divide(precise.T @ sent, mass[:, None], out=kinds.centres.copy(), where=mass[:, None] > 0)
        still = np.abs(moved - kinds.centres).max() <= _STILL * (1 + np.abs(moved).max())
        kinds = Kinds(moved, weight.mean(0))
        if still:
            break
    return kinds
