"""Logistic regressions whose coefficients come from a mixture of k round Gaussians, approximately.

A client's posterior is replaced by the nearest Gaussian (variational; expectations of a row by quadrature). Its mean
differs from a component's only along the client's own directions, so it is found in as many dimensions as the client
has rows, at most d, clients of similar size in one batch. EM with it climbs a lower bound of the likelihood.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.special import expit, logsumexp

from tacit.errors import TacitError
from tacit.estimation.regression_linear import (
    LEAST,
    Directions,
    Flags,
    Floats,
    Floor,
    Ints,
    Mixed,
    Prior,
    Rows,
    decompose,
    mix,
    segments,
    spread,
)

NODES = 12
_STEPS = 50
_CLOSE = 1e-7
_Parts = TypeVar("_Parts", "Batch", "_State")


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


class Belief(NamedTuple):
    """The Gaussian nearest to each client's posterior under one component."""

    shift: Floats  # [directions], its mean minus the component's
    weight: list[Floats]  # information of each row, [g, n] a batch: with the shift, all that is needed to go on
    evidence: Floats  # [clients], at most the log-likelihood of the client's classes
    trace: Floats  # [clients], of the covariance
    variance: Floats  # [directions], along each direction


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


def beliefs(data: Logits, mean: Floats, variance: float, start: Belief | None = None, nodes: int = NODES) -> Belief:
    """Every client's belief under N(mean, variance I), found from `start` on. Finite for every design.

    With one node a row counts only at the mean of the belief, which is then the posterior's peak.
    """
    directions, d = data.directions, data.directions.basis.shape[1]
    middle = directions.basis @ mean
    shift, along, weights = np.zeros(len(middle)), np.full(len(middle), variance), []
    evidence, trace = np.empty(len(directions.sizes)), np.empty(len(directions.sizes))
    for at, batch in enumerate(data.batches):
        first = None if start is None else (_take(batch, start.shift), start.weight[at])
        state = _ascend(batch, _take(batch, middle), variance, first, nodes)
        weights.append(state.weight)
        evidence[batch.members] = state.height
        inside = state.covariance.diagonal(axis1=1, axis2=2)
        trace[batch.members] = variance * (d - inside.shape[1] + inside.sum(axis=1))
        shift[batch.take[batch.real]] = state.shift[batch.real]
        along[batch.take[batch.real]] = variance * inside[batch.real]
    return Belief(shift, weights, evidence, trace, along)


def likelihoods(data: Logits, mean: Floats) -> Floats:
    """Log-likelihood of each client's classes at one vector of coefficients."""
    middle, out = data.directions.basis @ mean, np.empty(len(data.directions.sizes))
    for batch in data.batches:
        margin = batch.sign * _logit(batch, _take(batch, middle))
        out[batch.members] = -(batch.live * np.logaddexp(0.0, -margin)).sum(axis=1)
    return out


def slopes(data: Logits, position: Floats) -> Floats:
    """Gradient of each client's log-likelihood along its directions, at a position along them."""
    out = np.zeros(len(position))
    for batch in data.batches:
        push = batch.live * batch.sign * expit(-batch.sign * _logit(batch, _take(batch, position)))
        out[batch.take[batch.real]] = np.einsum("gnr,gn->gr", batch.design, push)[batch.real]
    return out


def _take(batch: Batch, values: Floats) -> Floats:
    """Values along all directions as the batch has them, 0 for padding."""
    return np.where(batch.real, values[batch.take], 0.0) if len(values) else np.zeros(batch.take.shape)


def _logit(batch: Batch, at: Floats) -> Floats:
    return np.einsum("gnr,gr->gn", batch.design, at)


class _State(NamedTuple):
    shift: Floats  # [g, r]
    weight: Floats  # [g, n]
    covariance: Floats  # [g, r, r], over the prior's variance
    spread: Floats  # [g, n], variance of each row's logit
    height: Floats  # [g], lower bound of the log-likelihood


def _ascend(batch: Batch, centre: Floats, variance: float, start: tuple[Floats, Floats] | None, nodes: int) -> _State:
    """Natural-gradient steps on the bound, halved where they would lower it: the bound never falls.

    Clients that have arrived are left alone, so the cost is that of those still under way.
    """
    shift, weight = (np.zeros_like(centre), 0.25 * batch.live) if start is None else (start[0], start[1].copy())
    whole = _state(batch, centre, variance, shift, weight, nodes)
    going = np.arange(len(centre))
    for _ in range(_STEPS):
        part, now, middle = _some(batch, going), _some(whole, going), centre[going]
        after = _step(part, middle, variance, now, nodes)
        for kept, new in zip(whole, after, strict=True):
            kept[going] = new
        going = going[after.height - now.height > _CLOSE]
        if not len(going):
            break
    return whole


def _some(parts: _Parts, which: Ints) -> _Parts:
    return parts._make(part[which] for part in parts)


def _step(batch: Batch, centre: Floats, variance: float, now: _State, nodes: int) -> _State:
    push, target = _expected(batch, _logit(batch, centre + now.shift), now.spread, nodes)
    slope = variance * np.einsum("gnr,gn->gr", batch.design, push) - now.shift
    step = np.linalg.solve(_curvature(batch, target, variance), slope[..., None])[..., 0]
    after, turn = _State(*(part.copy() for part in now)), target - now.weight
    left, scale = np.arange(len(centre)), 1.0
    while len(left) and scale > 1e-3:
        shift, weight = now.shift[left] + scale * step[left], now.weight[left] + scale * turn[left]
        tried = _state(_some(batch, left), centre[left], variance, shift, weight, nodes)
        better = tried.height >= now.height[left]
        for kept, new in zip(after, tried, strict=True):
            kept[left[better]] = new[better]
        left, scale = left[~better], scale / 2
    return after


def _state(batch: Batch, centre: Floats, variance: float, shift: Floats, weight: Floats, nodes: int) -> _State:
    curved = _curvature(batch, weight, variance)
    covariance = np.asarray(np.linalg.inv(curved), dtype=np.float64)
    turned = np.matmul(batch.design, covariance)
    spread = variance * np.einsum("gnr,gnr->gn", turned, batch.design)
    fit = _expected_fit(batch, _logit(batch, centre + shift), spread, nodes)
    if nodes == 1:
        return _State(shift, weight, covariance, spread, fit - (shift**2).sum(axis=1) / (2 * variance))
    far = (shift**2).sum(axis=1) / variance + covariance.trace(axis1=1, axis2=2) - shift.shape[1]
    return _State(shift, weight, covariance, spread, fit - 0.5 * (far + np.linalg.slogdet(curved)[1]))


def _curvature(batch: Batch, weight: Floats, variance: float) -> Floats:
    """I + variance times the information: 1 on the diagonal for padding."""
    scaled = batch.design * (batch.live * weight)[..., None]
    return np.eye(batch.design.shape[2]) + variance * np.matmul(batch.design.transpose(0, 2, 1), scaled)


def _nodes(count: int) -> tuple[Floats, Floats]:
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    return points, weights / weights.sum()


def _expected_fit(batch: Batch, logit: Floats, spread: Floats, nodes: int) -> Floats:
    total = np.zeros_like(logit)
    for point, weight in zip(*_nodes(nodes), strict=True):
        total -= weight * np.logaddexp(0.0, -batch.sign * (logit + point * np.sqrt(spread)))
    return (batch.live * total).sum(axis=1)


def _expected(batch: Batch, logit: Floats, spread: Floats, nodes: int) -> tuple[Floats, Floats]:
    """Slope and curvature of a row's log-likelihood, averaged over the belief."""
    push, curve = np.zeros_like(logit), np.zeros_like(logit)
    for point, weight in zip(*_nodes(nodes), strict=True):
        chance = expit(-batch.sign * (logit + point * np.sqrt(spread)))
        push += weight * batch.sign * chance
        curve += weight * chance * (1 - chance)
    return batch.live * push, batch.live * curve


class LogitPosterior(NamedTuple):
    beliefs: list[Belief]  # one a component
    log_share: Floats  # [clients, k]
    log_likelihood: Floats  # [clients], at most the true one


def logit_posterior(data: Logits, prior: Prior, starts: list[Belief] | None = None) -> LogitPosterior:
    components = [
        beliefs(data, prior.means[at], float(prior.variances[at]), None if starts is None else starts[at])
        for at in range(len(prior.weights))
    ]
    joint = np.log(np.maximum(prior.weights, LEAST)) + np.stack([belief.evidence for belief in components], axis=1)
    likelihood = np.asarray(logsumexp(joint, axis=1))
    return LogitPosterior(components, joint - likelihood[:, None], likelihood)


def logit_em_step(data: Logits, prior: Prior, now: LogitPosterior, floor: Floor) -> Prior:
    """The prior that EM takes next, the posteriors approximate; no variance below its floor."""
    share, d = np.exp(now.log_share), data.directions.basis.shape[1]
    mass = np.maximum(share.sum(axis=0), LEAST)
    means, variances = prior.means.copy(), prior.variances.copy()
    for at, belief in enumerate(now.beliefs):
        each = np.repeat(share[:, at], data.directions.ranks)
        move = (each * belief.shift) @ data.directions.basis / mass[at]
        size = segments(belief.shift**2, data.directions.starts) + belief.trace
        means[at] += move
        variances[at] = max((share[:, at] @ size / mass[at] - (move**2).sum()) / d, floor.prior)
    return Prior(mass / mass.sum(), means, variances, prior.noise)


def local_logit_mse(data: Logits, mean: Floats, variance: float, penalty: float) -> Floats:
    """Expected squared error of estimates under N(0, penalty I) where the truth is N(mean, variance I): to first order.

    With F the information at the prior's mean and H = F + I / penalty: the trace of H^-1 F H^-1, the squared pull to 0,
    and what the client's rows leave open, which stays at 0.
    """
    directions, d = data.directions, data.directions.basis.shape[1]
    middle, out = directions.basis @ mean, np.empty(len(directions.sizes))
    for batch in data.batches:
        centre = np.where(batch.real, middle[batch.take] if len(middle) else 0.0, 0.0)
        chance = expit(_logit(batch, centre))
        curved = _curvature(batch, chance * (1 - chance), penalty)
        back = np.linalg.inv(curved) * (batch.real[:, :, None] & batch.real[:, None, :])
        fluctuation = penalty * (back - np.matmul(back, back)).trace(axis1=1, axis2=2)
        bias = (np.matmul(back, centre[..., None])[..., 0] ** 2).sum(axis=1) + variance * (back**2).sum(axis=(1, 2))
        open_ = (mean**2).sum() - (centre**2).sum(axis=1) + variance * (d - batch.real.sum(axis=1))
        out[batch.members] = fluctuation + bias + np.maximum(open_, 0.0)
    return out


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


def pooled_logit(rows: Rows, variance: float) -> Floats:
    """One regression on all rows, under N(0, variance I), which keeps it finite where classes can be told apart."""
    together = rows._replace(starts=np.array([0, len(rows.y)]), names=rows.names[:1])
    data = prepare(together)
    return spread(data.directions, beliefs(data, np.zeros(rows.x.shape[1]), variance, nodes=1).shift)[0]


def unit_variance(rows: Rows) -> float:
    """The prior variance at which a row's logit has a variance of about 1."""
    power = float((rows.x**2).sum(axis=1).mean())
    return 1 / power if power > 0 else 1.0
