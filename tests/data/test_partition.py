"""Partitions are disjoint and complete, give every client a row, terminate, and say what cannot be done."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.partition import (
    DRAWN,
    Parts,
    apportion,
    by_id,
    dirichlet,
    drawn,
    federate,
    iid,
    matched,
    n_class,
    one_class,
)
from tacit.errors import TacitError

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)
seeds = st.integers(0, 1000)
quick = settings(max_examples=80, deadline=None)


def assert_partition(parts: Parts, rows: int, clients: int) -> None:
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)


@quick
@given(labels=labels_of, clients=st.integers(1, 80), seed=seeds)
def test_iid_parts_are_complete_and_even(labels: np.ndarray, clients: int, seed: int) -> None:
    clients = min(clients, len(labels))
    parts = iid(labels, clients, seed)
    assert_partition(parts, len(labels), clients)
    assert np.ptp([len(part) for part in parts]) <= 1


@quick
@given(labels=labels_of, extra=st.integers(0, 80), seed=seeds)
def test_one_class_parts_hold_one_class_and_use_every_row(labels: np.ndarray, extra: int, seed: int) -> None:
    kinds = len(np.unique(labels))
    clients = min(kinds + extra, len(labels))
    parts = one_class(labels, clients, seed)
    assert_partition(parts, len(labels), clients)
    assert all(len(np.unique(labels[part])) == 1 for part in parts)


def test_two_thousand_clients_of_one_digit_differ_by_few_rows() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    sizes = [len(part) for part in one_class(labels, 2000)]
    assert min(sizes) >= 29
    assert max(sizes) <= 31


@quick
@given(labels=labels_of, clients=st.integers(1, 40), each=st.integers(1, 6), seed=seeds)
def test_n_class_parts_are_complete_or_refused(labels: np.ndarray, clients: int, each: int, seed: int) -> None:
    rows, kinds = np.unique(labels, return_counts=True)[1], len(np.unique(labels))
    enough = each <= kinds <= clients * each and rows.min() >= -(-clients * each // kinds)
    try:
        parts = n_class(labels, clients, each, seed)
    except TacitError:
        parts = None
    assert parts is not None or not enough
    if parts is not None:
        assert_partition(parts, len(labels), clients)
        held = [len(np.unique(labels[part])) for part in parts]
        assert max(held) <= each
        assert not enough or min(held) == each


def test_n_class_gives_every_client_all_its_classes_when_rows_suffice() -> None:
    labels = np.arange(1000) % 10
    parts = n_class(labels, 50, 3, 1)
    assert all(len(np.unique(labels[part])) == 3 for part in parts)


def test_n_class_shares_of_a_class_lie_within_the_range_of_the_paper() -> None:
    labels = np.arange(60_000) % 10
    parts = n_class(labels, 100, 2, 0)
    shares = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    for column in shares.T:
        held = column[column > 0]
        assert len(held) == 20
        assert held.max() / held.min() <= 0.6 / 0.4 + 0.02
        assert held.max() / held.min() > 1.1


def test_n_class_without_a_holder_for_some_class_is_refused() -> None:
    with pytest.raises(TacitError, match="3 clients with 2 classes each cannot hold 10 classes: use 5 clients"):
        n_class(np.arange(100) % 10, 3, 2)
    with pytest.raises(TacitError, match="classes_each is 4"):
        n_class(np.arange(9) % 3, 3, 4)
    with pytest.raises(TacitError, match="at least 1"):
        n_class(np.arange(9) % 3, 3, 0)


@quick
@given(
    labels=labels_of,
    clients=st.integers(1, 80),
    alpha=st.sampled_from([1e-300, 1e-9, 0.01, 0.5, 1.0, 100.0, 1e12]),
    minimum=st.integers(1, 10),
    seed=seeds,
)
def test_dirichlet_terminates_with_the_minimum_or_refuses(
    labels: np.ndarray, clients: int, alpha: float, minimum: int, seed: int
) -> None:
    if clients * minimum > len(labels):
        with pytest.raises(TacitError, match=f"and there are {len(labels)}"):
            dirichlet(labels, clients, alpha, minimum, seed)
        return
    parts = dirichlet(labels, clients, alpha, minimum, seed)
    assert_partition(parts, len(labels), clients)
    assert min(len(part) for part in parts) >= minimum


def test_dirichlet_takes_the_missing_rows_from_the_richest_only() -> None:
    labels = np.zeros(1000, int)
    free = [len(part) for part in dirichlet(labels, 20, 0.1, 1, 3)]
    held = [len(part) for part in dirichlet(labels, 20, 0.1, 10, 3)]
    gave = [a for a, b in zip(free, held, strict=True) if b < a]
    assert gave
    assert min(gave) >= max(b for a, b in zip(free, held, strict=True) if b > a)


def test_a_large_alpha_is_even_and_a_small_one_is_not() -> None:
    labels = np.arange(1000) % 10
    even, skewed = (
        np.mean([len(np.unique(labels[part])) for part in dirichlet(labels, 20, alpha, 1, 0)]) for alpha in (1e6, 0.01)
    )
    assert even == 10
    assert skewed < 3


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alpha_that_is_no_positive_number_is_refused(alpha: float) -> None:
    with pytest.raises(TacitError, match=f"alpha is {alpha}"):
        dirichlet(np.zeros(5, int), 2, alpha)


def test_more_clients_than_rows_or_fewer_than_classes_are_refused() -> None:
    with pytest.raises(TacitError, match="use at most 3 clients"):
        iid(np.zeros(3, int), 4)
    with pytest.raises(TacitError, match="cannot hold 3 classes"):
        one_class(np.array([0, 1, 2]), 2)
    with pytest.raises(TacitError, match="number of clients is 0"):
        iid(np.zeros(3, int), 0)


def test_partitions_depend_on_the_seed_alone() -> None:
    labels = np.arange(200) % 5
    for rule in (
        lambda s: iid(labels, 7, s),
        lambda s: n_class(labels, 7, 2, s),
        lambda s: dirichlet(labels, 7, 1, 1, s),
    ):
        first, again, other = rule(0), rule(0), rule(1)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_natural_ids_give_their_rows_in_the_order_of_numbers() -> None:
    names, parts = by_id(np.array([10, 9, 10, 2]))
    assert names == ("2", "9", "10")
    assert [part.tolist() for part in parts] == [[3], [1], [0, 2]]
    with pytest.raises(TacitError, match="no client ids"):
        by_id([])


@quick
@given(total=st.integers(0, 500), weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20).map(np.array))
def test_apportioned_numbers_add_up_and_are_within_one_of_their_share(total: int, weights: np.ndarray) -> None:
    counts = apportion(total, weights)
    assert counts.sum() == total
    assert (abs(counts - total * weights / weights.sum()) <= 1 + 1e-9).all()


@quick
@given(labels=labels_of, test=labels_of, clients=st.integers(1, 20), seed=seeds)
def test_matched_test_rows_are_disjoint_and_of_classes_that_the_client_holds(
    labels: np.ndarray, test: np.ndarray, clients: int, seed: int
) -> None:
    parts = iid(labels, min(clients, len(labels)), seed)
    dealt = matched(labels, parts, test, seed)
    together = np.concatenate(dealt)
    assert len(set(together)) == len(together) == np.isin(test, labels).sum()
    for part, own in zip(parts, dealt, strict=True):
        assert set(test[own]) <= set(labels[part])


def pooled(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n).float()[:, None], torch.arange(n) % 4


def test_own_test_rows_are_held_out_and_the_pooled_test_set_is_the_common_one() -> None:
    (x, y), test = pooled(80), pooled(20)
    federation = federate(x, y, one_class(y.numpy(), 8), classes=4, pooled=test, test_fraction=0.2)
    assert federation.sizes.tolist() == [8] * 8
    assert sorted(torch.cat([federation.x, federation.test_x]).flatten().tolist()) == list(range(80))
    assert federation.common_x is not None
    assert torch.equal(federation.common_x, test[0])


def test_matched_test_rows_come_from_the_pooled_test_set_and_no_training_row_is_lost() -> None:
    (x, y), test = pooled(80), pooled(20)
    federation = federate(x, y, one_class(y.numpy(), 8), classes=4, pooled=test, test="matched")
    assert federation.sizes.sum() == 80
    assert sorted(federation.test_x.flatten().tolist()) == list(range(20))
    for client in range(8):
        assert set(federation.test_y[federation.test_rows(client)].tolist()) == set(
            federation.y[federation.rows(client)].tolist()
        )


def test_without_a_pooled_test_set_all_own_test_rows_are_the_common_one() -> None:
    x, y = pooled(40)
    federation = federate(x, y, iid(y.numpy(), 4), classes=4)
    assert federation.common_x is federation.test_x
    assert federate(x, y, iid(y.numpy(), 4), classes=4, test_fraction=0).common_x is None


def test_an_unknown_test_rule_or_a_missing_pool_is_refused() -> None:
    x, y = pooled(8)
    with pytest.raises(TacitError, match="'pooled'"):
        federate(x, y, iid(y.numpy(), 2), classes=4, pooled=(x, y), test="pooled")
    with pytest.raises(TacitError, match="needs a pooled test set"):
        federate(x, y, iid(y.numpy(), 2), classes=4, test="matched")


def test_drawn_test_rows_are_of_a_clients_classes_each_once_and_as_many_as_there_can_be() -> None:
    y, test_y = np.repeat(np.arange(4), 30), np.repeat(np.arange(4), 25)
    parts = n_class(y, 10, 2, seed=3)
    for part, own in zip(parts, drawn(y, parts, test_y, seed=3), strict=True):
        assert set(test_y[own]) == set(y[part])
        assert len(set(own.tolist())) == len(own)
        counts = np.bincount(y[part], minlength=4) / len(part) * DRAWN
        assert (np.abs(np.bincount(test_y[own], minlength=4) - np.minimum(counts, 25)) <= 1).all()
