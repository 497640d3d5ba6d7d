"""Atomic checkpoints: written beside, synced, renamed. What is there is whole, or it says that it is not."""

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from tacit.errors import StorageError, TacitError

_MAGIC = b"tacit-checkpoint-1\n"


@contextmanager
def storage(path: Path) -> Iterator[None]:
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


def save(path: Path, content: dict[str, Any]) -> None:
    """`content`: nested dicts of tensors, numbers and strings."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    write_atomically(path, _MAGIC + hashlib.sha256(body).digest() + body)


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote, to the bit; a clear error for anything else."""
    if not path.exists():
        raise TacitError(f"there is no checkpoint at {path}: start the run without resuming")
    with storage(path):
        data = path.read_bytes()
    head, digest, body = data[: len(_MAGIC)], data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head != _MAGIC or hashlib.sha256(body).digest() != digest:
        raise StorageError(f"the checkpoint {path} is damaged: restore it from a backup or start the run anew")
    return torch.load(io.BytesIO(body), weights_only=True)
