"""Where data comes from: scikit-learn's digits, local `.npz` files, the hub, a user's table. `load` is the way in.

Tables of a user's own: comma-separated files with a column of labels and, mostly, one of client ids.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from tacit.core.checked import checked
from tacit.core.registry import Registry
from tacit.data.dataset import FederatedDataset, count_classes, features, labels
from tacit.data.hub import hub_pool
from tacit.data.normalise import normalised
from tacit.data.partition import Ids, Options, Pool, divide
from tacit.data.tables import Targets, encode_table
from tacit.data.validate import unknown
from tacit.errors import TacitError

if TYPE_CHECKING:
    import pandas


def read_frame(path: Path) -> "pandas.DataFrame":
    import pandas

    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        return pandas.read_csv(path)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not a comma-separated table ({str(error).strip()}): check the file") from error


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of one length in an `.npz` file, by name; a file with pickles, or without one of them, is an error."""
    if not path.is_file():
        raise TacitError(f"there is no file {path}: check the path")
    try:
        with np.load(path) as file:
            found = {name: file[name] for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(f"{path} cannot be read ({error}): it needs the arrays {', '.join(names)}") from None
    lengths = [len(np.atleast_1d(array)) for array in found.values()]
    if len(set(lengths)) > 1:
        raise TacitError(f"{path} has arrays of {', '.join(map(str, lengths))} rows: give all as many")
    return found


FOLDER = "TACIT_DATA"
Arrays = Mapping[str, np.ndarray]


class LoadOptions(Options, total=False):
    """The arguments of `divide`, those of the source (see `csv_pool` and `hub_pool`), and `normalised`'s."""

    normalise: Annotated[Mapping[str, Any] | None, "a dict, for example {'shift': 0.5, 'scale': 0.25}"]
    path: str | Path
    label: str
    client: str | None
    targets: Targets | None
    columns: Sequence[str] | None
    config: str | None
    train_split: str
    test_split: str
    cache: str | None
    revision: str | None


def digits_pool() -> Pool:
    """1,797 grey images of 8x8 in [0, 1], ten classes; inside scikit-learn, so that nothing is fetched."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    return Pool("digits", features(bunch.images / 16, "digits"), labels(bunch.target, "digits"), 10, usual_clients=200)


def csv_pool(path: str, *, client: str | None = "client", label: str = "label", targets: Targets | None = None) -> Pool:
    """A table; without a column of clients (`client=None`) its rows are divided like any other pool.

    Columns of names and class names are encoded (see `tacit.from_pandas`); `targets="numbers"` is a regression.
    """
    table = encode_table(read_frame(Path(path)), client=client, label=label, where=str(path), targets=targets)
    x, y = features(table.x, path), labels(table.y, path)
    ids = {} if table.ids is None else {"client": Ids(table.ids)}
    classes = 1 if y.is_floating_point() else max(count_classes(y), len(table.encoding.classes))
    usual = "client" if ids else "classes"
    return Pool(Path(path).stem, x, y, classes, ids=ids, usual=usual, encoding=table.encoding)


def _images(x: np.ndarray) -> Tensor:
    """Bytes, channels first where there are channels."""
    return torch.from_numpy(np.ascontiguousarray(x if x.ndim == 3 else x.transpose(0, 3, 1, 2)))


def _split_images(name: str, file: Arrays) -> Pool:
    """Images that come with a test set; `writer` is a natural partition where the file knows the writers."""
    x, y = _images(file["x_train"]), labels(file["y_train"], name)
    test = (_images(file["x_test"]), labels(file["y_test"], name))
    ids = {"writer": Ids(file["writer_train"], file["writer_test"])} if "writer_train" in file else {}
    return Pool(name, x, y, 10, test, ids)


def _uci_har(name: str, file: Arrays) -> Pool:
    """Windows overlap by half, so that segments stay whole."""
    x, y = features(file["x"], name), labels(file["y"], name)
    return Pool(name, x, y, 6, ids={"subject": Ids(file["subject"])}, units=file["segment"], usual="subject")


def _chmnist(name: str, file: Arrays) -> Pool:
    return Pool(name, _images(file["x"]), labels(file["y"], name), 8, ids={"slide": Ids(file["slide"])})


def _location30(name: str, file: Arrays) -> Pool:
    bits = np.unpackbits(file["x_packed"], axis=1)[:, : int(file["n_features"])]
    return Pool(name, features(bits.astype(np.float32), name), labels(file["y"], name), 30)


def features_pool(path: str) -> Pool:
    """Features of images that `tacit encode` wrote, with labels, and clients where they are known."""
    try:
        with np.load(path) as file:
            x, y = features(file["x"], path), labels(file["y"], path)
            test = (features(file["x_test"], path), labels(file["y_test"], path)) if "x_test" in file else None
            ids = {"client": Ids(file["client"], file.get("client_test"))} if "client" in file else {}
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(f"{path} is no file of features ({error}): it needs x and y, see tacit encode") from None
    classes = count_classes(y, *(() if test is None else (test[1],)))
    return Pool(Path(path).stem, x, y, classes, test, ids, usual="client" if ids else "classes")


def _encoded(name: str, file: Arrays) -> Pool:
    """Features of images; the natural partition `privatefl` is that paper's 100 clients of two classes."""
    train, test = (features(file[f"q_{part}"] * file["scale"], name) for part in ("train", "test"))
    y, test_y = labels(file["y_train"], name), labels(file["y_test"], name)
    ids = {"privatefl": Ids(file["client2_train"], file["client2_test"])}
    return Pool(name, train, y, count_classes(y, test_y), (test, test_y), ids)


def _encoded_tissue(name: str, file: Arrays) -> Pool:
    x, y = features(file["q"] * file["scale"], name), labels(file["y"], name)
    return Pool(name, x, y, 8, ids={"slide": Ids(file["slide"])})


class DataFile(NamedTuple):
    path: str  # below the folder that TACIT_DATA names
    about: str
    read: Callable[[str, Arrays], Pool]


FILES: dict[str, DataFile] = {
    "mnist": DataFile("mnist/mnist.npz", "handwritten digits of 28x28, by writer too", _split_images),
    "fashion_mnist": DataFile("fashion_mnist/fashion_mnist.npz", "clothes of 28x28", _split_images),
    "cifar10": DataFile("cifar10/cifar10_subset.npz", "photographs of 32x32 in colour", _split_images),
    "uci_har": DataFile("uci_har/uci_har_561.npz", "activities by motion sensors, by subject", _uci_har),
    "chmnist": DataFile("chmnist/chmnist_32.npz", "tissue of 32x32 in colour, by slide", _chmnist),
    "location30": DataFile("location30/location30.npz", "places that people visited, 446 yes/no features", _location30),
    "clip_vitb32": DataFile("clip_vitb32/cifar10_clip.npz", "CIFAR-10 as features of a large model", _encoded),
    "cifar10_simclr": DataFile("features/cifar10_simclr.npz", "CIFAR-10 as features of SimCLR", _encoded),
    "cifar10_resnext": DataFile("features/cifar10_resnext.npz", "CIFAR-10 as features of ResNeXt", _encoded),
    "cifar100_clip": DataFile("features/cifar100_clip.npz", "CIFAR-100 as features of CLIP", _encoded),
    "cifar100_simclr": DataFile("features/cifar100_simclr.npz", "CIFAR-100 as features of SimCLR", _encoded),
    "chmnist_effnet": DataFile("features/chmnist_effnet.npz", "tissue as features of EfficientNet", _encoded_tissue),
}


def npz_pool(name: str) -> Pool:
    """A file under the folder that the environment variable TACIT_DATA names; files with pickles are refused."""
    if name not in FILES:
        raise unknown("data file", name, FILES)
    relative, _, read = FILES[name]
    folder = os.environ.get(FOLDER)
    if not folder:
        raise TacitError(f"'{name}' is read from a local folder: set {FOLDER} to the folder that holds {relative}")
    path = Path(folder) / relative
    if not path.is_file():
        raise TacitError(f"{FOLDER} is {folder}, and there is no {relative} in it: put the file there")
    with np.load(path) as file:
        return read(name, file)


SOURCES: Registry[Callable[..., Pool | FederatedDataset]] = Registry(
    "data source",
    "tacit.datasets",
    {
        "digits": digits_pool,
        "csv": csv_pool,
        "hub": hub_pool,
        "features": features_pool,
        **{name: partial(npz_pool, name) for name in FILES},
    },
)


@checked
def load(source: str, **options: Unpack[LoadOptions]) -> FederatedDataset:
    """A federation by the name of its source: the one way in for configurations and the command line.

    A source of one's own is named by its import path, "package.module:function": it gives rows that are divided among
    clients (a `Pool`), or a `FederatedDataset`, which is taken as it is. An option that neither `divide` nor the source
    knows is an error: a misspelt one never goes unnoticed.

    Args:
        source: "digits", "csv", "hub", a data set of `tacit data`, or an import path.
        options: how rows are dealt to clients (`clients`, `partition`, `classes_each`, `test_fraction`, `seed`, ...),
            `normalise`, and those of the source (`path`, `label`, ...).

    Returns:
        A checked `FederatedDataset`; the same for the same options.

    Raises:
        TacitError: an unknown source or option, a file that is not there, rows that are not finite.

    Example:
        >>> import tacit
        >>> data = tacit.load("digits", clients=20, classes_each=2)
        >>> data.clients, int((data.class_counts() > 0).sum(1).max())
        (20, 2)
    """
    read, known = SOURCES.find(source), Options.__annotations__
    normalise = options.get("normalise")
    accepted = inspect.signature(read).parameters
    own = {name: value for name, value in options.items() if name not in (*known, "normalise") or name in accepted}
    for name in own:
        if name not in accepted:
            raise unknown(f"option of {source}", name, [*accepted, *known])
    if "path" in accepted and "path" not in own:
        raise TacitError(f"the source '{source}' needs a path: give path=...")
    pool, shared = read(**own), {name: value for name, value in options.items() if name not in own}
    if isinstance(pool, FederatedDataset):
        _refuse_dividing(source, shared)
        return pool
    if not isinstance(pool, Pool):
        raise TacitError(
            f"the source '{source}' gives a {type(pool).__name__}: let it give a Pool or a FederatedDataset"
        )
    how: Any = {name: value for name, value in options.items() if name in known}
    return divide(normalised(pool, normalise, options.get("seed", 0)) if normalise else pool, **how)


def _refuse_dividing(source: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name != "seed":
            raise TacitError(f"{name} is {value!r}, and '{source}' has clients of its own: leave it out")


def digits(**options: Unpack[Options]) -> FederatedDataset:
    """scikit-learn's digits among 200 clients with two classes each, unless told otherwise (see `divide`)."""
    return load("digits", **options)


def npz(name: str, **options: Unpack[Options]) -> FederatedDataset:
    """A data set of `FILES`, read from the folder that TACIT_DATA names."""
    return divide(npz_pool(name), **options)


def hub(path: str, /, **options: Unpack[LoadOptions]) -> FederatedDataset:
    """A data set of the hub, a local folder in its format, or a `.parquet` file (see `hub_pool`)."""
    return load("hub", **{**options, "path": path})


def csv(path: str, /, **options: Unpack[LoadOptions]) -> FederatedDataset:
    """A table of one's own (see `csv_pool`)."""
    return load("csv", **{**options, "path": path})
