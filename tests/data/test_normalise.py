"""Normalisation by what is public alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data.loaders import digits_pool, load
from tacit.data.normalise import normalised, set_aside, statistics
from tacit.errors import TacitError


def test_constants_shift_and_scale_training_and_test_rows_alike() -> None:
    plain, scaled = load("digits", seed=1), load("digits", seed=1, normalise={"shift": 0.5, "scale": 2.0})
    assert torch.allclose(scaled.x, (plain.x - 0.5) / 2)
    assert torch.allclose(scaled.test_x, (plain.test_x - 0.5) / 2)
    assert scaled.common_x is not None
    assert plain.common_x is not None
    assert torch.allclose(scaled.common_x, (plain.common_x - 0.5) / 2)


def test_public_rows_belong_to_nobody_and_only_they_are_looked_at() -> None:
    pool = digits_pool()
    public, rest = set_aside(pool, 100, seed=3)
    assert len(public) + len(rest.y) == len(pool.y)
    together = torch.cat([public, rest.x]).sum(0)
    assert torch.allclose(together, pool.x.sum(0), atol=1e-2)
    mean, std = statistics(public)
    assert torch.allclose(normalised(pool, {"public_rows": 100}, 3).x, (rest.x - mean) / std)


def test_statistics_come_from_a_file(tmp_path: Path) -> None:
    pool, path = digits_pool(), tmp_path / "public.npz"
    mean, std = pool.x.mean(0).numpy(), np.full((8, 8), 0.5, np.float32)
    np.savez(path, mean=mean, std=std)
    found = normalised(pool, {"statistics": str(path)}, 0)
    assert torch.allclose(found.x, (pool.x - torch.from_numpy(mean)) / 0.5)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"scale": 0.0}, "scale above 0"),
        ({"own_rows": 3}, "unknown way to normalise"),
        ({"public_rows": 10**6}, "leave some to the clients"),
        ({"public_rows": 5, "statistics": "x"}, "one of the two"),
        ({"statistics": "nowhere.npz"}, "no file of statistics"),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, float], told: str) -> None:
    with pytest.raises(TacitError, match=told):
        normalised(digits_pool(), how, 0)


def test_features_come_from_a_file_with_their_clients(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.normal(size=(60, 5)).astype("f4"), y=np.arange(60) % 3, client=np.arange(60) // 20)
    federation = load("features", path=str(path))
    assert federation.ids == ("0", "1", "2")
    assert (federation.classes, federation.input_shape) == (3, (5,))
    with pytest.raises(TacitError, match="no file of features"):
        load("features", path=str(tmp_path / "none.npz"))
