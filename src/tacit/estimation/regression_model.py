"""Linear regressions whose coefficients come from a mixture of k round Gaussians: likelihood, posterior and EM.

theta_i ~ sum_l p_l N(mu_l, s_l^2 I), y_i = X_i theta_i + noise of variance s_x^2. k = 1 is the paper's model (13); one
step of EM costs two products of the directions with k vectors, so it is linear in rows and never forms a d x d matrix.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from tacit.errors import TacitError
from tacit.estimation.regression_data import Directions, Floats, segments, spread

LEAST = 1e-300
MOST = 1e50


class Floor(NamedTuple):
    """Variances below which no method may go."""

    prior: float
    noise: float


class Prior(NamedTuple):
    weights: Floats  # [k], sum 1
    means: Floats  # [k, d]
    variances: Floats  # [k], of each coefficient around its mean
    noise: float  # variance of a target around its prediction


class Posterior(NamedTuple):
    """What a client's data say, component by component; along directions for what varies there."""

    surprise: Floats  # [directions, k], target minus what the component's mean predicts
    total: Floats  # [directions, k], variance of that surprise
    shift: Floats  # [directions, k], posterior mean of the coefficients minus the component's mean
    log_share: Floats  # [clients, k], log posterior probability of the component
    log_likelihood: Floats  # [clients], of the targets, coefficients integrated out


def posterior(data: Directions, prior: Prior) -> Posterior:
    """Exact, and finite for every design and any variances of at least 0, as long as the noise is above 0."""
    surprise = data.answer[:, None] - data.length[:, None] * (data.basis @ prior.means.T)
    signal = prior.variances * data.length[:, None] ** 2
    total = prior.noise + signal
    shift = prior.variances * data.length[:, None] * surprise / total
    terms = segments(np.log1p(signal / prior.noise) + surprise**2 / total, data.starts)
    alone = data.sizes * np.log(2 * np.pi * prior.noise) + data.rest / prior.noise
    joint = np.log(np.maximum(prior.weights, LEAST)) - 0.5 * (terms + alone[:, None])
    likelihood = np.asarray(logsumexp(joint, axis=1))
    return Posterior(surprise, total, shift, joint - likelihood[:, None], likelihood)


def em_step(data: Directions, prior: Prior, floor: Floor) -> tuple[Prior, float]:
    """The prior that EM takes next, and the log-likelihood of the one given. No variance falls below `floor`."""
    now = posterior(data, prior)
    share = np.exp(now.log_share)
    each = np.repeat(share, data.ranks, axis=0)
    mass = np.maximum(share.sum(axis=0), LEAST)
    move = (each * now.shift).T @ data.basis / mass[:, None]
    d = data.basis.shape[1]
    known = prior.variances**2 * data.length[:, None] ** 2 / now.total
    spread_out = d * prior.variances + (each * (now.shift**2 - known)).sum(axis=0) / mass
    variances = np.maximum(spread_out - (move**2).sum(axis=1), 0.0) / d
    left = (now.surprise * prior.noise / now.total) ** 2 + prior.noise * (1 - prior.noise / now.total)
    noise = (data.rest.sum() + (each * left).sum()) / data.sizes.sum()
    weights = mass / mass.sum()
    after = Prior(weights, prior.means + move, np.maximum(variances, floor.prior), max(float(noise), floor.noise))
    return after, float(now.log_likelihood.sum())


def pack(prior: Prior) -> Floats:
    logs = np.log(np.concatenate([np.maximum(prior.weights, LEAST), prior.variances, [prior.noise]]))
    return np.concatenate([logs, prior.means.ravel()])


def unpack(point: Floats, k: int, floor: Floor) -> Prior:
    """The inverse of `pack`; a leap that left the domain comes back to its edge."""
    logits = np.maximum(point[:k], np.log(LEAST))
    variances = np.exp(np.clip(point[k : 2 * k], np.log(floor.prior), np.log(MOST)))
    noise = float(np.exp(np.clip(point[2 * k], np.log(floor.noise), np.log(MOST))))
    return Prior(np.exp(logits - logsumexp(logits)), point[2 * k + 1 :].reshape(k, -1), variances, noise)


def pooled(data: Directions) -> Floats:
    """Least squares over all clients' rows: one set of coefficients for everyone."""
    scaled = data.basis * data.length[:, None]
    gram, d = scaled.T @ scaled, data.basis.shape[1]
    if np.linalg.matrix_rank(gram, hermitian=True) < d:
        raise TacitError(
            f"all rows together leave some of the {d} coefficients open: give more rows, or the prior's mean"
        )
    return np.asarray(np.linalg.solve(gram, scaled.T @ data.answer), dtype=np.float64)


def moments(data: Directions, mean: Floats) -> tuple[float, float]:
    """Prior and noise variance for which squared surprises are as large as they are; both above 0 unless all are 0."""
    from scipy.optimize import nnls

    surprise = (data.answer - data.length * (data.basis @ mean)) ** 2
    power = data.length**2
    typical = float(power.mean()) if len(power) else 1.0
    free = np.sqrt((data.sizes - data.ranks).astype(float))
    open_ = free > 0
    weight = 1 / (1 + power / typical)
    ones = np.concatenate([weight, free[open_]])
    slopes = np.concatenate([weight * power / typical, np.zeros(int(open_.sum()))])
    seen = np.concatenate([weight * surprise, data.rest[open_] / free[open_]])
    (noise, signal), _ = nnls(np.stack([ones, slopes], axis=1), seen)
    least = 0.01 * (noise + signal)
    return max(float(signal), least) / typical, max(float(noise), least)


def local(data: Directions) -> Floats:
    """Each client's own least squares, of least norm where its rows leave coefficients open (pseudo-inverse)."""
    return spread(data, data.answer / data.length)


def estimates(data: Directions, prior: Prior) -> Floats:
    """Posterior means [clients, d]: equation (15) for one component, its probability-weighted mean for several."""
    now = posterior(data, prior)
    share = np.exp(now.log_share)
    each = np.repeat(share, data.ranks, axis=0)
    return share @ prior.means + spread(data, (each * now.shift).sum(axis=1))
