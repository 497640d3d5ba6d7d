"""Linear regressions whose coefficients come from a mixture of k round Gaussians: likelihood, posterior, EM, errors.

theta_i ~ sum_l p_l N(mu_l, s_l^2 I), y_i = X_i theta_i + noise of variance s_x^2. k = 1 is the paper's model (13); one
step of EM costs two products of the directions with k vectors, so it is linear in rows and never forms a d x d matrix.

Rows of many clients, and the one decomposition from which every regression here is computed.

A client's rows are X = U diag(s) V with orthonormal rows of V. A Gaussian prior that is the same in all directions acts
on each of them alone, so estimates, likelihoods and errors are sums over "directions": all clients' rows of V under
each other, at most as large as the data. Clients of unequal size and singular designs need no case of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from tacit.errors import TacitError
from tacit.estimation.base import as_floats, codes_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Rows(NamedTuple):
    """All clients' rows under each other, client after client. Finite; every client has at least one row."""

    x: Floats  # [rows, d]
    y: Floats  # [rows]
    starts: Ints  # [clients + 1]
    names: NDArray[Any]  # [clients]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


class Directions(NamedTuple):
    """The thin singular value decomposition of each client's rows; directions of no length are left out."""

    basis: Floats  # [directions, d], orthonormal within a client
    length: Floats  # [directions], singular values, above 0
    answer: Floats  # [directions], the targets along the left singular vectors
    starts: Ints  # [clients + 1]
    sizes: Ints  # [clients], rows
    rest: Floats  # [clients], squared norm of the targets that no coefficients can explain

    @property
    def ranks(self) -> Ints:
        return np.diff(self.starts)

    @property
    def owner(self) -> Ints:
        """The client of each direction."""
        return np.repeat(np.arange(len(self.sizes)), self.ranks)


def read_rows(x: Any, y: Any, groups: ArrayLike | None, offsets: ArrayLike | None) -> Rows:
    """Rows from per-client lists, or from flat arrays with a client's name for each row or with offsets.

    The order of clients is the list's, the offsets', or that of the sorted names. One line says what is wrong.
    """
    if groups is not None and offsets is not None:
        raise TacitError("rows have both groups and offsets: give one of the two")
    if groups is not None:
        return _checked(*_by_name(_matrix(x), _vector(y), groups))
    if offsets is not None:
        starts = _offsets(np.asarray(offsets))
        return _checked(_matrix(x), _vector(y), starts, np.arange(len(starts) - 1))
    return _checked(*_listed(x, y))


def segments(values: Floats, starts: Ints) -> Floats:
    """Sums of `values` (first axis) over each client; 0 for a client without any."""
    padded = np.concatenate([values, np.zeros((1, *values.shape[1:]))])
    sums = np.add.reduceat(padded, np.minimum(starts[:-1], len(values)))
    sums[np.diff(starts) == 0] = 0.0
    return sums


def spread(directions: Directions, amounts: Floats, squared: bool = False) -> Floats:
    """Each client's vector sum of its directions (or their squares) times `amounts`, [clients, d]."""
    out = np.zeros((len(directions.sizes), directions.basis.shape[1]))
    for first in range(0, len(out), 1024):
        last = min(first + 1024, len(out))
        low, high = directions.starts[first], directions.starts[last]
        rows = directions.basis[low:high] ** (2 if squared else 1)
        out[first:last] = segments(rows * amounts[low:high, None], directions.starts[first : last + 1] - low)
    return out


def along(directions: Directions, vectors: Floats) -> Floats:
    """Each client's own vector [clients, d] measured along its directions. Works in bounded extra memory."""
    out = np.empty(len(directions.length))
    owner = directions.owner
    for first in range(0, len(out), 8192):
        part = slice(first, first + 8192)
        out[part] = np.einsum("rd,rd->r", directions.basis[part], vectors[owner[part]])
    return out


def decompose(rows: Rows) -> Directions:
    """The directions of all clients, clients of the same size in one batch."""
    d, ranks = rows.x.shape[1], np.zeros(len(rows.sizes), dtype=np.int64)
    most = np.minimum(rows.sizes, d)
    wide = _starts(most)
    basis, length, answer = np.empty((wide[-1], d)), np.empty(wide[-1]), np.empty(wide[-1])
    for members, x, y in batches(rows):
        u, s, v = np.linalg.svd(x, full_matrices=False)
        real = s > s[:, :1] * np.finfo(float).eps * max(x.shape[1:])
        place = (wide[members][:, None] + np.arange(s.shape[1])).ravel()
        basis[place], length[place] = v.reshape(-1, d), np.where(real, s, 0.0).ravel()
        answer[place] = np.einsum("gnr,gn->gr", u, y).ravel()
        ranks[members] = real.sum(axis=1)
    keep = length > 0
    if not keep.all():
        basis, length, answer = basis[keep], length[keep], answer[keep]
    starts = _starts(ranks)
    energy = segments(rows.y**2, rows.starts) - segments(answer**2, starts)
    rest = np.where(ranks < rows.sizes, np.maximum(energy, 0.0), 0.0)
    return Directions(basis, length, answer, starts, rows.sizes, rest)


def batches(rows: Rows, limit: int = 1 << 22) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Clients of equal size: their numbers, rows [clients, n, d] and targets [clients, n], a few MB at a time."""
    for size in np.unique(rows.sizes):
        members = np.flatnonzero(rows.sizes == size)
        step = max(1, limit // int(size * rows.x.shape[1]))
        for part in (members[i : i + step] for i in range(0, len(members), step)):
            take = rows.starts[part][:, None] + np.arange(size)
            yield part, rows.x[take], rows.y[take]


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _matrix(x: ArrayLike) -> Floats:
    values = as_floats("features", x)
    if values.ndim != 2 or values.shape[1] == 0:
        raise TacitError(f"features have shape {values.shape}: give rows x features, at least one feature")
    return values


def _vector(y: ArrayLike) -> Floats:
    values = as_floats("targets", y)
    if values.ndim != 1:
        raise TacitError(f"targets have shape {values.shape}: give one number a row")
    return values


def _offsets(offsets: NDArray[Any]) -> Ints:
    if offsets.ndim != 1 or len(offsets) < 2 or not np.issubdtype(offsets.dtype, np.integer) or offsets[0] != 0:
        raise TacitError("offsets must be whole numbers from 0 to the number of rows, one more than clients")
    return offsets.astype(np.int64)


def _by_name(x: Floats, y: Floats, groups: ArrayLike) -> tuple[Floats, Floats, Ints, NDArray[Any]]:
    names, number, counts = codes_of(groups, len(x))
    if len(y) != len(x):
        raise TacitError(f"{len(x)} rows and {len(y)} targets do not match")
    order = np.argsort(number, kind="stable")
    return x[order], y[order], _starts(counts.astype(np.int64)), names


def _listed(x: Any, y: Any) -> tuple[Floats, Floats, Ints, NDArray[Any]]:
    if not isinstance(x, Sequence | np.ndarray) or not isinstance(y, Sequence | np.ndarray) or len(x) != len(y):
        raise TacitError(
            "give a list of feature matrices and one of targets, a pair a client, or name each row's client"
        )
    if len(x) == 0:
        raise TacitError("there are no clients: give at least one")
    parts, targets = [_matrix(part) for part in x], [_vector(part) for part in y]
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise TacitError(f"clients have {sorted(widths)} features: all need the same number")
    unequal = [i for i, (a, b) in enumerate(zip(parts, targets, strict=True)) if len(a) != len(b)]
    if unequal:
        raise TacitError(
            f"client {unequal[0]} has {len(parts[unequal[0]])} rows and {len(targets[unequal[0]])} targets"
        )
    starts = _starts(np.array([len(part) for part in parts]))
    return np.concatenate(parts), np.concatenate(targets), starts, np.arange(len(parts))


def _checked(x: Floats, y: Floats, starts: Ints, names: NDArray[Any]) -> Rows:
    rows = Rows(x, y, starts, names)
    if len(x) != len(y) or starts[-1] != len(x):
        raise TacitError(f"{len(x)} rows, {len(y)} targets and offsets up to {starts[-1]} do not match")
    if (rows.sizes < 1).any():
        raise TacitError(f"client {names[int(np.argmin(rows.sizes))]} has no rows: leave it out")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        bad = int(np.flatnonzero(~(np.isfinite(x).all(axis=1) & np.isfinite(y)))[0])
        name = names[int(np.searchsorted(starts, bad, side="right")) - 1]
        raise TacitError(f"client {name} has a value that is not finite: leave the row out or fill it in")
    return rows


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
    share = pull(data, prior)
    along = np.einsum("rd,rd->r", data.basis @ covariance, data.basis)
    return np.trace(covariance) - segments((2 * share - share**2) * along, data.starts)


def mean_coordinate_error(data: Directions, prior: Prior, covariance: Floats) -> Floats:
    """The diagonal of (I - A) C (I - A) for each client, [clients, d]."""
    share, turned = pull(data, prior), data.basis @ covariance
    out = np.empty((len(data.sizes), data.basis.shape[1]))
    for rank in np.unique(data.ranks):
        members = np.flatnonzero(data.ranks == rank)
        for part in np.array_split(members, -(-len(members) // 512)):
            take = data.starts[part][:, None] + np.arange(rank)
            a, basis, moved = share[take][..., None], data.basis[take], turned[take]
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
    shares: Floats  # [clients, k]
    estimates: Floats  # [clients, d]
    variance: Floats  # [clients, d]


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


def discrete_mix(shares: Floats, centres: Floats) -> Mixed:
    """A prior that knows no variance: a client is one of the centres."""
    whole = np.ones((len(shares), 1))
    return mix(shares, ((whole * centre, np.zeros_like(centre) * whole) for centre in centres))


def overall(prior: Prior) -> tuple[Floats, float]:
    """Mean of the mixture, and the expected squared distance of a client from it."""
    mean = prior.weights @ prior.means
    far = ((prior.means - mean) ** 2).sum(axis=1) + len(mean) * prior.variances
    return mean, float(prior.weights @ far)


def ordered(prior: Prior) -> Prior:
    """Components from the most frequent to the least."""
    order = np.argsort(-prior.weights, kind="stable")
    return Prior(prior.weights[order], prior.means[order], prior.variances[order], prior.noise)
