"""Batches drawn in compiled code are those that are drawn without it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.compile.kernels import compiled
from tacit.privacy.accounting.sampling import BatchRule
from tacit.sampling.cohorts import FixedSteps, PoissonBatches, Shuffled, draw_batches
from tacit.simulation.draws import drawn
from tests.sampling.test_cohorts import federation

needs_kernels = pytest.mark.skipif(not compiled(), reason="no C compiler, or TACIT_NATIVE=0")


@needs_kernels
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    size=st.integers(1, 12),
    epochs=st.integers(0, 3),
    seed=st.integers(0, 2**40),
    more=st.integers(0, 9),
)
def test_compiled_draws_are_the_plain_ones(sizes: list[int], size: int, epochs: int, seed: int, more: int) -> None:
    data, rule = federation(*sizes), Shuffled(size, epochs)
    clients = np.random.default_rng(seed).permutation(len(sizes))
    steps = more and max(map(rule.steps, sizes)) + more - 3
    one, other = (f(rule, seed, 5, clients, data, "adapt", steps) for f in (drawn, draw_batches))
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@needs_kernels
@pytest.mark.parametrize("n", [999, 2048, 30_001])
def test_many_rows_are_shuffled_alike(n: int) -> None:
    data, rule = federation(n, 3), Shuffled(10, 2)
    one, other = (f(rule, 7, 1, np.array([0, 1]), data, "batches") for f in (drawn, draw_batches))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rule", [Shuffled(4, 2), PoissonBatches(4, 2), FixedSteps(4, 3)])
def test_steps_that_are_added_are_dead_and_change_no_other(rule: BatchRule) -> None:
    data, clients = federation(5, 17), np.array([1, 0])
    plain, longer = (drawn(rule, 3, 1, clients, data, "batches", steps) for steps in (0, 23))
    steps = plain.live.shape[1]
    assert longer.live.shape == (2, 23)
    assert not longer.live[:, steps:].any()
    assert not longer.mask[:, steps:].any()
    assert all(torch.equal(a, b[:, :steps]) for a, b in zip(plain, longer, strict=True))
    assert all(
        data.rows(k).start <= row < data.rows(k).stop
        for k, own in zip(clients, longer.rows, strict=True)
        for row in own.flatten()
    )
