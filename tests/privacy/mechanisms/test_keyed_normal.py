"""The generator of seeded noise: its definition, that draws depend on keys alone, and its statistics."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import vmap

from tacit.errors import TacitError
from tacit.privacy.mechanisms import keyed_normal
from tacit.privacy.mechanisms.noise import Seeded

KEYS = torch.tensor([[1, 2], [-3, 4], [1, 3], [2, 2]])
N = 200_000


def words(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "cipher"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_cipher_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], cipher: tuple[int, ...]
) -> None:
    assert keyed_normal.philox(words(*counter), words(*key)).tolist() == list(cipher)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_what_is_compiled_draws_what_the_reference_draws(size: int) -> None:
    if keyed_normal.library() is None:
        pytest.skip("no C compiler")
    got, want = keyed_normal.draw(KEYS, 7, size), keyed_normal.reference(KEYS.numpy(), 7, size)
    np.testing.assert_allclose(got.numpy(), want, atol=3e-6)


def test_a_number_depends_on_its_key_call_and_place_alone() -> None:
    together = keyed_normal.draw(KEYS, 0, 1000)
    for row, key in zip(together, KEYS, strict=True):
        assert torch.equal(keyed_normal.draw(key.unsqueeze(0), 0, 130).squeeze(0), row[:130])


def test_fused_noise_is_the_drawn_noise() -> None:
    values, std, by = torch.randn(4, 130), torch.tensor([0.0, 1.0, 2.0, 0.5]), torch.tensor([1.0, 2.0, 64.0, 3.0])
    want = (values + std.unsqueeze(1) * keyed_normal.draw(KEYS, 3, 130)) / by.unsqueeze(1)
    torch.testing.assert_close(keyed_normal.add(values, KEYS, 3, std, by), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_together_draw_what_each_draws_alone(dtype: torch.dtype) -> None:
    values, std, by = torch.randn(4, 5, 7, dtype=dtype), torch.rand(4), torch.tensor(64.0)

    def one(key: torch.Tensor, leaf: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return Seeded(key).noisy(leaf, z, by)

    alone = [one(key, leaf, z) for key, leaf, z in zip(KEYS, values, std, strict=True)]
    torch.testing.assert_close(vmap(one)(KEYS, values, std), torch.stack(alone), rtol=0, atol=0)


def test_two_leaves_of_one_key_have_numbers_of_their_own() -> None:
    noise, zero, one = Seeded(KEYS[0]), torch.zeros(1000), torch.tensor(1.0)
    first, second = noise.noisy(zero, one, one), noise.noisy(zero, one, one)
    assert abs(float((first * second).mean())) < 0.15


def test_numbers_are_standard_normal() -> None:
    drawn = keyed_normal.draw(KEYS, 1, N).numpy()
    for row in drawn:
        assert stats.kstest(row, "norm").pvalue > 1e-4
        assert abs(stats.skew(row)) < 5 * (6 / N) ** 0.5
        assert abs(stats.kurtosis(row)) < 5 * (24 / N) ** 0.5
    for limit, tolerance in ((2, 0.02), (3, 0.1), (4, 0.5)):
        assert (abs(drawn) > limit).mean() == pytest.approx(2 * stats.norm.sf(limit), rel=tolerance)


def test_keys_calls_and_neighbouring_places_are_uncorrelated() -> None:
    streams = torch.cat([keyed_normal.draw(KEYS, call, N) for call in (0, 1, 2)]).double()
    limit = 5 / N**0.5
    assert float((torch.corrcoef(streams) - torch.eye(len(streams))).abs().max()) < limit
    for gap in (1, 2, 4, 16, 32, 64):  # numbers of one block stand 16 and 32 places apart
        assert float((streams[:, gap:] * streams[:, :-gap]).mean(1).abs().max()) < limit
        squares = streams.square() - 1
        assert float((squares[:, gap:] * squares[:, :-gap]).mean(1).abs().max()) < 2 * limit


def test_more_numbers_than_a_key_has_are_refused() -> None:
    with pytest.raises(TacitError, match="more than a key's generator has"):
        keyed_normal.draw(KEYS, 1 << 32, 1)
