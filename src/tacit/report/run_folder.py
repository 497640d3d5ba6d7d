"""Where the files of a run lie, and whether they are there."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.files import storage
from tacit.errors import StorageError, TacitError


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
    found = Folder(path).ledger
    if not found.is_file():
        raise TacitError(
            f"{path} holds no ledger.sqlite: give the folder of a run, or of a federation's server or member"
        )
    return found
