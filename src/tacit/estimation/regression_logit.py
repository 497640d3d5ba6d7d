"""Logistic regressions whose coefficients come from a mixture of k round Gaussians, by Laplace's approximation.

A client's most probable coefficients differ from a component's mean only along the client's own directions, so each is
found by Newton's method in as many dimensions as the client has rows (at most d), clients of similar size in one batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from tacit.errors import TacitError
from tacit.estimation.regression_data import Directions, Flags, Floats, Ints, Rows, decompose, segments
from tacit.estimation.regression_model import LEAST, Floor, Prior

_NEWTON = 25
_CLOSE = 1e-9


class Batch(NamedTuple):
    """Clients padded to one shape. A padded row weighs nothing, a padded direction is 0 in every row."""

    members: Ints  # [g]
    design: Floats  # [g, n, r], rows measured along the client's directions
    sign: Floats  # [g, n], +1 for class 1, -1 for class 0
    live: Floats  # [g, n], 1 for a real row
    take: Ints  # [g, r], where the direction is among all
    real: Flags  # [g, r]


class Logits(NamedTuple):
    directions: Directions
    batches: list[Batch]


class Peak(NamedTuple):
    """A client's most probable coefficients under one component, and the curvature there."""

    shift: Floats  # [directions], from the component's mean
    log_marginal: Floats  # [clients], Laplace's
    trace: Floats  # [clients], of the posterior covariance
    variance: Floats  # [directions], posterior variance along each direction


def prepare(rows: Rows) -> Logits:
    """Refuses targets other than 0 and 1."""
    if not np.isin(rows.y, (0.0, 1.0)).all():
        odd = rows.y[~np.isin(rows.y, (0.0, 1.0))][0]
        raise TacitError(f"a target is {odd:g}: logistic regression needs classes 0 and 1")
    directions = decompose(rows)
    return Logits(directions, list(_batched(rows, directions)))


def _batched(rows: Rows, directions: Directions) -> Iterator[Batch]:
    """Sizes are rounded up to powers of two: at most twice the work, and few shapes."""
    shape = 2 ** np.ceil(np.log2(rows.sizes)).astype(int)
    for n in np.unique(shape):
        members, r = np.flatnonzero(shape == n), min(int(n), rows.x.shape[1])
        step = max(1, (1 << 21) // (int(n) * max(r, rows.x.shape[1])))
        for part in (members[i : i + step] for i in range(0, len(members), step)):
            yield _batch(rows, directions, part, int(n), r)


def _batch(rows: Rows, directions: Directions, members: Ints, n: int, r: int) -> Batch:
    row, live = _places(rows.starts, members, n)
    take, real = _places(directions.starts, members, r)
    basis = directions.basis[take] * real[..., None] if len(directions.length) else np.zeros((*take.shape, 1))
    x = rows.x[row] * live[..., None]
    design = np.matmul(x, basis.transpose(0, 2, 1)) if len(directions.length) else np.zeros((len(members), n, r))
    return Batch(members, design, 2 * rows.y[row] - 1, live.astype(float), take, real)


def _places(starts: Ints, members: Ints, width: int) -> tuple[Ints, Flags]:
    place = starts[members][:, None] + np.arange(width)
    inside = place < starts[members + 1][:, None]
    return np.where(inside, place, 0), inside


def peaks(data: Logits, mean: Floats, variance: float, start: Floats | None = None) -> Peak:
    """Every client's peak under N(mean, variance I); `start` is a shift to begin from. Finite for every design."""
    directions, d = data.directions, data.directions.basis.shape[1]
    middle = directions.basis @ mean
    shift, along = np.zeros(len(middle)), np.full(len(middle), variance)
    marginal, trace = np.empty(len(directions.sizes)), np.empty(len(directions.sizes))
    for batch in data.batches:
        centre = np.where(batch.real, middle[batch.take] if len(middle) else 0.0, 0.0)
        first = np.zeros_like(centre) if start is None else np.where(batch.real, start[batch.take], 0.0)
        found = _newton(batch, centre, variance, first)
        curved = _curvature(batch, centre + found, variance)
        inside = np.linalg.inv(curved).diagonal(axis1=1, axis2=2)
        fit = _fit(batch, centre + found) - (found**2).sum(axis=1) / (2 * variance)
        marginal[batch.members] = fit - 0.5 * np.linalg.slogdet(curved)[1]
        trace[batch.members] = variance * (d - inside.shape[1] + inside.sum(axis=1))
        shift[batch.take[batch.real]] = found[batch.real]
        along[batch.take[batch.real]] = variance * inside[batch.real]
    return Peak(shift, marginal, trace, along)


def likelihoods(data: Logits, mean: Floats) -> Floats:
    """Log-likelihood of each client's classes at one vector of coefficients."""
    middle, out = data.directions.basis @ mean, np.empty(len(data.directions.sizes))
    for batch in data.batches:
        out[batch.members] = _fit(batch, np.where(batch.real, middle[batch.take], 0.0))
    return out


def slopes(data: Logits, position: Floats) -> Floats:
    """Gradient of each client's log-likelihood along its directions, at a position along them."""
    out = np.zeros(len(position))
    for batch in data.batches:
        at = np.where(batch.real, position[batch.take], 0.0)
        out[batch.take[batch.real]] = _slope(batch, at)[batch.real]
    return out


def _logit(batch: Batch, at: Floats) -> Floats:
    return np.einsum("gnr,gr->gn", batch.design, at)


def _fit(batch: Batch, at: Floats) -> Floats:
    return -(batch.live * np.logaddexp(0.0, -batch.sign * _logit(batch, at))).sum(axis=1)


def _slope(batch: Batch, at: Floats) -> Floats:
    push = batch.live * batch.sign * expit(-batch.sign * _logit(batch, at))
    return np.einsum("gnr,gn->gr", batch.design, push)


def _curvature(batch: Batch, at: Floats, variance: float) -> Floats:
    """I + variance times the information: 1 on the diagonal for padding."""
    chance = expit(_logit(batch, at))
    weighted = batch.design * (batch.live * chance * (1 - chance))[..., None]
    return np.eye(at.shape[1]) + variance * np.matmul(batch.design.transpose(0, 2, 1), weighted)


def _newton(batch: Batch, centre: Floats, variance: float, start: Floats) -> Floats:
    """Newton's method; a step that does not climb is halved, so the objective never falls."""
    found, height = start, _height(batch, centre, start, variance)
    for _ in range(_NEWTON):
        slope = variance * _slope(batch, centre + found) - found
        step = np.linalg.solve(_curvature(batch, centre + found, variance), slope[..., None])[..., 0]
        scale = np.ones(len(found))
        for _ in range(30):
            tried = _height(batch, centre, found + scale[:, None] * step, variance)
            low = tried < height - 1e-12 * np.abs(height)
            if not low.any():
                break
            scale = np.where(low, scale / 2, scale)
        found = found + np.where(low, 0.0, scale)[:, None] * step
        height = _height(batch, centre, found, variance)
        if (np.abs(step).max(initial=0.0)) <= _CLOSE * np.sqrt(variance):
            break
    return found


def _height(batch: Batch, centre: Floats, found: Floats, variance: float) -> Floats:
    return _fit(batch, centre + found) - (found**2).sum(axis=1) / (2 * variance)


class LogitPosterior(NamedTuple):
    peaks: list[Peak]  # one a component
    log_share: Floats  # [clients, k]
    log_likelihood: Floats  # [clients], Laplace's


def logit_posterior(data: Logits, prior: Prior, starts: list[Floats] | None = None) -> LogitPosterior:
    found = [
        peaks(data, prior.means[at], float(prior.variances[at]), None if starts is None else starts[at])
        for at in range(len(prior.weights))
    ]
    joint = np.log(np.maximum(prior.weights, LEAST)) + np.stack([peak.log_marginal for peak in found], axis=1)
    likelihood = logsumexp(joint, axis=1)
    return LogitPosterior(found, joint - likelihood[:, None], likelihood)


def logit_em_step(data: Logits, prior: Prior, now: LogitPosterior, floor: Floor) -> Prior:
    """The prior that EM takes next, with Laplace's approximation for the posteriors; no variance below its floor."""
    share, d = np.exp(now.log_share), data.directions.basis.shape[1]
    mass = np.maximum(share.sum(axis=0), LEAST)
    means, variances = prior.means.copy(), prior.variances.copy()
    for at, peak in enumerate(now.peaks):
        each = np.repeat(share[:, at], data.directions.ranks)
        move = (each * peak.shift) @ data.directions.basis / mass[at]
        size = segments(peak.shift**2, data.directions.starts) + peak.trace
        means[at] += move
        variances[at] = max((share[:, at] @ size / mass[at] - (move**2).sum()) / d, floor.prior)
    return Prior(mass / mass.sum(), means, variances, prior.noise)
