"""Cohorts and batches: drawn as the accountant is told, and never dependent on who else is asked."""

import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.privacy.accounting.sampling import BatchRule, Sampler
from tacit.sampling.cohorts import FixedSize, FixedSteps, Poisson, PoissonBatches, Shuffled, draw_batches

quick = settings(max_examples=60, deadline=None)
INNER = dp_accounting.GaussianDpEvent(1.0)


def everyone(n: int) -> np.ndarray:
    return np.ones(n, bool)


def federation(*sizes: int) -> FederatedDataset:
    return from_clients({k: (np.ones((n, 1)), np.zeros(n, int)) for k, n in enumerate(sizes)}, test_fraction=0)


def test_a_poisson_cohort_has_the_binomial_mean_and_variance() -> None:
    sizes = np.array([len(Poisson(0.1).draw(0, t, everyone(200))) for t in range(2000)])
    assert abs(sizes.mean() - 20) < 4 * np.sqrt(18 / 2000)
    assert abs(sizes.var() / 18 - 1) < 0.15


def test_poisson_draws_of_clients_and_of_rounds_are_independent() -> None:
    drawn = np.zeros((4000, 3))
    for t in range(4000):
        drawn[t, Poisson(0.3).draw(1, t, everyone(3))] = 1
    assert abs(drawn.mean(0) - 0.3).max() < 0.03
    assert abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.06
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.06


@quick
@given(
    sampler=st.sampled_from([Poisson(0.4), Poisson(1.0), FixedSize(5)]),
    eligible=st.lists(st.booleans(), min_size=5, max_size=30).map(np.array),
    seed=st.integers(0, 99),
)
def test_whether_a_client_is_asked_does_not_depend_on_who_else_is_eligible(
    sampler: Sampler, eligible: np.ndarray, seed: int
) -> None:
    all_asked = sampler.draw(seed, 1, everyone(len(eligible)))
    asked = sampler.draw(seed, 1, eligible)
    assert asked.tolist() == [client for client in all_asked if eligible[client]]
    assert asked.dtype == np.int64


def test_a_fixed_cohort_has_its_size_and_every_client_equal_chances() -> None:
    drawn = np.concatenate([FixedSize(4).draw(0, t, everyone(10)) for t in range(3000)])
    assert len(drawn) == 12_000
    assert abs(np.bincount(drawn) / 3000 - 0.4).max() < 0.04


@quick
@given(eligible=st.lists(st.booleans(), min_size=4, max_size=30).map(np.array), seed=st.integers(0, 99))
def test_a_refilled_cohort_is_full_and_claims_no_amplification(eligible: np.ndarray, seed: int) -> None:
    sampler = FixedSize(4, refill=True)
    drawn = sampler.draw(seed, 0, eligible)
    assert len(set(drawn)) == len(drawn) == min(4, eligible.sum())
    assert eligible[drawn].all()
    assert sampler.event(INNER, len(eligible)) is INNER


def test_the_event_names_the_sampling_that_is_done() -> None:
    assert Poisson(0.25).event(INNER, 40) == dp_accounting.PoissonSampledDpEvent(0.25, INNER)
    assert Poisson(1.0).event(INNER, 40) is INNER
    assert FixedSize(10).event(INNER, 40) == dp_accounting.SampledWithoutReplacementDpEvent(40, 10, INNER)
    assert Poisson(0.25).rate(40) == FixedSize(10).rate(40) == 0.25
    assert (Poisson(0.25).relation, Poisson(0.25).sensitivity) == ("add/remove", 1.0)
    assert (FixedSize(10).relation, FixedSize(10).sensitivity) == ("replace-one", 2.0)


def test_the_accountant_is_not_loaded_by_drawing() -> None:
    code = "import sys, tacit.sampling.cohorts; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(TacitError, match="share of clients"):
        Poisson(share)


def test_a_cohort_larger_than_the_population_is_refused_everywhere() -> None:
    for call in (lambda s: s.draw(0, 0, everyone(3)), lambda s: s.rate(3), lambda s: s.event(INNER, 3)):
        with pytest.raises(TacitError, match="cohort of 4 from 3 clients"):
            call(FixedSize(4))
    with pytest.raises(TacitError, match="at least 1"):
        FixedSize(0)
    with pytest.raises(TacitError, match="eligible is int64"):
        Poisson(0.5).draw(0, 0, np.ones(3, np.int64))


@quick
@given(n=st.integers(1, 40), size=st.integers(1, 50), epochs=st.integers(0, 4), seed=st.integers(0, 99))
def test_a_shuffled_pass_sees_every_row_once_an_epoch(n: int, size: int, epochs: int, seed: int) -> None:
    rule = Shuffled(size, epochs)
    index, mask = rule.draw(seed, 0, 0, n)
    assert index.shape == mask.shape == (rule.steps(n), size)
    assert ((index >= 0) & (index < n)).all()
    for epoch in range(epochs):
        steps = slice(epoch * -(-n // size), (epoch + 1) * -(-n // size))
        assert sorted(index[steps][mask[steps]]) == list(range(n))


def test_a_short_batch_is_filled_cyclically_with_own_rows_under_mask_zero() -> None:
    index, mask = Shuffled(5).draw(0, 0, 0, 7)
    order = index.flatten()[:7]
    assert index.flatten().tolist() == [*order, *order[:3]]
    assert mask.flatten().tolist() == [True] * 7 + [False] * 3
    index, _ = Shuffled(8).draw(0, 0, 0, 3)
    assert index[0].tolist() == [*index[0, :3]] * 2 + [*index[0, :2]]


def test_epochs_are_shuffled_apart() -> None:
    index, _ = Shuffled(20, 2).draw(0, 0, 0, 20)
    assert index[0].tolist() != index[1].tolist()


@quick
@given(n=st.integers(1, 40), size=st.integers(1, 50), epochs=st.integers(0, 4), seed=st.integers(0, 99))
def test_a_poisson_batch_never_holds_a_row_twice(n: int, size: int, epochs: int, seed: int) -> None:
    rule = PoissonBatches(size, epochs)
    index, mask = rule.draw(seed, 0, 0, n)
    assert index.shape == mask.shape
    assert len(index) == rule.steps(n) == epochs * -(-n // size)
    assert index.shape[1] >= 1
    assert ((index >= 0) & (index < n)).all()
    for rows, real in zip(index, mask, strict=True):
        assert len(set(rows[real])) == real.sum()
    if size >= n:
        assert mask.all()


def test_poisson_batches_have_the_rate_that_they_state_for_every_row_and_step() -> None:
    rule, n = PoissonBatches(5), 20
    assert (rule.rate(n), rule.expected(n), rule.rate(3)) == (0.25, 5.0, 1.0)
    seen = np.zeros((2000, rule.steps(n), n))
    for t in range(2000):
        index, mask = rule.draw(0, t, 0, n)
        step, place = np.nonzero(mask)
        seen[t, step, index[step, place]] = 1
    assert abs(seen.mean(0) - 0.25).max() < 0.04
    flat = seen.reshape(2000, -1)
    assert abs(np.corrcoef(flat.T) - np.eye(flat.shape[1])).max() < 0.12


def test_the_event_of_a_batch_states_its_rate_and_shuffled_passes_have_none() -> None:
    assert PoissonBatches(5).event(INNER, 20) == dp_accounting.PoissonSampledDpEvent(0.25, INNER)
    assert PoissonBatches(5).event(INNER, 4) is INNER
    with pytest.raises(TacitError, match="PoissonBatches"):
        Shuffled(5).event(INNER, 20)


def test_drawing_in_blocks_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PoissonBatches(3, 2).draw(0, 0, 0, 20)
    monkeypatch.setattr("tacit.sampling.cohorts.BLOCK", 50)
    for a, b in zip(whole, PoissonBatches(3, 2).draw(0, 0, 0, 20), strict=True):
        assert np.array_equal(a, b)


def test_fixed_steps_do_not_tell_how_many_rows_a_client_has() -> None:
    rule = FixedSteps(4, 6)
    for n in (1, 3, 4, 9, 1000):
        index, mask = rule.draw(0, 0, 0, n)
        assert rule.steps(n) == len(index) == 6
        assert index.shape == mask.shape == (6, 4)
        assert (mask.sum(1) == min(n, 4)).all()
        assert index.max() < n


def test_fixed_steps_see_every_row_once_before_any_twice() -> None:
    index, _ = FixedSteps(4, 6).draw(0, 0, 0, 10)
    assert np.bincount(index.reshape(-1)[:10]).tolist() == [1] * 10
    assert np.bincount(index.reshape(-1)).max() <= 3
    with pytest.raises(TacitError, match="shuffled"):
        FixedSteps(4, 6).event(INNER, 20)


@pytest.mark.parametrize("rule", [Shuffled(4, 2), PoissonBatches(4, 2), FixedSteps(4, 2)])
def test_a_clients_rows_do_not_depend_on_the_rest_of_the_list(rule: BatchRule) -> None:
    data = federation(5, 17, 9, 1)
    alone = draw_batches(rule, 3, 1, [2], data)
    among = draw_batches(rule, 3, 1, [1, 2, 0], data)
    steps, width = alone.rows.shape[1:]
    assert torch.equal(among.rows[1, :steps, :width][alone.mask[0]], alone.rows[0][alone.mask[0]])
    assert among.mask[1].sum() == alone.mask[0].sum()
    assert among.live.sum(1).tolist() == [rule.steps(17), rule.steps(9), rule.steps(5)]


@pytest.mark.parametrize("rule", [Shuffled(4, 2), PoissonBatches(4, 2), PoissonBatches(1, 1)])
def test_padding_points_at_the_clients_own_rows_and_dead_steps_are_masked(rule: BatchRule) -> None:
    data = federation(5, 17, 9, 1)
    draw = draw_batches(rule, 0, 0, np.arange(4), data)
    for client in range(4):
        rows = data.rows(client)
        assert ((draw.rows[client] >= rows.start) & (draw.rows[client] < rows.stop)).all()
    assert not draw.mask[~draw.live].any()
    assert (draw.rows.dtype, draw.mask.dtype, draw.live.dtype) == (torch.int64, torch.bool, torch.bool)


@pytest.mark.parametrize("rule", [Shuffled(4, 2), Shuffled(7), Shuffled(20)])
def test_clients_of_one_size_are_drawn_all_at_once_as_one_by_one(rule: Shuffled) -> None:
    data = federation(9, 9, 9, 9)
    draw = draw_batches(rule, 3, 1, [2, 0, 3], data)
    for at, client in enumerate((2, 0, 3)):
        index, mask = rule.draw(3, 1, client, 9)
        assert np.array_equal(draw.rows[at], index + data.rows(client).start)
        assert np.array_equal(draw.mask[at], mask)
    assert draw.live.all()


def test_seed_round_client_and_purpose_each_change_the_draw() -> None:
    rule = Shuffled(30)
    keys = [(0, 0, 0, "batches"), (1, 0, 0, "batches"), (0, 1, 0, "batches"), (0, 0, 1, "batches"), (0, 0, 0, "adapt")]
    drawn = {tuple(rule.draw(seed, t, client, 30, purpose)[0].flatten()) for seed, t, client, purpose in keys}
    assert len(drawn) == len(keys)


@pytest.mark.parametrize("rule", [Shuffled(4, 0), PoissonBatches(4, 0)])
def test_no_epochs_give_no_live_step(rule: BatchRule) -> None:
    assert not draw_batches(rule, 0, 0, [0, 1], federation(3, 4)).live.any()


def test_an_empty_list_of_clients_gives_an_empty_draw() -> None:
    assert draw_batches(Shuffled(4), 0, 0, [], federation(3)).rows.shape[0] == 0


def test_sizes_that_make_no_batch_are_refused() -> None:
    for rule in (Shuffled, PoissonBatches):
        with pytest.raises(TacitError, match="batch size is 0"):
            rule(0)
        with pytest.raises(TacitError, match="epochs is -1"):
            rule(3, -1)
