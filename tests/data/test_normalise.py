"""Normalisation by what is public alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data.loaders import digits_pool, load
from tacit.data.normalise import find_projection, normalised, set_aside, statistics
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


def test_a_projection_has_the_principal_components_of_public_rows_alone() -> None:
    pool = digits_pool()
    public, rest = set_aside(pool, 300, seed=3)
    short = normalised(pool, {"public_rows": 300, "project": 5}, 3)
    rows = public.flatten(1)
    values, vectors = torch.linalg.eigh((rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows))
    expected = (rest.x.flatten(1) - rows.mean(0)) @ vectors[:, -5:].flip(1) / values[-5:].sum().sqrt()
    assert torch.allclose(short.x.abs(), expected.abs(), atol=1e-3)
    whole = normalised(pool, {"public_rows": 300, "project": 5, "whiten": 1.0, "scale": 1.0}, 3)
    spread = whole.x.std(0)
    assert float(spread.max() / spread.min()) < 1.3


def test_without_public_rows_a_projection_is_random_and_looks_at_no_data() -> None:
    how = {"project": 16}
    ours, other = (normalised(digits_pool(), how, seed) for seed in (0, 1))
    assert ours.x.shape == (len(digits_pool().y), 16)
    assert not torch.allclose(ours.x, other.x)
    doubled = find_projection(64, None, how, 0)(2 * digits_pool().x)
    assert torch.allclose(doubled, 2 * ours.x, atol=1e-4)
    lengths = [each.square().sum(1).mean().sqrt() for each in (ours.x, digits_pool().x.flatten(1))]
    assert 0.5 < float(lengths[0] / lengths[1]) < 2


def test_rows_that_clients_hold_are_not_taken_for_public(tmp_path: Path) -> None:
    pool, path = digits_pool(), tmp_path / "public.npz"
    noise = np.random.default_rng(0).normal(size=(40, 8, 8)).astype("f4")
    np.savez(path, x=noise)
    assert normalised(pool, {"public": str(path), "project": 3}, 0).x.shape[1:] == (3,)
    np.savez(path, x=np.concatenate([noise, pool.x[7:9].numpy()]))
    with pytest.raises(TacitError, match=r"has 2 rows that clients of 'digits' hold"):
        normalised(pool, {"public": str(path), "project": 3}, 0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"project": 65}, "64 components are all there are"),
        ({"project": 0}, "number of components"),
        ({"project": 20, "public_rows": 10}, "9 components"),
        ({"project": 3, "whiten": 0.5}, "give project and public_rows"),
        ({"project": 3, "public": "nowhere.npz"}, "no file of public rows"),
    ],
)
def test_projections_that_cannot_be_are_refused(how: dict[str, float], told: str) -> None:
    with pytest.raises(TacitError, match=told):
        normalised(digits_pool(), how, 0)
