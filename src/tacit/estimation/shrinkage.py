"""Estimators that move each client toward a common centre: what Gaussian means and Bernoulli rates share.

`fit` is `observe` (messages are sent, once; may be called for one chunk of clients after the other), `learn` (the
server concludes) and `answer` (each client for itself).

Personal means of Gaussian clients: Theorems 1 and 2, for unequal sizes and many dimensions.
"""

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin

from tacit.core.checked import checked, checked_names
from tacit.errors import TacitError
from tacit.estimation.base import (
    Array,
    PersonalEstimator,
    as_floats,
    check_choice,
    check_fitted,
    check_matrix,
    check_positive,
    check_several,
    check_sizes,
    codes_of,
)
from tacit.estimation.collect import (
    BLOCK,
    Answers,
    Collector,
    Learned,
    Model,
    Moment,
    Variance,
    answers,
    conclude,
    possible_variances,
    precision,
    solve,
    spread_moment,
    square_moment,
)
from tacit.estimation.messages import Domain, Exact, Message, message_of, source
from tacit.privacy.ledger.statement import SIMULATION

Moments = Literal["debiased", "as-published"]


@dataclass(kw_only=True, eq=False, repr=False)
class FromMessages(TransformerMixin, PersonalEstimator):
    """Of estimators that learn from what clients send: a message each, and how its moments are used."""

    message: Message | None = None
    moments: Moments = "debiased"
    seed: int | None = None

    @property
    def message_(self) -> Message:
        return message_of(self.message)

    @property
    def sends(self) -> bool:
        """Whether clients send anything: not where the prior is known."""
        raise NotImplementedError

    def transform(self, X: ArrayLike, **how: Any) -> Array:
        """`predict`, for pipelines; with `set_output(transform="pandas")` under the index of X."""
        return self.predict(X, **how)  # pyright: ignore[reportAttributeAccessIssue]

    def fit_transform(self, X: ArrayLike, y: Any = None, **how: Any) -> Array:
        """The personal estimates of the clients that are fitted."""
        return self.fit(X, y, **how).estimates_  # pyright: ignore[reportAttributeAccessIssue]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """One estimate for each value, under its name."""
        check_fitted(self)
        plain = [f"x{at}" for at in range(self.n_features_in_)]
        return np.asarray(getattr(self, "feature_names_in_", plain), dtype=object)

    def score(self, X: ArrayLike, y: ArrayLike, **how: Any) -> float:
        """How much of the clients' truths `y` the predictions for them explain (R squared), as regressors have it."""
        from sklearn.metrics import r2_score

        found = self.predict(X, **how)  # pyright: ignore[reportAttributeAccessIssue]
        return float(r2_score(as_floats("y", y), np.asarray(found)))


@dataclass(kw_only=True, eq=False, repr=False)
class LinearShrinkage(FromMessages):
    """A subclass says what its values are, where they lie, and how they vary around a client's truth."""

    prior_mean: Any = None
    prior_variance: float | None = None

    # what a subclass must say

    def _domain(self, dimension: int) -> Domain:
        raise NotImplementedError

    def _model(self, centre: Array) -> Model:
        raise NotImplementedError

    def _squares(self, values: Array, sizes: Array, domain: Domain) -> Array:
        """Unbiased for the squared distance of the truth (or of the value) from the domain's centre."""
        raise NotImplementedError

    # learning

    @property
    def centre_(self) -> Array:
        return self.learned_.centre

    @property
    def prior_variance_(self) -> float:
        return self.learned_.prior_variance

    @property
    def prior_variance_interval_(self) -> tuple[float, float]:
        """What the variance may be, with 95%; where it was given, that twice."""
        doubt = self.learned_.doubt
        return (self.prior_variance_, self.prior_variance_) if doubt is None else doubt.interval()

    @property
    def sends(self) -> bool:
        return not self._prior_known()

    @property
    def privacy_(self) -> str:
        """What left each client, in words."""
        if self._prior_known():
            return "nothing is sent: the prior is known, every client works alone"
        return guarantee(self.message_, self._collector.domain, seed=self.seed)

    def observe(self, values: Array, sizes: Array) -> Self:
        """Sends the messages of these clients. All calls but the last in multiples of `BLOCK` clients."""
        if not hasattr(self, "_collector"):
            self._collector = self._collect(values.shape[1])
        if hasattr(self, "learned_"):
            raise TacitError("these messages were already used: fit a new estimator for more clients")
        if not self._prior_known():
            for part in _parts(len(values)):
                squares = self._squares(values[part], sizes[part], self._collector.domain)
                self._collector.receive(values[part], squares, sizes[part])
        return self

    def learn(self) -> Self:
        """Centre and prior variance from the messages alone."""
        self.learned_ = self._known() if self._prior_known() else self._learn(self._collector)
        return self

    def answer(self, values: Array, sizes: Array, first: int | None = None) -> Answers:
        """Each client's estimate; `first` is the place of the first row among the observed, None for new clients."""
        if first is None or self._prior_known():
            return answers(self.learned_, values, sizes)
        if first % BLOCK:
            raise TacitError(f"clients from {first} on: answer in multiples of {BLOCK} clients")
        inside = [self._collector.inside(first // BLOCK + at, len(sizes[part])) for at, part in _enumerate(len(sizes))]
        return answers(self.learned_, values, sizes, np.concatenate(inside))

    def _store(self, values: Array, sizes: Array, shape: tuple[int, ...]) -> Self:
        result = self.answer(values, sizes, first=0)
        self.n_clients_, self.n_features_in_ = values.shape
        self.local_, self.local_mse_ = values.reshape(shape), result.local_mse
        self.estimates_, self.expected_mse_, self.pull_ = result.estimates.reshape(shape), result.mse, result.pull
        self.global_ = self.centre_ if len(shape) == 2 else self.centre_[0]
        self.global_mse_, self.interval_mse_ = result.global_mse, result.doubted
        return self

    def _forget(self) -> None:
        for name in ("_collector", "learned_"):
            if hasattr(self, name):
                delattr(self, name)

    def _collect(self, dimension: int) -> Collector:
        check_choice("moments", self.moments, get_args(Moments))
        domain = self._domain(dimension)
        if self.moments == "as-published" and self.prior_variance is None and self.message_.server_std(domain) > 0:
            raise TacitError('Central releases sums, and moments="as-published" needs messages: use "debiased"')
        ask = self.prior_variance is None and self.moments == "debiased"
        split_seed = secrets.randbits(63) if self.seed is None else self.seed
        return Collector(self.message_, domain, self.seed, split_seed, ask)

    def _prior_known(self) -> bool:
        return self.prior_mean is not None and self.prior_variance is not None

    def _known(self) -> Learned:
        centre = self._given_centre(self._collector.domain.dimension)
        return self._exactly(centre, check_positive("prior_variance", self.prior_variance, zero=True))

    def _given_centre(self, dimension: int) -> Array:
        try:
            centre = np.broadcast_to(np.asarray(self.prior_mean, dtype=np.float64), dimension).copy()
        except (TypeError, ValueError):
            raise TacitError(f"prior_mean {self.prior_mean!r} is no number for each of {dimension} values") from None
        if not np.isfinite(centre).all():
            raise TacitError(f"prior_mean {self.prior_mean!r} must be finite")
        return centre

    def _exactly(self, centre: Array, prior_variance: float, most: float | None = None) -> Learned:
        model, most = self._model(centre), prior_variance if most is None else most
        return Learned(centre, prior_variance, most, model.noise, model.slope, 0.0, 0.0, 0.0, False, True)

    def _learn(self, collector: Collector) -> Learned:
        check_several(collector.clients, "a prior")
        check_delta(self.message_, collector.clients)
        sums, domain, message = collector.values, collector.domain, self.message_
        if min(sums.clients, collector.squares.clients if collector.split else 2) < 2:
            raise TacitError(f"{collector.clients} clients are too few to split in two: give prior_variance, or more")
        noise, server_variance = self._server_noise(collector)
        added, uniform = message.variance(domain), message.server_std(domain) > 0
        rough = self._clip(sums.mean() + noise[:-1])
        prior, trusted, moment = self._prior(collector, rough, noise[-1:], added, server_variance)
        weights = None if uniform else precision(sums, prior.taken, self._model(rough), added)
        centre = self._clip(sums.mean(weights) + noise[:-1])
        model = self._model(centre)
        learned = conclude(centre, prior, model, sums, added, server_variance, by_size=not uniform, trusted=trusted)
        exact = message.squares == "exact"
        doubt = None if moment is None else possible_variances(learned, moment, model, sums, server_variance, exact)
        if self.prior_mean is None:
            return replace(learned, doubt=doubt)
        known = self._given_centre(domain.dimension)
        return replace(self._exactly(known, *prior), doubt=None if doubt is None else doubt.around(known))

    def _clip(self, centre: Array) -> Array:
        """A centre outside the domain can only come from noise."""
        return centre if isinstance(self.message_, Exact) else self._collector.domain.box(centre)

    def _server_noise(self, collector: Collector) -> tuple[Array, float]:
        """Noise on the mean (and on the mean square, in its unit) under central privacy; its variance a coordinate."""
        std = self.message_.server_std(collector.domain) / collector.clients
        drawn = source(self.seed, "server").standard_normal(collector.domain.dimension + 1) * std
        drawn[-1] *= collector.domain.radius
        return drawn, std**2

    def _prior(
        self, collector: Collector, centre: Array, noise: Array, added: float, server: float
    ) -> tuple[Variance, bool, Moment | None]:
        """The prior variance, given or learned in the way that the message allows; whether to trust it; from what."""
        model, sums = self._model(centre), collector.values
        if self.prior_variance is not None:
            known = check_positive("prior_variance", self.prior_variance, zero=True)
            return Variance(known, known), True, None
        if self.moments == "as-published":
            seen = spread_moment(sums, Model(0.0), 0.0, inflate=False)[0].total
            return Variance(seen, seen), True, None
        if self.message_.squares == "exact":
            moment, trusted = spread_moment(sums, model, added)
            taken = solve(moment, model).taken  # moves with the clients' own errors, as James and Stein's: no limit
            return Variance(taken, taken), trusted, moment if trusted else None
        moment = square_moment(collector, centre, noise, server)
        return solve(moment, model), True, moment


def guarantee(message: Message, domain: Domain, times: int = 1, seed: int | None = None) -> str:
    """Bits and epsilon of what each client sends, with unit and neighbours; of seeded messages, that they are."""
    bits = message.bits(domain)
    sent = f"{times} message{'s' * (times > 1)} of {bits:,} bit{'s' * (bits > 1)} from each client"
    if math.isinf(message.epsilon):
        return f"{sent}: no guarantee"
    delta = f"delta {message.delta:g}" if message.delta else "pure"
    where = "central, trusted server" if message.server_std(domain) > 0 else "local"
    weak = "; above 10, this promises little" if message.epsilon > 10 else ""
    mark = "" if seed is None else f"; {SIMULATION}"
    return f"{sent}: epsilon {message.epsilon:g} (client-level, {where}, replace, {delta}){weak}{mark}"


def check_delta(message: Message, clients: int) -> None:
    if message.delta >= 1 / clients:
        raise TacitError(
            f"delta {message.delta:g} is not below 1 / {clients:,} clients: with it, a client could be shown whole"
        )


def _enumerate(clients: int) -> Iterator[tuple[int, slice]]:
    return enumerate(_parts(clients))


def _parts(clients: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, clients, BLOCK))


@dataclass(kw_only=True, eq=False, repr=False)
class SampledMeans(FromMessages):
    """Of estimators whose clients have means of samples: how many, how noisy, and where the means lie."""

    noise_variance: float | None = None
    radius: float | None = None

    def known_noise(self, pooled: float | None = None) -> float:
        """The noise of one sample: as given, else as pooled over clients, where that is allowed and possible."""
        if self.noise_variance is not None:
            return check_positive("noise_variance", self.noise_variance, zero=True)
        if pooled is None:
            raise TacitError("noise_variance is not given and cannot be learned from means alone: give it, or groups")
        if not isinstance(self.message_, Exact):
            raise TacitError("noise_variance must be given: learning it would take a second message from each client")
        if not math.isfinite(pooled):
            raise TacitError("every client has one sample: their noise cannot be learned, give noise_variance")
        return pooled

    def _samples(
        self, X: ArrayLike, groups: ArrayLike | None, sizes: ArrayLike
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Clients' means, how many samples each has, and the shape of estimates; settles the noise."""
        values, pooled = check_matrix("X", X), None
        if groups is None:
            counts = check_sizes(sizes, len(values))
        else:
            self.clients_, values, counts, pooled = pool(values, groups)
        self.noise_variance_ = self.known_noise(pooled)
        self._remember(X, None if groups is None else self.clients_)
        return values, counts, (len(values), *np.shape(X)[1:])

    def _domain(self, dimension: int) -> Domain:
        if self.radius is None and not isinstance(self.message_, Exact) and self.sends:
            raise TacitError("a constrained message needs radius, a public bound on a client's mean: suggest_radius")
        return Domain(1.0 if self.radius is None else check_positive("radius", self.radius), 0.0, dimension)


@checked_names
@dataclass(kw_only=True, eq=False, repr=False)
class GaussianMeans(SampledMeans, LinearShrinkage):
    """Clients' means theta_i ~ N(mu, t I), samples ~ N(theta_i, noise I): each client moves toward the common mean.

    Parameters. `prior_mean`, `prior_variance` (t) and `noise_variance` are learned where not given; `noise_variance`
    only without a message constraint. `message`: what each client sends (default: its mean, as it is); private and
    quantized messages need `radius`, a public bound on the norm of a client's mean, see `suggest_radius`. `moments`:
    "debiased", or "as-published", which takes the spread of the clients' means for the spread of their truths. `seed`
    makes messages repeatable, for simulation; without it they come from the operating system's generator.

    Clients whose number is public: their sizes are not protected. With fewer than 3 degrees of freedom (2 or 3 clients
    of one dimension) the prior's variance cannot be learned safely: nobody moves.
    """

    def fit(self, X: ArrayLike, y: Any = None, *, groups: ArrayLike | None = None, sizes: ArrayLike = 1) -> Self:
        """Rows are samples of the clients that `groups` names; without it, each row is a client's mean of `sizes`."""
        self._forget()
        values, self.sizes_, shape = self._samples(X, groups, sizes)
        self.observe(values, self.sizes_).learn()
        return self._store(values, self.sizes_, shape)

    def predict(self, X: ArrayLike, sizes: ArrayLike = 1) -> Array:
        """Personal estimates of new clients, from their own means of `sizes` samples each."""
        values = check_matrix("X", X, self.n_features_in_)
        return self.answer(values, check_sizes(sizes, len(values))).estimates.reshape(np.shape(X))

    def _model(self, centre: Array) -> Model:
        return Model(self.noise_variance_)

    def _squares(self, values: Array, sizes: Array, domain: Domain) -> Array:
        return np.square(domain.box(values) - domain.centre)


def pool(values: Array, groups: ArrayLike) -> tuple[Any, Array, Array, float]:
    """Names, means and sizes of the clients, and the pooled variance within them (NaN: no client has two samples)."""
    labels, codes, counts = codes_of(groups, len(values))
    means = np.column_stack([np.bincount(codes, column) for column in values.T]) / counts[:, None]
    freedom = (len(values) - len(labels)) * values.shape[1]
    within = float(np.square(values - means[codes]).sum())
    check_several(len(values), "anything")
    return labels, means, counts, within / freedom if freedom else math.nan


@checked
def suggest_radius(
    mean_bound: float, prior_variance: float, noise_variance: float, sizes: float, clients: int, dimension: int = 1
) -> float:
    """A public radius that holds every client's mean of `sizes` samples but with probability below 2 / (m n).

    For one dimension r + (s_theta + s_x / sqrt(n)) sqrt(2 log(m^2 n)); the norm of more dimensions adds sqrt(d) before
    the logarithm's term (Lemma 1's form). `mean_bound` bounds the norm of the prior's mean.
    """
    spread = math.sqrt(prior_variance) + math.sqrt(noise_variance / sizes)
    tail = math.sqrt(2 * math.log(clients**2 * sizes))
    return mean_bound + spread * (tail if dimension == 1 else math.sqrt(dimension) + tail)
