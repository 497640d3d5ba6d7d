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
_SINGULAR: Final = 1e-10
_ENDLESS: Final = 1e6


@dataclass(frozen=True)
class Kinds:
    """Centres and shares, as far as they are known: kind l's clients lie at N(centre, doubt_l) as seen from here."""

    centres: Array  # [k, dimension]
    weights: Array  # [k], sum to 1
    doubt: Array | None = None  # [k], variance of a coordinate of each centre; None: they are certain

    def posterior(self, values: Array, variance: Array) -> Array:
        """Equation (9): how likely each kind is for each client; rows sum to 1, however far a value lies."""
        total = variance[:, None] + self._doubts()
        squares = np.square(values).sum(1)[:, None] - 2 * values @ self.centres.T + np.square(self.centres).sum(1)
        with np.errstate(divide="ignore"):
            joint = np.log(self.weights) - (squares / total + values.shape[1] * np.log(total)) / 2
        return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))

    def estimate(self, values: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Posterior, its mean (Theorem 5) and its spread, for each client.

        A client of a doubtful kind keeps to its own value in the measure of the doubt; without doubt, to the centre.
        """
        posterior, doubt = self.posterior(values, variance), self._doubts()
        keep = doubt / (doubt + variance[:, None])
        mean = (posterior * keep).sum(1)[:, None] * values + (posterior * (1 - keep)) @ self.centres
        spread = (posterior * keep * variance[:, None]).sum(1) * values.shape[1]
        for at, centre in enumerate(self.centres):
            own = keep[:, at : at + 1] * values + (1 - keep[:, at : at + 1]) * centre
            spread += posterior[:, at] * np.square(own - mean).sum(1)
        return posterior, mean, spread

    def _doubts(self) -> Array:
        return np.zeros(len(self.weights)) if self.doubt is None else self.doubt


def doubted(kinds: Kinds, sent: Array, variance: Array) -> Kinds:
    """The same kinds with the variance of their centres, from the information in the messages (sum of squared scores).

    A kind that nobody supports, or that cannot be told from the others, is doubted without limit: it moves nobody.
    """
    weight = kinds.posterior(sent, variance)
    k, d = kinds.centres.shape
    alive = weight.sum(0) > 1e-9 * len(sent)
    scores = [(weight[:, [at]] / variance[:, None]) * (sent - kinds.centres[at]) for at in range(k)]
    ratio = weight / np.maximum(kinds.weights, 1e-12)
    whole = np.column_stack([*scores, ratio[:, :-1] - ratio[:, -1:]])
    information = whole.T @ whole
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    covariance = np.linalg.pinv(information / np.outer(scale, scale), rcond=_SINGULAR, hermitian=True)
    found = np.diag(covariance) / scale**2
    lost = np.diag(covariance) < 0.5  # a direction without information; scaled, a variance is at least 1
    most = _ENDLESS * (variance.max() + np.square(sent).mean())
    doubt = np.where(lost, most, np.minimum(found, most))[: k * d].reshape(k, d).max(1)
    return Kinds(kinds.centres, kinds.weights, np.where(alive, doubt, most))


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
        current = kinds.estimate(values, own)[1]
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
    return doubted(kinds, sent, variance)
