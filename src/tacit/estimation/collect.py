"""What the server receives, and what it may conclude: centre and prior variance from one message a client.

How the variance of the prior is learned depends on the message (`Message.squares`):
  exact   from the spread of the messages. The spread is enlarged by k / (k - 2), k = (clients - 1) * dimension: with
          this, equal sizes and known noise, the estimates are James and Stein's, never worse than local on average.
          For rates, whose noise is not known, the spread's own uncertainty counts as below.
  joint   from a further coordinate, the squared norm, under the same noise (`Domain.lifted`).
  split   a random half of the clients sends its square instead of its value.
The last two are noisy. The weight is best for the mean of what the variance may be (flat above 0, given its estimate
and that estimate's standard deviation), so that a low draw does not pull everybody to the centre; and nobody moves
farther than does no harm at the variance's upper confidence limit, `SURE` standard deviations above (`Learned.pull`).

A prior as far as it was learned, and what follows from it for each client: how far to go toward the centre.

A client with n samples varies around its own truth by v = (noise - slope * t) / n in each coordinate, truths vary by
t around the centre (Gaussian: noise is the samples' variance, slope 0; Bernoulli: noise = mu (1 - mu), slope 1).
Theorems 1 and 2 for clients of unequal size: let the centre be the sum of w_k q_k with variance S, own share w. Then
pulling client i by b toward it has the error

    (1 - b (1 - w))^2 v + b^2 ((1 - w)^2 t + S - w^2 (t + v)),   least at  b = (1 - w) v / ((1 - 2 w) (t + v) + S),

where it equals v (1 - b (1 - w)). With equal sizes, w = 1/m and S = (t + v + s_q^2) / m, this is the paper's
a = 1 - b = T / (T + v), T = t + s_q^2 / (m - 1).

Everything that learning needs of the clients, in one pass and little memory: counts, means and spread by size.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tacit.core import rng
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.spread_posterior import Spread, SpreadPosterior, from_moment, from_values

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Learned:
    """All that the server tells the clients, and nothing else: everything here was learned from messages."""

    centre: Array  # [dimension]
    prior_variance: float  # t
    most_variance: float  # what t hardly exceeds, by its uncertainty; t itself where that is known or counted in
    noise: float
    slope: float
    message_variance: float  # added to each message that enters the centre
    centre_variance: float  # S
    share: float  # of a client in the centre: its weight is share / (t + v + message variance) if `by_size`
    by_size: bool
    trusted: bool  # False: too few clients to know the prior's variance; nobody moves
    doubt: SpreadPosterior | None = None  # what t may be; None: known, or nobody moves

    @property
    def dimension(self) -> int:
        return len(self.centre)

    def own_variance(self, sizes: Array) -> Array:
        """v of clients with these numbers of samples."""
        return self._own(self.prior_variance, sizes)

    def weight(self, sizes: Array) -> Array:
        """w of clients with these numbers of samples whose message entered the centre."""
        if not self.by_size or self.share == 0:
            return np.full(len(sizes), self.share)
        total = self.prior_variance + self.own_variance(sizes) + self.message_variance
        return self.share / np.where(total > 0, total, 1.0)

    def pull(self, sizes: Array, weight: Array) -> Array:
        """The best b, from 0 (local) to 1 (the centre), but never more than does no harm at `most_variance`.

        The error is a parabola in b that is back at its start, the local error, at twice the best b.
        """
        if not self.trusted:
            return np.zeros(len(sizes))
        harmless = 2 * self._best(self.most_variance, sizes, weight)
        return np.clip(np.minimum(self._best(self.prior_variance, sizes, weight), harmless), 0.0, 1.0)

    def error(self, sizes: Array, weight: Array, pull: Array | float) -> Array:
        """Expected squared error, summed over the dimension, of clients that are pulled by `pull`."""
        sampling, keep = self.own_variance(sizes), np.square(1 - weight)
        others = keep * self.prior_variance + self.centre_variance - weight**2 * (self.prior_variance + sampling)
        one = np.square(1 - pull * (1 - weight)) * sampling + np.square(pull) * np.maximum(others, 0.0)
        return self.dimension * one

    def _own(self, prior_variance: float, sizes: Array) -> Array:
        return max(self.noise - self.slope * prior_variance, 0.0) / sizes

    def _best(self, prior_variance: float, sizes: Array, weight: Array) -> Array:
        """The minimum of the error, if the truths vary by `prior_variance`; 0 where nothing is to be gained."""
        sampling = self._own(prior_variance, sizes)
        total = (1 - 2 * weight) * (prior_variance + sampling) + self.centre_variance
        return np.divide((1 - weight) * sampling, total, out=np.zeros(len(sizes)), where=total > 0)


class Answers(NamedTuple):
    """For each of some clients: what it says, and what is expected of it."""

    estimates: Array  # [clients, dimension]
    pull: Array
    mse: Array
    local_mse: Array
    global_mse: Array
    doubted: Array  # squared error that counts in what the prior's variance may be: for intervals


def answers(learned: Learned, values: Array, sizes: Array, inside: Array | None = None) -> Answers:
    """`inside`: which clients' messages entered the centre (1 or 0 each); None: none, they are new."""
    weight = np.zeros(len(sizes)) if inside is None else inside * learned.weight(sizes)
    pull = learned.pull(sizes, weight)
    estimates = values + pull[:, None] * (learned.centre - values)
    local, all_ = (learned.error(sizes, weight, fixed) for fixed in (0.0, 1.0))
    mse, doubt = learned.error(sizes, weight, pull), learned.doubt
    doubted = mse if doubt is None else doubt.squared_error(learned.noise, learned.slope, sizes, values, estimates)
    return Answers(estimates, pull, mse, local, all_, doubted)


@dataclass(frozen=True)
class Sums:
    """For each number of samples: how many clients have it, the mean of their values, the squares around that mean.

    Adding is associative up to rounding, so chunks in any number and order give the same; no cancellation for values
    far from 0.
    """

    sizes: Array  # [g], ascending
    counts: Array  # [g]
    means: Array  # [g, dimension]
    spread: Array  # [g], summed over the dimension

    @classmethod
    def of(cls, values: Array, sizes: Array) -> "Sums":
        kinds, codes = np.unique(sizes, return_inverse=True)
        counts = np.bincount(codes, minlength=len(kinds)).astype(np.float64)
        columns = [_total_of(codes, column, len(kinds)) for column in values.T]
        means = np.column_stack(columns) / counts[:, None]
        around = np.square(values - means[codes]).sum(1)
        return cls(kinds, counts, means, _total_of(codes, around, len(kinds)))

    @classmethod
    def empty(cls, dimension: int) -> "Sums":
        return cls(np.empty(0), np.empty(0), np.empty((0, dimension)), np.empty(0))

    def __add__(self, other: "Sums") -> "Sums":
        """Chan's update, size by size."""
        kinds, codes = np.unique(np.concatenate([self.sizes, other.sizes]), return_inverse=True)
        each = np.concatenate([self.counts, other.counts])
        values = np.concatenate([self.means, other.means])
        spread = _total_of(codes, np.concatenate([self.spread, other.spread]), len(kinds))
        counts = _total_of(codes, each, len(kinds))
        columns = [_total_of(codes, each * column, len(kinds)) for column in values.T]
        means = np.column_stack(columns) / counts[:, None]
        spread += _total_of(codes, each * np.square(values - means[codes]).sum(1), len(kinds))
        return Sums(kinds, counts, means, spread)

    @property
    def clients(self) -> int:
        return int(self.counts.sum())

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def mean(self, weights: Array | None = None) -> Array:
        """The mean value over clients, weighted by size where `weights` [g] are given."""
        each = self.counts if weights is None else self.counts * weights
        return each @ self.means / each.sum()

    def moment(self, weights: Array | None = None) -> tuple[float, float]:
        """(M, h): the spread of values around their mean, a coordinate, as an unbiased estimate of
        t + c * h when a client of n samples varies by t + c / n."""
        weight = np.ones_like(self.sizes) if weights is None else weights
        each = self.counts * weight
        around = self.spread + self.counts * np.square(self.means - self.mean(weight)).sum(1)
        share = each * (1 - weight / each.sum())
        return float(weight @ around / self.dimension / share.sum()), float((share / self.sizes).sum() / share.sum())


def _total_of(codes: NDArray[np.intp], values: Array, kinds: int) -> Array:
    return np.asarray(np.bincount(codes, values, kinds), dtype=np.float64)


SURE = 3.0
BLOCK = 1 << 16
"""Clients whose messages share a stream of randomness: results do not depend on how a table was cut in chunks."""


class Model(NamedTuple):
    """The noise of one sample in units of which v = (noise - slope * t) / n; `most` bounds t."""

    noise: float
    slope: float = 0.0
    most: float = np.inf


@dataclass
class Collector:
    """Receives messages block by block and keeps sums only. `learn_square` asks for what the prior variance needs."""

    message: Message
    domain: Domain
    seed: int | None
    split_seed: int
    learn_square: bool
    values: Sums = field(init=False)
    squares: Sums = field(init=False)
    blocks: int = 0
    clients: int = 0

    def __post_init__(self) -> None:
        lift = self.lift
        self.values, self.squares = Sums.empty(self.domain.dimension), Sums.empty(1 if lift else self.domain.dimension)

    @property
    def lift(self) -> bool:
        return self.learn_square and self.message.squares == "joint"

    @property
    def split(self) -> bool:
        return self.learn_square and self.message.squares == "split"

    @property
    def square_step(self) -> float:
        """By how much one client's next higher answer moves the mean square; 0 where answers are not counted."""
        return self.message.step(self._square_domain) / self.squares.clients / self.domain.dimension

    @property
    def _square_domain(self) -> Domain:
        half = self.domain.radius**2 / 2
        return Domain(half, half, self.domain.dimension)

    def inside(self, block: int, clients: int) -> Array:
        """1 for clients that send their value, 0 for those that send their square instead."""
        if not self.split:
            return np.ones(clients)
        order = rng.generator(self.split_seed, "split", block).permutation(clients)
        return (order < (clients + 1) // 2).astype(np.float64)

    def receive(self, values: Array, squares: Array, sizes: Array) -> None:
        """One block: `squares` are unbiased for the squared distance to the domain's centre, within its radius^2."""
        draw = source(self.seed, "message", self.blocks)
        first = self.inside(self.blocks, len(values)) > 0
        sent = self.message.send(values[first], self.domain, draw, lift=self.lift)
        if self.lift:
            self.squares += Sums.of(sent[:, -1:] * self.domain.radius, sizes)
            sent = sent[:, :-1]
        self.values += Sums.of(sent, sizes[first])
        if self.split:
            self.squares += Sums.of(self.message.send(squares[~first], self._square_domain, draw), sizes[~first])
        self.blocks, self.clients = self.blocks + 1, self.clients + len(values)


class Moment(NamedTuple):
    """An estimate M of t + v averaged with h = mean of 1/n, and its standard deviation (0: the spread itself).

    `step` is what one more answer adds, where answers are counted: a low count then looks more certain than it is.
    """

    total: float
    inverse_size: float
    std: float
    step: float = 0.0


class Variance(NamedTuple):
    """What a prior's variance is taken for, and what it hardly exceeds."""

    taken: float
    most: float


def solve(moment: Moment, model: Model) -> Variance:
    """The prior variance t that the moment implies: t + (noise - slope t) h = M, at least 0.

    For a count, the mean of a Poisson rate given the count (one step more), and Wilson's upper limit.
    """
    scale = 1 - model.slope * moment.inverse_size
    if scale <= 0:
        return Variance(0.0, 0.0)
    plain = (moment.total - model.noise * moment.inverse_size) / scale
    if not moment.std > 0:
        return Variance(*[float(np.clip(plain, 0.0, model.most))] * 2)
    std, step = moment.std / scale, moment.step / scale
    taken = likely(plain + step, float(np.hypot(std, step)), model.most)
    skew = SURE**2 / 2 * step
    upper = max(plain, 0.0) + skew + float(np.hypot(SURE * std, skew))
    return Variance(taken, min(max(upper, taken), model.most))


def likely(estimate: float, std: float, most: float = np.inf) -> float:
    """The mean of a normal of this mean and deviation, given that it lies in [0, most]; precise in both tails."""
    if estimate > most / 2:
        return most - likely(most - estimate, std, most)
    if estimate < -30 * std:
        return min(std**2 / -estimate, most / 2)
    low, high = -estimate / std, (most - estimate) / std
    log_mass = log_ndtr(-low) + np.log1p(-np.exp(min(log_ndtr(-high) - log_ndtr(-low), -1e-12)))
    edge = np.exp(-0.5 * low**2 - log_mass) - (np.exp(-0.5 * high**2 - log_mass) if np.isfinite(high) else 0.0)
    return float(np.clip(estimate + std * edge / np.sqrt(2 * np.pi), 0.0, most))


def spread_moment(sums: Sums, model: Model, message_variance: float, inflate: bool = True) -> tuple[Moment, bool]:
    """From the spread of messages, weighted by precision in a second step; whether it can be trusted."""
    freedom = (sums.clients - 1) * sums.dimension
    factor = freedom / (freedom - 2) if inflate and freedom > 2 else 1.0

    def weighted(weights: Array | None) -> Moment:
        total, inverse = sums.moment(weights)
        std = total * float(np.sqrt(2 / freedom)) if model.slope else 0.0
        return Moment(factor * total - message_variance, inverse, std)

    first = weighted(None)
    if len(sums.sizes) == 1:
        return first, freedom > 2
    return weighted(precision(sums, solve(first, model).taken, model, message_variance)), freedom > 2


def square_moment(collector: Collector, centre: Array, server: Array, server_variance: float) -> Moment:
    """From squares that came by message: their mean, less the squared distance of the centre.

    Under central privacy the spread of what came in was never released: the formula for normal values stands in for it,
    so that everything here is made from noisy sums.
    """
    domain, squares, values = collector.domain, collector.squares, collector.values
    dimension, count = domain.dimension, squares.clients
    mean = float(squares.mean().sum() + server.sum()) / dimension
    away = float(np.square(centre - domain.centre).sum()) / dimension
    if server_variance > 0:
        spread = max(mean - away, 0.0)
        scatter = (2 * spread**2 + 4 * spread * away) / dimension / count
        scatter += server_variance * domain.radius**2 / dimension**2
    else:
        spread = values.moment()[0]
        scatter = float(squares.spread.sum()) / max(count - 1, 1) / count / dimension**2
    unsure = spread / values.clients + server_variance
    std = np.sqrt(scatter + 4 * away * unsure / dimension + 2 * unsure**2 / dimension) + 1e-150
    inverse = float(values.counts @ (1 / values.sizes)) / values.clients
    return Moment(mean - away + unsure, inverse, float(std), collector.square_step)


def conclude(
    centre: Array,
    prior: Variance,
    model: Model,
    sums: Sums,
    message_variance: float,
    server_variance: float,
    *,
    by_size: bool,
    trusted: bool,
) -> Learned:
    """Weights of the clients in the centre, and how far the centre may be from the truth."""
    share, variance, by_size = _centre(sums, prior.taken, model, message_variance, by_size)
    return Learned(
        centre=centre,
        prior_variance=prior.taken,
        most_variance=prior.most,
        noise=model.noise,
        slope=model.slope,
        message_variance=message_variance,
        centre_variance=variance + server_variance,
        share=share,
        by_size=by_size,
        trusted=trusted,
    )


def _centre(
    sums: Sums, prior_variance: float, model: Model, message_variance: float, by_size: bool
) -> tuple[float, float, bool]:
    """Share of a client, variance of the centre, and whether clients are weighted by size (where that is possible)."""
    total = _total(sums, prior_variance, model, message_variance)
    if not by_size or total.min() <= 0:
        return 1 / sums.clients, float(sums.counts @ total) / sums.clients**2, False
    share = 1 / float(sums.counts @ (1 / total))
    return share, share, True


def possible_variances(
    learned: Learned, moment: Moment, model: Model, sums: Sums, server_variance: float, exact: bool
) -> SpreadPosterior:
    """What t may be: from the values themselves where they came as they are, else from its noisy moment.

    Then the centre is what it is at every t, but how far it may be off changes with t.
    """
    if exact:
        return from_values(Spread(sums.sizes, sums.counts, sums.means, sums.spread, *model))
    scale = max(1 - model.slope * moment.inverse_size, 1e-12)
    plain = (moment.total - model.noise * moment.inverse_size + moment.step) / scale
    std = float(np.hypot(moment.std, moment.step)) / scale
    variances, chances = from_moment(plain, std, model.most)
    unsure = [_centre(sums, t, model, learned.message_variance, learned.by_size)[1] for t in variances.tolist()]
    centres = np.tile(learned.centre, (len(variances), 1))
    return SpreadPosterior(variances, chances, centres, np.asarray(unsure) + server_variance)


def precision(sums: Sums, prior_variance: float, model: Model, message_variance: float) -> Array | None:
    """Weights by size that make the centre most precise; None: uniform, where a precision would be infinite."""
    total = _total(sums, prior_variance, model, message_variance)
    return None if total.min() <= 0 else total.min() / total


def _total(sums: Sums, prior_variance: float, model: Model, message_variance: float) -> Array:
    """Variance of a message around the centre, by size."""
    return prior_variance + max(model.noise - model.slope * prior_variance, 0.0) / sums.sizes + message_variance
