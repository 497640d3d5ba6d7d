"""Checkpoints: what is there is whole, or it says that it is not."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError, TacitError

_MAGIC = b"tacit-checkpoint-1\n"


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
