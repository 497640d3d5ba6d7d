"""Personal rates of Bernoulli clients: Section 2.2, with a debiased prior variance, for unequal trials."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from tacit.core.checked import checked, checked_names
from tacit.errors import TacitError
from tacit.estimation.base import Array, check_choice, check_fitted, check_several, check_share, check_vector
from tacit.estimation.collect import Learned, Model
from tacit.estimation.messages import Domain, Exact, Message, source
from tacit.estimation.shrinkage import LinearShrinkage, check_delta

UNIT = Domain(0.5, 0.5)


@checked_names
@dataclass(kw_only=True, eq=False, repr=False)
class BernoulliRates(LinearShrinkage):
    """Clients' rates p_i from a prior on [0, 1]: the best linear estimate of each; for Beta priors, the best of all.

    Parameters. `prior_mean` and `prior_variance` of the rates are learned where not given (Beta(alpha, beta) has mean
    alpha / (alpha + beta), see `beta_moments`). `message`: what each client sends about its share of successes. A
    message of two values (randomised response, one bit) says nothing about the prior's variance: a random half of the
    clients then sends (Z / n - 1/2)^2, which lies in [0, 1/4], instead of Z / n. Some clients need two trials.
    `moments`: "debiased", or "as-published", the paper's formulas to the letter. `seed` as for `GaussianMeans`.
    """

    def fit(self, X: ArrayLike, y: Any = None, *, trials: Any = None) -> Self:
        """`X` are successes, one number a client, out of `trials` (a number for all, or one each; by place, too)."""
        self._forget()
        if (y is None) == (trials is None):
            raise TacitError("successes alone tell no rate: give trials, once, as in fit(successes, trials=20)")
        trials = y if trials is None else trials
        self._remember(X)
        check_choice("moments", self.moments, ("debiased", "as-published"))
        rates, counts = check_counts(X, trials)
        self.trials_ = counts
        check_trials(counts, self.prior_variance)
        if self.moments == "as-published" and self.prior_variance is None:
            return self._fit_as_published(rates, counts)
        self.observe(rates, counts).learn()
        return self._store(rates, counts, (len(rates),))

    def predict(self, X: ArrayLike, *, trials: ArrayLike) -> Array:
        """Personal rates of new clients."""
        rates, counts = check_counts(X, trials)
        return self.answer(rates, counts).estimates[:, 0]

    def intervals(self, level: float = 0.95) -> tuple[Array, Array]:
        """From the Beta distribution with each estimate's mean and expected error; exact for a known Beta prior, inside
        [0, 1]. Where that is degenerate (all clients at 0 or 1): Clopper and Pearson's, from the client's own counts.
        """
        check_fitted(self)
        return beta_intervals(
            self.estimates_, self.interval_mse_, self.local_, self.trials_, check_share("level", level)
        )

    def _fit_as_published(self, rates: Array, counts: Array) -> Self:
        check_several(len(rates) - 1, "a prior from others")
        check_delta(self.message_, len(rates))
        self._collector = self._collect(1)
        published = published_rates(rates[:, 0], counts, self.message_, self.seed)
        self.learned_ = self._as_learned(published.centre, published.variance)
        self._store(rates, counts, (len(rates),))
        self.estimates_, self.pull_ = published.estimates, published.pull
        self.expected_mse_ = self.learned_.error(counts, np.zeros(len(counts)), published.pull)
        self.interval_mse_ = self.expected_mse_
        return self

    def _as_learned(self, centre: float, variance: float) -> Learned:
        """Errors are reported for the printed variance, and so are too hopeful where it is not the prior's."""
        mean = float(np.clip(centre, 0.0, 1.0))
        return self._exactly(np.array([mean]), float(np.clip(variance, 0.0, mean * (1 - mean))))

    def _domain(self, dimension: int) -> Domain:
        return UNIT

    def _given_centre(self, dimension: int) -> Array:
        centre = super()._given_centre(dimension)
        if (centre < 0).any() or (centre > 1).any():
            raise TacitError(f"prior_mean {self.prior_mean!r} is no mean of rates: give a number from 0 to 1")
        return centre

    def _model(self, centre: Array) -> Model:
        mean = float(np.clip(centre[0], 0.0, 1.0))
        most = mean * (1 - mean)
        if self._prior_known() and (self.prior_variance or 0.0) > most + 1e-12:
            raise TacitError(
                f"prior_variance {self.prior_variance} is impossible for rates of mean {mean:g}: over {most:g}"
            )
        return Model(most, 1.0, most)

    def _squares(self, values: Array, sizes: Array, domain: Domain) -> Array:
        return np.square(values - domain.centre)


def check_counts(successes: ArrayLike, trials: ArrayLike, names: Any = None) -> tuple[Array, Array]:
    """Shares of successes [clients, 1] and numbers of trials; whole numbers with 0 <= successes <= trials >= 1.

    Errors name a client by its name, or by its place from 0 on.
    """
    won = check_vector("successes", successes)
    counts = check_vector("trials", trials, len(won))
    for bad, why in (
        (counts < 1, "every client needs at least 1 trial"),
        (won < 0, "counts are at least 0"),
        (won > counts, "there are more successes than trials"),
        ((won != np.floor(won)) | (counts != np.floor(counts)), "counts are whole numbers"),
    ):
        if bad.any():
            at = int(np.argmax(bad))
            who = at if names is None else names[at]
            raise TacitError(f"client {who} has {won[at]:g} successes in {counts[at]:g} trials: {why}")
    return (won / counts)[:, None], counts


def check_trials(trials: Array, prior_variance: float | None) -> None:
    """One trial each is as likely under every prior of the same mean."""
    if prior_variance is None and trials.max() < 2:
        raise TacitError("every client has one trial: the prior's variance cannot be learned, give prior_variance")


@checked
def beta_moments(alpha: float, beta: float) -> tuple[float, float]:
    """Mean and variance of Beta(alpha, beta), as `prior_mean` and `prior_variance`."""
    if not (alpha > 0 and beta > 0):
        raise TacitError(f"Beta({alpha}, {beta}): both parameters must be above 0")
    total = alpha + beta
    return alpha / total, alpha * beta / total**2 / (total + 1)


def beta_intervals(mean: Array, mse: Array, rates: Array, trials: Array, level: float) -> tuple[Array, Array]:
    """Equal tails of the Beta distribution with these means and variances, or the client's own exact interval."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    room = mean * (1 - mean)
    fits = (mse > 0) & (mse < room)
    strength = np.where(fits, room / np.where(fits, mse, 1.0) - 1, 1.0)
    a, b = np.where(fits, mean, 0.5) * strength, np.where(fits, 1 - mean, 0.5) * strength
    won = np.round(rates * trials)
    low = np.where(won > 0, betaincinv(np.maximum(won, 1), trials - won + 1, tail), 0.0)
    high = np.where(won < trials, betaincinv(won + 1, np.maximum(trials - won, 1), 1 - tail), 1.0)
    return np.where(fits, betaincinv(a, b, tail), low), np.where(fits, betaincinv(a, b, 1 - tail), high)


class Published(NamedTuple):
    estimates: Array
    pull: Array  # 1 - a_i
    centre: float
    variance: float


def published_rates(rates: Array, trials: Array, message: Message, seed: int | None) -> Published:
    """Equation (6) and its private form to the letter, to compare with: the variance of what was seen is taken for the
    prior's. Each client's weight is a_i = n / (mu (1 - mu) / s^2 - 1 + n) from the others' messages, privately without
    the -1. Where s^2 or mu (1 - mu) is 0, or noise makes the weight leave [0, 1], it is brought there.
    """
    sent = message.send(rates[:, None], UNIT, source(seed, "message", 0))[:, 0]
    m, mean = len(sent), sent.mean()
    others = (sent.sum() - sent) / (m - 1)
    # X_l - mu_l = m / (m - 1) (X_l - mean), for the leave-one-out mean mu_l
    around = np.square((sent - mean) * m / (m - 1))
    variance = (around.sum() - around) / (m - 2)
    room = others * (1 - others)
    ratio = np.divide(room, variance, out=np.full(m, np.inf), where=variance > 0)
    weight = trials / (np.maximum(ratio - isinstance(message, Exact), 0.0) + trials)
    estimates = weight * rates + (1 - weight) * others
    return Published(estimates, 1 - weight, float(mean), float(variance.mean()))
