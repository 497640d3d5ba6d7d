"""The kinds of clients: their centres and shares, learned by Algorithm 1 or by expectation-maximisation."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from tacit.core import rng
from tacit.estimation.collect import SURE, likely
from tacit.estimation.linear import guarantee
from tacit.estimation.messages import Domain, Message, source

Array = NDArray[np.float64]
_STARTS: Final = 4
_STEPS: Final = 300
_STILL: Final = 1e-6
_SINGULAR: Final = 1e-10
_ENDLESS: Final = 1e6
_HALVES: Final = 60


@dataclass(frozen=True)
class Kinds:
    """Centres and shares, as far as they are known: kind l's clients lie at N(centre, doubt_l) as seen from here."""

    centres: Array  # [k, dimension]
    weights: Array  # [k], sum to 1
    doubt: Array | None = None  # [k], variance of a coordinate around each centre as it is known; None: 0
    within: float = 0.0  # the part of every doubt that is clients of a kind differing from one another

    def posterior(self, values: Array, variance: Array) -> Array:
        """Equation (9): how likely each kind is for each client; rows sum to 1, however far a value lies."""
        joint = self._joint(values, variance)
        return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))

    def criterion(self, values: Array, variance: Array) -> float:
        """Schwarz's (BIC): minus twice the log-likelihood, and log(clients) for each number that was learned."""
        learned = self.centres.size + len(self.weights)  # shares: one less, and the variance within
        return learned * math.log(len(values)) - 2 * float(
            np.logaddexp.reduce(self._joint(values, variance), axis=1).sum()
        )

    def _joint(self, values: Array, variance: Array) -> Array:
        """Log of share times density, up to a constant."""
        total = variance[:, None] + self._doubts()
        squares = np.square(values).sum(1)[:, None] - 2 * values @ self.centres.T + np.square(self.centres).sum(1)
        with np.errstate(divide="ignore"):
            return np.log(self.weights) - (squares / total + values.shape[1] * np.log(total)) / 2

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

    def ends(self, values: Array, variance: Array, tail: float) -> tuple[Array, Array]:
        """Each coordinate's interval with `tail` of the client's posterior, a mixture of normals, on either side."""
        posterior, doubt = self.posterior(values, variance), self._doubts()
        keep = doubt / (doubt + variance[:, None])
        spread = np.sqrt(keep * variance[:, None])
        middles = [
            keep * own[:, None] + (1 - keep) * column for own, column in zip(values.T, self.centres.T, strict=True)
        ]
        low = [_bracket(posterior, middle, spread, tail)[0] for middle in middles]
        high = [_bracket(posterior, middle, spread, 1 - tail)[1] for middle in middles]
        return np.column_stack(low), np.column_stack(high)

    def _doubts(self) -> Array:
        return np.zeros(len(self.weights)) if self.doubt is None else self.doubt


def _bracket(weight: Array, middle: Array, spread: Array, share: float) -> tuple[Array, Array]:
    """Each row's mixture of normals has `share` of its mass below a place between these two, by halving."""
    spread = np.maximum(spread, 1e-12 * (1 + np.abs(middle)))
    low, high = (middle - 9 * spread).min(1), (middle + 9 * spread).max(1)
    for _ in range(_HALVES):
        centre = (low + high) / 2
        below = (weight * ndtr((centre[:, None] - middle) / spread)).sum(1) <= share
        low, high = np.where(below, centre, low), np.where(below, high, centre)
    return low, high


def doubted(kinds: Kinds, sent: Array, variance: Array, learn_within: bool) -> Kinds:
    """The same kinds with the variance of their centres, from the information in the messages (sum of squared scores).

    A kind that nobody supports, or that cannot be told from the others, is doubted without limit: it moves nobody. How
    much clients of a kind differ, where it was learned, is taken for the mean of what it may be, and for no less than
    half of its upper limit (see `collect`): its likeliest value alone would be 0 half of the time.
    """
    total, (k, d) = variance + kinds.within, kinds.centres.shape
    weight = kinds.posterior(sent, variance)
    alive = weight.sum(0) > 1e-9 * len(sent)
    scores = [(weight[:, [at]] / total[:, None]) * (sent - kinds.centres[at]) for at in range(k)]
    ratio = weight / np.maximum(kinds.weights, 1e-12)
    wider = (_squares(kinds, weight, sent) / total - d) / total / 2
    whole = np.column_stack([*scores, ratio[:, :-1] - ratio[:, -1:], *[wider] * learn_within])
    information = whole.T @ whole
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    covariance = np.linalg.pinv(information / np.outer(scale, scale), rcond=_SINGULAR, hermitian=True)
    lost = np.diag(covariance) < 0.5  # a direction without information; scaled, a variance is at least 1
    most = _ENDLESS * (variance.max() + np.square(sent).mean())
    found = np.where(lost, most, np.minimum(np.diag(covariance) / scale**2, most))
    doubt = np.where(alive, found[: k * d].reshape(k, d).max(1), most)
    within = kinds.within
    if learn_within:
        plain, std = within + float(found[-1] * wider.sum()), math.sqrt(found[-1])
        within = max(likely(plain, std), (max(plain, 0.0) + SURE * std) / 2)
    return Kinds(kinds.centres, kinds.weights, doubt + within, within)


def _squares(kinds: Kinds, weight: Array, sent: Array) -> Array:
    """Squared distance of each message from the centres, by how likely each is."""
    return sum((weight[:, at] * np.square(sent - c).sum(1) for at, c in enumerate(kinds.centres)), np.zeros(len(sent)))


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
    return kinds, guarantee(message, domain, rounds, seed)


def expectation_maximisation(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Kinds from messages of known variance, with doubt. Where the variance `within` a kind is to be learned (None) and
    the messages do not show k kinds (BIC), all clients are one kind: the Gaussian estimate."""
    found = likeliest(sent, variance, k, seed, within)
    if within is None and k > 1:
        one = likeliest(sent, variance, 1, seed, within)
        found = min(found, one, key=lambda kinds: kinds.criterion(sent, variance))
    return doubted(found, sent, variance, within is None)


def likeliest(sent: Array, variance: Array, k: int, seed: int | None, within: float | None) -> Kinds:
    """Centres, shares and, if None is given, variance `within` a kind; starts at k-means."""
    kinds = _wide(k_means(sent, k, seed), within or 0.0)
    for _ in range(_STEPS):
        weight, total = kinds.posterior(sent, variance), variance + kinds.within
        precise = weight / total[:, None]
        mass = precise.sum(0)
        moved = np.divide(precise.T @ sent, mass[:, None], out=kinds.centres.copy(), where=mass[:, None] > 0)
        still = np.abs(moved - kinds.centres).max() <= _STILL * (1 + np.abs(moved).max())
        before, kinds = kinds.within, _wide(Kinds(moved, weight.mean(0)), kinds.within)
        if within is None:
            kinds = _wide(kinds, _excess(_squares(kinds, weight, sent) / sent.shape[1], variance, total))
        if still and abs(kinds.within - before) <= _STILL * (before + variance.min()):
            break
    return kinds


def _wide(kinds: Kinds, within: float) -> Kinds:
    return Kinds(kinds.centres, kinds.weights, np.full(len(kinds.weights), within), within)


def _excess(squares: Array, variance: Array, total: Array) -> float:
    """By how much squared distances exceed the messages' variance, weighted by precision; at least 0."""
    return max(float(((squares - variance) / total**2).sum() / (1 / total**2).sum()), 0.0)
