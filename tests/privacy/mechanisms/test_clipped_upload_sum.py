"""The boundary: whatever an upload holds, one client moves a sum by no more than its bound; C gives torch's numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Shared
from tacit.errors import TacitError
from tacit.privacy.mechanisms import clipped_upload_sum as boundary
from tacit.privacy.mechanisms.clipped_upload_sum import (
    Product,
    Uploads,
    clipped_upload_sum,
    compiled_sum,
    reference_sum,
)
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.mechanisms.level_weights import Weighted
from tacit.privacy.mechanisms.local import LocalRelease
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.open import OpenRelease
from tacit.privacy.mechanisms.release import Release, encode_all, encoded_sum, sum_messages

needs_a_compiler = pytest.mark.skipif(boundary.library() is None, reason="no C compiler")
SPOILED = (0.0, 1.0, 1e-30, 1e-42, 1e15, 1.7e19, 1e30, math.inf, -math.inf, math.nan)
BOUND = 0.5
Sum = Callable[[Uploads, float, int], boundary.ClippedSum]
SUMS = [pytest.param(reference_sum, id="torch"), pytest.param(compiled_sum, id="C", marks=needs_a_compiler)]


def uploads_of(leaves: dict[str, Any], level: list[int] | None = None, real: list[bool] | None = None) -> Uploads:
    clients = next(iter(leaves.values())).shape[0]
    return Uploads(
        leaves,
        torch.tensor(level or [0] * clients),
        torch.tensor(real or [True] * clients),
        torch.arange(2 * clients).view(clients, 2),
    )


def norm(body: tree.View) -> float:
    return float(tree.norm(tree.each(lambda leaf: leaf.double(), body)))


def alone(uploads: Uploads, client: int) -> Uploads:
    return uploads._replace(real=torch.arange(len(uploads.level)) == client)


def products(clients: int, rows: int, outputs: int, inputs: int, seed: int = 0, offset: float = 0.0) -> Product:
    """Products that are small differences of large numbers if `offset` is large: then rounding is most of them."""
    draw = torch.Generator().manual_seed(seed)
    right = torch.randn(clients, rows, inputs, generator=draw) + offset * torch.randn(1, inputs, generator=draw)
    left = torch.randn(clients, rows, outputs, generator=draw)
    return Product(left - left.mean(1, keepdim=True), right, (clients, outputs, inputs))


@pytest.mark.parametrize("by", SUMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_client_moves_a_sum_by_more_than_the_bound(by: Sum, data: st.DataObject) -> None:
    size, bound = data.draw(st.sampled_from([1, 3, 17, 64, 700])), data.draw(st.sampled_from([1e-3, 0.5, 3.0]))
    spoiled = data.draw(st.lists(st.sampled_from(SPOILED), min_size=4, max_size=4))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    leaves = {"w": torch.randn(4, size, generator=draw), "psi": torch.randn(4, generator=draw)}
    leaves["w"][:, size // 2] *= torch.tensor(spoiled)
    given = uploads_of(leaves, level=[0, 1, 0, 1])
    for client in range(4):
        totals = by(alone(given, client), bound, 2).totals
        assert norm(tree.each(lambda leaf, k=client: leaf[k % 2], totals)) <= bound
        assert norm(tree.each(lambda leaf, k=client: leaf[1 - k % 2], totals)) == 0


@pytest.mark.parametrize("by", SUMS)
@settings(max_examples=8, deadline=None)
@given(size=st.sampled_from([1, 511, 1023, 1024, 5000, 700_001]), number=st.floats(1e-3, 1.0))
def test_it_holds_however_many_numbers_an_upload_has(by: Sum, size: int, number: float) -> None:
    """Equal numbers are the worst case: every sum of their squares is rounded the same way."""
    total = by(uploads_of({"a": torch.full((1, size), number)}), 1e-4, 1).totals["a"]
    assert 1e-4 * (1 - 3e-5) <= float(total.double().norm()) <= 1e-4


@needs_a_compiler
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_c_gives_the_numbers_of_torch(data: st.DataObject) -> None:
    clients, levels = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    size, seed = data.draw(st.integers(1, 2100)), data.draw(st.integers(0, 10**6))
    draw = torch.Generator().manual_seed(seed)
    leaves: dict[str, Any] = {"w": torch.randn(clients, size, generator=draw) * 1e-2}
    leaves["w"][0, 0] *= data.draw(st.sampled_from(SPOILED))
    leaves["v"] = products(clients, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 11)), 16 * (1 + seed % 6))
    level = torch.randint(levels, (clients,), generator=draw).tolist()
    real = (torch.rand(clients, generator=draw) < 0.8).tolist()
    given = uploads_of(leaves, level, real)
    mine, expected = (by(given, BOUND, levels) for by in (compiled_sum, reference_sum))
    for name, total in expected.totals.items():
        torch.testing.assert_close(mine.totals[name], total, rtol=1e-5, atol=1e-6)
    for a, b in zip(mine[1:], expected[1:], strict=True):
        torch.testing.assert_close(a[given.real], b[given.real], rtol=1e-4, atol=1e-7)


@needs_a_compiler
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 31), st.integers(1, 9), st.integers(1, 13), st.floats(1e-3, 1e6))
def test_the_numbers_of_a_product_that_are_measured_are_those_that_are_summed(
    rows: int, vectors: int, outputs: int, offset: float
) -> None:
    """Also where an upload is the small difference of large numbers, and rounding is most of it."""
    product = products(2, rows, outputs, 16 * vectors, offset=offset)
    given = uploads_of({"w": product})
    for client in range(2):
        found = compiled_sum(alone(given, client), BOUND, 1)
        total = float(found.totals["w"].double().norm())
        assert total <= BOUND
        assert total == pytest.approx(math.sqrt(float(found.power[client])), rel=1e-6)
        assert bool(found.inside[client]) or rows == 1 or total > BOUND * (1 - 3e-5)


@needs_a_compiler
@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 5, 6, 10, 13])
@pytest.mark.parametrize("inputs", [16, 32, 64, 80, 144])
def test_every_tile_of_a_product_is_measured_and_summed(outputs: int, inputs: int) -> None:
    given = uploads_of({"w": products(2, 7, outputs, inputs), "b": torch.ones(2, 3)})
    mine, expected = (by(given, BOUND, 1) for by in (compiled_sum, reference_sum))
    torch.testing.assert_close(mine.totals["w"], expected.totals["w"], rtol=1e-5, atol=1e-6)
    for client in range(2):
        assert BOUND * (1 - 3e-5) <= norm(compiled_sum(alone(given, client), BOUND, 1).totals) <= BOUND


@needs_a_compiler
def test_single_precision_is_summed_in_c_and_all_else_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(boundary, "compiled_sum", lambda *_: asked.append("C"))
    monkeypatch.setattr(boundary, "reference_sum", lambda *_: asked.append("torch"))
    single = torch.ones(2, 3)
    for leaf in (single, single.double(), torch.ones(2, 0)):
        clipped_upload_sum(uploads_of({"w": leaf}), BOUND, 1)
    monkeypatch.setattr(boundary, "library", lambda: None)
    clipped_upload_sum(uploads_of({"w": single}), BOUND, 1)
    assert asked == ["C", "torch", "torch", "torch"]


@needs_a_compiler
def test_what_does_not_fit_together_is_refused_before_memory_is_touched() -> None:
    good = uploads_of({"w": torch.ones(3, 4)})
    for bad in (
        good._replace(level=torch.tensor([0, 1, 2])),
        good._replace(level=torch.tensor([0, -1, 0])),
        good._replace(real=torch.ones(2, dtype=torch.bool)),
        good._replace(leaves={"w": torch.ones(2, 4)}),
        good._replace(leaves={"w": Product(torch.ones(3, 5, 2), torch.ones(3, 4, 16), (3, 2, 16))}),
        good._replace(leaves={"w": Product(torch.ones(3, 4, 2), torch.ones(3, 4, 17), (3, 2, 17))}),
    ):
        with pytest.raises(TacitError, match="do not fit together"):
            compiled_sum(bad, BOUND, 2)


@pytest.mark.parametrize("by", SUMS)
@pytest.mark.parametrize("bound", [0.0, 1e-12, math.nan])
def test_a_bound_that_squares_cannot_measure_lets_nothing_pass(by: Sum, bound: float) -> None:
    found = by(uploads_of({"w": torch.full((2, 3), 1e-25)}), bound, 1)
    assert not found.totals["w"].any()
    assert not found.inside.any()


RELEASES: dict[str, Release] = {
    "open": OpenRelease(),
    "central": GroupedRelease(Fixed(BOUND), (1.0,), (3.0,), Weighted((1.0,))),
    "grouped": GroupedRelease(Fixed(BOUND), (1.0, 0.0), (3.0, 3.0), Weighted((0.5, 0.5))),
    "local": LocalRelease(Fixed(BOUND), (1.0, 2.0), 3.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("release", RELEASES.values(), ids=list(RELEASES))
def test_the_sum_is_that_of_the_messages_that_clients_would_send(release: Release, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(0)
    leaves = {f"model/{name}": torch.from_numpy(draw.normal(size=(5, *shape))).to(dtype) for name, shape in SHAPES}
    leaves["model/a"][3, 0] = math.nan
    leaves = tree.each(lambda leaf: leaf * torch.tensor([1e-3, 1, 1, 1, 1], dtype=dtype).view(-1, *one(leaf)), leaves)
    levels = len(getattr(release, "multipliers", (0,)))
    given = uploads_of(leaves, [0, levels - 1, 0, 0, levels - 1], [True, True, True, True, False])
    total = encoded_sum(release, release.start(), given, levels, Seeded)
    apart = [tree.split(tree.each(lambda leaf, k=k: leaf[k], leaves)) for k in range(4)]
    messages = [
        release.encode(release.start(), upload, given.level[k], Seeded(given.key[k])) for k, upload in enumerate(apart)
    ]
    for j in range(levels):
        mine = [message for k, message in enumerate(messages) if given.level[k] == j]
        for name, leaf in total.body.items():
            torch.testing.assert_close(leaf[j], sum(m.body[name] for m in mine) + torch.zeros_like(leaf[j]))
        assert float(total.bit[j]) == pytest.approx(sum(float(m.bit) for m in mine), abs=1e-5)
        assert float(total.power[j]) == pytest.approx(sum(float(m.power) for m in mine), rel=1e-4, abs=1e-9)
        assert int(total.members[j]) == len(mine)


SHAPES = (("a", (7, 3)), ("b", ()))


def one(leaf: Tensor) -> list[int]:
    return [1] * (leaf.dim() - 1)


def test_messages_that_are_summed_elsewhere_keep_their_rows() -> None:
    given = uploads_of({"model/w": torch.ones(3, 4)})
    messages = encode_all(OpenRelease(), {}, given, Seeded)
    assert sum_messages(messages, given, 1, bodies=False).body["model/w"].shape == (3, 4)
    assert sum_messages(messages, given, 1).body["model/w"].shape == (1, 4)


def test_an_upload_without_a_leaf_is_summed_like_any_other() -> None:
    given = Uploads({}, torch.tensor([0, 0]), torch.tensor([True, False]), torch.zeros(2, 2, dtype=torch.int64))
    for release in RELEASES.values():
        assert encoded_sum(release, release.start(), given, 2, Seeded).members.tolist() == [1, 0]


def test_a_planted_factor_of_a_thousandth_is_seen() -> None:
    """The test above is no tautology: with a slack of 1e-3 too little it fails."""
    loose = reference_sum(uploads_of({"w": torch.ones(1, 50)}), BOUND * 1.001, 1)
    assert norm({"w": loose.totals["w"]}) > BOUND


def test_the_shared_part_of_a_message_is_what_was_handed_over() -> None:
    upload = Shared({"w": torch.ones(2, 3) * 1e-3}, {"psi": torch.ones(2) * 1e-3})
    given = uploads_of(tree.join(upload))
    assert encode_all(OpenRelease(), {}, given, Seeded).body.keys() == {"model/w", "extra/psi"}
