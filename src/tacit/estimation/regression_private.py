"""A prior learned from messages: in each of T rounds every client sends one clipped, possibly noisy vector.

First rounds: the client's posterior mean minus the prior's mean (EM's step), and what its data say of both variances.
Last rounds: the variances alone, around the mean that was found, so that the prior's variance includes how far that
mean is off: a poor mean makes clients trust it less. Everything is in units of the current prior, which is public. The
server adds momentum, stable for every design because EM's step contracts; EM alone moves little where rows are few.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.estimation.messages import Domain, Message, source
from tacit.estimation.regression_data import Floats


class Evidence(NamedTuple):
    """What clients know under the current prior. Stays with them; a message is made of it."""

    shift: Floats  # [clients, d], posterior mean minus the prior's mean
    own: Floats  # [clients, 1], the share of its coefficients that a client's data decide, between 0 and 1
    slope: Floats  # [clients, v], by how much the data ask for more of each variance, relative, at most about 1
    weight: Floats  # [clients, v * v], information about the logarithms of the variances, entries at most 1


class Learned(NamedTuple):
    mean: Floats
    variances: Floats  # [v]: the prior's, and the noise's where there is one to learn
    mean_variance: float = 0.0  # of each entry of the mean, from the messages; at most this


class Letters(NamedTuple):
    """How messages are sent; all `rounds` of a client are within the message's epsilon together."""

    message: Message
    radius: float
    rounds: int
    seed: int | None

    @property
    def for_variances(self) -> int:
        return self.rounds // 3


class _Walk(NamedTuple):
    """The mean on its way, with the momentum and the messages' noise of each step so far."""

    mean: Floats
    speed: Floats
    momenta: list[float]
    spent: list[float]


Expect = Callable[[Floats, Floats], Evidence]


def learn(expect: Expect, start: Learned, letters: Letters, mean_known: bool) -> Learned:
    """The prior after `rounds` messages a client. Reads the evidence through `message.repeated(rounds)` only."""
    sender = letters.message.repeated(letters.rounds)
    walking = 0 if mean_known else letters.rounds - letters.for_variances
    walk, variances = _Walk(start.mean, np.zeros_like(start.mean), [], []), start.variances
    for at in range(walking):
        evidence, unit = expect(walk.mean, variances), math.sqrt(len(start.mean) * variances[0])
        body = np.concatenate([evidence.shift / unit, *evidence[1:]], axis=1)
        sent, variance = _mean(sender, letters, body, at)
        walk = _stepped(walk, sent, variance, unit)
        variances = _rescaled(variances, sent[len(start.mean) + 1 :], variance)
    moved, left = _shrunk(walk.mean - start.mean, _noise(walk))
    mean = start.mean + moved
    for at in range(walking, letters.rounds):
        evidence = expect(mean, variances)
        variances = _rescaled(variances, *_mean(sender, letters, np.concatenate(evidence[2:], axis=1), at))
    return Learned(mean, variances, left)


def _mean(sender: Message, letters: Letters, values: Floats, at: int) -> tuple[Floats, float]:
    """Mean of the messages, and the variance that they put on each entry of it."""
    domain, m = Domain(letters.radius, dimension=values.shape[1]), len(values)
    sent = sender.send(values, domain, source(letters.seed, "regression/message", at)).mean(axis=0)
    std = sender.server_std(domain) / m
    if std > 0:
        sent = sent + std * source(letters.seed, "regression/server", at).standard_normal(sent.shape)
    return sent, sender.variance(domain) / m + std**2


def _stepped(walk: _Walk, sent: Floats, variance: float, unit: float) -> _Walk:
    """EM's step with the momentum that suits its pace: (1 - sqrt(share))^2, best where all directions are alike."""
    d = len(walk.mean)
    share = min(max(float(sent[d]), 0.05), 1.0)
    momentum = (1 - math.sqrt(share)) ** 2
    speed = momentum * walk.speed + unit * sent[:d]
    mean = np.clip(walk.mean + speed, -1e100, 1e100)
    return _Walk(mean, speed, [*walk.momenta, momentum], [*walk.spent, variance * unit**2])


def _rescaled(variances: Floats, sent: Floats, variance: float) -> Floats:
    """Newton's step in the logarithms, as far as the information exceeds the messages' noise; a factor of 2 at most."""
    v = len(variances)
    slope, weight = sent[:v], sent[v:].reshape(v, v)
    values, vectors = np.linalg.eigh((weight + weight.T) / 2)
    gains = np.maximum(values, 0.0) / (np.maximum(values, 0.0) ** 2 + 10 * variance + 1e-6)
    step = vectors @ (gains * (vectors.T @ slope))
    return np.clip(variances * np.exp(np.clip(step, -math.log(2), math.log(2))), 1e-100, 1e100)


def _noise(walk: _Walk) -> float:
    """Variance of each entry of the last mean if nothing pulled it back: an upper bound, as EM's steps contract."""
    total = 0.0
    for at, spent in enumerate(walk.spent):
        total += spent * float(1 + np.cumprod(walk.momenta[at + 1 :]).sum()) ** 2
    return total


def _shrunk(moved: Floats, variance: float) -> tuple[Floats, float]:
    """James and Stein: what messages say of the mean, back toward the start as far as it may be noise.

    Nothing is kept that noise alone would reach in more than a few of a thousand cases.
    """
    d, size = len(moved), float((moved**2).sum())
    if variance == 0:
        return moved, variance
    if size <= (d + 3 * math.sqrt(2 * d)) * variance:
        return np.zeros_like(moved), 0.0
    keep = 1 - max(d - 2, 0) * variance / size
    return keep * moved, keep * variance
