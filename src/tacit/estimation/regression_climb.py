"""Expectation-maximisation, sped up without giving up its promise: the likelihood never falls.

Squared extrapolation (Varadhan and Roland 2008, S3) of a map that climbs; a leap that lands lower than where it started
from is not taken.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Point = NDArray[np.float64]
Step = Callable[[Point], tuple[Point, float]]
"""A point to a better one, and the height of the point that was given."""


class Climb(NamedTuple):
    point: Point
    heights: list[float]  # never falls
    steps: int  # calls of the map
    converged: bool


def climb(step: Step, start: Point, tolerance: float, most: int) -> Climb:
    """Steps and leaps until one leap gains less than `tolerance`, or `most` steps were made."""
    here, heights, made = start, [], 0
    while made < most:
        first, height = step(here)
        heights.append(height)
        second, better = step(first)
        made += 2
        if _settled(heights, better, tolerance):
            return Climb(second, [*heights, better], made, True)
        leap = _leap(here, first, second)
        landed, level = step(leap)
        made += 1
        here = landed if np.isfinite(level) and level >= better else second
    return Climb(here, [*heights, step(here)[1]], made, False)


def _settled(heights: list[float], better: float, tolerance: float) -> bool:
    gained = better - heights[-2] if len(heights) > 1 else better - heights[-1]
    return gained < tolerance


def _leap(here: Point, first: Point, second: Point) -> Point:
    pace, bend = first - here, second - 2 * first + here
    curved = float(np.linalg.norm(bend))
    if curved == 0:
        return second
    length = min(max(float(np.linalg.norm(pace)) / curved, 1.0), 1e3)
    return here + 2 * length * pace + length**2 * bend
