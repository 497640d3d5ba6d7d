"""What a privacy profile, delta as a function of epsilon, means for an attacker who asks whether somebody took part.

The attacker raises *false alarms* (says "took part" of somebody who did not) and *misses*. The trade-off curve f says
how few misses the best attack has at each rate of false alarms. It is the envelope of one line for every epsilon
(Dong, Roth and Su 2022, Proposition 2.12, for the symmetric curve):

    f(a) = max over epsilon of max(0, 1 - delta(epsilon) - e^epsilon a, e^-epsilon (1 - delta(epsilon) - a))

Any set of epsilons gives a curve that is no higher than f, so that whatever is read from it overstates the attacker.
*Advantage*, the most by which hits exceed false alarms, is delta(0). *Gaussian differential privacy* of parameter mu:
telling one draw of N(0, 1) from one of N(mu, 1) is easier than telling whether somebody took part. Its *regret* (Gomez
et al. 2026) is how far below f that Gaussian's curve lies: 0 where mu says all there is to say.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from tacit.privacy.accounting.accountant import Profile
from tacit.privacy.accounting.gaussian import gaussian_deltas

CUT: Final = 1e-10
"""Profiles are read where delta is at least this: mu holds but for an event of this probability."""
FALSE_ALARMS: Final = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, *(round(k / 20, 2) for k in range(2, 20)), 1.0)
_LINES: Final = 4096
_LARGEST: Final = 700.0  # e to this power is still a number
_MOST_MU: Final = 1e3


@dataclass(frozen=True)
class Risk:
    """What an attacker gets at most. `curve`: (false alarms, misses)."""

    mu: float
    regret: float
    advantage: float
    found: float  # share of the members that are found at 1% false alarms
    curve: tuple[tuple[float, float], ...]

    @property
    def words(self) -> str:
        """The figures as two sentences for people who read no mathematics."""
        return (
            f"An attacker who wrongly accuses 1 in 100 outsiders finds at most {_percent(self.found)} of the members; "
            f"guessing finds 1%. Over all attacks, hits exceed false alarms by at most {_percent(self.advantage)}."
        )


def risk(profile: Profile) -> Risk:
    """All figures of a profile; each is a bound that no attack exceeds.

    Example:
        >>> from functools import partial
        >>> found = risk(partial(gaussian_deltas, mu=1.0))
        >>> round(found.mu, 4), round(found.advantage, 4), round(found.found, 4)
        (1.0, 0.3829, 0.0924)
    """
    epsilons = _choose_epsilons(profile)
    deltas = np.clip(profile(epsilons), 0.0, 1.0)
    mu = _gaussian_parameter(epsilons, deltas)
    misses = trade_off(epsilons, deltas, np.array(FALSE_ALARMS))
    members_found = 1 - float(trade_off(epsilons, deltas, np.array([0.01]))[0])
    curve = tuple(zip(FALSE_ALARMS, misses.tolist(), strict=True))
    return Risk(mu, _regret(epsilons, deltas, mu), float(deltas[0]), members_found, curve)


def gaussian_risk(mu: float) -> Risk:
    """The closed forms for Gaussian differential privacy."""
    alarms = np.array(FALSE_ALARMS)
    curve = tuple(zip(FALSE_ALARMS, ndtr(-ndtri(alarms) - mu).tolist(), strict=True))
    return Risk(mu, 0.0, float(2 * ndtr(mu / 2) - 1), float(ndtr(ndtri(0.01) + mu)), curve)


def trade_off(epsilons: np.ndarray, deltas: np.ndarray, false_alarms: np.ndarray) -> np.ndarray:
    """The least misses at each rate of false alarms that (epsilon, delta) for all of these pairs allow."""
    steep = 1 - deltas - np.exp(np.minimum(epsilons, 700.0)) * false_alarms[:, None]
    flat = np.exp(-epsilons) * (1 - deltas - false_alarms[:, None])
    return np.maximum(np.maximum(steep, flat).max(axis=1), 0.0)


def _choose_epsilons(profile: Profile) -> np.ndarray:
    """Epsilons up to where delta is next to nothing."""
    ends = np.geomspace(1e-3, _LARGEST, 100)
    beyond = np.flatnonzero(profile(ends) <= CUT)
    return np.linspace(0.0, ends[beyond[0]] if len(beyond) else _LARGEST, _LINES)


def _gaussian_parameter(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """The least mu whose deltas are no smaller, where they are at least `CUT`; infinite if none is."""
    known = deltas > CUT
    if not known.any():
        return 0.0
    low, high = np.full(known.sum(), 1e-9), np.full(known.sum(), _MOST_MU)
    if known[-1] or (gaussian_deltas(epsilons[known], high) < deltas[known]).any():
        return float("inf")
    for _ in range(64):
        middle = (low + high) / 2
        enough = gaussian_deltas(epsilons[known], middle) >= deltas[known]
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return float(high.max())


def _regret(epsilons: np.ndarray, deltas: np.ndarray, mu: float) -> float:
    """The least k with f(a + k) - k <= f_mu(a) for all a."""
    if not np.isfinite(mu):
        return 1.0
    alarms = np.unique(np.concatenate([np.linspace(0, 1, 129), np.geomspace(1e-6, 0.5, 128)]))
    misses, gaussian = trade_off(epsilons, deltas, alarms), ndtr(-ndtri(alarms) - mu)
    low, high = 0.0, 1.0
    for _ in range(40):
        k = (low + high) / 2
        shifted = np.interp(np.minimum(alarms + k, 1.0), alarms, misses) - k
        low, high = (low, k) if (shifted <= gaussian + 1e-12).all() else (k, high)
    return high


def _percent(share: float) -> str:
    """Rounded up: a report never states less than an attacker can get."""
    return f"{np.ceil(1000 * share - 1e-9) / 10:.1f}%"
