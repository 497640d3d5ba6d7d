"""Discrete Gaussian noise, drawn exactly: integers from random bits, and no floating-point number on the way.

X has the discrete Gaussian distribution of parameter s if P(X = i) is proportional to exp(-i^2 / (2 s^2)) for every
integer i (Canonne, Kamath and Steinke 2020). Here s = 2^p. `sample` is Karney's algorithm (2016) for such s: write
|X| = k s + j with 0 <= j < s, and x = j / s. Then

    exp(-X^2 / (2 s^2)) = exp(-k^2 / 2) * exp(-x)^k * exp(-x^2 / 2),

so: draw k with chances proportional to exp(-k^2 / 2), j uniformly as p random bits, a sign; accept with chance
exp(-x^2 / 2) and k times with chance exp(-x); reject -0. Every candidate is accepted with a chance proportional to its
mass, so what is accepted has the distribution, exactly. Its parts are exact, too:

- *A chance of exp(-g) for 0 <= g <= 1* (von Neumann; Canonne et al., Algorithm 1): try chances g / 1, g / 2, g / 3, ...
  until one fails, accept if that was an odd one. n successes have the chance g^n / n!, and the alternating sum is
  exp(-g). A chance of x = j / 2^p is one comparison of p random bits with j, x^2 / 2 is two of them and one more bit,
  1 / n a uniform number below n, drawn by rejection.
- *k* is the inverse of its distribution function at a uniform real number, of which bits are drawn as long as they
  cannot decide: 64, and with a chance below 2^-60 more, against thresholds computed in integers with error bounds.

*Claim.* Let q be a function of data into the integers of d dimensions, and M(D) = q(D) + X with independent X of
parameter s in every coordinate. Let t^2 = s^2 - r^2 with r = 4. Whatever holds of the Gaussian mechanism
G(D) = q(D) + N(0, t^2 I), of any sampling of who is in D, and of any adaptive composition of such releases, holds of M
up to a factor of exp(+-c) on probabilities, c = 7 d exp(-2 pi^2 r^2) < d * 1e-136 a release: for a trillion releases
of a trillion numbers, less than 1e-110. So the epsilon of the Gaussian of multiplier t / (sensitivity of q) is stated.

*Proof.* Let K be the rounding that takes a real vector y to the integer point x with chances proportional to
exp(-|x - y|^2 / (2 r^2)), coordinate by coordinate; it does not look at the data. For an integer q the mass of K(G) at
x is, in one coordinate,

    integral of N(y; q, t^2) exp(-(x - y)^2 / (2 r^2)) / theta(y) dy,
    theta(y) = sum over all integers i of exp(-(i - y)^2 / (2 r^2)).

By Poisson's summation theta(y) = r sqrt(2 pi) (1 + 2 sum over n >= 1 of exp(-2 pi^2 r^2 n^2) cos(2 pi n y)), so it lies
within 1 +- h of r sqrt(2 pi), where h = 2.001 exp(-2 pi^2 r^2). Without theta the integral is a constant times
exp(-(x - q)^2 / (2 (t^2 + r^2))), and t^2 + r^2 = s^2: the mass that M has at x, but for a constant. Both masses sum to
one, so their ratio lies between (1 - h) / (1 + h) and (1 + h) / (1 - h), whose logarithms are below 3 h; d independent
coordinates multiply. Hence M is K(G), a post-processing of G, but for the factor. The factor is the same for every D,
every past and every subset that was sampled, so mixtures (sampling) and products (adaptive composition) keep it. For
scales that differ between coordinates (the bit of a moving clip bound has its own) every coordinate has its own t. QED

At equal s the integer moments of the likelihood ratio of M are exactly those of the Gaussian, so nothing better than t
close to s can be hoped for; with s = 2^26 the price of this proof, s / t, is less than 1 + 1e-14.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

WordSource = Callable[[int], NDArray[np.uint32]]
"""So many independent random words of 32 bits."""

ROUNDING: Final = 4
"""r of the proof, in steps of the lattice."""
LARGEST: Final = 26
"""p is at most this: the other bits of a word of 32 are signs and halves."""
_WORD: Final = 32
_GUARD: Final = 64
_MARGIN: Final = 1 << 16  # of the last places in which a threshold's parts may be wrong; see `_thresholds`


def secure_words(size: int) -> NDArray[np.uint32]:
    """From the operating system's cryptographic generator."""
    return np.frombuffer(os.urandom(4 * size), dtype=np.uint32)


def keyed_words(stream: np.random.Generator) -> WordSource:
    return lambda size: stream.integers(0, 1 << _WORD, size, dtype=np.uint32)


def sample(size: int, log_std: int, words: WordSource) -> NDArray[np.int64]:
    """`size` independent discrete Gaussian numbers of parameter 2^log_std, exactly."""
    if not 0 <= log_std <= LARGEST:
        raise ValueError(f"the parameter is 2^{log_std}, and 2^0 to 2^{LARGEST} are drawn")
    parts: list[NDArray[np.int64]] = []
    missing = size
    while missing > 0:
        parts.append(_accepted(missing + missing // 2 + 8, log_std, words)[:missing])
        missing -= len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _accepted(size: int, p: int, words: WordSource) -> NDArray[np.int64]:
    """What is accepted of `size` candidates, in their order."""
    k, drawn = _whole(size, words), words(size)
    j, negative = drawn >> np.uint32(_WORD - p) if p else np.zeros(size, np.uint32), (drawn & np.uint32(1)) == 1
    survivors = np.flatnonzero(_survives(j, p, words, squared=True) & ~(negative & (k == 0) & (j == 0)))
    k, j, negative = k[survivors], j[survivors], negative[survivors]
    alive = np.ones(len(k), bool)
    for i in range(int(k.max(initial=0))):
        again = np.flatnonzero(alive & (k > i))
        alive[again] = _survives(j[again], p, words)
    size_of = (k[alive] << p) + j[alive].astype(np.int64)
    return np.where(negative[alive], -size_of, size_of)


def _survives(j: NDArray[np.uint32], p: int, words: WordSource, squared: bool = False) -> NDArray[np.bool_]:
    """True with a chance of exp(-x), or exp(-x^2 / 2), for each x = j / 2^p."""
    result = np.zeros(len(j), bool)
    tried, n = np.arange(len(j)), 1
    while len(tried):
        won = _below(j[tried], p, words)
        if squared:
            won[won] = _below_by_half(j[tried[won]], p, words)
        if n > 1:
            won[won] = _one_in(n, int(won.sum()), words)
        if n % 2:
            result[tried[~won]] = True
        tried, n = tried[won], n + 1
    return result


def _below(j: NDArray[np.uint32], p: int, words: WordSource) -> NDArray[np.bool_]:
    """True with a chance of j / 2^p."""
    return (words(len(j)) >> np.uint32(_WORD - p)) < j if p else np.zeros(len(j), bool)


def _below_by_half(j: NDArray[np.uint32], p: int, words: WordSource) -> NDArray[np.bool_]:
    """True with a chance of j / 2^(p + 1): p bits of a word, and its last."""
    drawn = words(len(j))
    return ((drawn >> np.uint32(_WORD - p)) < j) & ((drawn & np.uint32(1)) == 0) if p else np.zeros(len(j), bool)


def _one_in(n: int, size: int, words: WordSource) -> NDArray[np.bool_]:
    """True with a chance of 1 / n: whether a uniform number below n is 0. Words past the last multiple are redrawn."""
    drawn = words(size).astype(np.uint64)
    past = (1 << _WORD) // n * n
    while len(again := np.flatnonzero(drawn >= past)):
        drawn[again] = words(len(again))
    return drawn % np.uint64(n) == 0


def _whole(size: int, words: WordSource) -> NDArray[np.int64]:
    """k >= 0 with chances proportional to exp(-k^2 / 2)."""
    drawn = words(2 * size).view(np.uint64)
    table = np.array(_thresholds(64), np.uint64)
    k = np.searchsorted(table, drawn)
    undecided = (table[np.minimum(k, len(table) - 1)] == drawn) | (drawn == np.uint64(2**64 - 1))
    for place in np.flatnonzero(undecided):
        k[place] = _decide(int(drawn[place]), words)
    return k


def _decide(value: int, words: WordSource) -> int:
    """k of the uniform number whose first 64 bits lie on a threshold: with more of its bits."""
    bits = 64
    while True:
        value, bits = value << 64 | int(words(2).view(np.uint64)[0]), bits + 64
        table = _thresholds(bits)
        if value not in table and value != (1 << bits) - 1:
            return sum(each < value for each in table)


@lru_cache(maxsize=8)
def _thresholds(bits: int) -> tuple[int, ...]:
    """The first `bits` binary places of P(k <= 0), P(k <= 1), ... until all of them are ones; never one too many.

    In integers of `bits` + 64 places. The series is cut where its terms are 0 there, a product or quotient of two such
    numbers is off by at most the errors of both and one: all in all far less than 2^16 of the last place, so a
    threshold whose places are the same 2^16 lower and higher is right; if one is not, more places are used.
    """
    guard = _GUARD
    while True:
        table = _places(bits, bits + guard)
        if table is not None:
            return table
        guard *= 2


def _places(bits: int, scale: int) -> tuple[int, ...] | None:
    root = _exp_minus_half(scale)
    weights, ratio = [1 << scale], root  # exp(-k^2 / 2), and exp(-(2 k + 1) / 2)
    while weights[-1]:
        weights.append(weights[-1] * ratio >> scale)
        ratio = (ratio * root >> scale) * root >> scale
    thresholds: list[int] = []
    total, below = sum(weights), 0
    for weight in weights:
        below += weight
        low = ((below - _MARGIN) << bits) // (total + _MARGIN)
        high = ((below + _MARGIN) << bits) // (total - _MARGIN)
        if min(high, (1 << bits) - 1) != low:
            return None
        thresholds.append(low)
        if low == (1 << bits) - 1:
            return tuple(thresholds)
    return None


def _exp_minus_half(scale: int) -> int:
    """exp(-1/2) in units of 2^-scale, by its series: each term is off by less than 2."""
    total, term, n = 0, 1 << scale, 0
    while term:
        total += -term if n % 2 else term
        n += 1
        term //= 2 * n
    return total
