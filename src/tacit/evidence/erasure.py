"""Somebody leaves: what a member deletes on its own disk, with a receipt, and what stays.

Deleted are its personal models: the states of every run, the last broadcasts, keys of masked sums; with `rows` also its
copy of its data. The ledger stays, with the list of turns that it answered: they are the proof of what was spent, and
without them a returning member could spend its budget twice. Nothing recalls what was released: a model that others
have keeps what the member contributed, hidden to the degree that the ledger says.

A receipt names files and sizes and no hashes of their content, by which somebody could confirm a guess.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage, write_atomically
from tacit.errors import TacitError
from tacit.evidence import signing
from tacit.privacy.ledger.statement import statement
from tacit.report.integrity import open_ledger

RECEIPT: Final = "erasure.json"
FORMAT: Final = "tacit-erasure-1"


def erase(folder: Path, rows: bool = False) -> dict[str, Any]:
    """Deletes what a member's folder holds of personal models, and writes a signed receipt beside the ledger.

    Args:
        folder: the member's own, as `tacit join` made it.
        rows: also its copy of the data.

    Returns:
        The receipt: what was deleted, what was spent, and in which turns it had taken part.

    Raises:
        TacitError: if the folder is not a member's, or its ledger was changed.
    """
    if not (folder / "client.json").is_file():
        raise TacitError(f"{folder} is not the folder of a member: give the one that `tacit join` made")
    with open_ledger(folder) as ledger:
        answered, head = ledger.answered(), str(ledger.head())
        spent = {line.scope: line.words.partition(":")[0] for line in statement(ledger)}
    deleted = [_delete(path, folder) for path in sorted(_personal(folder, rows))]
    runs = {run: max(turn for name, turn in answered if name == run) for run in {run for run, _ in answered}}
    receipt: dict[str, Any] = {
        "format": FORMAT,
        "member": json.loads((folder / "client.json").read_text())["name"],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "deleted": deleted,
        "last_answered_turn": runs,
        "spent": spent,
        "ledger_head": head,
    }
    receipt["signature"] = signing.sign(signing.canonical(receipt), folder / "node.key")
    write_atomically(folder / RECEIPT, (json.dumps(receipt, indent=1, sort_keys=True) + "\n").encode())
    return receipt


def check_receipt(receipt: dict[str, Any], key: str) -> bool:
    """Whether the owner of this public key, as the federation's roster has it, signed the receipt as it is."""
    signature = receipt.get("signature", {})
    matches = str(signature.get("key", "")).split()[:2] == key.split()[:2]
    return matches and signing.signed(signing.canonical(receipt), signature)


def _personal(folder: Path, rows: bool) -> Iterator[Path]:
    for run in folder.glob("runs/*"):
        yield from (path for path in run.iterdir() if path.is_file())
    if rows and (folder / "rows.safetensors").is_file():
        yield folder / "rows.safetensors"


def _delete(path: Path, folder: Path) -> dict[str, Any]:
    with storage(path):
        size = path.stat().st_size
        path.unlink()
    return {"file": path.relative_to(folder).as_posix(), "bytes": size}
