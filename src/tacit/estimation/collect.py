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
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tacit.core import rng
from tacit.estimation.learned import Learned
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.sums import Sums

Array = NDArray[np.float64]
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
    total = _total(sums, prior.taken, model, message_variance)
    if not by_size or total.min() <= 0:
        share, by_size = 1 / sums.clients, False
        variance = float(sums.counts @ total) / sums.clients**2
    else:
        share = variance = 1 / float(sums.counts @ (1 / total))
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


def precision(sums: Sums, prior_variance: float, model: Model, message_variance: float) -> Array | None:
    """Weights by size that make the centre most precise; None: uniform, where a precision would be infinite."""
    total = _total(sums, prior_variance, model, message_variance)
    return None if total.min() <= 0 else total.min() / total


def _total(sums: Sums, prior_variance: float, model: Model, message_variance: float) -> Array:
    """Variance of a message around the centre, by size."""
    return prior_variance + max(model.noise - model.slope * prior_variance, 0.0) / sums.sizes + message_variance
