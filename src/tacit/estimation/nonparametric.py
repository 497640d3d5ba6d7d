"""Personal rates without a shape for the prior: the nonparametric maximum-likelihood prior (Kiefer and Wolfowitz).

The prior is any distribution on a grid of rates; expectation-maximisation finds the likeliest one given the clients'
counts. Each client's estimate is its posterior mean, which no linear estimate can be where rates cluster.

Privately each client sends its count by randomised response among the n + 1 counts that n trials can give: the truth
with probability e^eps / (e^eps + n), each other count with 1 / (e^eps + n). Whatever the two data sets of a client,
no answer is more than e^eps times as likely under one as under the other: pure epsilon, local, replace. The server
knows this channel and finds the prior through it (`CountResponse.channel`): the noisy histogram is never debiased, so
no share is negative. The numbers of trials are public.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.estimation.base import Array, PersonalEstimator, check_count, check_fitted, check_several, check_share
from tacit.estimation.bernoulli import check_counts
from tacit.estimation.messages import Source, source
from tacit.privacy.ledger.statement import SIMULATION

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_STEPS: Final = 5000
_CLOSE: Final = 1e-4  # log-likelihood a client that is still to be had


@checked
@dataclass(frozen=True)
class CountResponse:
    """A client's count by randomised response among all counts that it can have. Pure epsilon, local, one message."""

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise TacitError(f"epsilon {self.epsilon}: give a finite number above 0")

    def send(self, counts: Array, trials: Array, source: Source) -> Array:
        """The count, or with probability n / (e^eps + n) one of the n others, each as likely."""
        kept = source.random(len(counts)) < 1 / (1 + trials * math.exp(-self.epsilon))
        other = np.floor(source.random(len(counts)) * trials)  # among the n others: those above the count move up
        return np.where(kept, counts, other + (other >= counts))

    def channel(self, trials: int) -> Array:
        """Chance of each answer (row) given each count (column)."""
        odd = 1 / (math.exp(self.epsilon) + trials)
        return odd + (math.exp(self.epsilon) - 1) * odd * np.eye(trials + 1)

    def event(self) -> "DpEvent":
        """Of two answers: no pure mechanism of this epsilon tells two data sets apart better (Kairouz et al. 2015)."""
        import dp_accounting as dp

        return dp.RandomizedResponseDpEvent(noise_parameter=2 / (math.exp(self.epsilon) + 1), num_buckets=2)


class RatePrior(NamedTuple):
    """Rates and their shares, which sum to 1."""

    rates: Array
    shares: Array

    def posterior(self, won: Array, trials: Array) -> Array:
        """Of each rate, for each client: rows sum to 1."""
        joint = np.exp(log_binomial(won, trials, self.rates)) * self.shares
        return joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)


def log_binomial(won: Array, trials: Array, rates: Array) -> Array:
    """Log chance of each client's count at each rate, [clients, rates]."""
    choose = gammaln(trials + 1) - gammaln(won + 1) - gammaln(trials - won + 1)
    won, lost = won[:, None], (trials - won)[:, None]
    return choose[:, None] + xlogy(won, rates) + xlogy(lost, 1 - rates)


def likeliest_prior(answers: Array, trials: Array, message: CountResponse | None, grid: int) -> RatePrior:
    """Shares of the rates (i + 1/2) / grid by expectation-maximisation, from the messages alone.

    Stops where the log-likelihood can grow by at most `_CLOSE` a client: the largest directional derivative bounds it.
    """
    rates = (np.arange(grid) + 0.5) / grid
    kinds, counts = np.unique(np.column_stack([trials, answers]), axis=0, return_counts=True)
    chance = np.empty((len(kinds), grid))
    for n in np.unique(kinds[:, 0]):
        here, values = kinds[:, 0] == n, np.arange(int(n) + 1, dtype=np.float64)
        plain = np.exp(log_binomial(values, np.full(len(values), n), rates))
        through = plain if message is None else message.channel(int(n)) @ plain
        chance[here] = through[kinds[here, 1].astype(int)]
    shares, weight = np.full(grid, 1 / grid), counts / counts.sum()
    for _ in range(_STEPS):
        slope = (weight / (chance @ shares)) @ chance
        shares = shares * slope
        if slope.max() - 1 < _CLOSE:
            break
    return RatePrior(rates, shares / shares.sum())


@dataclass(kw_only=True, eq=False, repr=False)
class NonparametricRates(PersonalEstimator):
    """Clients' rates from a prior of any shape, learned from their counts; for many clients (a thousand or more).

    Parameters. `message`: what each client sends, its count (None: no guarantee) or a `CountResponse(epsilon)`. `grid`:
    at how many rates the prior may lie. `seed` makes messages repeatable, for simulation; without it they come from the
    operating system's generator.

    `expected_mse_` is each client's posterior variance as if the prior were known: with few clients it is too hopeful,
    and `BernoulliRates` the better choice.

    >>> import numpy as np
    >>> rates = np.random.default_rng(0).choice([.25, .75], 2000)
    >>> won = np.random.default_rng(1).binomial(14, rates)
    >>> found = NonparametricRates(message=CountResponse(4), seed=0).fit(won, trials=14)
    >>> bool(found.compare(rates)["personal"].measured_gain > .6)
    True
    """

    message: CountResponse | None = None
    grid: int = 101
    seed: int | None = None

    def fit(self, X: ArrayLike, y: Any = None, *, trials: Any = None) -> Self:
        """`X` are successes, one number a client, out of `trials` (a number for all, or one each; by place, too)."""
        if (y is None) == (trials is None):
            raise TacitError("successes alone tell no rate: give trials, once, as in fit(successes, trials=20)")
        if self.message is not None and not isinstance(self.message, CountResponse):
            raise TacitError(f"message is {self.message!r}: give CountResponse(epsilon), or None")
        rates, counts = check_counts(X, y if trials is None else trials)
        check_several(len(rates), "a prior")
        self._remember(X)
        won, grid = np.round(rates[:, 0] * counts), check_count("grid", self.grid, 2)
        sent = won if self.message is None else self.message.send(won, counts, source(self.seed, "counts"))
        self.prior_ = likeliest_prior(sent, counts, self.message, grid)
        return self._store(won, counts)

    def predict(self, X: ArrayLike, *, trials: ArrayLike) -> Array:
        """Personal rates of new clients."""
        check_fitted(self)
        rates, counts = check_counts(X, trials)
        return self.prior_.posterior(np.round(rates[:, 0] * counts), counts) @ self.prior_.rates

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """Equal tails of each client's posterior: places of the grid."""
        check_fitted(self)
        tail = (1 - check_share("level", level)) / 2
        below = np.cumsum(self.prior_.posterior(self._won, self.trials_), axis=1)
        low, high = ((below < share).sum(1) for share in (tail, 1 - tail))
        last = len(self.prior_.rates) - 1
        return self.prior_.rates[np.minimum(low, last)], self.prior_.rates[np.minimum(high, last)]

    @property
    def privacy_(self) -> str:
        """What left each client, in words."""
        if self.message is None:
            return "1 count from each client: no guarantee"
        mark = "" if self.seed is None else f"; {SIMULATION}"
        return f"1 count from each client: epsilon {self.message.epsilon:g} (client-level, local, replace, pure){mark}"

    def _store(self, won: Array, trials: Array) -> Self:
        posterior = self.prior_.posterior(won, trials)
        self._won, self.trials_, self.local_ = won, trials, won / trials
        self.estimates_ = posterior @ self.prior_.rates
        self.expected_mse_ = posterior @ np.square(self.prior_.rates) - np.square(self.estimates_)
        self.interval_mse_ = self.expected_mse_
        centre = self.prior_.shares @ self.prior_.rates
        spread = float(self.prior_.shares @ np.square(self.prior_.rates - centre))
        self.global_, self.global_mse_ = np.asarray(centre), np.full(len(won), spread)
        self.local_mse_ = (posterior @ (self.prior_.rates * (1 - self.prior_.rates))) / trials
        self.n_clients_, self.n_features_in_ = len(won), 1
        return self
