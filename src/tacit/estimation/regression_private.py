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

from tacit.estimation.regression_data import Floats
from tacit.privacy.messages import Domain, Message, source


class Evidence(NamedTuple):
    """What clients know under the current prior. Stays with them; a message is made of it."""

    shift: Floats  # [clients, d], posterior mean minus the prior's mean
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
    momentum: float
    seed: int | None

    @property
    def for_variances(self) -> int:
        return self.rounds // 3


Expect = Callable[[Floats, Floats], Evidence]


def learn(expect: Expect, start: Learned, letters: Letters, mean_known: bool) -> Learned:
    """The prior after `rounds` messages a client. Reads the evidence through `message.repeated(rounds)` only."""
    walking = 0 if mean_known else letters.rounds - letters.for_variances
    mean, variances, speed, spent = start.mean, start.variances, np.zeros_like(start.mean), []
    for at in range(walking):
        evidence, unit = expect(mean, variances), math.sqrt(len(mean) * variances[0])
        body = np.concatenate([evidence.shift / unit, evidence.slope, evidence.weight], axis=1)
        sent, variance = _mean(letters, body, at)
        speed = letters.momentum * speed + unit * sent[: len(mean)]
        mean = np.clip(mean + speed, -1e100, 1e100)
        variances = _rescaled(variances, sent[len(mean) :], variance)
        spent.append(variance * unit**2)
    moved, left = _shrunk(mean - start.mean, _walk(spent, letters.momentum))
    mean = start.mean + moved
    for at in range(walking, letters.rounds):
        evidence = expect(mean, variances)
        variances = _rescaled(variances, *_mean(letters, np.concatenate(evidence[1:], axis=1), at))
    return Learned(mean, variances, left)


def _mean(letters: Letters, values: Floats, at: int) -> tuple[Floats, float]:
    """Mean of the messages, and the variance that they put on each entry of it."""
    domain, m = Domain(letters.radius, dimension=values.shape[1]), len(values)
    sender = letters.message.repeated(letters.rounds)
    sent = sender.send(values, domain, source(letters.seed, "regression/message", at)).mean(axis=0)
    std = sender.server_std(domain) / m
    if std > 0:
        sent = sent + std * source(letters.seed, "regression/server", at).standard_normal(sent.shape)
    return sent, sender.variance(domain) / m + std**2


def _rescaled(variances: Floats, sent: Floats, variance: float) -> Floats:
    """Newton's step in the logarithms, as far as the information exceeds the messages' noise; a factor of 2 at most."""
    v = len(variances)
    slope, weight = sent[:v], sent[v:].reshape(v, v)
    values, vectors = np.linalg.eigh((weight + weight.T) / 2)
    gains = np.maximum(values, 0.0) / (np.maximum(values, 0.0) ** 2 + 10 * variance + 1e-6)
    step = vectors @ (gains * (vectors.T @ slope))
    return np.clip(variances * np.exp(np.clip(step, -math.log(2), math.log(2))), 1e-100, 1e100)


def _walk(spent: list[float], momentum: float) -> float:
    """Variance of the last mean if nothing pulled it back: an upper bound, because EM's steps contract."""
    age = np.arange(len(spent), 0, -1)
    reach = (1 - momentum**age) / (1 - momentum)
    return float((reach**2 * np.array(spent)).sum())


def _shrunk(moved: Floats, variance: float) -> tuple[Floats, float]:
    """James and Stein: what messages say of the mean, back toward the start as far as it may be noise."""
    d, size = len(moved), float((moved**2).sum())
    if variance == 0 or d < 3 or size == 0:
        return moved, variance
    keep = max(0.0, 1 - (d - 2) * variance / size)
    return keep * moved, keep * variance
