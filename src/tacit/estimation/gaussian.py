"""Personal means of Gaussian clients: Theorems 1 and 2, for unequal sizes and many dimensions."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.estimation.base import Array, check_matrix, check_positive, check_several, check_sizes, codes_of
from tacit.estimation.collect import Model
from tacit.estimation.linear import LinearShrinkage
from tacit.estimation.messages import Domain, Exact


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianMeans(LinearShrinkage):
    """Clients' means theta_i ~ N(mu, t I), samples ~ N(theta_i, noise I): each client moves toward the common mean.

    Parameters. `prior_mean`, `prior_variance` (t) and `noise_variance` are learned where not given; `noise_variance`
    only without a message constraint. `message`: what each client sends (default: its mean, as it is); private and
    quantized messages need `radius`, a public bound on the norm of a client's mean, see `suggest_radius`. `moments`:
    "debiased", or "as-published", which takes the spread of the clients' means for the spread of their truths. `seed`
    makes messages repeatable, for simulation; without it they come from the operating system's generator.

    Clients whose number is public: their sizes are not protected. With fewer than 3 degrees of freedom (2 or 3 clients
    of one dimension) the prior's variance cannot be learned safely: nobody moves.
    """

    noise_variance: float | None = None
    radius: float | None = None

    def fit(self, X: ArrayLike, y: Any = None, *, groups: ArrayLike | None = None, sizes: ArrayLike = 1) -> Self:
        """Rows are samples of the clients that `groups` names; without it, each row is a client's mean of `sizes`."""
        self._forget()
        values = check_matrix("X", X)
        flat = np.ndim(X) == 1
        pooled = None
        if groups is None:
            counts = check_sizes(sizes, len(values))
        else:
            self.clients_, values, counts, pooled = pool(values, groups)
        self.noise_variance_ = self.known_noise(pooled)
        self.sizes_ = counts
        self.observe(values, counts).learn()
        return self._store(values, counts, (len(values),) if flat else values.shape)

    def predict(self, X: ArrayLike, sizes: ArrayLike = 1) -> Array:
        """Personal estimates of new clients, from their own means of `sizes` samples each."""
        values = check_matrix("X", X, self.n_features_in_)
        return self.answer(values, check_sizes(sizes, len(values))).estimates.reshape(np.shape(X))

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

    def _domain(self, dimension: int) -> Domain:
        if self.radius is None and not isinstance(self.message_, Exact) and not self._prior_known():
            raise TacitError("a constrained message needs radius, a public bound on a client's mean: suggest_radius")
        radius = 1.0 if self.radius is None else check_positive("radius", self.radius)
        return Domain(radius, 0.0, dimension)

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
