"""What a client sends instead of a value, once: as it is, in a few bits, or privately.

Every message is unbiased for values inside the domain, states the variance it adds, its bits, and its privacy event.
The neighbours are any two data sets of a client ("replace"), so the sensitivity of a value is the domain's diameter.
The domain is public; a value outside is brought to its edge first. Simulated messages come from a seed, deployed ones
from the operating system's generator (`source(None, ...)`).

Where values lie, publicly, and where the randomness of a message comes from.
"""

import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from tacit.core import rng
from tacit.core.checked import checked, shown
from tacit.errors import TacitError
from tacit.privacy.accounting.gaussian import gaussian_multiplier

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Array = NDArray[np.float64]
Shape = int | tuple[int, ...]


class Source(Protocol):
    """Independent uniforms in [0, 1) and standard normals."""

    def random(self, size: Shape, /) -> Array: ...
    def standard_normal(self, size: Shape, /) -> Array: ...


class SecureSource:
    """Numbers from the operating system's cryptographic generator: nobody can draw them again."""

    def random(self, size: Shape, /) -> Array:
        words = np.frombuffer(os.urandom(8 * math.prod(np.atleast_1d(size).tolist())), dtype=np.uint64)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(size)

    def standard_normal(self, size: Shape, /) -> Array:
        from scipy.special import ndtri

        return np.asarray(ndtri(rng.secure_open_uniform(size)), dtype=np.float64)


def source(seed: int | None, purpose: str, *parts: int) -> Source:
    """Seeded for simulation; without a seed, the operating system's generator."""
    return SecureSource() if seed is None else rng.generator(seed, purpose, *parts)


@dataclass(frozen=True)
class Domain:
    """Where values lie, publicly known: within `radius` of `centre` in every coordinate, or in Euclid's norm.

    Every value is brought there; what is not a number, or too large to have a norm, to the centre.
    """

    radius: float
    centre: float = 0.0
    dimension: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf or not math.isfinite(self.centre):
            raise TacitError(f"radius {self.radius} around {self.centre}: give a finite radius above 0")

    def box(self, values: Array) -> Array:
        """Each coordinate brought to the edge."""
        edge = np.clip(values, self.centre - self.radius, self.centre + self.radius)
        return np.where(np.isnan(edge), self.centre, edge)

    def ball(self, values: Array) -> Array:
        """Each row brought to the ball, in its direction from the centre."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(values - self.centre, axis=1, keepdims=True)
        kept = np.isfinite(norms)
        moved = np.where(kept, values - self.centre, 0.0)
        return self.centre + moved * (self.radius / np.maximum(np.where(kept, norms, 0.0), self.radius))

    def lifted(self, values: Array) -> Array:
        """One more coordinate: the squared distance from the centre, over the radius.

        The diameter stays 2 * radius: for norms a, b <= 1, (a + b)^2 + (a^2 - b^2)^2 = (a + b)^2 (1 + (a - b)^2) <= 4.
        """
        kept = self.ball(values)
        return np.column_stack([kept, np.square(kept - self.centre).sum(1) / self.radius])


__all__ = [
    "Central",
    "Domain",
    "Exact",
    "LocalGaussian",
    "Message",
    "Quantized",
    "RandomisedResponse",
    "message_of",
    "source",
]

Squares = Literal["exact", "joint", "split"]
"""How the mean square of the values can be learned: from the messages themselves; from one more coordinate that costs
nothing (`lifted`); or only from clients that send their square instead (a message of few values says nothing of it)."""

_FLOAT_BITS: Final = 64


@runtime_checkable
class Message(Protocol):
    """`values` are [clients, dimension]; `send` answers in the same shape, one message a row.

    `step` is the distance of neighbouring answers, 0 where every number may come.
    """

    @property
    def squares(self) -> Squares: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array: ...
    def variance(self, domain: Domain) -> float: ...
    def step(self, domain: Domain) -> float: ...
    def server_std(self, domain: Domain) -> float: ...
    def bits(self, domain: Domain) -> int: ...
    def event(self) -> "DpEvent": ...
    def repeated(self, times: int) -> "Message": ...


class _OnClients:
    """Every number may come, and no server adds noise, unless a message says otherwise."""

    def step(self, domain: Domain) -> float:
        return 0.0

    def server_std(self, domain: Domain) -> float:
        return 0.0


class _NotPrivate(_OnClients):
    epsilon: float = math.inf
    delta: float = 0.0

    def event(self) -> "DpEvent":
        import dp_accounting as dp

        return dp.NonPrivateDpEvent()

    def repeated(self, times: int) -> Self:
        return self


@dataclass(frozen=True)
class Exact(_NotPrivate):
    """The value itself: no variance, no guarantee."""

    squares: Squares = field(default="exact", init=False, repr=False)

    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array:
        return values

    def variance(self, domain: Domain) -> float:
        return 0.0

    def bits(self, domain: Domain) -> int:
        return _FLOAT_BITS * domain.dimension


@checked
@dataclass(frozen=True)
class Quantized(_NotPrivate):
    """`width` bits a coordinate: one of the two nearest of 2**width even levels, at random and so unbiased.

    The variance added to a coordinate is at most (radius / (2**width - 1))^2. No guarantee of privacy.
    """

    squares: Squares = field(default="split", init=False, repr=False)
    width: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 52:
            raise TacitError(f"a quantizer of {self.width} bits: choose 1 to 52")

    def step(self, domain: Domain) -> float:
        return 2 * domain.radius / (2**self.width - 1)

    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array:
        step, low = self.step(domain), domain.centre - domain.radius
        place = (domain.box(values) - low) / step
        return low + step * (np.floor(place) + (source.random(place.shape) < place - np.floor(place)))

    def variance_at(self, values: Array, domain: Domain) -> Array:
        """Exactly, for each value: (distance to the level above) * (distance to the level below)."""
        place = (domain.box(values) - domain.centre + domain.radius) / self.step(domain)
        part = place - np.floor(place)
        return self.step(domain) ** 2 * part * (1 - part)

    def variance(self, domain: Domain) -> float:
        return (self.step(domain) / 2) ** 2

    def bits(self, domain: Domain) -> int:
        return self.width * domain.dimension


@checked
@dataclass(frozen=True)
class RandomisedResponse(_OnClients):
    """One of two values: equation (7) of the paper, for a single number. Pure epsilon, no delta, one bit.

    The message's distribution is a function of the mean alone: it carries nothing about a prior's variance.
    """

    squares: Squares = field(default="split", init=False, repr=False)
    delta: float = field(default=0.0, init=False, repr=False)
    epsilon: float

    def __post_init__(self) -> None:
        _check_budget(self.epsilon, 0.5)

    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array:
        if values.shape[1] != 1:
            raise TacitError(f"randomised response is for one number, not {values.shape[1]}: use LocalGaussian")
        chance = self.chance(values, domain)
        low, high = self.answers(domain)
        return np.where(source.random(chance.shape) < chance, high, low)

    def chance(self, values: Array, domain: Domain) -> Array:
        """Of the upper answer, between 1 / (e^epsilon + 1) and e^epsilon / (e^epsilon + 1)."""
        share = (domain.box(values) - domain.centre + domain.radius) / (2 * domain.radius)
        return float(expit(-self.epsilon)) + share * math.tanh(self.epsilon / 2)

    def answers(self, domain: Domain) -> tuple[float, float]:
        reach = domain.radius / math.tanh(self.epsilon / 2)
        return domain.centre - reach, domain.centre + reach

    def variance_at(self, values: Array, domain: Domain) -> Array:
        low, high = self.answers(domain)
        chance = self.chance(values, domain)
        return (high - low) ** 2 * chance * (1 - chance)

    def step(self, domain: Domain) -> float:
        low, high = self.answers(domain)
        return high - low

    def variance(self, domain: Domain) -> float:
        return (domain.radius / math.tanh(self.epsilon / 2)) ** 2

    def bits(self, domain: Domain) -> int:
        return 1

    def event(self) -> "DpEvent":
        import dp_accounting as dp

        return dp.RandomizedResponseDpEvent(noise_parameter=2 * float(expit(-self.epsilon)), num_buckets=2)

    def repeated(self, times: int) -> "RandomisedResponse":
        """An equal share of epsilon each."""
        return RandomisedResponse(self.epsilon / times)


@checked
@dataclass(frozen=True)
class _Gaussian(_OnClients):
    """Noise calibrated exactly (Balle and Wang) so that all `times` messages together are (epsilon, delta)-private."""

    squares: Squares = field(default="joint", init=False, repr=False)
    epsilon: float
    delta: float
    times: int = 1

    def __post_init__(self) -> None:
        _check_budget(self.epsilon, self.delta)

    @cached_property
    def multiplier(self) -> float:
        return gaussian_multiplier(self.epsilon, self.delta) * math.sqrt(self.times)

    def std(self, domain: Domain) -> float:
        return self.multiplier * 2 * domain.radius

    def bits(self, domain: Domain) -> int:
        return _FLOAT_BITS * domain.dimension

    def event(self) -> "DpEvent":
        import dp_accounting as dp

        return dp.GaussianDpEvent(self.multiplier)

    def repeated(self, times: int) -> Self:
        return replace(self, times=times)


class LocalGaussian(_Gaussian):
    """The value, clipped to the ball, plus Gaussian noise on the client: nobody is trusted."""

    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array:
        kept = domain.lifted(values) if lift else domain.ball(values)
        return kept + self.std(domain) * source.standard_normal(kept.shape)

    def variance(self, domain: Domain) -> float:
        return self.std(domain) ** 2


class Central(_Gaussian):
    """The value, clipped to the ball, to a trusted server that adds noise of `server_std` once, to the sum of all."""

    def send(self, values: Array, domain: Domain, source: Source, lift: bool = False) -> Array:
        return domain.lifted(values) if lift else domain.ball(values)

    def variance(self, domain: Domain) -> float:
        return 0.0

    def server_std(self, domain: Domain) -> float:
        return self.std(domain)


def message_of(setting: object) -> Message:
    """What an estimator was set to send; without a setting the value itself."""
    if setting is None:
        return Exact()
    if isinstance(setting, Message) and not isinstance(setting, type):
        return setting
    raise TacitError(
        f"message is {shown(setting)}: give one of tacit.estimation.messages, for example RandomisedResponse(1.0)"
    )


def _check_budget(epsilon: float, delta: float) -> None:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise TacitError(f"epsilon {epsilon} and delta {delta}: give a finite epsilon above 0 and delta in (0, 1)")
