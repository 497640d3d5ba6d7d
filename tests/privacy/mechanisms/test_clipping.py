"""Clipping for every input, and the moving bound's parameters."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from tacit.core import tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms.clipping import Fixed, Quantile, clip


@settings(max_examples=200, deadline=None)
@given(arrays("float32", 5, elements=st.floats(width=32)), st.floats(1e-6, 1e6))
def test_the_norm_never_exceeds_the_bound(values, bound: float) -> None:
    clipped, inside = clip({"a": torch.tensor(values[:4]), "b": torch.tensor(values[4])}, bound)
    norm = float(tree.norm(tree.each(Tensor.double, clipped)))
    assert norm <= bound
    if bool(inside):
        assert torch.equal(clipped["a"], torch.tensor(values[:4]))


def test_scalar_leaves_count() -> None:
    clipped, _ = clip({"a": torch.tensor(3.0), "b": torch.tensor(4.0)}, 1.0)
    assert clipped["a"].item() == pytest.approx(0.6, abs=1e-4)


def test_a_zero_tree_stays_zero_and_is_not_clipped() -> None:
    clipped, inside = clip({"a": torch.zeros(3)}, 1.0)
    assert bool(inside)
    assert (clipped["a"] == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_finite_becomes_zero_and_counts_as_clipped(bad: float) -> None:
    clipped, inside = clip({"a": torch.tensor([1.0, bad])}, 1.0)
    assert not bool(inside)
    assert (clipped["a"] == 0).all()


@pytest.mark.parametrize("bound", [1e-30, 1e-12, 0.0, -1.0, math.nan])
def test_a_bound_beside_which_squares_vanish_lets_nothing_through(bound: float) -> None:
    """1,000 numbers of 1e-24 have a norm of 3e-23, but their squares are zero in single precision."""
    clipped, inside = clip({"a": torch.full((1000,), 1e-24)}, torch.tensor(bound, dtype=torch.float64))
    assert not bool(inside)
    assert (clipped["a"] == 0).all()


def test_no_leaves_have_norm_zero() -> None:
    assert clip({}, 1.0)[0] == {}


def test_a_bound_with_too_many_unclipped_updates_shrinks() -> None:
    rule = Quantile(1.0, target=0.5)
    bound = torch.tensor(1.0)
    assert float(rule.move(bound, torch.tensor(0.9))) < 1.0 < float(rule.move(bound, torch.tensor(0.1)))
    assert float(Fixed(1.0).move(bound, torch.tensor(0.9))) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0.0),
        lambda: Fixed(-1.0),
        lambda: Fixed(math.nan),
        lambda: Fixed(math.inf),
        lambda: Quantile(target=0.0),
        lambda: Quantile(target=1.5),
        lambda: Quantile(thrift=1.0),
        lambda: Quantile(speed=-0.1),
    ],
)
def test_impossible_rules_are_refused(make) -> None:
    with pytest.raises(TacitError):
        make()
