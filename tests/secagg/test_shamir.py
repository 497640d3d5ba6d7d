"""Sharing over a prime field: known values by hand, any threshold of shares, and nothing from fewer."""

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secagg import primitives
from tests.secagg.rounds import seeded

SECRET = bytes(range(32))


def fixed(*numbers: int) -> Callable[[int], bytes]:
    drawn = iter(numbers)
    return lambda size: next(drawn).to_bytes(size, "big")


def test_the_modulus_is_prime() -> None:
    """By Lucas and Lehmer, who decide it for Mersenne numbers."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % primitives.PRIME
    assert s == 0


def test_shares_are_values_of_the_polynomial() -> None:
    """7 + 5 x + 3 x^2 at 1, 2, 3, 10."""
    shares = primitives.split((7).to_bytes(32, "big"), 3, [1, 2, 3, 10], fixed(5, 3))
    assert {x: primitives.element(share) for x, share in shares.items()} == {1: 15, 2: 29, 3: 49, 10: 357}


def test_lagrange_weights_at_one_two_three() -> None:
    assert primitives.weights((1, 2, 3)) == {1: 3, 2: primitives.PRIME - 3, 3: 1}


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 2**30))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, seed: int) -> None:
    shares = primitives.split(secret, threshold, range(1, 7), seeded(str(seed)))
    for points in combinations(range(1, 7), threshold):
        assert primitives.combine(shares, primitives.weights(points)) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """For t - 1 shares and any secret there is a polynomial through both: they say nothing."""
    shares = primitives.split(SECRET, 3, range(1, 6), seeded("fewer"))
    for other in (bytes(32), b"\xff" * 32):
        at_zero = {0: other} | {x: shares[x] for x in (1, 2)}
        value = sum(w * int.from_bytes(at_zero[x], "big") for x, w in _weights_at(5, (0, 1, 2)).items())
        third = (value % primitives.PRIME).to_bytes(primitives.SHARE_BYTES, "big")
        assert primitives.combine({1: shares[1], 2: shares[2], 5: third}, primitives.weights((1, 2, 5))) == other


def _weights_at(x: int, points: tuple[int, ...]) -> dict[int, int]:
    """Lagrange's coefficients at x, by moving the origin there."""
    moved = primitives.weights(tuple(point - x for point in points))
    return {point: moved[point - x] for point in points}


def test_a_wrong_share_gives_a_wrong_secret_or_none() -> None:
    """One that is off by 1 moves the secret by its weight: the field alone does not notice, so that others must."""
    shares = primitives.split(SECRET, 3, range(1, 6), seeded("wrong"))
    shares[2] = (primitives.element(shares[2]) + 1).to_bytes(primitives.SHARE_BYTES, "big")
    off = int.from_bytes(primitives.combine(shares, primitives.weights((1, 2, 3))) or b"", "big")
    assert off == int.from_bytes(SECRET, "big") - 3
    assert primitives.combine(shares, primitives.weights((1, 2, 5))) is None
    assert primitives.combine(shares, primitives.weights((1, 3, 4))) == SECRET


def test_coefficients_are_below_the_prime_and_use_all_bits() -> None:
    """The one draw that is the prime itself is repeated."""
    shares = primitives.split(bytes(32), 2, [1, 2], fixed(2**528 - 1, 2**528 - 2))
    assert primitives.element(shares[1]) == 2**521 - 2


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(b"short", 2, [1, 2]), (SECRET, 0, [1, 2]), (SECRET, 3, [1, 2]), (SECRET, 2, [1, 1]), (SECRET, 2, [0, 1])],
)
def test_what_cannot_be_shared_is_refused(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(ValueError, match=r"secret|points"):
        primitives.split(secret, threshold, points, seeded("no"))
