"""The paper's Algorithms 4 and 7: clients send their coefficients, the server clusters them, T times.

Both objectives with the minus signs that their probabilities need: -log sum_l p_l N(theta; mu_l, s_l^2 I) in (21) and
(22); all weights of components in logarithms.
"""

import warnings
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import log_softmax

from tacit.errors import TacitError
from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.regression_data import Directions, Floats, Ints, along, spread
from tacit.estimation.regression_logit import Logits, beliefs, likelihoods, slopes
from tacit.estimation.regression_model import LEAST, Floor, Prior, local


class Task(Protocol):
    """What Algorithms 4 and 7 ask of the data."""

    @property
    def directions(self) -> Directions: ...
    def alone(self) -> Floats: ...
    def begin(self, noise: float) -> Floats: ...
    def fit_at(self, mean: Floats, noise: float) -> Floats: ...
    def slope(self, theta: Floats, noise: float) -> Floats: ...
    def steepness(self, noise: float) -> Floats: ...
    def noise(self, theta: Floats) -> float: ...


class LinearTask(NamedTuple):
    directions: Directions
    local_variance: float = 1.0

    def alone(self) -> Floats:
        return local(self.directions)

    def begin(self, noise: float) -> Floats:
        """Each client's own estimate under N(0, local_variance I): a pseudo-inverse has outliers, k-means' prey."""
        data = self.directions
        return spread(data, data.length * data.answer / (data.length**2 + noise / self.local_variance))

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return -self._errors(np.broadcast_to(mean, (len(self.directions.sizes), len(mean)))) / (2 * noise)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, self.directions.length * self._left(theta)) / noise

    def steepness(self, noise: float) -> Floats:
        return _longest(self.directions) ** 2 / noise

    def noise(self, theta: Floats) -> float:
        return float(self._errors(theta).sum() / self.directions.sizes.sum())

    def _left(self, theta: Floats) -> Floats:
        return self.directions.answer - self.directions.length * along(self.directions, theta)

    def _errors(self, theta: Floats) -> Floats:
        data = self.directions
        return data.rest + np.bincount(data.owner, self._left(theta) ** 2, minlength=len(data.sizes))


def _longest(data: Directions) -> Floats:
    """The largest singular value of each client's rows, [clients, 1]: known to the client alone."""
    out = np.zeros(len(data.sizes))
    np.maximum.at(out, data.owner, data.length)
    return out[:, None]


class LogisticTask(NamedTuple):
    logits: Logits
    local_variance: float = 1.0

    @property
    def directions(self) -> Directions:
        return self.logits.directions

    def alone(self) -> Floats:
        zero = np.zeros(self.directions.basis.shape[1])
        return spread(self.directions, beliefs(self.logits, zero, self.local_variance, nodes=1).shift)

    def begin(self, noise: float) -> Floats:
        return self.alone()

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return likelihoods(self.logits, mean)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, slopes(self.logits, along(self.directions, theta)))

    def steepness(self, noise: float) -> Floats:
        return _longest(self.directions) ** 2 / 4

    def noise(self, theta: Floats) -> float:
        return 1.0


class Post(NamedTuple):
    """How coefficients travel to the server: as they are, or clipped to `radius` and sent as messages."""

    message: Message | None
    radius: float
    rounds: int
    seed: int | None

    def send(self, theta: Floats, at: int) -> tuple[Floats, float]:
        """What the server gets, and the variance that the message adds to each entry."""
        if self.message is None:
            return theta, 0.0
        sender, domain = self.message.repeated(self.rounds), Domain(self.radius, dimension=theta.shape[1])
        if sender.server_std(domain) > 0:
            raise TacitError(
                "clustering reads single messages, which a trusted server's noise does not cover: use LocalGaussian"
            )
        return sender.send(theta, domain, source(self.seed, "regression/theta", at)), sender.variance(domain)


def cluster(points: Floats, k: int, centres: Floats | None, seed: int, added: float, floor: float) -> Prior:
    """k-means of the points, from `centres` if given; variances without what messages `added`, not below the floor.

    Groups that are no more than the messages' own noise cut in pieces are refused.
    """
    labels, means = _k_means(points, k, centres, seed)
    counts, d = np.maximum(np.bincount(labels, minlength=k), 1), points.shape[1]
    inside = np.bincount(labels, ((points - means[labels]) ** 2).sum(axis=1), minlength=k) / counts / d
    if k > 1 and counts @ inside / counts.sum() < (1 - 0.3 / d) * added:
        raise TacitError(
            f"noise of {added**0.5:.3g} an entry drowns {k} groups: use more epsilon, a smaller radius, fewer rounds"
        )
    return Prior(counts / counts.sum(), means, np.maximum(inside - added, floor), 1.0)


def _k_means(points: Floats, k: int, centres: Floats | None, seed: int) -> tuple[Ints, Floats]:
    """Scikit-learn's; fewer distinct points than k are no error: some centres are then the same."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    init, times = ("k-means++", 3) if centres is None else (centres, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, init=init, n_init=times, random_state=seed).fit(points)  # type: ignore[arg-type]
    return np.asarray(found.labels_, dtype=np.int64), np.asarray(found.cluster_centers_, dtype=np.float64)


def shares_at(theta: Floats, prior: Prior) -> Floats:
    """Probability of each component given coefficients, [clients, k]; no distance is too large."""
    d = theta.shape[1]
    far = np.stack([((theta - mean) ** 2).sum(axis=1) for mean in prior.means], axis=1)
    logs = np.log(np.maximum(prior.weights, LEAST)) - d / 2 * np.log(prior.variances) - far / (2 * prior.variances)
    return np.exp(log_softmax(logs, axis=1))


def toward_prior(theta: Floats, prior: Prior) -> Floats:
    """Gradient of log sum_l p_l N(theta; mu_l, s_l^2 I)."""
    share = shares_at(theta, prior) / prior.variances
    return share @ prior.means - share.sum(axis=1, keepdims=True) * theta


class Rounds(NamedTuple):
    k: int
    post: Post
    noise: float
    noise_known: bool
    floor: float | None  # None: a tenth of the least variance inside the first clusters
    step: float
    local_steps: int


class Clustered(NamedTuple):
    prior: Prior
    theta: Floats
    floor: Floor


def rounds(task: Task, plan: Rounds, discrete: bool) -> Clustered:
    """T messages a client, the first from its data alone; a clustering and a step of every client after each.

    Clients' steps: Algorithm 7 if `discrete` (weighted centres), else Algorithm 4 (gradient steps).
    """
    theta, noise, prior, floor = task.begin(plan.noise), plan.noise, None, plan.floor or LEAST
    for at in range(plan.post.rounds):
        sent, added = plan.post.send(theta, at)
        prior = cluster(sent, plan.k, None if prior is None else prior.means, at, added, floor)
        if at == 0 and plan.floor is None:
            floor = max(0.1 * float(prior.variances.min()), 1e-10)
        prior = prior._replace(noise=noise, variances=np.maximum(prior.variances, floor))
        theta = _recentred(task, prior, plan.step) if discrete else _descended(task, prior, theta, plan)
        if not plan.noise_known:
            noise = max(task.noise(theta), 0.1 * plan.noise)
    assert prior is not None  # at least one round
    return Clustered(prior, theta, Floor(floor, 0.1 * plan.noise))


def _recentred(task: Task, prior: Prior, step: float) -> Floats:
    """Centres weighted by how well they explain the client's data, and `step` of a gradient step on its own loss.

    As printed there is no such step: then centres are averages of averages of centres, and run into one another.
    """
    theta = discrete_shares(task, prior) @ prior.means
    steep = task.steepness(prior.noise)
    return theta + step / np.where(steep > 0, steep, 1.0) * task.slope(theta, prior.noise) if step > 0 else theta


def _descended(task: Task, prior: Prior, theta: Floats, plan: Rounds) -> Floats:
    """Gradient steps on f_i(theta) - log sum_l p_l N(theta; mu_l, s_l^2 I), each client at a rate of its own."""
    rate = plan.step / (task.steepness(prior.noise) + 1 / float(prior.variances.min()))
    for _ in range(plan.local_steps):
        theta = theta + rate * (task.slope(theta, prior.noise) + toward_prior(theta, prior))
    return theta


def discrete_shares(task: Task, prior: Prior) -> Floats:
    fits = np.stack([task.fit_at(mean, prior.noise) for mean in prior.means], axis=1)
    return np.exp(log_softmax(np.log(np.maximum(prior.weights, LEAST)) + fits, axis=1))
