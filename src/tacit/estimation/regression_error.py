"""How far from the truth the estimates are expected to be, under the model; all exact for a known prior.

Estimates and errors under a mixture prior: each client's components, weighted by how probable they are for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tacit.estimation.base import Array
from tacit.estimation.regression_logit import Logits, logit_posterior
from tacit.estimation.regression_model import Directions, Floats, Prior, posterior, segments, spread


def pull(data: Directions, prior: Prior, component: int = 0) -> Floats:
    """Along each direction, the weight of a client's own data against the prior's mean: between 0 and 1."""
    signal = prior.variances[component] * data.length**2
    return signal / (prior.noise + signal)


def posterior_mse(data: Directions, prior: Prior) -> Floats:
    """Expected squared error of each client's estimate under a prior of one component: equation (16)."""
    return prior.variances[0] * (data.basis.shape[1] - segments(pull(data, prior), data.starts))


def coordinate_variance(data: Directions, prior: Prior, component: int = 0) -> Floats:
    """Posterior variance of each coefficient of each client, [clients, d], given the component."""
    return prior.variances[component] * np.maximum(1 - spread(data, pull(data, prior, component), squared=True), 0.0)


def mean_covariance(data: Directions, prior: Prior) -> Floats:
    """Covariance of the prior mean's generalised least squares estimate, [d, d], the variances taken as known."""
    weighted = data.basis * (data.length**2 / (prior.noise + prior.variances[0] * data.length**2))[:, None]
    return np.linalg.inv(data.basis.T @ weighted)


def mean_error(data: Directions, prior: Prior, covariance: Floats) -> Floats:
    """What not knowing the prior's mean adds to each client's squared error: the trace of (I - A) C (I - A)."""
    own = pull(data, prior)
    along = np.einsum("rd,rd->r", data.basis @ covariance, data.basis)
    return np.trace(covariance) - segments((2 * own - own**2) * along, data.starts)


def mean_coordinate_error(data: Directions, prior: Prior, covariance: Floats) -> Floats:
    """The diagonal of (I - A) C (I - A) for each client, [clients, d]."""
    own, turned = pull(data, prior), data.basis @ covariance
    out = np.empty((len(data.sizes), data.basis.shape[1]))
    for rank in np.unique(data.ranks):
        members = np.flatnonzero(data.ranks == rank)
        for part in np.array_split(members, -(-len(members) // 512)):
            take = data.starts[part][:, None] + np.arange(rank)
            a, basis, moved = own[take][..., None], data.basis[take], turned[take]
            once = (a * basis * moved).sum(axis=1)
            mixed = np.matmul(moved, basis.transpose(0, 2, 1))
            twice = (np.matmul(mixed, a * basis) * (a * basis)).sum(axis=1)
            out[part] = np.diag(covariance) - 2 * once + twice
    return out


def local_mse(data: Directions, prior: Prior) -> Floats:
    """Expected squared error of each client's pseudo-inverse estimate: (18), plus the coefficients it leaves at 0."""
    noise = prior.noise * segments(data.length**-2.0, data.starts)
    size = (prior.means**2).sum(axis=1) + data.basis.shape[1] * prior.variances
    seen = segments((data.basis @ prior.means.T) ** 2 + prior.variances, data.starts)
    return noise + np.maximum(size - seen, 0.0) @ prior.weights


def global_mse(data: Directions, prior: Prior, covariance: Floats | None = None) -> Floats:
    """Expected squared error of the one-component prior's mean as everyone's estimate, learned with `covariance`."""
    base = np.full(len(data.sizes), data.basis.shape[1] * prior.variances[0])
    if covariance is None:
        return base
    along = np.einsum("rd,rd->r", data.basis @ covariance, data.basis)
    return base + np.trace(covariance) - 2 * segments(pull(data, prior) * along, data.starts)


Component = tuple[Floats, Floats]
"""A component's posterior means and variances of each client's coefficients, [clients, d] both."""


class Mixed(NamedTuple):
    shares: Array  # [clients, k]
    estimates: Array  # [clients, d]
    variance: Array  # [clients, d]


def mix(shares: Floats, components: Iterator[Component]) -> Mixed:
    """Mean and variance of the mixture; one component at a time in memory."""
    mean, square, first = 0.0, 0.0, None
    for share, (means, variances) in zip(shares.T[:, :, None], components, strict=True):
        first = means if first is None else first  # differences from it: no cancellation of large squares
        mean, square = mean + share * (means - first), square + share * (variances + (means - first) ** 2)
    assert first is not None
    return Mixed(shares, np.asarray(first + mean), np.asarray(np.maximum(square - np.square(mean), 0.0)))


def linear_mix(data: Directions, prior: Prior) -> Mixed:
    """Exact for every variance from 0 on."""
    now = posterior(data, prior)
    parts = (
        (prior.means[at] + spread(data, now.shift[:, at]), coordinate_variance(data, prior, at))
        for at in range(len(prior.weights))
    )
    return mix(np.exp(now.log_share), parts)


def logistic_mix(data: Logits, prior: Prior) -> Mixed:
    now, basis = logit_posterior(data, prior), data.directions
    parts = (
        (
            prior.means[at] + spread(basis, belief.shift),
            np.maximum(prior.variances[at] - spread(basis, prior.variances[at] - belief.variance, squared=True), 0.0),
        )
        for at, belief in enumerate(now.beliefs)
    )
    return mix(np.exp(now.log_share), parts)


def discrete_mix(shares: Floats, centres: Floats) -> Mixed:
    """A prior that knows no variance: a client is one of the centres."""
    whole = np.ones((len(shares), 1))
    return mix(shares, ((whole * centre, np.zeros_like(centre) * whole) for centre in centres))


def overall(prior: Prior) -> tuple[Array, float]:
    """Mean of the mixture, and the expected squared distance of a client from it."""
    mean = prior.weights @ prior.means
    far = ((prior.means - mean) ** 2).sum(axis=1) + len(mean) * prior.variances
    return mean, float(prior.weights @ far)


def ordered(prior: Prior) -> Prior:
    """Components from the most frequent to the least."""
    order = np.argsort(-prior.weights, kind="stable")
    return Prior(prior.weights[order], prior.means[order], prior.variances[order], prior.noise)
