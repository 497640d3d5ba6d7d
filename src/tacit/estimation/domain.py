"""Where values lie, publicly, and where the randomness of a message comes from."""

import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.core import rng
from tacit.errors import TacitError

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
