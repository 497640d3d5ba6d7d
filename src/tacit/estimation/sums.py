"""Everything that learning needs of the clients, in one pass and little memory: counts, means and spread by size."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """For each number of samples: how many clients have it, the mean of their values, the squares around that mean.

    Adding is associative up to rounding, so chunks in any number and order give the same; no cancellation for values
    far from 0.
    """

    sizes: Array  # [g], ascending
    counts: Array  # [g]
    means: Array  # [g, dimension]
    spread: Array  # [g], summed over the dimension

    @classmethod
    def of(cls, values: Array, sizes: Array) -> "Sums":
        kinds, codes = np.unique(sizes, return_inverse=True)
        counts = np.bincount(codes, minlength=len(kinds)).astype(np.float64)
        columns = [_total(codes, column, len(kinds)) for column in values.T]
        means = np.column_stack(columns) / counts[:, None]
        around = np.square(values - means[codes]).sum(1)
        return cls(kinds, counts, means, _total(codes, around, len(kinds)))

    @classmethod
    def empty(cls, dimension: int) -> "Sums":
        return cls(np.empty(0), np.empty(0), np.empty((0, dimension)), np.empty(0))

    def __add__(self, other: "Sums") -> "Sums":
        """Chan's update, size by size."""
        kinds, codes = np.unique(np.concatenate([self.sizes, other.sizes]), return_inverse=True)
        each = np.concatenate([self.counts, other.counts])
        values = np.concatenate([self.means, other.means])
        spread = _total(codes, np.concatenate([self.spread, other.spread]), len(kinds))
        counts = _total(codes, each, len(kinds))
        columns = [_total(codes, each * column, len(kinds)) for column in values.T]
        means = np.column_stack(columns) / counts[:, None]
        spread += _total(codes, each * np.square(values - means[codes]).sum(1), len(kinds))
        return Sums(kinds, counts, means, spread)

    @property
    def clients(self) -> int:
        return int(self.counts.sum())

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def mean(self, weights: Array | None = None) -> Array:
        """The mean value over clients, weighted by size where `weights` [g] are given."""
        each = self.counts if weights is None else self.counts * weights
        return each @ self.means / each.sum()

    def moment(self, weights: Array | None = None) -> tuple[float, float]:
        """(M, h): the spread of values around their mean, a coordinate, as an unbiased estimate of
        t + c * h when a client of n samples varies by t + c / n."""
        weight = np.ones_like(self.sizes) if weights is None else weights
        each = self.counts * weight
        around = self.spread + self.counts * np.square(self.means - self.mean(weight)).sum(1)
        share = each * (1 - weight / each.sum())
        return float(weight @ around / self.dimension / share.sum()), float((share / self.sizes).sum() / share.sum())


def _total(codes: NDArray[np.intp], values: Array, kinds: int) -> Array:
    return np.asarray(np.bincount(codes, values, kinds), dtype=np.float64)
