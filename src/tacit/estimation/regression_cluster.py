"""The paper's Algorithms 4 and 7: clients send their coefficients, the server clusters them, T times.

Both objectives with the minus signs that their probabilities need: -log sum_l p_l N(theta; mu_l, s_l^2 I) in (21) and
(22); all weights of components in logarithms.
"""

from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import log_softmax

from tacit.errors import TacitError
from tacit.estimation.regression_data import Directions, Floats, along, spread
from tacit.estimation.regression_logit import Logits, beliefs, likelihoods, slopes
from tacit.estimation.regression_model import LEAST, Floor, Prior, local
from tacit.privacy.messages import Domain, Message, source


class Task(Protocol):
    """What Algorithms 4 and 7 ask of the data."""

    @property
    def directions(self) -> Directions: ...
    def alone(self) -> Floats: ...
    def fit_at(self, mean: Floats, noise: float) -> Floats: ...
    def slope(self, theta: Floats, noise: float) -> Floats: ...
    def steepest(self, noise: float) -> float: ...
    def noise(self, theta: Floats) -> float: ...


class LinearTask(NamedTuple):
    directions: Directions

    def alone(self) -> Floats:
        return local(self.directions)

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return -self._errors(np.broadcast_to(mean, (len(self.directions.sizes), len(mean)))) / (2 * noise)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, self.directions.length * self._left(theta)) / noise

    def steepest(self, noise: float) -> float:
        return float(self.directions.length.max(initial=0.0)) ** 2 / noise

    def noise(self, theta: Floats) -> float:
        return float(self._errors(theta).sum() / self.directions.sizes.sum())

    def _left(self, theta: Floats) -> Floats:
        return self.directions.answer - self.directions.length * along(self.directions, theta)

    def _errors(self, theta: Floats) -> Floats:
        data = self.directions
        return data.rest + np.bincount(data.owner, self._left(theta) ** 2, minlength=len(data.sizes))


class LogisticTask(NamedTuple):
    logits: Logits
    local_variance: float = 1.0

    @property
    def directions(self) -> Directions:
        return self.logits.directions

    def alone(self) -> Floats:
        zero = np.zeros(self.directions.basis.shape[1])
        return spread(self.directions, beliefs(self.logits, zero, self.local_variance, nodes=1).shift)

    def fit_at(self, mean: Floats, noise: float) -> Floats:
        return likelihoods(self.logits, mean)

    def slope(self, theta: Floats, noise: float) -> Floats:
        return spread(self.directions, slopes(self.logits, along(self.directions, theta)))

    def steepest(self, noise: float) -> float:
        return float(self.directions.length.max(initial=0.0)) ** 2 / 4

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
            raise TacitError("clustering reads single messages, which a trusted server's noise does not cover: "
                             "use LocalGaussian")
        return sender.send(theta, domain, source(self.seed, "regression/theta", at)), sender.variance(domain)


def cluster(points: Floats, k: int, centres: Floats | None, seed: int, added: float, floor: float) -> Prior:
    """k-means of the points, from `centres` if given; variances without what messages `added`, not below the floor."""
    from sklearn.cluster import KMeans

    init, times = ("k-means++", 10) if centres is None else (centres, 1)
    found = KMeans(k, init=init, n_init=times, random_state=seed).fit(points)  # type: ignore[arg-type]
    labels, means = np.asarray(found.labels_), np.asarray(found.cluster_centers_, dtype=np.float64)
    counts = np.maximum(np.bincount(labels, minlength=k), 1)
    inside = np.bincount(labels, ((points - means[labels]) ** 2).sum(axis=1), minlength=k) / counts / points.shape[1]
    return Prior(counts / counts.sum(), means, np.maximum(inside - added, floor), 1.0)


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


def gaussian_rounds(
    task: Task, start: Prior, theta: Floats, floor: Floor, post: Post, step: float, local_steps: int, noise_known: bool
) -> tuple[Prior, Floats]:
    """Algorithm 4: `local_steps` gradient steps on each client, then one message each and a clustering."""
    prior = start
    for at in range(post.rounds):
        rate = step / (task.steepest(prior.noise) + 1 / float(prior.variances.min()))
        for _ in range(local_steps):
            theta = theta + rate * (task.slope(theta, prior.noise) + toward_prior(theta, prior))
        noise = prior.noise if noise_known else max(task.noise(theta), floor.noise)
        sent, added = post.send(theta, at)
        prior = cluster(sent, len(prior.weights), prior.means, at, added, floor.prior)._replace(noise=noise)
    return prior, theta


def discrete_rounds(
    task: Task, start: Prior, floor: Floor, post: Post, noise_known: bool
) -> tuple[Prior, Floats]:
    """Algorithm 7: theta_i is the mean of the centres, each weighted by how well it explains the client's data."""
    prior = start
    for at in range(post.rounds):
        share = discrete_shares(task, prior)
        theta = share @ prior.means
        noise = prior.noise if noise_known else max(task.noise(theta), floor.noise)
        sent, added = post.send(theta, at)
        prior = cluster(sent, len(prior.weights), prior.means, at, added, floor.prior)._replace(noise=noise)
    return prior, discrete_shares(task, prior)


def discrete_shares(task: Task, prior: Prior) -> Floats:
    fits = np.stack([task.fit_at(mean, prior.noise) for mean in prior.means], axis=1)
    return np.exp(log_softmax(np.log(np.maximum(prior.weights, LEAST)) + fits, axis=1))
