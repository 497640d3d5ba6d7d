"""What exact noise is added to: integers whose norm keeps to its limit for every input, and noise that covers it."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from tacit.errors import TacitError
from tacit.privacy.mechanisms import lattice as lattices
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.discrete_gaussian import ROUNDING
from tacit.privacy.mechanisms.lattice import fits, lattice, place, step

anything = st.floats(allow_nan=True, allow_infinity=True, width=32)
multipliers = st.floats(1e-9, 1e6)


def square(integers: Tensor) -> int:
    """In Python's integers, which have no end."""
    return sum(each * each for each in integers.flatten().tolist())


@settings(max_examples=120, deadline=None)
@given(st.lists(anything, min_size=1, max_size=6), anything, multipliers)
def test_the_norm_keeps_to_its_limit_whatever_the_vector_and_the_bound(
    values: list[float], bound: float, multiplier: float
) -> None:
    assert square(place(torch.tensor(values), bound, multiplier)) <= lattice(multiplier).limit ** 2


@pytest.mark.parametrize("seed", range(5))
def test_the_norm_keeps_to_its_limit_at_the_very_edge(seed: int) -> None:
    """Vectors that are as long as the bound, and a little longer or shorter than any float can tell."""
    draw = torch.Generator().manual_seed(seed)
    for size in (1, 3, 1000):
        x = torch.randn(size, generator=draw, dtype=torch.float64)
        for stretch in (1 - 1e-9, 1.0, 1 + 1e-15, 1 + 1e-9):
            assert square(place(x / x.norm() * stretch, 1.0, 1.3)) <= lattice(1.3).limit ** 2


@pytest.mark.parametrize("planted", ["the comparison is skipped", "rounded up"])
def test_a_norm_that_grows_would_be_noticed(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((1000,), 1000**-0.5, dtype=torch.float64) * (1 - 1e-10)
    assert square(place(x, 1.0, 1.0)) <= lattice(1.0).limit ** 2
    if planted == "rounded up":
        monkeypatch.setattr(lattices, "_cut", lambda values: values.sign() * values.abs().ceil())
    monkeypatch.setattr(lattices, "_fits", lambda integers, limit: torch.ones_like(limit, dtype=torch.bool))
    longer = x if planted == "rounded up" else x * 1.001
    assert square(place(longer, 1.0, 1.0)) > lattice(1.0).limit ** 2


@settings(max_examples=300, deadline=None)
@given(multipliers)
def test_the_noise_covers_the_limit_as_often_as_stated(multiplier: float) -> None:
    """(m limit)^2 + r^2 <= 4^log_std, in fractions: what the proof asks for, also if m was rounded to a float32."""
    for stated in (multiplier, float(torch.tensor(multiplier, dtype=torch.float32))):
        found = lattice(stated)
        assert (Fraction(multiplier) * found.limit) ** 2 + ROUNDING**2 <= 4**found.log_std
        assert 5 <= found.log_std <= 26
        assert 1 <= found.limit <= 2**26


@pytest.mark.parametrize("multiplier", [0.01, 0.7, 1.0, 30.0, 1000.0])
def test_exactness_costs_next_to_no_noise(multiplier: float) -> None:
    found = lattice(multiplier)
    assert found.std / (multiplier * found.limit) < 1 + 2e-5


def test_no_noise_is_no_noise_and_too_much_is_refused() -> None:
    assert lattice(0.0).std == 0
    with pytest.raises(TacitError, match="exact noise of 1e\\+09"):
        lattice(1e9)


def test_a_clipped_vector_moves_by_at_most_half_a_step_in_every_coordinate() -> None:
    draw = torch.Generator().manual_seed(0)
    for size in (0.1, 10.0):
        values, _ = clip({"w": size * torch.randn(20_000, generator=draw)}, 2.0)
        unit = float(step(2.0, 1.5))
        placed = place(values["w"], 2.0, 1.5).double() * unit
        assert float((placed - values["w"].double()).abs().max()) <= 0.5 * unit * (1 + 1e-6)


def test_a_coarse_lattice_rounds_inward_instead_of_giving_up() -> None:
    x = torch.full((10_000,), 0.6) / 100  # 1e-2 of the norm each, and a limit of 67: 0.4 steps
    x[0] = 0.79
    placed = place(x, 1.0, 1e6)
    assert 0 < square(placed) <= lattice(1e6).limit ** 2


def test_clients_in_one_call_are_placed_as_one_by_one() -> None:
    x, bounds = torch.randn(3, 4, 7), torch.tensor([1.0, 2.0, 3.0])
    m = torch.tensor([0.5, 1.0, 2.0])
    x = 0.1 * x * bounds[:, None, None]
    together = vmap(lambda rows, b, z: vmap(lambda row: place(row, b, z))(rows))(x, bounds, m)
    apart = [[place(x[i, j], bounds[i], m[i]) for j in range(4)] for i in range(3)]
    assert torch.equal(together, torch.stack([torch.stack(rows) for rows in apart]))
    assert bool((together != 0).any())


def test_sums_of_squares_are_exact_beyond_sixty_three_bits() -> None:
    limit = lattice(1.0).limit
    whole = torch.zeros(100, dtype=torch.int32)
    whole[0] = limit
    assert fits(whole, 1.0)
    whole[1] = 1
    assert not fits(whole, 1.0)
    assert not fits(torch.full((2**13,), limit, dtype=torch.int32), 1.0)  # 2^65: in int64 it would come round to 2^52
    assert not fits(torch.tensor([-limit - 1]), 1.0)
