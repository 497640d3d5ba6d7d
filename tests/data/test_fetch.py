"""Open data sets are fetched, compared and written as loaders read them; elsewhere it says what to do."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.data import fetch as fetching
from tacit.data import loaders
from tacit.errors import TacitError


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small MNIST of 20 + 10 images, where its makers would have it."""
    draw, digests = np.random.default_rng(0), []
    place = tmp_path / "makers"
    place.mkdir()
    for name, shape in zip(fetching._PARTS, ((20, 28, 28), (20,), (10, 28, 28), (10,)), strict=True):
        values = draw.integers(0, 10, shape).astype(np.uint8)
        head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        content = gzip.compress(head + values.tobytes())
        (place / f"{name}-ubyte.gz").write_bytes(content)
        digests.append(hashlib.md5(content).hexdigest())
    monkeypatch.setitem(fetching.OPEN, "mnist", fetching.Download(place.as_uri(), tuple(digests)))
    return place


def test_what_was_fetched_is_what_the_loader_reads(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = CliRunner().invoke(app, ["data", "fetch", "mnist", "--to", str(tmp_path / "data")])
    assert told.exit_code == 0, told.output
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    pool = loaders.npz_pool("mnist")
    assert pool.x.shape == (20, 28, 28)
    with pytest.raises(TacitError, match="there already"):
        fetching.fetch("mnist")


def test_a_file_that_was_changed_is_not_read(published: Path, tmp_path: Path) -> None:
    (published / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(TacitError, match="not what its makers published"):
        fetching.fetch("mnist", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_without_a_network_or_a_way_it_says_what_to_do(published: Path, tmp_path: Path) -> None:
    for file in published.iterdir():
        file.unlink()
    with pytest.raises(TacitError, match=r"could not be had .* copy its file to"):
        fetching.fetch("mnist", tmp_path)
    for name in set(loaders.FILES) - set(fetching.OPEN):
        with pytest.raises(TacitError, match=r"is not fetched by machine: take .* write "):
            fetching.fetch(name, tmp_path)
    with pytest.raises(TacitError, match="choose one of"):
        fetching.fetch("nist", tmp_path)


def test_every_data_set_has_a_way() -> None:
    assert set(loaders.FILES) == set(fetching.OPEN) | set(fetching.BY_HAND)
