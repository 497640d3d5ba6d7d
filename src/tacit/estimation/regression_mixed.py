"""Estimates and errors under a mixture prior: each client's components, weighted by how probable they are for it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tacit.estimation.base import Array
from tacit.estimation.regression_data import Directions, Floats, spread
from tacit.estimation.regression_error import coordinate_variance
from tacit.estimation.regression_logit import Logits, logit_posterior
from tacit.estimation.regression_model import Prior, posterior

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
