"""Sources give federations that keep what belongs together apart from the test; unknown names get a suggestion."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.data.loaders import csv, digits, digits_pool, hub, load, npz, npz_pool
from tacit.data.partition import Pool, divide, hold_out_common
from tacit.errors import TacitError

real = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA names no folder of real data")


def test_digits_are_two_hundred_clients_of_two_classes_with_a_common_test_set() -> None:
    federation = digits()
    assert federation.clients == 200
    assert federation.input_shape == (8, 8)
    assert federation.x.max() == 1
    assert (federation.class_counts() > 0).sum(1).max() <= 2
    assert federation.common_y is not None
    assert 350 <= len(federation.common_y) <= 370
    assert torch.bincount(federation.common_y).min() >= 33
    assert len(federation.x) + len(federation.test_x) + len(federation.common_y) == 1797


@pytest.mark.parametrize("partition", ["iid", "one-class", "classes", "dirichlet"])
def test_every_partition_of_digits_uses_every_row_once(partition: str) -> None:
    federation = load("digits", clients=30, partition=partition, seed=1)
    assert federation.common_x is not None
    together = torch.cat([federation.x, federation.test_x, federation.common_x]).flatten(1)
    expected = digits_pool().x.flatten(1)
    assert torch.equal(together.sum(0), expected.sum(0))
    assert len(together) == len(expected)


def test_matched_test_rows_of_digits_come_from_the_common_test_set() -> None:
    federation = digits(clients=20, test="matched")
    assert federation.common_y is not None
    assert len(federation.test_y) == len(federation.common_y)
    assert federation.sizes.sum() == 1797 - len(federation.common_y)


def test_without_a_common_fraction_all_own_test_rows_are_the_common_test_set() -> None:
    federation = digits(clients=20, common_fraction=0.0)
    assert federation.common_y is federation.test_y
    assert len(federation.x) + len(federation.test_x) == 1797


def test_unknown_names_get_the_nearest_or_the_list() -> None:
    with pytest.raises(TacitError, match="unknown data source 'digit': did you mean 'digits'"):
        load("digit")
    with pytest.raises(TacitError, match="use one of digits, csv"):
        load("imagenet-22k")
    with pytest.raises(TacitError, match="unknown partition of digits 'dirichlett': did you mean 'dirichlet'"):
        digits(partition="dirichlett")
    misspelt: Any = {"client_count": 3}
    with pytest.raises(TacitError, match="unknown option of digits 'client_count'"):
        load("digits", **misspelt)
    with pytest.raises(TacitError, match="'csv' needs a path"):
        load("csv")


def test_a_missing_data_folder_or_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    with pytest.raises(TacitError, match="set TACIT_DATA"):
        npz("mnist")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with pytest.raises(TacitError, match=r"no mnist/mnist\.npz in it"):
        load("mnist")
    with pytest.raises(TacitError, match="did you mean 'mnist'"):
        npz("mnst")


def windows() -> Pool:
    """40 recordings of 5 overlapping windows each; a window's only feature is its recording."""
    units = np.repeat(np.arange(40), 5)
    return Pool("windows", torch.from_numpy(units)[:, None].float(), torch.from_numpy(units % 4), 4, units=units)


@pytest.mark.parametrize("partition", ["iid", "one-class", "classes", "dirichlet"])
def test_overlapping_rows_are_never_divided_between_clients_or_from_their_test(partition: str) -> None:
    federation = divide(windows(), clients=5, partition=partition, test_fraction=0.3)
    assert federation.common_x is not None
    owners = [set(federation.x[federation.rows(k)].flatten().tolist()) for k in range(5)]
    owners += [set(federation.test_x[federation.test_rows(k)].flatten().tolist()) for k in range(5)]
    owners.append(set(federation.common_x.flatten().tolist()))
    assert sum(map(len, owners)) == len(set().union(*owners)) == 40


def test_the_common_test_set_takes_the_same_part_of_every_class() -> None:
    pool = hold_out_common(windows(), 0.2, 0)
    assert pool.test is not None
    assert torch.bincount(pool.test[1]).tolist() == [10] * 4
    with pytest.raises(TacitError, match="common_fraction"):
        hold_out_common(windows(), 1.0, 0)


def write_table(path: Path) -> str:
    rows = pd.DataFrame({"client": np.repeat(list("abcdef"), 4), "f": np.arange(24.0), "label": np.arange(24) % 3})
    rows.to_csv(path, index=False)
    return str(path)


def test_a_table_is_divided_by_its_clients_or_as_asked(tmp_path: Path) -> None:
    path = write_table(tmp_path / "table.csv")
    assert csv(path).ids == tuple("abcdef")
    assert load("csv", path=path).common_x is not None
    assert load("csv", path=path, partition="iid", clients=3).clients == 3


def test_natural_clients_can_be_grouped_and_thinned_out(tmp_path: Path) -> None:
    path = write_table(tmp_path / "table.csv")
    federation = csv(path, group=2, clients=2, test_fraction=0.0)
    assert federation.sizes.tolist() == [8, 8]
    joined = [set(who.split("+")) for who in federation.ids]
    assert not joined[0] & joined[1]
    for client in range(2):
        values = set((federation.x[federation.rows(client), 0] // 4).int().tolist())
        assert values == {"abcdef".index(letter) for letter in joined[client]}
    with pytest.raises(TacitError, match="use at most 3"):
        csv(path, group=2, clients=4)
    with pytest.raises(TacitError, match="not of the same client ids"):
        csv(path, test="matched")


def write_hub_folder(folder: Path) -> str:
    """A folder in the hub's format: train and test splits of tiny grey images, with a writer each."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(3), "writer": datasets.Value("string")}
    )
    (folder / "data").mkdir(parents=True)
    for split, n in (("train", 12), ("test", 6)):
        images = [np.full((4, 4), 20 * row, np.uint8) for row in range(n)]
        columns = {
            "image": images,
            "label": [row % 2 for row in range(n)],
            "writer": [f"w{row % 3}" for row in range(n)],
        }
        datasets.Dataset.from_dict(columns, features=features).to_parquet(str(folder / "data" / f"{split}-0.parquet"))
    return str(folder)


def test_a_folder_in_the_hubs_format_is_read_offline_with_images_labels_and_clients(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    path, cache = write_hub_folder(tmp_path / "letters"), str(tmp_path / "cache")
    federation = hub(path, client="writer", cache=cache, test_fraction=0.0)
    assert federation.name == "letters"
    assert federation.ids == ("w0", "w1", "w2")
    assert federation.x.dtype == torch.uint8
    assert federation.input_shape == (4, 4)
    assert federation.x[:, 0, 0].tolist() == [20 * row for who in range(3) for row in range(who, 12, 3)]
    assert federation.classes == 3
    assert federation.common_y is not None
    assert federation.common_y.tolist() == [0, 1] * 3
    assert load("hub", path=path, cache=cache, clients=4, partition="iid").clients == 4
    with pytest.raises(TacitError, match="did you mean 'writer'"):
        hub(path, client="writers", cache=cache)
    with pytest.raises(TacitError, match=r"unknown split of .* 'training'"):
        hub(path, train_split="training", cache=cache)


def test_a_parquet_file_of_numbers_and_lists_is_read_offline(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    frame = pd.DataFrame({"a": np.arange(8.0), "b": [[row, 2.0] for row in range(8)], "label": np.arange(8) % 2})
    frame["text"] = "x"
    path, cache = str(tmp_path / "rows.parquet"), str(tmp_path / "cache")
    frame.to_parquet(path)
    federation = hub(path, clients=2, partition="iid", test_fraction=0.0, common_fraction=0.0, cache=cache)
    assert sorted(federation.x.tolist()) == [[row, row, 2] for row in range(8)]
    assert hub(path, columns=["b"], clients=2, partition="iid", cache=cache).input_shape == (2,)
    with pytest.raises(TacitError, match="'text' is not numeric"):
        hub(path, columns=["text"], clients=2, cache=cache)
    with pytest.raises(TacitError, match="cannot load"):
        hub(str(tmp_path / "absent.parquet"), cache=cache)


@real
def test_mnist_by_writer_is_a_federation_of_539_people() -> None:
    pool = npz_pool("mnist")
    federation = divide(pool, partition="writer")
    assert federation.clients == 539
    assert federation.input_shape == (28, 28)
    assert federation.common_y is not None
    assert len(federation.common_y) == 10_000
    grouped = divide(pool, partition="writer", group=3, clients=66)
    assert grouped.clients == 66
    with pytest.raises(TacitError, match="not of the same writer ids"):
        divide(pool, partition="writer", test="matched")
    digits_apart = divide(pool, partition="one-class", clients=2000, test="matched")
    assert len(digits_apart.x) == 60_000
    assert (digits_apart.class_counts() > 0).sum(1).max() == 1
    assert np.diff(digits_apart.test_offsets).min() >= 4


@real
def test_activity_windows_are_divided_by_subject_and_tested_on_whole_segments() -> None:
    pool = npz_pool("uci_har")
    assert pool.units is not None
    federation = divide(pool, test_fraction=0.25)
    assert federation.clients == 30
    segment = {row.tobytes(): unit for row, unit in zip(pool.x.numpy(), pool.units, strict=True)}
    for client in range(30):
        train = {segment[row.tobytes()] for row in federation.x[federation.rows(client)].numpy()}
        test = {segment[row.tobytes()] for row in federation.test_x[federation.test_rows(client)].numpy()}
        assert test
        assert not train & test
    assert 0.2 < len(federation.test_x) / len(pool.x) <= 0.25
    assert divide(pool, partition="dirichlet", clients=20).clients == 20


@real
def test_the_clip_features_come_with_the_papers_hundred_clients() -> None:
    federation = npz("clip_vitb32", partition="privatefl", test="matched")
    assert federation.sizes.tolist() == [500] * 100
    assert (federation.class_counts() > 0).sum(1).tolist() == [2] * 100
    assert np.diff(federation.test_offsets).tolist() == [100] * 100


@real
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("cifar10", (3, 32, 32), 10), ("chmnist", (3, 32, 32), 8), ("location30", (446,), 30)],
)
def test_the_other_files_are_read_with_channels_first(name: str, shape: tuple[int, ...], classes: int) -> None:
    federation = npz(name, clients=50)
    assert (federation.input_shape, federation.classes, federation.clients) == (shape, classes, 50)
    assert federation.common_x is not None


@real
def test_histology_tiles_have_ten_slides_as_natural_clients() -> None:
    assert npz("chmnist", partition="slide").clients == 10
