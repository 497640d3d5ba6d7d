"""Where the files of a run lie, whether they are there, and what they say of the run whose ledger lies beside them.

The last is needed to read charges of earlier versions rightly.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.files import storage
from tacit.errors import StorageError, TacitError
from tacit.privacy.ledger.statement import Line, shown


@dataclass(frozen=True)
class Folder:
    """The places of one run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def facts(self) -> Path:
        return self.path / "facts.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def clients(self) -> Path:
        return self.path / "clients.csv"

    @property
    def outcome(self) -> Path:
        return self.path / "outcome.json"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.sqlite"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.bin"

    @property
    def key(self) -> Path:
        return self.path / "digest.key"

    def content(self) -> dict[str, Any]:
        """The configuration it was run with."""
        try:
            with storage(self.config):
                return tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StorageError(f"{self.config} is damaged ({error}): restore it from a backup") from error


def existing(path: Path | str) -> Folder:
    """The folder of a run that was started, or an error that says what is missing."""
    folder = Folder(Path(path))
    if not folder.path.is_dir():
        raise TacitError(f"there is no run at {folder.path}: give the folder that `tacit run` printed")
    if not folder.config.is_file():
        raise TacitError(f"{folder.path} is not the folder of a run: it holds no config.toml")
    return folder


def ledger_in(path: Path) -> Path:
    """The ledger in a folder, which is that of a run, of a federation's server or of a member; or the file itself."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise TacitError(f"there is no run at {path}: give the folder that `tacit run` printed")
    ledger = Folder(path).ledger
    if not ledger.is_file():
        raise TacitError(
            f"{path} holds no ledger.sqlite: give the folder of a run, or of a federation's server or member"
        )
    return ledger


def epochs_in(folder: Path) -> int | None:
    """How often a round of the run went over a client's rows; None in a member's folder, which does not know.

    As written by `tacit run`, by `tacit.train` or by a federation's server.
    """
    content = _content(folder)
    if content is None:
        return None
    if not isinstance(training := content.get("training"), dict):
        return int(content.get("epochs", 1))
    match = re.search(r"\bepochs=(\d+)", str(training.get("value")))  # put together in Python: the text of `Training`
    return int(match[1]) if match else None


def recomputed(lines: Sequence[Line]) -> list[str]:
    """A sentence about the accounts that an earlier version charged too little; none if there are none."""
    wrong = [(line.stated, line.epsilon) for line in lines if line.stated is not None]
    if not wrong:
        return []
    stated, right = (shown(max(each)) for each in zip(*wrong, strict=True))
    return [
        f"Earlier versions stated epsilon {stated} at most for {len(wrong):,} accounts of this run, and charged "
        f"several private gradients on one batch as if each had a batch of its own: the same releases cost {right}, "
        "which is what holds. `tacit ledger` has every account."
    ]


def _content(folder: Path) -> dict[str, Any] | None:
    """The experiment, or None if there is none, or none that can be read."""
    config, terms = folder / "config.toml", folder / "terms.json"
    try:
        if config.is_file():
            return tomllib.loads(config.read_text(encoding="utf-8"))
        if terms.is_file():
            return tomllib.loads(json.loads(terms.read_text(encoding="utf-8"))["experiment"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None
