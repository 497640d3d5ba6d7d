"""Arithmetic on dicts of tensors, and keyed randomness."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from tacit.core import rng, tree
from tacit.core.contract import Shared

TREE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(2.0)}


def test_flatten_and_unflatten_are_inverse_with_and_without_clients() -> None:
    assert all(torch.equal(leaf, TREE[name]) for name, leaf in tree.unflatten(tree.flatten(TREE), TREE).items())
    several = tree.each(lambda leaf: torch.stack([leaf, leaf + 1]), TREE)
    rows = tree.flatten(several, 1)
    assert rows.shape == (2, 7)
    back = tree.unflatten(rows, TREE)
    assert all(torch.equal(leaf, several[name]) for name, leaf in back.items())


def test_the_norm_counts_every_leaf_of_every_tree() -> None:
    expected = (sum(float(leaf.square().sum()) for leaf in TREE.values()) * 2) ** 0.5
    assert abs(float(tree.norm(TREE, TREE)) - expected) < 1e-6
    assert float(tree.norm({})) == 0
    assert vmap(lambda a: tree.norm({"a": a}))(torch.ones(3, 4)).tolist() == [2.0] * 3


def test_join_and_split_are_inverse() -> None:
    shared = Shared({"w": torch.ones(2)}, {"w": torch.zeros(2), "psi": torch.tensor(1.0)})
    back = tree.split(tree.join(shared))
    assert back.model.keys() == shared.model.keys()
    assert back.extra.keys() == shared.extra.keys()


def test_axpy_takes_numbers_and_tensors() -> None:
    for factor in (0.5, torch.tensor(0.5)):
        assert float(tree.axpy(factor, TREE, TREE)["b"]) == 3.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(0, 10**6))
def test_distinct_keys_have_distinct_streams(seed: int, round: int, client: int) -> None:
    keys = {
        rng.key(seed, "a", round, client),
        rng.key(seed, "b", round, client),
        rng.key(seed, "a", round, client + 1),
        rng.key(seed, "a", round + 1, client),
        rng.key(seed + 1, "a", round, client),
    }
    assert len(keys) == 5


def test_a_stream_depends_on_its_key_alone() -> None:
    first = rng.generator(1, "x", 2, 3).normal(size=5)
    rng.generator(9, "y").normal(size=100)
    assert np.array_equal(first, rng.generator(1, "x", 2, 3).normal(size=5))
    calls = [rng.stream(rng.key(1, "x"), call).normal(size=2000) for call in range(2)]
    assert abs(float(np.dot(calls[0], calls[1]))) / 2000 < 0.1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=4))
def test_keys_of_many_clients_are_the_keys_of_each(seed: int, round: int, clients: list[int]) -> None:
    keys = rng.keys(seed, "a", round, clients)
    assert [tuple(words) for words in keys.tolist()] == [rng.key(seed, "a", round, client) for client in clients]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 40))
def test_uniforms_are_the_first_numbers_of_their_stream(seed: int, client: int, epochs: int, n: int) -> None:
    rng.uniforms((3,), seed, "others")
    drawn = rng.uniforms((epochs, n), seed, "a", 7, client)
    assert np.array_equal(drawn, rng.generator(seed, "a", 7, client).random((epochs, n)))
