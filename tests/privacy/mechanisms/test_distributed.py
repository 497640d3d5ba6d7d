"""The distributed release: rotation, rounding, noise shares, the sum modulo 2^b, and what comes back of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from torch import Tensor
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Shared
from tacit.errors import TacitError
from tacit.privacy.mechanisms.distributed import BODY, DistributedRelease
from tacit.privacy.mechanisms.integer_coding import (
    WRAP,
    Coding,
    padded,
    rotate,
    rotate_back,
    solve,
    transform_,
    unwrap,
    wrapped,
)
from tacit.privacy.mechanisms.noise import Noise, Secure, Seeded
from tacit.privacy.mechanisms.release import Message, Totals

LEVEL = torch.tensor(0)
SIZE = 20


def keys(several: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 2**62, (several, 2), generator=torch.Generator().manual_seed(seed))


def release(z: float = 1.0, bits: int = 18, least: int = 4, most: int = 8, size: int = SIZE) -> DistributedRelease:
    like = {"model/w": torch.zeros(size - 1), "extra/c": torch.zeros(())}
    return DistributedRelease(solve(z**2, size, 1.0, bits, least, most), like, expected=5.0)


def upload(seed: int, norm: float = 1.0, size: int = SIZE) -> Shared:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    x = x * norm / x.norm()
    return Shared({"w": x[:-1]}, {"c": x[-1]})


def summed(of: DistributedRelease, uploads: list[Shared], seed: int = 0) -> Totals:
    messages = [
        of.encode(of.start(), each, LEVEL, Seeded(key)) for each, key in zip(uploads, keys(99, seed), strict=False)
    ]
    body = torch.stack([message.body[BODY] for message in messages]).sum(0, keepdim=True)
    return Totals({BODY: body}, torch.zeros(1), torch.zeros(1), torch.tensor([len(uploads)]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 9), st.integers(0, 5), st.integers(0, 2**30))
def test_the_rotation_keeps_lengths_and_is_undone(log_size: int, turn: int, seed: int) -> None:
    x = torch.randn(3, 1 << log_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = rotate(x, torch.tensor(turn))
    assert torch.allclose(y @ y.T, x @ x.T, atol=1e-9)
    assert torch.allclose(rotate_back(y, torch.tensor(turn)), x, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 64, 512])
def test_the_transform_is_that_of_the_hadamard_matrix(size: int) -> None:
    x = torch.randn(2, size, dtype=torch.float64)
    expected = x @ torch.from_numpy(hadamard(size)).double()
    assert torch.allclose(transform_(x.clone()), expected)
    assert padded(size) == size


def test_a_rotation_under_vmap_is_that_of_one_client_and_turns_differ() -> None:
    x, turn = torch.randn(4, 8), torch.tensor(3)
    together = vmap(rotate, (0, None))(x, turn)
    assert all(torch.equal(together[k], rotate(x[k], turn)) for k in range(4))
    assert not torch.allclose(rotate(x, torch.tensor(4)), together)


@pytest.mark.parametrize("source", [Seeded.of(0, "round"), Secure()], ids=["seeded", "secure"])
def test_rounding_is_unbiased_and_within_its_norm(source: Noise) -> None:
    coding = replace(solve(1.0, 16, 1.0, 12, 1, 1), scale=3.0)
    x = torch.linspace(-1, 1, 16, dtype=torch.float64)
    x = 3 * x / x.norm()
    rows = torch.stack([source.round(x, coding.limit) for _ in range(4000)])
    assert float((rows - x).abs().max()) < 1
    assert float(rows.double().square().sum(1).max()) <= coding.limit
    assert float((rows.double().mean(0) - x).abs().max()) < 5 * 0.5 / math.sqrt(4000)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.floats(0.01, 1e4), st.integers(0, 2**30))
def test_a_rounded_upload_never_exceeds_the_stated_sensitivities(size: int, scale: float, seed: int) -> None:
    coding = replace(solve(1.0, size, 1.0, 20, 1, 1), scale=scale)
    x = torch.randn(coding.padded, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    integers = Seeded.of(seed, "r").round(scale * x / x.norm(), coding.limit).double()
    assert float(integers.norm()) <= coding.l2 * (1 + 1e-12)
    assert float(integers.abs().sum()) <= coding.l1 * (1 + 1e-12)


def test_rounding_is_repeated_until_the_norm_bound_holds() -> None:
    x = torch.full((8,), 0.5, dtype=torch.float64)
    rows = torch.stack([Seeded.of(i, "again").round(x, 2.0) for i in range(200)])
    assert int(rows.square().sum(1).max()) == 2
    with pytest.raises(TacitError, match="not clipped"):
        Seeded.of(0, "never").round(torch.full((2,), 3.0, dtype=torch.float64), 1.0)


@pytest.mark.parametrize("source", [Seeded.of(0, "skellam"), Secure()], ids=["seeded", "secure"])
def test_skellam_noise_has_the_variance_and_the_fourth_moment_of_the_theory(source: Noise) -> None:
    v = 3.0
    x = source.skellam(200_000, v).double()
    assert float(x.mean()) == pytest.approx(0, abs=5 * math.sqrt(v / 2e5))
    assert float(x.var()) == pytest.approx(v, rel=0.02)
    assert float(x.pow(4).mean()) == pytest.approx(3 * v**2 + v, rel=0.06)


def test_clients_noise_is_independent_and_the_same_alone_and_together() -> None:
    of = release(size=4096)
    state, zero = of.start(), Shared({"w": torch.zeros(4095)}, {"c": torch.zeros(())})

    def encoded(key: Tensor) -> Message:
        return of.encode(state, zero, LEVEL, Seeded(key))

    several = keys(10)
    rows = vmap(encoded)(several).body[BODY]
    assert torch.equal(rows[7], encoded(several[7]).body[BODY])
    assert float(rows.double().var()) == pytest.approx(of.coding.share, rel=0.05)
    assert float((torch.corrcoef(rows.double()) - torch.eye(10)).abs().max()) < 0.08


def test_the_decoded_mean_is_unbiased_and_has_the_stated_noise() -> None:
    of, uploads = release(z=0.5), [upload(i) for i in range(6)]
    rows = []
    for trial in range(200):
        mean, _ = of.decode(of.start(), summed(of, uploads, trial), Seeded.of(trial, "server"))
        assert mean is not None
        rows.append(tree.flatten(tree.join(mean)).double())
    found = torch.stack(rows)
    truth = sum(tree.flatten(tree.join(each)).double() for each in uploads) / 5.0
    stated = of.coding.std / 5.0
    assert float((found.mean(0) - truth).abs().max()) < 5 * stated / math.sqrt(200)
    assert float((found - truth).square().mean().sqrt()) == pytest.approx(stated, rel=0.05)
    assert stated == pytest.approx(0.5 / 5, rel=1e-3), "at 18 bits rounding adds next to nothing"


@pytest.mark.parametrize("clients", [4, 6, 8])
def test_the_released_noise_does_not_depend_on_how_many_took_part(clients: int) -> None:
    of = release(size=4096)
    zero = [Shared({"w": torch.zeros(4095)}, {"c": torch.zeros(())})] * clients
    mean, _ = of.decode(of.start(), summed(of, zero), Seeded.of(0, "server"))
    assert mean is not None
    assert float(mean.model["w"].std()) == pytest.approx(of.coding.std / 5, rel=0.05)


def test_a_round_with_fewer_clients_than_noise_shares_is_discarded() -> None:
    of = release(least=4)
    mean, after = of.decode(of.start(), summed(of, [upload(0)] * 3), Seeded.of(0, "server"))
    assert mean is None
    assert int(after["turn"]) == 1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3000), st.integers(10, 30), st.integers(2, 50), st.floats(0.05, 20))
def test_the_chance_of_a_wrap_is_small_where_all_clients_agree(size: int, bits: int, most: int, z: float) -> None:
    coding = solve(z**2, size, 1.0, bits, 1, most)
    assert coding.wraps() <= 50 * WRAP
    assert coding.wraps(100 * most) >= coding.wraps()


def test_nothing_wraps_as_solved_and_too_few_bits_are_found_out() -> None:
    of = release(z=0.3, bits=14, most=6)
    total = summed(of, [upload(1)] * 6).body[BODY]
    assert wrapped(total, of.coding.bits) == 0
    assert wrapped(total, 9) > 0
    assert of.coding.wraps() < 1e-4
    assert replace(of.coding, bits=9).wraps() == 1.0


@given(st.integers(-(2**17), 2**17 - 1), st.integers(-5, 5))
def test_unwrapping_gives_back_every_number_of_the_range(number: int, laps: int) -> None:
    assert int(unwrap(torch.tensor(number + laps * 2**18) & (2**18 - 1), 18)) == number


def test_bad_uploads_become_zero_and_large_ones_are_clipped() -> None:
    of = release(z=1e-3, bits=24)
    for value, norm in ((math.nan, 0.0), (math.inf, 0.0), (1e30, 0.0), (1e6, 1.0)):
        bad = Shared({"w": torch.full((SIZE - 1,), value)}, {"c": torch.tensor(value)})
        integers = of.encode(of.start(), bad, LEVEL, Seeded.of(0, "x")).body[BODY].double()
        assert float(integers.norm()) / of.coding.scale == pytest.approx(norm, abs=0.05)


def test_more_bits_are_never_coarser_and_too_few_are_refused() -> None:
    codings = [solve(1.0, 1000, 1.0, bits, 80, 120) for bits in range(8, 21, 2)]
    stds = [coding.std for coding in codings]
    assert stds == sorted(stds, reverse=True)
    assert stds[-1] == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(TacitError, match="use at least"):
        solve(1.0, 1000, 1.0, 3, 80, 120)
    with pytest.raises(TacitError, match="bits must lie"):
        solve(1.0, 1000, 1.0, 50, 80, 120)


def test_the_scale_solves_the_papers_equation() -> None:
    coding: Coding = solve(2.0, 1000, 0.7, 16, 80, 120)
    m = math.sqrt(2 * math.log(2 * 1024 / WRAP))
    inside = (0.7 * 120) ** 2 / 1024 + 120 / (4 * coding.scale**2) + 2.0
    assert 2 * m * coding.scale * math.sqrt(inside) == pytest.approx(2.0**16, rel=1e-12)
    assert coding.share * 120 == pytest.approx(coding.scale**2 * 2.0)
    assert np.isclose(coding.l1, min(32 * coding.l2, coding.l2**2))
