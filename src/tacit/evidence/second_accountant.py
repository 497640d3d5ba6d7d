"""Epsilon once more, from the text of a ledger's events, by code that shares nothing with the first accountant.

The first one (`privacy/accounting`) asks dp-accounting for privacy loss distributions. This one writes down the
distribution function of each event's privacy loss, puts it on a grid by rounding to the nearest point, shifts the grid
so that the mean loss is exact (Gopi, Lee and Wutschitz 2021), and composes by a Fourier transform. Where Renyi
accounting was claimed, or an event has no such distribution, the divergences are written out again.

It is a check and no proof: rounding is to the nearest, and so are its errors, about 1e-3 of epsilon. Where the two
accountants differ by more than `TOLERANCE`, the larger figure is the one to state.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import special
from scipy.special import gammaln, ndtr

from tacit.errors import TacitError

TOLERANCE: Final = 0.02
logsumexp: Final[Any] = special.logsumexp  # its own types allow for a pair, which is not asked for here
_FLOOR: Final = 0.01  # below this multiplier sampling is not credited, as everywhere in Tacit
_MOST_POINTS: Final = 1 << 21
_FINENESS: Final = 0.03  # of the root mean square of the losses' deviations: their variances grow by less than 0.01%
_TAIL: Final = 1e-15
_QUADRATURE: Final = 20_001
_FRACTIONAL: Final = np.concatenate([[1.005, 1.01, 1.02, 1.035, 1.05, 1.075], np.arange(1.1, 16.0, 0.1)])
_WHOLE: Final = np.array([*range(16, 64), *(round(64 * 2 ** (k / 2)) for k in range(17))])
_ORDERS: Final = np.concatenate([_FRACTIONAL, _WHOLE])
"""Which orders are tried is part of what Renyi accounting states: finer ones would give other figures."""

Profile = Callable[[np.ndarray], np.ndarray]


class Atom(NamedTuple):
    """One event that is made of no others, by the name of its kind and its numbers."""

    kind: str
    numbers: tuple[float, ...]


class Loss(NamedTuple):
    """A privacy loss in one direction: P[loss <= l], its mean and its standard deviation."""

    cdf: Callable[[np.ndarray], np.ndarray]
    mean: float
    deviation: float


def second_epsilon(history: Mapping[str, int], delta: float, relation: str, accountant: str = "pld") -> float:
    """What all events together cost: 0 for none, infinity if one of them is not private.

    Args:
        history: events as a ledger writes them, JSON, and how often each happened.
        delta: of (epsilon, delta); 0 only for randomised responses, whose epsilons add up.
        relation: the neighbours of the account.
        accountant: the one whose figure is checked, "pld" or "rdp".

    Raises:
        TacitError: an event is of a kind that this accountant does not know.

    Example:
        >>> round(second_epsilon({'{"event": "Gaussian", "noise_multiplier": 1.0}': 1}, 1e-5, "add/remove"), 2)
        4.38
    """
    atoms = reduce_events(history)
    if not atoms:
        return 0.0
    if delta == 0:
        return _pure(atoms)
    deltas = _profile(frozenset(atoms.items()), relation, accountant)
    return _least_epsilon(deltas, delta)


def second_profile(history: Mapping[str, int], relation: str, accountant: str = "pld") -> Profile:
    """Delta at each epsilon, as `second_epsilon` has it."""
    atoms = reduce_events(history)
    if not atoms:
        return lambda epsilons: np.zeros(np.shape(epsilons))
    return _profile(frozenset(atoms.items()), relation, accountant)


# --- from text to atoms


def reduce_events(history: Mapping[str, int]) -> Counter[Atom]:
    """Nothing nested, all unsampled Gaussians as one."""
    flat: Counter[Atom] = Counter()
    for text, count in history.items():
        for atom, times in _flatten(_read(text), count):
            flat[atom] += times
    return _merge_gaussians(flat)


def _read(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError as error:
        raise TacitError(f"{text[:60]!r} is not an event of a ledger: {error}") from error
    return event if isinstance(event, dict) else {}


def _flatten(event: dict[str, Any], times: int) -> Iterator[tuple[Atom, int]]:
    kind = event.get("event")
    if kind == "SelfComposed":
        yield from _flatten(event["of"], times * int(event["count"]))
    elif kind == "Composed":
        for inner in event["events"]:
            yield from _flatten(inner, times)
    elif kind == "PoissonSampled":
        yield from _flatten_sample("sampled", float(event["sampling_probability"]), event["of"], times)
    elif kind == "SampledWithoutReplacement":
        rate = event["sample_size"] / event["source_dataset_size"]
        yield from _flatten_sample("without replacement", rate, event["of"], times)
    elif kind == "RepeatAndSelect":
        inner = tuple(sorted(_merge_gaussians(Counter(dict(_flatten(event["of"], 1)))).items()))
        yield Atom("selected", (float(event["mean"]), float(event["shape"]), inner)), times  # type: ignore[arg-type]
    elif kind in _NUMBERS:
        yield Atom(kind, tuple(float(event[name]) for name in _NUMBERS[kind])), times
    elif kind != "NoOp":
        raise TacitError(f"the second accountant does not know the event {str(kind)[:40]!r}: only the first vouches")


_NUMBERS: Final = {
    "Gaussian": ("noise_multiplier",),
    "Laplace": ("noise_multiplier",),
    "RandomizedResponse": ("noise_parameter", "num_buckets"),
    "ZC": ("rho", "xi"),
    "Skellam": ("variance", "l2", "l1"),
    "SampledSkellam": ("rate", "edge", "variance", "l2", "l1"),
    "NonPrivate": (),
}


def _flatten_sample(kind: str, rate: float, inner: dict[str, Any], times: int) -> Iterator[tuple[Atom, int]]:
    """All that is asked of one sample is one Gaussian of it."""
    queries = _merge_gaussians(Counter(dict(_flatten(inner, 1))))
    if not queries or rate == 0:
        return
    ((only, count),) = queries.items() if len(queries) == 1 else [(Atom("several", ()), 1)]
    if only.kind == "NonPrivate" or rate == 1:
        yield from ((atom, n * times) for atom, n in queries.items())
    elif only.kind != "Gaussian" or count != 1:
        raise TacitError(f"the second accountant knows Gaussians of a sample alone, not {only.kind}")
    elif only.numbers[0] < _FLOOR:
        yield only, times
    else:
        yield Atom(kind, (rate, *only.numbers)), times


def _merge_gaussians(atoms: Counter[Atom]) -> Counter[Atom]:
    precision = 0.0
    for atom, times in atoms.items():
        if atom.kind == "Gaussian":
            precision += math.inf if atom.numbers[0] < 1e-100 else times / atom.numbers[0] ** 2
    rest = Counter({atom: times for atom, times in atoms.items() if atom.kind != "Gaussian"})
    if precision == math.inf or Atom("NonPrivate", ()) in rest:
        return Counter({Atom("NonPrivate", ()): 1})
    return rest + Counter({Atom("Gaussian", (precision**-0.5,)): 1} if precision else {})


# --- from atoms to delta


@lru_cache(maxsize=256)
def _profile(atoms: frozenset[tuple[Atom, int]], relation: str, accountant: str) -> Profile:
    if Atom("NonPrivate", ()) in dict(atoms):
        return lambda epsilons: np.ones(np.shape(epsilons))
    directions = _losses(dict(atoms), relation) if accountant == "pld" else None
    if directions is None:
        return _renyi_profile(dict(atoms), relation)
    width = _least_epsilon(_renyi_profile(dict(atoms), relation), _TAIL)
    composed = [_compose(losses, width) for losses in directions]
    return lambda epsilons: np.maximum(composed[0](epsilons), composed[-1](epsilons))


def _least_epsilon(profile: Profile, delta: float) -> float:
    """By bisection; infinity where no epsilon is large enough."""
    ends = np.concatenate([[0.0], np.geomspace(1e-4, 1e5, 200)])
    enough = np.flatnonzero(profile(ends) <= delta)
    if not len(enough):
        return math.inf
    if enough[0] == 0:
        return 0.0
    low, high = ends[enough[0] - 1], ends[enough[0]]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if float(profile(np.array([middle]))[0]) <= delta else (middle, high)
    return float(high)


def _pure(atoms: Mapping[Atom, int]) -> float:
    if any(atom.kind != "RandomizedResponse" for atom in atoms):
        return math.inf
    return sum(times * math.log1p(k * (1 / p - 1)) for (_, (p, k)), times in atoms.items())


def _losses(atoms: Mapping[Atom, int], relation: str) -> list[list[tuple[Loss, int]]] | None:
    """Of every event, how often, in both directions; None where an event has no known distribution."""
    pairs = [(_LOSS[atom.kind](atom.numbers, relation), times) for atom, times in atoms.items() if atom.kind in _LOSS]
    if len(pairs) < len(atoms) or any(pair is None for pair, _ in pairs):
        return None
    return [[(pair[way], times) for pair, times in pairs if pair is not None] for way in (0, 1)]


def _compose(losses: list[tuple[Loss, int]], width: float) -> Profile:
    """All losses together, on a circle of losses from -width to width; what lies beyond counts as infinite."""
    variance, events = sum(n * loss.deviation**2 for loss, n in losses), sum(n for _, n in losses)
    width = max(1.1 * width, 10 * math.sqrt(variance), 1e-6)
    points = 1 << math.ceil(math.log2(2 * width / (_FINENESS * math.sqrt(variance / events))))
    points = min(max(points, 1 << 12), _MOST_POINTS)
    step = 2 * width / points
    grid = step * np.fft.fftfreq(points, 1 / points)
    transform, shift, inside = np.ones(points // 2 + 1, complex), 0.0, 1.0
    for loss, times in losses:
        masses, mean = _discretise(loss, step, points)
        transform *= np.fft.rfft(masses) ** times
        shift += times * (loss.mean - mean)
        inside *= masses.sum() ** times
    masses = np.maximum(np.fft.irfft(transform, points), 0.0)
    return _hockey_stick(np.fft.fftshift(grid) + shift, np.fft.fftshift(masses), 1 - inside)


def _discretise(loss: Loss, step: float, points: int) -> tuple[np.ndarray, float]:
    """Masses at the nearest grid points, zero first and negative losses at the end, and their mean."""
    places = np.arange(-points // 2, points // 2)
    below = loss.cdf(step * (np.append(places, points // 2) - 0.5))
    masses = np.diff(below)
    masses[0] += below[0]
    return np.fft.ifftshift(masses), float(step * (places @ masses))


def _hockey_stick(losses: np.ndarray, masses: np.ndarray, infinite: float) -> Profile:
    """delta(epsilon) = P[infinite] + sum over losses above epsilon of mass (1 - e^(epsilon - loss))."""
    above = losses > 0
    losses, masses = losses[above], masses[above]
    tail = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    weighted = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        at = np.searchsorted(losses, epsilons, side="right")
        return np.clip(infinite + tail[at] - np.exp(np.minimum(epsilons, 700.0)) * weighted[at], 0.0, 1.0)

    return deltas


# --- losses


def _gaussian(numbers: tuple[float, ...], relation: str) -> tuple[Loss, Loss]:
    mu = 1 / numbers[0]
    both = Loss(lambda loss: ndtr((loss - mu**2 / 2) / mu), mu**2 / 2, mu)
    return both, both


def _sampled(numbers: tuple[float, ...], relation: str) -> tuple[Loss, Loss] | None:
    """With X of N(0, 1) or, with probability q, of N(mu, 1): the loss is log(1 - q + q e^(mu X - mu^2 / 2)), and its
    negative the other way round. Both are monotone in X."""
    if relation not in ("add/remove", "zero-out"):
        return None
    rate, mu = numbers[0], 1 / numbers[1]

    def threshold(loss: np.ndarray) -> np.ndarray:
        """The x at which the loss is `loss`; below the least loss there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = loss + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, -700.0))) - math.log(rate)
        return np.where(loss > math.log1p(-rate), (ratio + mu**2 / 2) / mu, -np.inf)

    x = np.linspace(-12.0, mu + 12.0, _QUADRATURE)
    base, moved = _density(x), _density(x - mu)
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * x - mu**2 / 2)
    remove = _moments(x, (1 - rate) * base + rate * moved, loss)
    add = _moments(x, base, -loss)
    return (
        Loss(lambda at: (1 - rate) * ndtr(threshold(at)) + rate * ndtr(threshold(at) - mu), *remove),
        Loss(lambda at: ndtr(-threshold(-at)), *add),
    )


def _laplace(numbers: tuple[float, ...], relation: str) -> tuple[Loss, Loss]:
    peak = 1 / numbers[0]

    def cdf(loss: np.ndarray) -> np.ndarray:
        inside = np.exp(np.minimum(loss - peak, 0.0) / 2) / 2
        return np.where(loss >= peak, 1.0, np.where(loss < -peak, 0.0, inside))

    mean = peak - 1 + math.exp(-peak)
    square = _integrate(lambda at: 2 * at * (1 - cdf(at)), 0, peak) + _integrate(lambda at: 2 * at * cdf(-at), 0, peak)
    both = Loss(cdf, mean, math.sqrt(max(square - mean**2, peak**2 / 100)))
    return both, both


def _randomised_response(numbers: tuple[float, ...], relation: str) -> tuple[Loss, Loss] | None:
    """A true answer with probability 1 - p + p/k, each other with p/k; "zero-out": against a uniform answer."""
    if relation == "add/remove" or not 0 < numbers[0] < 1:
        return None
    p, k = numbers
    true, other = 1 - p + p / k, p / k
    if relation == "zero-out":
        forth = _discrete([(math.log(true * k), true), (math.log(p), 1 - true)])
        return forth, _discrete([(-math.log(true * k), 1 / k), (-math.log(p), 1 - 1 / k)])
    limit = math.log(true / other)
    both = _discrete([(limit, true), (-limit, other), (0.0, 1 - true - other)])
    return both, both


def _discrete(outcomes: list[tuple[float, float]]) -> Loss:
    places, masses = np.array(sorted(outcomes)).T
    totals = np.append(0.0, np.cumsum(masses))
    mean = float(places @ masses)
    deviation = math.sqrt(max(float(places**2 @ masses) - mean**2, 0.0))
    # a grid of a sixteenth of the least gap tells outcomes apart
    return Loss(lambda at: totals[np.searchsorted(places, at, side="right")], mean, deviation / 4)


_LOSS: Final = {
    "Gaussian": _gaussian,
    "sampled": _sampled,
    "Laplace": _laplace,
    "RandomizedResponse": _randomised_response,
}


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _moments(x: np.ndarray, density: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """Mean and deviation, by the trapezoidal rule."""
    mean = float(np.trapezoid(density * loss, x))
    return mean, math.sqrt(max(float(np.trapezoid(density * (loss - mean) ** 2, x)), 1e-300))


def _integrate(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    at = np.linspace(low, high, 2001)[:-1] + (high - low) / 4000
    return float(function(at).mean() * (high - low))


# --- Renyi divergences


def _renyi_profile(atoms: Mapping[Atom, int], relation: str) -> Profile:
    """Canonne, Kamath and Steinke 2020, Proposition 12, at the best order."""
    total = np.sum([times * _divergences(atom, relation) for atom, times in atoms.items()], axis=0)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        logs = (_ORDERS - 1) * (total - np.asarray(epsilons)[..., None]) + _ORDERS * np.log1p(-1 / _ORDERS)
        return np.exp(np.minimum((logs - np.log(_ORDERS - 1)).min(axis=-1), 0.0))

    return deltas


@lru_cache(maxsize=1 << 10)
def _divergences(atom: Atom, relation: str) -> np.ndarray:
    """At each of the orders."""
    if atom.kind == "selected":
        mean, shape, inner = atom.numbers
        return _selected(mean, shape, inner, relation)
    if atom.kind in ("sampled", "Skellam", "SampledSkellam") and relation not in _ZERO_OUT[atom.kind]:
        raise TacitError(f"{atom.kind} noise is not accounted for {relation!r} neighbours")
    return _RENYI[atom.kind](_ORDERS, *atom.numbers, *((relation,) if atom.kind == "RandomizedResponse" else ()))


_ZERO_OUT: Final = {"sampled": ("add/remove", "zero-out"), "Skellam": ("zero-out",), "SampledSkellam": ("zero-out",)}


def _renyi_laplace(a: np.ndarray, z: float) -> np.ndarray:
    return np.logaddexp(np.log(a / (2 * a - 1)) + (a - 1) / z, np.log((a - 1) / (2 * a - 1)) - a / z) / (a - 1)


def _renyi_response(a: np.ndarray, p: float, k: float, relation: str) -> np.ndarray:
    """log sum P^a Q^(1 - a) / (a - 1), in the worse direction."""
    true, other = math.log(1 - p + p / k), math.log(p / k)
    if relation == "zero-out":
        masses, uniform = np.array([true, other]), np.array([-math.log(k)] * 2)
        weights = np.array([1.0, k - 1])[:, None]
        ways = [(masses, uniform), (uniform, masses)]
    else:
        weights = np.array([1.0, 1.0, k - 2])[:, None]
        ways = [(np.array([true, other, other]), np.array([other, true, other]))]
    logs = [logsumexp(np.outer(one, a) + np.outer(two, 1 - a), b=weights, axis=0) for one, two in ways]
    return np.max(logs, axis=0) / (a - 1)


def _renyi_sampled(orders: np.ndarray, rate: float, z: float) -> np.ndarray:
    """log E[(1 - q + q L)^a] / (a - 1): by quadrature for small orders, by the binomial theorem for whole ones."""
    mu = 1 / z
    divergences = []
    for a in orders:
        if a < _WHOLE[0]:
            x = np.linspace(-12.0, a * mu + 12.0, max(2000, int(20 * a * mu)))
            log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * x - mu**2 / 2)
            log_moment = logsumexp(-(x**2) / 2 + a * log_ratio) + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
        else:
            log_moment = _binomial(int(a), rate, lambda i: i * (i - 1) * mu**2 / 2)
        divergences.append(max(log_moment, 0.0) / (a - 1))
    return np.array(divergences)


def _binomial(order: int, rate: float, log_moments: Callable[[np.ndarray], np.ndarray]) -> float:
    """log E[(1 - q + q L)^a] from log E[L^i]."""
    i = np.arange(order + 1.0)
    choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    return float(logsumexp(choose + i * math.log(rate) + (order - i) * math.log1p(-rate) + log_moments(i)))


def _on_whole_orders(orders: np.ndarray, log_moment: Callable[[int], float]) -> np.ndarray:
    """(a - 1) D(a) is convex in a, so that the chord between whole orders is an upper bound."""
    whole = np.unique(np.concatenate([[2.0], np.floor(orders), np.ceil(orders)]))
    whole = whole[whole > 1]
    values = [log_moment(int(a)) for a in whole]
    return np.interp(orders, np.append(1.0, whole), np.append(0.0, values)) / (orders - 1)


def _log_skellam(a: np.ndarray | float, variance: float, l2: float, l1: float) -> np.ndarray:
    """(a - 1) D(a) by Agarwal, Kairouz and Liu 2021, Theorem 3.5."""
    extra = np.minimum(((2 * a - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return (a - 1) * (a * l2**2 / (2 * variance) + extra)


def _renyi_skellam(orders: np.ndarray, variance: float, l2: float, l1: float) -> np.ndarray:
    return _on_whole_orders(orders, lambda a: float(_log_skellam(a, variance, l2, l1)))


def _renyi_sampled_skellam(
    orders: np.ndarray, rate: float, edge: float, variance: float, l2: float, l1: float
) -> np.ndarray:
    """On a Poisson sample; at the edge, of this probability, no sampling is credited."""

    def log_moment(a: int) -> float:
        inside = _binomial(a, rate, lambda i: np.where(i > 1, _log_skellam(i, variance, l2, l1), 0.0))
        at_edge = np.logaddexp(math.log1p(-rate), math.log(rate) + _log_skellam(float(a), variance, l2, l1))
        with np.errstate(divide="ignore"):
            return max(float(np.logaddexp(np.log1p(-edge) + inside, np.log(edge) + at_edge)), 0.0)

    return _on_whole_orders(orders, log_moment)


def _renyi_without_replacement(orders: np.ndarray, rate: float, z: float) -> np.ndarray:
    """Wang, Balle and Kasiviswanathan 2019, Theorem 27, with central moments of the likelihood ratio by quadrature.

    Whole orders up to 256; beyond, the theorem's plain form, up to 1024."""
    mu = 1 / z
    places = np.arange(2, 1025)
    terms = math.log(2) + places * (places - 1) * mu**2 / 2
    terms[0] = min(math.log(4 * math.expm1(mu**2)), mu**2 + math.log(2))
    fine = terms.copy()
    even = {j: _log_central_moment(j, mu) for j in range(2, 258, 2)}
    for at, j in enumerate(places[1:255], 1):
        both = even[2 * (j // 2)] + even[2 * -(-j // 2)]
        fine[at] = min(math.log(4) + both / 2, terms[at])

    def log_moment(a: int) -> float:
        if a > 1024:
            return math.inf
        j = places[: a - 1]
        choose = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
        return float(np.logaddexp(0.0, logsumexp(j * math.log(rate) + choose + (fine if a <= 256 else terms)[: a - 1])))

    return _on_whole_orders(orders, log_moment)


def _log_central_moment(order: int, mu: float) -> float:
    """log E[(L - 1)^order] of the ratio L of N(mu, 1) to N(0, 1), for an even order."""
    x = np.linspace(-12.0, order * mu + 12.0, max(4000, int(20 * order * mu)))
    exponent = mu * x - mu**2 / 2
    with np.errstate(divide="ignore"):
        log_distance = np.where(exponent > 30, exponent, np.log(np.abs(np.expm1(np.minimum(exponent, 30.0)))))
    return float(logsumexp(-(x**2) / 2 + order * log_distance) + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi)))


def _selected(mean: float, shape: float, inner: Any, relation: str) -> np.ndarray:
    """The best of a geometric number of repetitions (Papernot and Steinke 2022, Theorem 2 with eta = 1):

    D'(a) = D(a) + 2 (1 - 1/b) D(b) + 2 log(mean) / b + log(mean) / (a - 1), at the best order b."""
    if shape != 1:
        raise TacitError(f"selection among a number of trials of shape {shape:g} is not known here: use geometric")
    base = np.sum([times * _divergences(atom, relation) for atom, times in inner], axis=0)
    beside = np.min(2 * (1 - 1 / _ORDERS) * base + 2 * math.log(mean) / _ORDERS)
    return base + beside + math.log(mean) / (_ORDERS - 1)


_RENYI: Final[dict[str, Callable[..., np.ndarray]]] = {
    "Gaussian": lambda a, z: a / (2 * z**2),
    "Laplace": _renyi_laplace,
    "RandomizedResponse": _renyi_response,
    "ZC": lambda a, rho, xi: xi + rho * a,
    "Skellam": _renyi_skellam,
    "SampledSkellam": _renyi_sampled_skellam,
    "sampled": _renyi_sampled,
    "without replacement": _renyi_without_replacement,
}
