"""A run on disk: one folder that holds what was asked, what came of it, and what it cost.

    config.toml       the experiment as it was run, written before anything else
    facts.json        what the plan promised to whom
    environment.json  versions and platform; nothing that names a person, a machine or a path
    metrics.csv       round, level, metric, value
    clients.csv       accuracy of every client at the end; simulation only
    outcome.json      how many rounds were done, why no more, and the head of the ledger
    ledger.sqlite     what was spent, and digests of config.toml, facts.json and digest.key
    checkpoint.bin    where to go on
    digest.key        secret: with it, the configuration's digest of the data can be checked; not to be passed on

A folder is never overwritten: another run gets another folder, or resumes this one with the same configuration.

What makes a run the run it is (`describe`, `identity`) is a digest of its data, start, method, privacy and training. It
is keyed by a secret of the run's folder (`digest.key`): a folder's configuration, its page and its ledger show
the digest, and without the key nobody can test with it whether a client's rows are these or those.
"""

import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn

from tacit.core.contract import Method
from tacit.core.files import storage, write_atomically
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments import toml
from tacit.experiments.config import decisive, digest, first_difference
from tacit.models.functional import Objective
from tacit.models.losses import contents
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.facts import Facts
from tacit.report.integrity import digest as file_digest
from tacit.report.run_folder import Folder, existing
from tacit.rounds.assemble import Privacy, Training
from tacit.rounds.loop import Schedule
from tacit.simulation.fingerprint import data_parts, plain
from tacit.simulation.fingerprint import digest as keyed_digest

_KEY_BYTES = 32
_PACKAGES = ("torch", "numpy", "dp-accounting", "pandas", "scikit-learn", "scipy")


def secret(path: Path | None, resume: bool = False) -> bytes:
    """The key of a folder's digests; a new one for a folder that is not there yet, and for none at all."""
    folder = None if path is None else Folder(path)
    if folder is not None and folder.key.is_file():
        with storage(folder.key):
            return folder.key.read_bytes()
    if folder is not None and resume and folder.config.is_file():
        raise TacitError(
            f"{folder.path} cannot be resumed: it holds no digest.key, by which it is known whether the data are the "
            "same; restore it from a backup, or start a new run"
        )
    return secrets.token_bytes(_KEY_BYTES)


def create(path: Path, content: Mapping[str, Any], key: bytes | None = None) -> Folder:
    """A new folder with its configuration in it. What is there already is never touched."""
    folder = Folder(path)
    with storage(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise _occupied(folder, content)
    _write_secret(folder.key, secret(None) if key is None else key)
    write_atomically(folder.config, toml.dumps(content).encode())
    write_atomically(folder.environment, (json.dumps(environment(), indent=2) + "\n").encode())
    return folder


def keep_facts(folder: Folder, ledger: Ledger, facts: Facts) -> None:
    """Writes what was promised; the ledger has a digest of it first, so that nobody can edit it unnoticed."""
    text, others = facts.to_json().encode(), (folder.config, folder.key)
    with storage(folder.path):
        files = {place.name: file_digest(place.read_bytes()) for place in others}
    ledger.bind(files | {folder.facts.name: file_digest(text)})
    write_atomically(folder.facts, text)


def _write_secret(path: Path, content: bytes) -> None:
    """For its owner alone, from the first moment on."""
    with storage(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _occupied(folder: Folder, content: Mapping[str, Any]) -> TacitError:
    if not folder.config.is_file():
        return TacitError(f"{folder.path} is not empty and holds no run: choose a new folder")
    if first_difference(folder.content(), content) is None:
        return TacitError(f"{folder.path} already holds this run: resume it, or choose a new folder")
    return TacitError(f"{folder.path} holds another run ({_differs(folder, content)}): choose a new folder")


def reopen(path: Path, content: Mapping[str, Any]) -> Folder:
    """The folder of a run of the same configuration; any other configuration is an error that names the difference."""
    folder = existing(path)
    if first_difference(folder.content(), content) is not None:
        raise TacitError(
            f"{folder.path} cannot be resumed with this configuration: {_differs(folder, content)}; "
            "start a new run, or give the configuration it was started with"
        )
    return folder


def _differs(folder: Folder, content: Mapping[str, Any]) -> str:
    theirs = folder.content()
    prints = f"fingerprint {digest(decisive(theirs))} there, {digest(decisive(content))} here"
    return f"{prints}; {first_difference(theirs, content)}"


def next_free(parent: Path, name: str) -> Path:
    """`parent/name`, or the first of `name-2`, `name-3`, ... that does not exist."""
    return next(path for path in _numbered(parent, name) if not path.exists())


def latest(parent: Path, name: str, content: Mapping[str, Any]) -> Path:
    """The last folder of that name with this configuration; without one, the last of that name."""
    runs = [path for path in _taken(parent, name) if Folder(path).config.is_file()]
    if not runs:
        raise TacitError(f"there is no run {parent / name} to resume: start it without --resume")
    same = [path for path in runs if first_difference(Folder(path).content(), content) is None]
    return (same or runs)[-1]


def _numbered(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    number = 2
    while True:
        yield parent / f"{name}-{number}"
        number += 1


def _taken(parent: Path, name: str) -> Iterator[Path]:
    for path in _numbered(parent, name):
        if not path.exists():
            return
        yield path


@contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """Holds the folder for this process: two runs that write into one folder would ruin both."""
    try:
        import fcntl
    except ImportError:  # not on this system: nothing to hold
        yield
        return
    handle = os.open(folder.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TacitError(f"another process is running in {folder.path}: wait until it ends") from error
        yield
    finally:
        os.close(handle)


def environment() -> dict[str, Any]:
    """What a result may depend on beside the configuration."""
    import torch

    versions = {name: _version(name) for name in ("tacit-fl", *_PACKAGES)}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_BYTES = 8


def describe(
    federation: FederatedDataset,
    model: nn.Module,
    method: Method,
    privacy: Privacy,
    training: Training,
    schedule: Schedule,
    *,
    key: bytes,
    objective: Objective = Objective(),
) -> dict[str, Any]:
    """A run that was put together in Python, as the tables of a configuration. Equal for equal runs and keys only."""
    asked = {"loss": objective.loss, "metrics": objective.metrics}
    task = {name: plain(_contents(value)) for name, value in asked.items() if value}
    content = {
        "name": federation.name,
        "data": {
            "name": federation.name,
            "clients": federation.clients,
            "digest": keyed_digest(data_parts(federation), key, _BYTES),
        },
        "model": {"class": type(model).__name__, "digest": model_digest(model)},
        "method": {"value": plain(method)},
        "privacy": {"value": _privacy(privacy)},
        "training": {"value": plain(training)},
        "evaluate": {"every": schedule.evaluate_every, "sample": schedule.sample or "all"},
    }
    return content | ({"task": task} if task else {})


def _contents(value: Any) -> Any:
    return tuple(map(contents, value)) if isinstance(value, tuple) else contents(value)


def identity(
    federation: FederatedDataset,
    model: nn.Module,
    method: Method,
    privacy: Privacy,
    training: Training,
    *,
    key: bytes,
    objective: Objective = Objective(),
) -> str:
    """Changes with anything that changes the trained models; not with how the machine is used (`Performance`)."""
    parts = [plain(method), _privacy(privacy), plain(training)]
    parts += [] if objective.loss is None else [plain(contents(objective.loss))]
    return keyed_digest([*data_parts(federation), model_digest(model), *parts], key, _BYTES)


def _privacy(privacy: Privacy) -> str:
    evaluation = "" if privacy.evaluation is None else plain(privacy.evaluation)
    return plain(privacy) + evaluation + " exactly" * (privacy.noise == "exact")


def model_digest(model: nn.Module) -> str:
    """Of the public start."""
    named = model.state_dict()
    return keyed_digest([type(model).__name__, *named, *named.values()], size=_BYTES)
