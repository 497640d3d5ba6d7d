"""Which share of the devices to ask in a round: the smallest one that gives up little to noise.

The mean over a Poisson cohort of rate q out of N devices has noise z(q) / (q N) clip bounds, z(q) being what T rounds
need for epsilon. Asking more devices always gives less noise, but soon hardly less: where z grows in proportion to q,
a larger cohort is paid for by the noise that it needs. Below the bend z hardly falls any more, and noise grows as 1/q.

A proposal is no statement of privacy: whichever rate is chosen, noise is calibrated to it and charged. It is made of
public numbers alone.
"""

import math
from dataclasses import dataclass
from typing import Final

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import calibrate

_HALVINGS: Final = 8  # of the logarithm: to a few hundredths of the rate


@dataclass(frozen=True)
class ProposedRate:
    """A rate, the noise of its mean, and the least that any rate can have, both in clip bounds, by RDP."""

    rate: float
    cohort: float  # devices in expectation
    noise: float
    least: float
    floor: bool = False  # whether the least cohort decided

    @property
    def words(self) -> str:
        more = f"{100 * (self.noise / self.least - 1):.0f}% more noise in the mean than asking everybody"
        why = ", which the least cohort decides" if self.floor else ""
        return f"proposed rate {self.rate:.3g}: {self.cohort:.0f} devices a round in expectation{why}, {more}"


def propose_rate(
    epsilon: float, delta: float, rounds: int, devices: int, *, excess: float = 0.1, least_cohort: int = 1
) -> ProposedRate:
    """The smallest rate at which the mean has at most `excess` more noise than if everybody were asked.

    Client-level, Poisson sampling, a trusted server. RDP is used to compare rates; its z is a little too large at all
    of them alike.

    Args:
        epsilon: of the whole run.
        delta: below one over the number of devices.
        rounds: of the run.
        devices: there are.
        excess: how much more noise than the least is acceptable, as a share of it.
        least_cohort: devices that must be asked in expectation, for reasons of your own; a public number.

    Returns:
        The rate with its cohort and noise.

    Raises:
        TacitError: no devices, an excess that is not positive, or a least cohort of more devices than there are.

    Example:
        >>> from tacit.report.rates import propose_rate
        >>> propose_rate(3.6, 1e-4, rounds=500, devices=2000).words
        'proposed rate 0.0733: 147 devices a round in expectation, 10% more noise in the mean than asking everybody'
    """
    if devices < 1:
        raise TacitError(f"{devices} devices: give at least 1")
    if not 0 < excess < math.inf:
        raise TacitError(f"excess is {excess}: give a share above 0, for example 0.1")
    if not 1 <= least_cohort <= devices:
        raise TacitError(f"a least cohort of {least_cohort} out of {devices} devices: give 1 to {devices}")

    def noise(rate: float) -> float:
        return noise_of_mean(rate, epsilon, delta, rounds, devices)

    least, low, high = noise(1.0), math.log(least_cohort / devices), 0.0
    floor = noise(math.exp(low)) <= (1 + excess) * least
    for _ in range(0 if floor else _HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if noise(math.exp(middle)) <= (1 + excess) * least else (middle, high)
    rate = math.exp(low if floor else high)
    return ProposedRate(rate, rate * devices, noise(rate), least, floor and least_cohort > 1)


def noise_of_mean(rate: float, epsilon: float, delta: float, rounds: int, devices: int) -> float:
    """z / (rate x devices), in clip bounds, by RDP."""
    from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

    def event(z: float) -> DpEvent:
        return PoissonSampledDpEvent(rate, GaussianDpEvent(z))

    return calibrate(event, epsilon, delta, "add/remove", "rdp", rounds) / (rate * devices)
