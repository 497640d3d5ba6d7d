"""Files that are whole or not there: written beside, synced, renamed."""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit.errors import StorageError, TacitError


@contextmanager
def storage(path: Path) -> Generator[None]:
    """Turns an operating system's refusal into one line with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"no space left to write {path}: free some and resume the run") from error
        raise StorageError(f"cannot use {path}: {error.strerror or error}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Afterwards `path` holds `data`, durably; or it holds what it held before and an error is raised."""
    beside = path.with_name(path.name + ".part")
    try:
        with storage(path):
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except StorageError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def check_output(path: Path, suffixes: Sequence[str], force: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuses to write where something else lies: over an input, over another kind of file, or, unless `force`, over
    anything.

    Raises:
        TacitError: says which file would be lost.
    """
    if path.suffix.lower() not in suffixes:
        raise TacitError(f"{path} would not be a {' or '.join(suffixes)} file: give a name that ends so")
    if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
        raise TacitError(f"{path} is also the input, which is never written over: give another file")
    if path.is_dir() or (path.exists() and not force):
        raise TacitError(f"{path} is there already: give another file, or --force")
