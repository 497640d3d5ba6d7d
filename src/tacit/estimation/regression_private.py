"""EM from messages: in each of T rounds every client sends one clipped, possibly noisy vector, and nothing else.

A message is the client's posterior mean minus the prior's mean, and what it says of both variances, in units of the
current prior, which is public. The T messages of a client are calibrated together. The server adds momentum, which is
stable for every design (EM's own step contracts), because EM alone moves little a round where clients have few rows.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.estimation.regression_data import Floats
from tacit.privacy.messages import Domain, Message, source

WEIGHT = 0.5
"""Of the variances' entries beside the coefficients' in a message, in units of the prior."""


class Evidence(NamedTuple):
    """What clients know under the current prior. Stays with them; a message is made of it."""

    shift: Floats  # [clients, d], posterior mean minus the prior's mean
    size: Floats  # [clients], expected squared distance of the coefficients from the prior's mean
    noise: Floats | None  # [clients], expected squared error of a prediction; None where there is no noise to learn


class Learned(NamedTuple):
    mean: Floats
    prior: float
    noise: float
    mean_variance: float  # of each entry of the mean, from the messages; at most this


Expect = Callable[[Floats, float, float], Evidence]


def rounds_of(
    expect: Expect, start: Learned, message: Message, radius: float, rounds: int, momentum: float, seed: int | None
) -> Learned:
    """The prior after `rounds` messages a client. Reads the evidence through `message.repeated(rounds)` only."""
    d, sender = len(start.mean), message.repeated(rounds)
    point = np.concatenate([start.mean, np.log([start.prior, start.noise])])
    speed, spent = np.zeros_like(point), []
    for at in range(rounds):
        prior, noise = np.exp(point[d:])
        values = _message(expect(point[:d], prior, noise), prior, noise)
        domain = Domain(radius, dimension=values.shape[1])
        mean, variance = _mean(sender, values, domain, seed, at)
        speed = momentum * speed + _update(mean, variance, prior, d)
        point = np.clip(point + speed, -1e3, 1e3)
        spent.append(variance * d * prior)
    mean, left = _shrunk(point[:d] - start.mean, _walk(spent, momentum))
    return Learned(start.mean + mean, float(np.exp(point[d])), float(np.exp(point[d + 1])), left)


def _message(evidence: Evidence, prior: float, noise: float) -> Floats:
    d = evidence.shift.shape[1]
    parts = [evidence.shift / math.sqrt(d * prior), WEIGHT * (evidence.size[:, None] / (d * prior) - 1)]
    if evidence.noise is not None:
        parts.append(WEIGHT * (evidence.noise[:, None] / noise - 1))
    return np.concatenate(parts, axis=1)


def _mean(sender: Message, values: Floats, domain: Domain, seed: int | None, at: int) -> tuple[Floats, float]:
    """Mean of the messages, and the variance that they put on each entry of it."""
    m, std = len(values), sender.server_std(domain)
    sent = sender.send(values, domain, source(seed, "regression/message", at)).mean(axis=0)
    if std > 0:
        sent = sent + std / m * source(seed, "regression/server", at).standard_normal(sent.shape)
    return sent, sender.variance(domain) / m + (std / m) ** 2


def _update(mean: Floats, variance: float, prior: float, d: int) -> Floats:
    """EM's step for mean and logarithms of both variances; a variance changes by a factor of two at most."""
    moved = max(float((mean[:d] ** 2).sum()) - d * variance, 0.0)
    ratios = 1 + mean[d:] / WEIGHT
    ratios[0] -= moved
    logs = np.zeros(2)
    logs[: len(ratios)] = np.log(np.clip(ratios, 0.5, 2.0))
    return np.concatenate([mean[:d] * math.sqrt(d * prior), logs])


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
    return keep * moved, variance * min(1.0, max(keep, math.sqrt(2 / d)))
