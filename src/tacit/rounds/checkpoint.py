"""Checkpoints: what is there is whole, or it says that it is not."""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from tacit.core.contract import Server, Shared
from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError, TacitError
from tacit.privacy.ledger.chain import read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.round import Progress

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


def save_progress(path: Path, fingerprint: str, progress: Progress, ledger: Ledger, **more: Any) -> None:
    """Where a run stands. `fingerprint`: of its configuration. `more`: what one kind of run keeps beside it."""
    server = progress.server
    content = {
        "fingerprint": fingerprint,
        "round": progress.round,
        "model": server.view.model,
        "extra": server.view.extra,
        "memory": server.memory,
        "public": progress.public,
        "ledger": str(ledger.head()),
    }
    save(path, content | more)


def load_progress(path: Path, fingerprint: str, ledger: Ledger) -> tuple[Progress, dict[str, Any]]:
    """Where the run stood, and the whole content. Refuses another run's checkpoint, and a ledger older than it."""
    saved = load(path)
    if saved["fingerprint"] != fingerprint:
        raise TacitError(f"{path} belongs to another configuration: resume with the one it was started with")
    recognise(ledger, saved.get("ledger", ""), path)
    server = Server(Shared(saved["model"], saved["extra"]), saved["memory"])
    return Progress(saved["round"], server, saved["public"]), saved


def recognise(ledger: Ledger, head: str, path: Path | None) -> None:
    """Stops unless the ledger is whole and holds the head that was kept in the file at `path`."""
    ledger.check()
    if head and not ledger.holds(read_head(head)):
        raise TacitError(
            f"the ledger is older than {path}, or another one ({head.split(':')[0]} rows were there, now "
            f"{ledger.head().serial}): restore the newest copy of the whole folder"
        )
